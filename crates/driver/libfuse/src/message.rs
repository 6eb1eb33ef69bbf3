// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests on their way to the program, and what comes back.

use bytes::Bytes;
use outrigger_core::{Errno, Error};
use outrigger_proto_fuse::{DecodeError, InHeader, Opcode};
use std::sync::Arc;

/// On whose behalf the program is asked; zeroes when we ask ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// A request without its number: header and arguments in one piece, content that is not copied in another.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) opcode: Opcode,
    node: u64,
    head: Vec<u8>,
    pub(crate) data: Bytes,
}

impl Message {
    /// A request about the program's node `node`, without arguments yet.
    pub(crate) fn new(opcode: Opcode, node: u64) -> Self {
        let mut head = Vec::with_capacity(InHeader::SIZE + 128);
        head.resize(InHeader::SIZE, 0);
        Message { opcode, node, head, data: Bytes::new() }
    }

    /// Adds fixed arguments.
    pub(crate) fn with(mut self, bytes: &[u8]) -> Self {
        self.head.extend_from_slice(bytes);
        self
    }

    /// Adds a name and its terminator.
    pub(crate) fn name(self, name: &[u8]) -> Self {
        self.with(name).with(&[0])
    }

    /// Adds content at the end.
    pub(crate) fn data(mut self, data: Bytes) -> Self {
        self.data = data;
        self
    }

    /// Bytes of the whole message.
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.data.len()
    }

    /// Fills in the header and gives everything but the content.
    pub(crate) fn seal(&mut self, unique: u64, caller: Caller) -> &[u8] {
        let header = InHeader {
            len: u32::try_from(self.len()).unwrap_or(u32::MAX),
            opcode: self.opcode as u32,
            unique,
            nodeid: self.node,
            uid: caller.uid,
            gid: caller.gid,
            pid: caller.pid,
            total_extlen: 0,
        };
        self.head[..InHeader::SIZE].copy_from_slice(&header.encode());
        &self.head
    }
}

/// A reply: an error number, or zero and what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replied {
    pub(crate) errno: i32,
    pub(crate) body: Bytes,
}

/// The connection ended before the reply came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Whether the program may have seen the request.
    pub(crate) sent: bool,
    /// Whether it cannot be the reason: the program answered something else after it was sent, or was ended on purpose.
    pub(crate) innocent: bool,
    /// What ended the connection.
    pub(crate) why: Arc<str>,
}

/// Why an attempt has no result.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The program is gone: try again with its successor.
    Lost(Lost),
    /// The answer is an error.
    Failed(Error),
}

impl Fault {
    /// The errno of an answer that is an error.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Fault::Lost(_) => None,
            Fault::Failed(error) => Some(error.errno),
        }
    }
}

impl From<Lost> for Fault {
    fn from(lost: Lost) -> Self {
        Fault::Lost(lost)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Failed(error)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Fault::Failed(errno.into())
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Fault::Failed(Errno::EIO.because(format!("the program's reply cannot be read: {error}")))
    }
}
