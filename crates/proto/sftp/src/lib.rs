// SPDX-License-Identifier: MIT OR Apache-2.0
//! Codec of the SSH file transfer protocol, version 3, with OpenSSH's extensions.
//!
//! Version 3 (draft-ietf-secsh-filexfer-02) is what nearly every server speaks; OpenSSH describes its extensions in its
//! file `PROTOCOL`. This crate turns the bytes of packets into Rust values and back, in both roles. It does no I/O.
//!
//! * [`Request`] is what a client asks: the requests of the draft, the extended ones of OpenSSH, and the first packet of a
//!   connection. Names and content borrow from the packet.
//! * [`Reply`] is what a server answers. Content shares the packet's buffer: nothing is copied.
//! * [`Extensions`] says which extended requests a server understands in the form this crate encodes them.
//!
//! # Packets
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | how many bytes follow |
//! | 4 | the kind of packet |
//! | 5..9 | the number of the request, which its reply repeats; in the first two packets the version |
//! | 9.. | fields: integers in network byte order, strings after their length |
//!
//! [`packet_len`] tells from the first bytes how long a packet is. Encoding writes whole packets; decoding takes them
//! without the first four bytes.
//!
//! Decoding never panics, never allocates more than the packet justifies, and ignores what follows the fields it knows, as
//! servers of other versions may send.
#![forbid(unsafe_code)]

mod attrs;
mod cursor;
mod extension;
mod reply;
mod request;
mod status;

pub use attrs::{Attrs, Owner, Times};
pub use cursor::DecodeError;
pub use extension::{Extensions, Limits, PersonNames, StatVfs};
pub use reply::{Named, Reply, Status, Version};
pub use request::{OpenFlags, Request, write_head};
pub use status::StatusCode;

/// The version this crate speaks.
pub const VERSION: u32 = 3;

/// The bytes before the fields of a packet: its length, its kind, its number.
pub const HEAD: usize = 9;

/// The longest packet that is accepted, its length field included, in bytes.
///
/// OpenSSH neither sends nor takes more than 256 KiB; other servers are allowed some slack.
pub const PACKET_MAX: usize = 1 << 20;

/// The whole length of the packet that begins with `head`, in bytes; `None` while its length field is not complete.
///
/// # Errors
/// [`DecodeError::Length`] for a packet that is longer than [`PACKET_MAX`] or too short to have a kind and a number.
pub fn packet_len(head: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Some((length, _)) = head.split_first_chunk() else { return Ok(None) };
    let whole = 4 + u32::from_be_bytes(*length) as usize;
    if (HEAD..=PACKET_MAX).contains(&whole) { Ok(Some(whole)) } else { Err(DecodeError::Length(whole)) }
}

/// The number of a request or reply, from the whole packet; `None` when it is too short to have one.
pub fn number(packet: &[u8]) -> Option<u32> {
    packet.get(5..HEAD).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
}

/// Gives the request in the whole packet `packet` another number.
///
/// # Panics
/// When it is shorter than [`HEAD`].
pub fn set_number(packet: &mut [u8], number: u32) {
    packet[5..HEAD].copy_from_slice(&number.to_be_bytes());
}
