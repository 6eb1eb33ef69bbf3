// SPDX-License-Identifier: MIT OR Apache-2.0
//! Codec of 9P, the protocol of Plan 9's file servers: 9P2000, and its dialects 9P2000.u and 9P2000.L.
//!
//! 9P2000 is what section 5 of Plan 9's manual describes. 9P2000.L, the dialect of Linux, has its own requests for what Linux's VFS
//! asks, and errors that are Linux' numbers; 9P2000.u adds fields for Unix to messages of 9P2000. This crate turns the bytes of
//! messages into Rust values and back, in both roles. It does no I/O.
//!
//! * [`Request`] is what a client asks (`T` messages), [`Reply`] what a server answers (`R` messages). Each has a struct of its own;
//!   [`Call`] ties a request to its reply.
//! * [`Dialect`] says which fields there are: it is what both sides agree on by [`Tversion`].
//! * Strings and content share the buffer of the message: nothing is copied.
//!
//! # Messages
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | how long the message is, with these bytes |
//! | 4 | the kind of message |
//! | 5..7 | the tag of the request, which its reply repeats |
//! | 7.. | fields: integers with the low byte first, strings after their length in two bytes |
//!
//! [`frame_len`] tells from the first bytes how long a message is. Encoding writes whole messages, and decoding takes whole ones.
//! Decoding never panics, never allocates more than the message justifies, and ignores what follows the fields it knows.
#![forbid(unsafe_code)]

mod dirent;
mod field;
mod flags;
mod messages;
mod types;

pub use dirent::{Entry, entries, put_entry, stats};
pub use field::{DecodeError, Dialect, List, Text};
pub use flags::{AttrMask, LockStatus, LockType, QidKind, SetMask, UNLINK_DIRECTORY};
pub use messages::*;
pub use types::{Attrs, Lock, Qid, SetAttrs, Space, Stat, Timespec};

/// The bytes before the fields of a message: its length, its kind, its tag.
pub const HEAD: usize = 7;
/// The tag of [`Tversion`], which no other request has.
pub const NO_TAG: u16 = !0;
/// The fid that stands for none.
pub const NO_FID: u32 = !0;
/// The user number that stands for none.
pub const NO_UID: u32 = !0;
/// The most names in one [`Twalk`].
pub const WALK_MAX: usize = 16;
/// What a [`Twrite`] or an [`Rread`] has beside its content at most, in bytes: msize is that and the content.
pub const IO_HEAD: u32 = 24;

/// The whole length of the message that begins with `head`, in bytes; `None` while its length field is not complete.
///
/// # Errors
/// [`DecodeError::Length`] for a message that is longer than `max`, or too short to have a kind and a tag.
pub fn frame_len(head: &[u8], max: usize) -> Result<Option<usize>, DecodeError> {
    let Some((length, _)) = head.split_first_chunk() else { return Ok(None) };
    let whole = u32::from_le_bytes(*length) as usize;
    if (HEAD..=max).contains(&whole) { Ok(Some(whole)) } else { Err(DecodeError::Length(whole)) }
}

/// The tag of a whole message; `None` when it is too short to have one.
pub fn tag(message: &[u8]) -> Option<u16> {
    message.get(5..HEAD).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes)
}

/// Gives a whole message another tag; one that is too short stays as it is.
pub fn set_tag(message: &mut [u8], tag: u16) {
    if let Some(place) = message.get_mut(5..HEAD) {
        place.copy_from_slice(&tag.to_le_bytes());
    }
}
