// SPDX-License-Identifier: MIT OR Apache-2.0
//! Codec of the FUSE kernel protocol, versions 7.31 to 7.45.
//!
//! The kernel and a file-system server exchange messages over `/dev/fuse` (Linux `uapi/linux/fuse.h`). This
//! crate turns the bytes of such messages into Rust values and back, in both roles: a server decodes requests
//! and encodes replies, a supervisor that plays the kernel for another program encodes requests and decodes
//! replies. It does no I/O.
//!
//! * [`Request::decode`] takes one message from the device and gives its [`InHeader`], [`Operation`] and
//!   extensions. Names and data borrow from the message: nothing is copied.
//! * The fixed structures ([`EntryOut`], [`AttrOut`], [`WriteIn`], ...) each have a `SIZE`, a `decode` and an
//!   `encode` to an array, with the byte offset of every field written next to it.
//! * [`DirBuf`] packs directory entries into a bounded reply; [`Dirents`] and [`DirentsPlus`] read them.
//! * [`Notification`] covers everything a server may send unasked, up to `FUSE_NOTIFY_PRUNE` of 7.45.
//! * [`InitIn`] and [`InitOut`] negotiate; the result that decoding depends on is a [`Dialect`].
//!
//! Integers are in the byte order of the machine, as the protocol wants. Decoding never panics: a message that
//! is too short, lies about its length or lacks a terminator is a [`DecodeError`].
//!
//! Limits: the DAX requests (`SETUPMAPPING`, `REMOVEMAPPING`) are decoded so that they can be refused by name;
//! character devices in user space (CUSE) are not covered.
#![forbid(unsafe_code)]

pub mod dirent;
pub mod extension;
mod flags;
mod header;
pub mod init;
mod input;
mod layout;
pub mod notify;
mod opcode;
mod output;
mod request;

pub mod device;

pub use dirent::{DirBuf, Dirent, Dirents, DirentsPlus, dirent_size, direntplus_size};
pub use extension::{Extension, Extensions, Groups};
pub use flags::{
    ATTR_SUBMOUNT, FSYNC_FDATASYNC, GETATTR_FH, InitFlags, IoctlFlags, LK_FLOCK, OPEN_KILL_SUIDGID,
    OpenFlags, POLL_SCHEDULE_NOTIFY, READ_LOCKOWNER, RELEASE_FLOCK_UNLOCK, RELEASE_FLUSH,
    SETXATTR_ACL_KILL_SGID, SetattrValid, WriteFlags,
};
pub use header::{InHeader, OutHeader, ROOT_ID, UNIQUE_RESEND};
pub use init::{Dialect, InitIn, InitOut, MAJOR, MIN_MINOR, MINOR, Negotiation, negotiate};
pub use input::*;
pub use layout::DecodeError;
pub use notify::{Notification, NotifyCode};
pub use opcode::Opcode;
pub use output::*;
pub use request::{Forgets, Operation, Request, encode_request};

/// Smallest read buffer the kernel accepts, in bytes (`FUSE_MIN_READ_BUFFER`).
pub const MIN_READ_BUFFER: usize = 8192;
