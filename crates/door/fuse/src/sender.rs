// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing replies to the device.
use crate::call::ask;
use crate::notify;
use crate::session::Shared;
use crate::shape::Shape;
use crate::splice::FileSender;
use bytes::Bytes;
use outrigger_core::{Errno, Error, Node, Payload, Reply, Request, ops};
use outrigger_proto_fuse::{InHeader, InitOut, Opcode, OutHeader};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Room for the fixed part of every reply.
const OUT_CAPACITY: usize = 4096;
/// More parts than this are joined first (`IOV_MAX` is 1024).
const MAX_PARTS: usize = 1000;

/// Builds and sends replies; one for each thread, so that its memory is used again.
pub(crate) struct ReplySender {
    out: Vec<u8>,
    files: FileSender,
}

impl ReplySender {
    pub(crate) fn new(splice: bool) -> Self {
        Self { out: Vec::with_capacity(OUT_CAPACITY), files: FileSender::new(splice) }
    }

    /// Sends the reply to a request.
    pub(crate) fn reply(&mut self, shared: &Arc<Shared>, header: &InHeader, shape: Shape, reply: Reply) {
        self.out.clear();
        self.out.resize(OutHeader::SIZE, 0);
        let sent = match shared.view.write(shape, reply, &shared.backings, &mut self.out) {
            Ok(tail) => {
                let outdated = tail.opened.filter(|&node| shared.notifier.has_yet_to_invalidate(node));
                if let Some(node) = tail.changed.or(outdated) {
                    notify::forget_attributes(&shared.device, node);
                }
                let sent = self.send(shared, header.unique, tail.data);
                for node in tail.forgotten {
                    self.forget(shared, header, node);
                }
                sent
            }
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            shared.counters.failure(header.opcode, header.nodeid, &error);
            self.error(shared, header, error.errno);
        }
    }

    /// Sends what was built, followed by `data`. An error here means that the data could not be had.
    fn send(&mut self, shared: &Shared, unique: u64, data: Option<Payload>) -> Result<(), Error> {
        let sent = match data {
            None => self.send_parts(shared, unique, &[]),
            Some(Payload::Bytes(bytes)) => self.send_parts(shared, unique, &[bytes]),
            Some(Payload::Chunks(chunks)) if chunks.len() < MAX_PARTS => {
                self.send_parts(shared, unique, &chunks)
            }
            Some(Payload::File(slice)) if self.out.len() == OutHeader::SIZE => {
                self.files.send(&shared.device, unique, &slice)?
            }
            Some(payload) => self.send_parts(shared, unique, &[payload.into_bytes()?]),
        };
        if let Err(error) = sent {
            self.not_sent(shared, unique, &error);
        }
        Ok(())
    }

    fn send_parts(&mut self, shared: &Shared, unique: u64, data: &[Bytes]) -> io::Result<()> {
        let len: usize = data.iter().map(Bytes::len).sum();
        let body = self.out.len() - OutHeader::SIZE + len;
        self.out[..OutHeader::SIZE].copy_from_slice(&OutHeader::ok(unique, body).encode());
        match data {
            [] => shared.device.send(&[IoSlice::new(&self.out)]),
            [one] => shared.device.send(&[IoSlice::new(&self.out), IoSlice::new(one)]),
            many => {
                let parts: Vec<IoSlice<'_>> = std::iter::once(&self.out[..])
                    .chain(many.iter().map(|b| &b[..]))
                    .map(IoSlice::new)
                    .collect();
                shared.device.send(&parts)
            }
        }
    }

    pub(crate) fn init(&mut self, shared: &Shared, header: &InHeader, reply: &InitOut) {
        self.out.clear();
        self.out.resize(OutHeader::SIZE, 0);
        self.out.extend_from_slice(&reply.encode());
        if let Err(error) = self.send_parts(shared, header.unique, &[]) {
            tracing::error!(%error, "the kernel does not take the answer to INIT");
        }
    }

    pub(crate) fn error(&mut self, shared: &Shared, header: &InHeader, errno: Errno) {
        // The kernel takes no others.
        let number = if (1..512).contains(&errno.0) { errno.0 } else { Errno::EIO.0 };
        let reply = OutHeader::error(header.unique, number).encode();
        if let Err(error) = shared.device.send(&[IoSlice::new(&reply)]) {
            tracing::trace!(%error, "error reply not taken");
        }
    }

    /// The kernel refused a reply. Usually the request was interrupted; a malformed reply still owes an answer.
    #[cold]
    fn not_sent(&mut self, shared: &Shared, unique: u64, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EPERM | libc::ENOTCONN) => {
                tracing::trace!(%error, unique, "reply not taken");
            }
            _ => {
                tracing::error!(%error, unique, "the kernel refuses a reply");
                self.error(shared, &InHeader { unique, ..InHeader::default() }, Errno::EIO);
            }
        }
    }

    /// Returns a reference the kernel does not know it has.
    pub(crate) fn forget(&mut self, shared: &Arc<Shared>, header: &InHeader, node: Node) {
        self.ask_unanswered(shared, header, ops::Forget { node, count: 1 }.into());
    }

    /// Asks the service for something whose reply goes nowhere.
    pub(crate) fn ask_unanswered(&mut self, shared: &Arc<Shared>, header: &InHeader, request: Request) {
        let slot = shared.slots.take();
        if let Some(slot) = ask(shared, slot, header, request, None, self) {
            shared.slots.give(slot);
        }
    }
}

/// Returns all references to a node that the kernel does not know: a process died between taking their return from the
/// kernel and seeing to it.
pub(crate) fn forget_lost(shared: &Arc<Shared>, node: Node) {
    let header = InHeader { opcode: Opcode::Forget as u32, nodeid: node.0, ..InHeader::default() };
    let forget = ops::Forget { node, count: u64::MAX };
    ReplySender::new(false).ask_unanswered(shared, &header, forget.into());
}
