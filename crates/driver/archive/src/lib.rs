// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read-only driver for archives: they are browsed and read in place, without being unpacked.
//!
//! An archive is recognised by its content ([`detect`]), opened from any [`Source`] of bytes ([`Archive::open`]) and
//! served by [`ArchiveDriver`]. A source may be a host file ([`HostFile`](outrigger_host::HostFile)), memory ([`MemSource`]), or a file in
//! another tree.
//!
//! # Formats
//!
//! | format | what is understood |
//! |---|---|
//! | tar | v7, ustar, star, GNU (long names, old sparse files, base-256 numbers), pax (global and local headers, sparse 0.0, 0.1 and 1.0, nanoseconds, `SCHILY.xattr.`, `LIBARCHIVE.xattr.`), devices, hard links to earlier and later entries |
//! | zip | zip64, data descriptors, programs in front; stored, deflate, bzip2, zstd, xz; Unix modes, links, owners and times; UTF-8 and code page 437 names |
//! | cpio | newc, crc, odc, binary of both byte orders, several in a row |
//! | ar | GNU and BSD names; a `.deb` shows its three members |
//! | any of these but zip in gzip, bzip2, xz or zstd | any number of members, streams or frames |
//! | any other file in one of those | one file, named as the archive without its suffix |
//!
//! Not understood: encrypted zip members (listed; reading them says so), split archives, thin ar archives, lzma, lz4,
//! 7z, rar. A compressed tar without entries is zeros like any other and shows as a single file.
//!
//! # The tree
//!
//! Leading slashes and `..` are resolved inside the tree, missing directories are made up, symbolic links are given
//! verbatim and never followed, and of entries with one name the last wins (a directory is not replaced by a file, nor
//! entered when it is a file or link). What was odd is counted in [`Archive::warnings`]. Directories list in archive
//! order, in which reading the files is fastest. Nodes are positions in the index: persistent as long as the archive
//! does not change.
//!
//! A damaged archive does not open: the error names the archive, the byte and the reason. With [`Options::partial`]
//! (`-o partial`) what comes before the damage is shown. A compressed archive is read to its end while it is indexed,
//! so its checksums have been verified once. The members of a zip are not read for that. The checksum of a compressed one is
//! compared while it is decoded from its beginning, and its end is not given if it differs. That of a stored one is compared
//! when all of it was read, in whatever order: the read that brings the last piece fails if it differs, and from then on each
//! read of this member. Of a member of which only parts are read nothing can be compared.
//!
//! # Index and cache
//!
//! One pass makes an index of 68 bytes and its name for each entry, and a little more for link targets, extended
//! attributes and sparse maps. The flat bytes it works from are also what is stored in the user's cache ([`CacheConfig`]),
//! so opening again is one read and one check. Building takes about twice the memory of the index.
//!
//! # Random reads
//!
//! Decompressed data is handled in blocks of 256 KiB; recent ones are cached ([`Limits::block_cache`], 32 MiB). Up to
//! three decoders stay where the last reads ended, so reading forwards decodes every byte once, also with several
//! readers. To read elsewhere a decoder starts at the last point before:
//!
//! | format | points | cost of a point | decoder memory |
//! |---|---|---|---|
//! | gzip, deflate | a block boundary every 2 MiB or more, at most 1024 | the 32 KiB window, compressed | 180 KiB |
//! | bzip2 | every block (900 kB) | 20 bytes | 4 MiB |
//! | xz | every block in the file's own index | none | the dictionary, 8 MiB at `-6` |
//! | zstd | every frame, 512 KiB apart or more | 20 bytes | the window, 8 MiB at `-19` |
//!
//! One long xz block or zstd frame has no points: the state of a decoder is megabytes and cannot be taken out of
//! the libraries. Instead, once reads have decoded more than 8 MiB (xz), 16 MiB (zstd) or 4 MiB (bzip2) only to get
//! somewhere, all blocks decoded are stored, packed with zstd, in a file beside the index. Thus random access costs at
//! most about one more pass over the archive, and later openings start where the earlier one ended. Without a cache
//! directory nothing is stored.
//!
//! Memory of an open archive: index + block cache + three decoders, each bounded by [`Limits::decoder_memory`]; in a
//! zip, three decoders for each of the 16 members last read.
//!
//! # Choice of libraries
//!
//! * `miniz_oxide`: stops at block boundaries and restarts from a window; the safe interface of zlib-rs does neither.
//! * `bzip2` (a port of libbzip2 to Rust): blocks are cut out of the stream here and decoded alone.
//! * `liblzma`, `zstd`: the reference decoders, fast and with memory limits.
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
mod files;
mod index;
mod limits;
mod node;
mod options;
mod pax;
mod pieces;
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
pub use files::unserved;
pub use index::{Warning, Warnings};
pub use limits::{CacheConfig, Limits, Options, Progress, Unwatched, Watch};
pub use node::ArchiveDriver;
pub use options::{DRIVER, OPTIONS};
pub use source::{Identity, MemSource, ReadAt, Source};
