// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies put together from the messages they arrive in.
//!
//! A program that writes its reply with splice(2) sends it in pieces of a few pages. What follows a beginning belongs to
//! it, unless it reads as a reply to a request of ours: their numbers are secret enough that content of files cannot look
//! like one. When two replies arrive in pieces at the same time, nobody can tell whose piece is
//! whose: both requests fail with [`GARBLED`], and asking one after the other helps.

use crate::message::Replied;
use bytes::{Bytes, BytesMut};
use outrigger_core::Errno;
use outrigger_proto_fuse::OutHeader;
use rustix::io::Errno as Failure;
use rustix::net::{RecvFlags, recv};
use std::os::fd::OwnedFd;

/// In place of an errno: the reply's pieces were mixed with those of another.
pub(crate) const GARBLED: i32 = -1;
/// The kernel's own errors begin here; programs must not answer them (`fuse_dev_do_write`).
const INTERNAL_ERRORS: i32 = 512;
/// Replies from this many bytes on are handed out in the memory they were received in. Smaller ones are copied, so that
/// who keeps them keeps little.
const SHARE_FROM: usize = 16 << 10;

/// Replies in pieces at once: as many as there are requests in flight.
const MOST_BEGUN: usize = 128;

/// What a message completed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Nothing yet.
    Part,
    /// The reply to a request.
    Reply { unique: u64, reply: Replied },
    /// A notification.
    Notice { code: i32, body: Bytes },
}

/// Receives messages.
pub(crate) struct Assembly {
    buffer: BytesMut,
    limit: usize,
    /// Replies of which a piece is there: their headers and what arrived.
    begun: Vec<OutHeader>,
    pieces: Vec<u8>,
    /// Replies that were complete when the pieces were sorted out.
    garbled: Vec<u64>,
}

