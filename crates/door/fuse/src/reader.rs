// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that take requests, and what becomes of each.
use crate::call::ask;
use crate::device::{ReadBuffer, Received};
use crate::negotiate::agree;
use crate::sender::ReplySender;
use crate::session::{End, Shared};
use crate::shape::Shape;
use crate::slot::{Interrupted, Slot};
use crate::translate::Step;
use bytes::Bytes;
use outrigger_core::{Errno, Node, Request, ops};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{DecodeError, InHeader, InitIn, InitOut, Opcode, Operation, UNIQUE_RESEND};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

/// Write requests from this size on hand out the memory they were received in. Smaller ones are copied, so that a
/// driver which keeps the data keeps no more memory than it asked for.
const SHARE_FROM: u32 = 32 << 10;

/// Reads and writes from this size on may be some of many: read-ahead and write-back are cut into large requests.
const BULK: usize = 16 << 10;

fn is_read_ahead_or_write_back(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Read(args) => args.size as usize >= BULK,
        Operation::Write { data, .. } => data.len() >= BULK,
        _ => false,
    }
}

/// Starts one reader. `first` was received for it already.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn start(shared: &Arc<Shared>, mut first: Option<ReadBuffer>) -> io::Result<()> {
    let mut reader = Reader::new(Arc::clone(shared));
    shared.pool.joins();
    let spawned = thread::Builder::new().name("fuse-reader".into()).spawn(move || {
        let runtime = Arc::clone(&reader.worker.shared.runtime);
        runtime.enter(&mut || reader.run(first.take()));
    });
    spawned.map(drop).inspect_err(|_| {
        shared.pool.leaves();
    })
}

/// Runs the monitor of the readers.
pub(crate) fn watch(shared: &Arc<Shared>) {
    let hire = || {
        if let Err(error) = start(shared, None) {
            tracing::warn!(%error, "all readers are busy and no further one can be started");
        }
    };
    shared.pool.watch(hire, || shared.slots.cancel_dying());
}

struct Reader {
    worker: Worker,
    buffer: ReadBuffer,
}

/// What a reader needs for one request after the other.
struct Worker {
    shared: Arc<Shared>,
    /// Free between requests; `None` only inside [`Worker::ask`].
    slot: Option<Arc<Slot>>,
    sender: ReplySender,
}

impl Reader {
    fn new(shared: Arc<Shared>) -> Self {
        let buffer = ReadBuffer::new(shared.max_write(), shared.options.lock_buffers);
        let slot = Some(shared.slots.take());
        let sender = ReplySender::new(shared.options.splice);
        Self { worker: Worker { shared, slot, sender }, buffer }
    }

    fn run(&mut self, first: Option<ReadBuffer>) {
        let shared = Arc::clone(&self.worker.shared);
        if let Some(mut first) = first {
            self.worker.serve_surely(&mut first);
        }
        let end = loop {
            shared.pool.waits();
            let received = shared.device.receive(&mut self.buffer);
            shared.pool.takes();
            match received {
                Received::Message => self.worker.serve_surely(&mut self.buffer),
                Received::Unmounted => break Some(End::Unmounted),
                Received::Aborted => break Some(End::Aborted),
                Received::Failed(error) => break Some(End::Failed(error.to_string())),
            }
            if shared.pool.is_dismissed() {
                break None;
            }
        };
        if let Some(end) = end {
            shared.ends(end);
        }
        if let Some(slot) = self.worker.slot.take() {
            shared.slots.give(slot);
        }
        if shared.pool.leaves() {
            shared.all_left();
        }
    }
}

impl Worker {
    /// Serves a request that is answered even if this process does something wrong with it.
    fn serve_surely(&mut self, buffer: &mut ReadBuffer) {
        let header = match InHeader::decode(buffer.message()) {
            Ok((header, _)) => header,
            Err(error) => return tracing::error!(%error, "the device gave a message without a header"),
        };
        if catch_unwind(AssertUnwindSafe(|| self.serve(&header, buffer))).is_err() {
            tracing::error!(opcode = header.opcode, "a request is answered EIO, for its reader panicked");
            // Of two answers the kernel takes the first.
            self.sender = ReplySender::new(self.shared.options.splice);
            self.sender.error(&self.shared, &header, Errno::EIO);
        }
    }

