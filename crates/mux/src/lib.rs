// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many requests at once over one connection, for any protocol whose requests have numbers.
//!
//! What the clients of SFTP, 9P and NFS have in common: cutting a stream into frames, matching replies that come in any
//! order with those who wait for them, keeping the connection full without letting it clog, and releasing everybody when it
//! is lost. The protocol itself is a [`Protocol`] of three small methods. (puffs called this the framebuf.)
//!
//! | a request is sent with | and its reply |
//! |---|---|
//! | [`Mux::call`] | is awaited; dropping the future takes the request back, or lets its reply go unread |
//! | [`Mux::call_then`] | is given to a function, which is called exactly once in any case |
//! | [`Mux::send`] | is received and dropped |
//! | [`Framed::send`] | is awaited with [`Framed::receive`], before there are numbers: greetings |
//!
//! # Promises
//!
//! * **Every caller is answered.** When the connection ends, each caller that waits gets [`Error::Lost`], which tells whether the
//!   request had been sent; later callers get it at once.
//! * **Nothing waits for ever.** A request is given up when nothing has come from the other side for as long as its patience,
//!   and in any case after four times that: a slow connection is not a dead one. One that was not sent is given up when
//!   nothing could be sent either. The silence before a request does not count.
//! * **Memory is bounded** by [`Limits`]: a caller that asks for more waits for room, which requests that are given up make. When as
//!   many of those as are allowed at once stay without an answer, the connection ends. A frame longer than the protocol
//!   allows ends it before it is read.
//! * **Small requests are quick while much data moves.** [`Lane::First`] goes before [`Lane::Bulk`], and no more of the
//!   latter is on its way than keeps the connection busy (see [`Mux::chunk`] and the module `window`).
//! * **Order.** Requests of one lane leave in the order in which they were asked.
//!
//! It starts no thread and no task: the maker of a [`Mux`] runs its [`Connection`], a future that ends with the connection.
//! Calls may be made from any thread, also outside of tokio.
#![forbid(unsafe_code)]

mod connection;
mod framed;
mod mux;
mod state;
mod window;

pub use connection::Connection;
pub use framed::Framed;
pub use mux::Mux;

use bytes::{Bytes, BytesMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A protocol whose frames say how long they are, and whose replies repeat the number of their request.
pub trait Protocol: Send + Sync + 'static {
    /// The whole length of the frame that begins with `head`, in bytes; `None` when more of it is needed to tell.
    ///
    /// # Errors
    /// What is wrong with the frame; it ends the connection. A frame that is too long must be refused here.
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String>;

    /// The number in a whole frame; `None` when there is none, which ends the connection.
    fn tag(&self, frame: &[u8]) -> Option<u32>;

    /// Puts a number into the head of a request. Numbers are given out in order, and this is called in that order, before
    /// the request is written.
    fn set_tag(&self, head: &mut [u8], tag: u32);

    /// The last number that was given out on this connection by others, a former process above all.
    fn last_tag(&self) -> u32 {
        0
    }

    /// A reply to nothing that was asked here: whether it is to be dropped. Otherwise it ends the connection.
    fn is_stray(&self, _frame: &[u8]) -> bool {
        false
    }

    /// What tells the other side that the reply to the request with this number, which was sent, is not wanted any more; nothing where
    /// the protocol has no such message. It is sent as a request of its own, and its reply is dropped.
    fn take_back(&self, _tag: u32) -> Option<BytesMut> {
        None
    }

    /// The number of another request that this reply ends: none follows to that. Asked before [`Protocol::tag`].
    fn also_ends(&self, _frame: &[u8]) -> Option<u32> {
        None
    }

    /// A frame of this length was received, and given to the caller that waits for it.
    fn taken(&self, _len: usize) {}
}

/// A request.
#[derive(Debug)]
pub struct Frame {
    /// Its beginning, with a place for the number.
    pub head: BytesMut,
    /// What follows, without a copy; often nothing.
    pub body: Bytes,
    /// How it is sent.
    pub lane: Lane,
    /// It is sent only if this is still held when its turn comes; otherwise it fails with [`Error::Lost`].
    pub wanted: Option<Weak<()>>,
}

/// Which requests go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Before all others: small, and a caller waits for it.
    First,
    /// After those, and not too many at once: it moves this many bytes of content, in either direction.
    Bulk(usize),
}

/// Bounds of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests that wait for a reply or for being sent. More wait for room.
    pub requests: usize,
    /// Bytes of content of all those in [`Lane::Bulk`]. More wait for room.
    pub bytes: usize,
    /// How long the other side may be silent while it owes a reply.
    pub patience: Duration,
}

impl Default for Limits {
    /// 1024 requests, 32 MiB of content, 30 s.
    fn default() -> Self {
        Limits { requests: 1024, bytes: 32 << 20, patience: Duration::from_secs(30) }
    }
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection ended.
    #[error("{why}")]
    Lost {
        /// How.
        why: Arc<str>,
        /// Whether the request may have reached the other side.
        sent: bool,
    },
    /// No reply came in time; it may still come, and is dropped then.
    #[error("no answer for {} s", tenths(*.after))]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
        /// Whether the request may have reached the other side.
        sent: bool,
    },
}

/// Seconds as people read them.
fn tenths(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

impl Error {
    /// Whether the request may have reached the other side.
    pub fn was_sent(&self) -> bool {
        match self {
            Error::Lost { sent, .. } | Error::TimedOut { sent, .. } => *sent,
        }
    }
}

impl Frame {
    /// A small request.
    pub fn first(head: BytesMut) -> Self {
        Frame { head, body: Bytes::new(), lane: Lane::First, wanted: None }
    }

    /// A request that moves `bytes` bytes of content; those it brings along itself are in `body`.
    pub fn bulk(head: BytesMut, body: Bytes, bytes: usize) -> Self {
        Frame { head, body, lane: Lane::Bulk(bytes), wanted: None }
    }

    fn bulk_bytes(&self) -> usize {
        match self.lane {
            Lane::First => 0,
            Lane::Bulk(bytes) => bytes,
        }
    }
}