impl Assembly {
    /// For messages of up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Assembly {
            buffer: BytesMut::with_capacity(limit),
            limit,
            begun: Vec::new(),
            pieces: Vec::new(),
            garbled: Vec::new(),
        }
    }

    /// Waits for a message: its length, which [`Assembly::add`] wants; 0 at the end of the connection.
    ///
    /// # Errors
    /// Of recv(2).
    pub(crate) fn receive(&mut self, socket: &OwnedFd) -> Result<usize, Failure> {
        self.buffer.clear();
        // Takes the memory back when nobody keeps the reply before.
        self.buffer.reserve(self.limit);
        let room = &mut self.buffer.spare_capacity_mut()[..self.limit];
        let ((received, _), length) = recv(socket, room, RecvFlags::TRUNC)?;
        let received = received.len();
        // SAFETY: so many bytes of the spare capacity were just written.
        unsafe { self.buffer.set_len(received) };
        Ok(length)
    }

    /// Takes the message of `length` bytes that was received.
    ///
    /// # Errors
    /// What is wrong with a message that no program sends.
    pub(crate) fn add(
        &mut self,
        length: usize,
        is_ours: impl Fn(u64) -> bool,
    ) -> Result<Arrived, &'static str> {
        if length > self.limit {
            return Err("the program sent a message longer than was asked for");
        }
        let header = OutHeader::decode(&self.buffer).ok().map(|(header, _)| header);
        if let Some(header) = header.filter(|header| header.len as usize == length) {
            if header.unique == 0 && self.begun.is_empty() {
                return Ok(Arrived::Notice { code: header.error, body: self.body() });
            }
            if self.begun.is_empty() || is_ours(header.unique) {
                return Ok(Arrived::Reply { unique: header.unique, reply: self.reply(&header) });
            }
        }
        match header {
            Some(header) if self.is_beginning(&header, length) && is_ours(header.unique) => {
                if self.begun.len() == MOST_BEGUN {
                    return Err("the program began more replies than it was asked for");
                }
                self.begun.push(header);
            }
            _ if self.begun.is_empty() => return Err("the program sent something that is no reply"),
            _ => {}
        }
        self.pieces.extend_from_slice(&self.buffer);
        self.sort_out()
    }

    fn is_beginning(&self, header: &OutHeader, length: usize) -> bool {
        header.error == 0 && header.len as usize > length && header.len as usize <= self.limit
    }

    /// Gives a reply whose pieces are all there.
    fn sort_out(&mut self) -> Result<Arrived, &'static str> {
        let expected: usize = self.begun.iter().map(|header| header.len as usize).sum();
        if self.pieces.len() > expected {
            return Err("the program sent more than its reply's length says");
        }
        if self.pieces.len() < expected {
            return Ok(Arrived::Part);
        }
        let pieces = std::mem::take(&mut self.pieces);
        let begun = std::mem::take(&mut self.begun);
        match &begun[..] {
            [header] => {
                let body = Bytes::from(pieces).slice(OutHeader::SIZE..);
                Ok(Arrived::Reply { unique: header.unique, reply: Replied { errno: 0, body } })
            }
            _ => {
                self.garbled.extend(begun.iter().map(|header| header.unique));
                Ok(Arrived::Part)
            }
        }
    }

    /// A reply that was garbled, for as long as there are some.
    pub(crate) fn garbled(&mut self) -> Option<u64> {
        self.garbled.pop()
    }

    fn reply(&mut self, header: &OutHeader) -> Replied {
        let errno = match header.error {
            0 => return Replied { errno: 0, body: self.body() },
            error if -INTERNAL_ERRORS < error && error < 0 => -error,
            _ => Errno::EIO.0,
        };
        Replied { errno, body: Bytes::new() }
    }

    /// What follows the header: a copy of little, the buffer itself of much.
    fn body(&mut self) -> Bytes {
        if self.buffer.len() < SHARE_FROM {
            Bytes::copy_from_slice(&self.buffer[OutHeader::SIZE..])
        } else {
            self.buffer.split().freeze().slice(OutHeader::SIZE..)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize, unique: u64, body: &[u8]) -> Vec<u8> {
        let header = OutHeader { len: len as u32, error: 0, unique };
        [&header.encode()[..], body].concat()
    }

    fn add(assembly: &mut Assembly, message: &[u8]) -> Result<Arrived, &'static str> {
        assembly.buffer.clear();
        assembly.buffer.extend_from_slice(message);
        assembly.add(message.len(), |unique| unique < 100)
    }

    fn reply(unique: u64, body: &'static [u8]) -> Result<Arrived, &'static str> {
        Ok(Arrived::Reply { unique, reply: Replied { errno: 0, body: Bytes::from_static(body) } })
    }

    #[test]
    fn pieces_are_joined_and_other_replies_pass_between_them() {
        let mut assembly = Assembly::new(4096);
        assert_eq!(add(&mut assembly, &message(22, 2, b"abc")), Ok(Arrived::Part));
        assert_eq!(add(&mut assembly, &message(17, 4, b"x")), reply(4, b"x"));
        assert_eq!(add(&mut assembly, b"def"), reply(2, b"abcdef"));
    }

    #[test]
    fn content_that_looks_like_a_reply_to_nobody_is_content() {
        let mut assembly = Assembly::new(4096);
        let fake = message(17, 12345, b"x");
        assert_eq!(add(&mut assembly, &message(16 + 17, 2, b"")), Ok(Arrived::Part));
        let Ok(Arrived::Reply { unique: 2, reply }) = add(&mut assembly, &fake) else { panic!() };
        assert_eq!(reply.body, fake);
    }

    #[test]
    fn two_replies_in_pieces_at_once_are_garbled() {
        let mut assembly = Assembly::new(4096);
        assert_eq!(add(&mut assembly, &message(18, 2, b"a")), Ok(Arrived::Part));
        assert_eq!(add(&mut assembly, &message(18, 4, b"b")), Ok(Arrived::Part));
        assert_eq!(add(&mut assembly, b"c"), Ok(Arrived::Part));
        assert_eq!(assembly.garbled(), None);
        assert_eq!(add(&mut assembly, b"d"), Ok(Arrived::Part));
        let mut both = [assembly.garbled().unwrap(), assembly.garbled().unwrap()];
        both.sort_unstable();
        assert_eq!(both, [2, 4]);
        assert_eq!(add(&mut assembly, &message(17, 4, b"x")), reply(4, b"x"), "and the next one is read");
    }

    #[test]
    fn nonsense_is_refused() {
        for nonsense in [&b"short"[..], &message(99, 12345, b""), &message(5000, 2, b"")] {
            assert!(add(&mut Assembly::new(4096), nonsense).is_err(), "{nonsense:?}");
        }
        let mut assembly = Assembly::new(4096);
        assert_eq!(add(&mut assembly, &message(18, 2, b"a")), Ok(Arrived::Part));
        assert!(add(&mut assembly, b"too much").is_err());
    }

    #[test]
    fn beginnings_without_end_are_refused() {
        let mut assembly = Assembly::new(4096);
        for _ in 0..MOST_BEGUN {
            assert_eq!(add(&mut assembly, &message(4096, 2, b"")), Ok(Arrived::Part));
        }
        assert!(add(&mut assembly, &message(4096, 2, b"")).is_err());
    }
}