    fn serve(&mut self, header: &InHeader, buffer: &mut ReadBuffer) {
        self.shared.counters.request(header.opcode);
        if header.opcode == Opcode::Write as u32 && header.len >= SHARE_FROM {
            let message = buffer.share();
            self.interpret(header, &message, |data| message.slice_ref(data));
        } else {
            self.interpret(header, buffer.message(), Bytes::copy_from_slice);
        }
    }

    /// Does what concerns the transport itself and hands the rest to the service.
    fn interpret(&mut self, header: &InHeader, message: &[u8], own: impl Fn(&[u8]) -> Bytes) {
        let operation = match fuse::Request::after(*header, message, self.shared.dialect()) {
            Ok(request) => request.operation,
            Err(error) => return self.refuse(header, error),
        };
        match &operation {
            Operation::Init(init) => self.init(header, init),
            Operation::Interrupt(args) => {
                if self.shared.slots.interrupt(args.unique) == Interrupted::Unknown {
                    // Another reader has just received that request: the kernel shall interrupt again. If it
                    // has been answered, the kernel knows and ignores this.
                    self.sender.error(&self.shared, header, Errno::EAGAIN);
                }
            }
            Operation::Forget(forget) => self.forget(header, header.nodeid, forget.nlookup),
            Operation::BatchForget(forgets) => {
                forgets.for_each(|one| self.forget(header, one.nodeid, one.nlookup));
            }
            // Nothing is ever retrieved from the page cache, so no answer to that can come.
            Operation::NotifyReply { .. } => {}
            operation => {
                self.shared.pool.hold_while_paused();
                self.shared.pool.serves(header.pid, is_read_ahead_or_write_back(operation));
                let step = match self.shared.agreed() {
                    Some(agreed) => agreed.rules.translate(Node(header.nodeid), operation, own),
                    None => Step::Fail(Errno::EIO),
                };
                if matches!(operation, Operation::Release(_)) {
                    let again = header.unique & UNIQUE_RESEND != 0;
                    self.shared.backings.release(Node(header.nodeid), again);
                }
                match step {
                    Step::Ask(request, shape) => self.ask(header, request, Some(shape)),
                    Step::Known(reply, shape) => self.sender.reply(&self.shared, header, shape, reply),
                    Step::Fail(errno) => {
                        self.shared.counters.failure(header.opcode, header.nodeid, &errno.into());
                        self.sender.error(&self.shared, header, errno);
                    }
                }
            }
        }
    }

    /// A message that is no request we know: unknown operations are "not implemented", for newer kernels' sake.
    fn refuse(&mut self, header: &InHeader, error: DecodeError) {
        let errno = if matches!(error, DecodeError::Opcode(_)) { Errno::ENOSYS } else { Errno::EIO };
        tracing::error!(%error, opcode = header.opcode, "a request cannot be read");
        let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::NotifyReply, Opcode::Interrupt];
        if !silent.iter().any(|opcode| *opcode as u32 == header.opcode) {
            self.sender.error(&self.shared, header, errno);
        }
    }

    fn init(&mut self, header: &InHeader, init: &InitIn) {
        let shared = &self.shared;
        match agree(init, &shared.options, &shared.abilities, shared.idmap) {
            Ok(Some(negotiated)) => {
                shared.settle(negotiated);
                self.sender.init(shared, header, &negotiated.reply());
                for _ in 1..shared.pool.at_rest() {
                    if let Err(error) = start(shared, None) {
                        tracing::warn!(%error, "fewer readers than asked for");
                    }
                }
            }
            Ok(None) => self.sender.init(shared, header, &InitOut::default()),
            Err(error) => {
                self.sender.error(shared, header, Errno::EPROTO);
                shared.ends(End::Failed(error.to_string()));
            }
        }
    }

    fn forget(&mut self, header: &InHeader, node: u64, count: u64) {
        let forget = ops::Forget { node: Node(node), count };
        self.ask(header, forget.into(), None);
    }

    /// Asks the service. Without a shape no reply is sent.
    fn ask(&mut self, header: &InHeader, request: Request, shape: Option<Shape>) {
        let slot = self.slot.take().unwrap_or_else(|| self.shared.slots.take());
        self.slot = ask(&self.shared, slot, header, request, shape, &mut self.sender);
    }
}
