// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that take requests, and what becomes of each.
use crate::device::{ReadBuffer, Received};
use crate::negotiate::agree;
use crate::session::{End, Shared};
use crate::slot::{Interrupted, Slot};
use crate::splice::FileSender;
use crate::translate::{Shape, Step};
use bytes::Bytes;
use outrigger_core::{Answer, BoxFuture, Class, Errno, Error, Node, Owed, Payload, Reply, Request, ops};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{DecodeError, InHeader, InitIn, InitOut, Opcode, Operation, OutHeader};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

/// Write requests from this size on hand out the memory they were received in. Smaller ones are copied, so that a
/// driver which keeps the data keeps no more memory than it asked for.
const SHARE_FROM: u32 = 32 << 10;
/// Room for the fixed part of every reply.
const OUT_CAPACITY: usize = 4096;

/// Starts one reader.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let mut reader = Reader::new(Arc::clone(shared));
    shared.crew.joins();
    let spawned = thread::Builder::new().name("fuse-reader".into()).spawn(move || {
        let runtime = Arc::clone(&reader.worker.shared.runtime);
        runtime.enter(&mut || reader.run());
    });
    spawned.map(drop).inspect_err(|_| {
        shared.crew.leaves();
    })
}

/// Runs the monitor of the readers.
pub(crate) fn watch(shared: &Arc<Shared>) {
    let hire = || {
        if let Err(error) = start(shared) {
            tracing::warn!(%error, "all readers are busy and no further one can be started");
        }
    };
    shared.crew.watch(hire, || shared.slots.patrol());
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

    fn run(&mut self) {
        let shared = Arc::clone(&self.worker.shared);
        let end = loop {
            shared.crew.waits();
            let received = shared.device.receive(&mut self.buffer);
            shared.crew.takes();
            match received {
                Received::Message => self.worker.serve(&mut self.buffer),
                Received::Unmounted => break Some(End::Unmounted),
                Received::Aborted => break Some(End::Aborted),
                Received::Failed(error) => break Some(End::Failed(error.to_string())),
            }
            if shared.crew.is_dismissed() {
                break None;
            }
        };
        if let Some(end) = end {
            shared.ends(end);
        }
        if let Some(slot) = self.worker.slot.take() {
            shared.slots.give(slot);
        }
        if shared.crew.leaves() {
            shared.all_left();
        }
    }
}

impl Worker {
    fn serve(&mut self, buffer: &mut ReadBuffer) {
        let header = match InHeader::decode(buffer.message()) {
            Ok((header, _)) => header,
            Err(error) => return tracing::error!(%error, "the device gave a message without a header"),
        };
        self.shared.counters.request(header.opcode);
        if header.opcode == Opcode::Write as u32 && header.len >= SHARE_FROM {
            let message = buffer.share();
            self.interpret(&header, &message, |data| message.slice_ref(data));
        } else {
            self.interpret(&header, buffer.message(), Bytes::copy_from_slice);
        }
    }

