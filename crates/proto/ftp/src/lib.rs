// SPDX-License-Identifier: MIT OR Apache-2.0
//! Codec of the file transfer protocol: commands, replies, passive addresses and listings. No I/O.
//!
//! | source | what is here |
//! |---|---|
//! | RFC 959 | [`command`], [`Replies`], [`pasv`], [`pwd`] |
//! | RFC 2389 | [`Features`] |
//! | RFC 2428 | [`epsv`] |
//! | RFC 3659 | [`mlsx`], [`timestamp`], [`stamp`], [`Told`] |
//! | common practice | [`list`]: lines of LIST as servers on Unix and on Windows write them; [`TimeCommand`], [`chmod`], [`Features::mistakes`] |
//!
//! Bytes of a server are bounded: a line has at most [`LINE_MAX`] bytes, a reply at most [`REPLY_MAX`]. A listed name that could
//! lead elsewhere (`.`, `..`, with a slash or a control byte that the protocol cannot carry) is an error.
#![forbid(unsafe_code)]

mod control;
mod features;
mod listing;
mod passive;
mod time;
mod told;

pub use control::{Bad, LINE_MAX, REPLY_MAX, Replies, Reply, command, pwd};
pub use features::Features;
pub use listing::{Kind, Listed, list, mlsx};
pub use passive::{epsv, pasv};
pub use time::{Civil, TimeCommand, stamp, timestamp};
pub use told::{Told, chmod};
