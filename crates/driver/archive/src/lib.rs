// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read-only driver for archives.
#![forbid(unsafe_code)]

mod ar;
mod archive;
mod blocks;
mod cache;
mod cpio;
mod cursor;
mod decode;
mod detect;
mod entry;
mod error;
mod index;
mod limits;
mod node;
mod pax;
mod seek;
mod source;
mod sparse;
mod spill;
mod tar;
mod tree;
mod zip;

pub use archive::Archive;
pub use decode::Codec;
pub use detect::{Format, Layout, detect};
pub use entry::Time;
pub use error::{Error, Kind, Result};
pub use index::{Warning, Warnings};
pub use limits::{CacheConfig, Limits, Options, Progress, Unwatched, Watch};
pub use node::ArchiveDriver;
pub use source::{FileSource, Identity, MemSource, ReadAt, Source};