    /// Does what concerns the transport itself and hands the rest to the service.
    fn interpret(&mut self, header: &InHeader, message: &[u8], own: impl Fn(&[u8]) -> Bytes) {
        let request = match fuse::Request::decode(message, self.shared.dialect()) {
            Ok(request) => request,
            Err(error) => return self.refuse(header, error),
        };
        match &request.operation {
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
            _ => {
                let step = match self.shared.agreed() {
                    Some(agreed) => agreed.rules.translate(&request, own),
                    None => Step::Fail(Errno::EIO),
                };
                if matches!(request.operation, Operation::Release(_)) {
                    self.shared.backings.release(Node(header.nodeid));
                }
                match step {
                    Step::Ask(request, shape) => self.ask(header, request, Some(shape)),
                    Step::Done => self.sender.reply(&self.shared, header, Shape::Done, Reply::Done(())),
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
                for _ in 1..shared.crew.at_rest() {
                    if let Err(error) = start(shared) {
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

    /// Asks the service. Without a shape the reply is for nobody.
    fn ask(&mut self, header: &InHeader, request: Request, shape: Option<Shape>) {
        let slot = self.slot.take().unwrap_or_else(|| self.shared.slots.take());
        self.slot = ask(&self.shared, slot, header, request, shape, &mut self.sender);
    }
}

/// Asks the service on behalf of `header`. Gives the slot back when the answer came at once; else it went with the
/// answer.
fn ask(
    shared: &Arc<Shared>,
    mut slot: Arc<Slot>,
    header: &InHeader,
    request: Request,
    shape: Option<Shape>,
    sender: &mut ReplySender,
) -> Option<Arc<Slot>> {
    let query = Query::of(&request, header);
    let deadline = shared.options.timeout.map(|timeout| shared.runtime.monotonic() + timeout);
    // A slot is shared only while a parked answer holds it, which gives it back by value.
    Arc::get_mut(&mut slot)?.begin(header, deadline);
    let asked = catch_unwind(AssertUnwindSafe(|| ready_at_once(shared.service.call(&slot.cx, request))));
    // SAFETY: a future in the answer borrows from `*shared.service` and from `*slot`. It goes nowhere but into
    // `Parked` below, which holds both Arcs, so both stay where they are, and which drops the future before them.
    // Nothing mutates the slot meanwhile: that needs the only Arc to it.
    let asked = asked.map(|answer| unsafe { mem::transmute::<Answer<'_>, Answer<'static>>(answer) });
    let reply = match asked {
        Ok(Answer::Ready(reply)) => reply,
        Ok(Answer::Later(future)) => {
            let parked = Parked { future: Some(future), slot: Some(slot), shared: Arc::clone(shared) };
            park(parked, *header, query, shape);
            return None;
        }
        Err(_) => Reply::Error(Errno::EIO.because("the driver panicked")),
    };
    slot.end();
    if let Some(shape) = shape {
        sender.reply(shared, header, shape, reply);
    }
    Some(slot)
}

/// Polls an answer once: many futures are ready without waiting for anything.
fn ready_at_once(answer: Answer<'_>) -> Answer<'_> {
    let Answer::Later(mut future) = answer else { return answer };
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Answer::Ready(reply),
        Poll::Pending => Answer::Later(future),
    }
}

/// Hands an answer that is not ready to the runtime, with the duty to reply.
///
/// When the program gives up, a request without effect is answered at once: the program can end although the driver
/// goes on. A change is answered when it is done.
fn park(mut parked: Parked, header: InHeader, query: Option<Query>, shape: Option<Shape>) {
    let shared = Arc::clone(&parked.shared);
    let runtime = Arc::clone(&shared.runtime);
    let owed = Owed::new(header.request_id(), {
        let shared = Arc::clone(&shared);
        move |reply| {
            if let Some(shape) = shape {
                ReplySender::new(false).reply(&shared, &header, shape, reply);
            }
        }
    });
    runtime.spawn(Box::pin(async move {
        let Some(query) = query else {
            let reply = parked.await;
            return owed.pay(reply);
        };
        match parked.unless_cancelled().await {
            Some(reply) => owed.pay(reply),
            None => {
                owed.pay(Reply::Error(Errno::EINTR.into()));
                let late = parked.await;
                query.undo(&shared, &header, late);
            }
        }
    }));
}

/// A request without effect on the tree; what it obtained for a program that is gone has to be returned.
#[derive(Debug, Clone, Copy)]
struct Query {
    node: Node,
}

impl Query {
    fn of(request: &Request, header: &InHeader) -> Option<Self> {
        (request.class() == Class::Query).then_some(Query { node: Node(header.nodeid) })
    }

    fn undo(self, shared: &Arc<Shared>, header: &InHeader, reply: Reply) {
        let mut sender = ReplySender::new(false);
        match reply {
            Reply::Entry(entry) => sender.forget(shared, header, entry.node),
            Reply::DirentsPlus(list) => {
                list.entries.iter().for_each(|one| sender.forget(shared, header, one.entry.node));
            }
            Reply::Opened(opened) => {
                let release = ops::ReleaseDir { node: self.node, handle: opened.handle };
                sender.ask_for_nobody(shared, header, release.into());
            }
            _ => {}
        }
    }
}

/// An answer that is not ready, with everything it borrows from.
struct Parked {
    /// Borrows from the two below; dropped before them.
    future: Option<BoxFuture<'static, Reply>>,
    slot: Option<Arc<Slot>>,
    shared: Arc<Shared>,
}

impl Parked {
    /// The reply, or `None` when the request was cancelled before.
    async fn unless_cancelled(&mut self) -> Option<Reply> {
        let cancel = self.slot.as_ref().map(|slot| slot.cx.cancel.clone()).unwrap_or_default();
        let mut raised = pin!(cancel.raised());
        poll_fn(|context| match Pin::new(&mut *self).poll(context) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending => raised.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}

impl Future for Parked {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        match &mut self.future {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.future = None;
        if let Some(slot) = self.slot.take() {
            self.shared.slots.give(slot);
        }
    }
}

/// Builds and sends replies; one for each thread, so that its memory is used again.
struct ReplySender {
    out: Vec<u8>,
    files: FileSender,
}

impl ReplySender {
    fn new(splice: bool) -> Self {
        Self { out: Vec::with_capacity(OUT_CAPACITY), files: FileSender::new(splice) }
    }

    /// Sends the reply to a request.
    fn reply(&mut self, shared: &Arc<Shared>, header: &InHeader, shape: Shape, reply: Reply) {
        self.out.clear();
        self.out.resize(OutHeader::SIZE, 0);
        let sent = match shared.view.write(shape, reply, &shared.backings, &mut self.out) {
            Ok(tail) => {
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

    fn init(&mut self, shared: &Shared, header: &InHeader, reply: &InitOut) {
        self.out.clear();
        self.out.resize(OutHeader::SIZE, 0);
        self.out.extend_from_slice(&reply.encode());
        if let Err(error) = self.send_parts(shared, header.unique, &[]) {
            tracing::error!(%error, "the kernel does not take the answer to INIT");
        }
    }

    fn error(&mut self, shared: &Shared, header: &InHeader, errno: Errno) {
        // The kernel takes no others.
        let number = if (1..512).contains(&errno.0) { errno.0 } else { Errno::EIO.0 };
        let reply = OutHeader::error(header.unique, number).encode();
        if let Err(error) = shared.device.send(&[IoSlice::new(&reply)]) {
            tracing::trace!(%error, "error reply not taken");
        }
    }

    /// The kernel refused a reply. Usually nobody waits any more; a malformed one still owes an answer.
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
    fn forget(&mut self, shared: &Arc<Shared>, header: &InHeader, node: Node) {
        self.ask_for_nobody(shared, header, ops::Forget { node, count: 1 }.into());
    }

    /// Asks the service for something nobody waits for.
    fn ask_for_nobody(&mut self, shared: &Arc<Shared>, header: &InHeader, request: Request) {
        let slot = shared.slots.take();
        if let Some(slot) = ask(shared, slot, header, request, None, self) {
            shared.slots.give(slot);
        }
    }
}

/// More parts than this are joined first (`IOV_MAX` is 1024).
const MAX_PARTS: usize = 1000;
