// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a program, as they are received.
//!
//! Each is whole: a program writes a reply with one system call, and cannot splice it (see [`crate::launch`]).

use crate::message::Replied;
use bytes::{Bytes, BytesMut};
use outrigger_core::Errno;
use outrigger_proto_fuse::OutHeader;
use rustix::io::Errno as Failure;
use rustix::net::{RecvFlags, recv};
use std::os::fd::OwnedFd;

/// The kernel's own errors begin here; programs must not answer them (`fuse_dev_do_write`).
const INTERNAL_ERRORS: i32 = 512;
/// Replies from this many bytes on are handed out in the memory they were received in. Smaller ones are copied, so that
/// keeping them takes little memory.
const SHARE_FROM: usize = 16 << 10;

/// What has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// The reply to a request.
    Reply { unique: u64, reply: Replied },
    /// A notification.
    Notice { code: i32, body: Bytes },
}

/// Receives messages.
pub(crate) struct Inbox {
    buffer: BytesMut,
    limit: usize,
}

impl Inbox {
    /// For messages of up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Inbox { buffer: BytesMut::with_capacity(limit), limit }
    }

    /// Waits for a message: its length, which [`Inbox::add`] wants; 0 at the end of the connection.
    ///
    /// # Errors
    /// Of recv(2).
    pub(crate) fn receive(&mut self, socket: &OwnedFd) -> Result<usize, Failure> {
        self.buffer.clear();
        // Takes the memory back when the reply before is not in use any more.
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
    pub(crate) fn add(&mut self, length: usize) -> Result<Arrived, &'static str> {
        if length > self.limit {
            return Err("the program sent a message longer than was asked for");
        }
        let header = OutHeader::decode(&self.buffer).ok().map(|(header, _)| header);
        let header = header.filter(|header| header.len as usize == length);
        let header = header.ok_or("the program sent something that is no reply")?;
        Ok(match header.unique {
            0 => Arrived::Notice { code: header.error, body: self.body() },
            unique => Arrived::Reply { unique, reply: self.reply(&header) },
        })
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

    fn add(message: &[u8]) -> Result<Arrived, &'static str> {
        let mut inbox = Inbox::new(4096);
        inbox.buffer.extend_from_slice(message);
        inbox.add(message.len())
    }

    #[test]
    fn replies_and_notices_are_distinguished() {
        let reply = Replied { errno: 0, body: Bytes::from_static(b"x") };
        assert_eq!(add(&message(17, 4, b"x")), Ok(Arrived::Reply { unique: 4, reply }));
        let notice = Arrived::Notice { code: 0, body: Bytes::from_static(b"x") };
        assert_eq!(add(&message(17, 0, b"x")), Ok(notice));
    }

    #[test]
    fn nonsense_is_refused() {
        for nonsense in [&b"short"[..], &message(99, 2, b""), &message(16, 2, b"x"), &[0; 5000]] {
            assert!(add(nonsense).is_err(), "{nonsense:?}");
        }
    }
}
