// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a program: we play the kernel's side of the protocol over a socket that keeps messages apart.
//!
//! An [`Exchange`] sends on its first poll and leaves the thread free for the next request. The [listener](Conn::listen),
//! a thread, receives replies and goes on itself with what waits for them ([`Runtime::run_woken`]): so a request costs one
//! send and one receive, and of our threads two, each of which sleeps in a system call that gives it its next work. A
//! [warden](Conn::ward) looks after everything rare.

use crate::inbox::{Arrived, Inbox};
use crate::message::{Caller, Lost, Message, Replied};
use bytes::Bytes;
use outrigger_core::{Cancel, Errno, Error, Runtime, lock};
use outrigger_proto_fuse::{InterruptIn, Notification, Opcode, RetrieveIn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno as Failure;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Requests in flight; more wait in line.
const MOST_IN_FLIGHT: usize = 128;
/// Bytes that wait for room in the socket; while there are more, new requests wait in line.
const MOST_QUEUED: usize = 4 << 20;
/// Marks the number of an INTERRUPT (as `FUSE_INT_REQ_BIT` of the kernel does).
const INTERRUPT: u64 = 1;

/// What is done with the program's notifications. Called while messages are received: it must not wait.
pub(crate) type OnNotice = Box<dyn Fn(Notification<'_>) + Send + Sync>;

/// The two descriptors of a running program.
pub(crate) struct Ends {
    /// Where its requests go.
    pub(crate) socket: OwnedFd,
    /// Becomes readable when the program has ended, if that can be watched.
    pub(crate) watch: Option<OwnedFd>,
}

/// A connection; see the [module](self).
pub(crate) struct Conn {
    ends: Ends,
    /// Wakes the warden.
    bell: OwnedFd,
    /// The largest message in bytes.
    limit: usize,
    /// The high half of all requests' numbers: content of files cannot pass for a reply.
    secret: u64,
    /// A request older than this ends the connection.
    hang: Option<Duration>,
    state: Mutex<State>,
    queue: Mutex<Queue>,
    /// Why the connection ended.
    over: OnceLock<Arc<str>>,
    /// Whether it was to end now.
    retired: AtomicBool,
    /// Whether it was ended for what the program did, or did not do.
    cut: AtomicBool,
    on_notice: OnNotice,
}

struct State {
    /// The low half of the next request's number.
    next: u32,
    slots: HashMap<u64, Slot>,
    /// Who waits for a request to end.
    crowd: Vec<Waker>,
    answered: u64,
}

struct Slot {
    reply: Option<Replied>,
    waker: Option<Waker>,
    since: Instant,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Conn {
    /// A connection over `ends` with messages of up to `limit` bytes, and its threads.
    ///
    /// # Errors
    /// When the system has no descriptor or thread left.
    pub(crate) fn new(
        ends: Ends,
        limit: usize,
        hang: Option<Duration>,
        runtime: &Arc<dyn Runtime>,
        on_notice: OnNotice,
    ) -> Result<Arc<Self>, Error> {
        let conn = Arc::new(Conn {
            ends,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?,
            limit,
            // The highest bit means "sent again" to the protocol.
            secret: u64::from(fastrand::u32(1..1 << 31)),
            hang,
            state: Mutex::new(State { next: 0, slots: HashMap::new(), crowd: Vec::new(), answered: 0 }),
            queue: Mutex::default(),
            over: OnceLock::new(),
            retired: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            on_notice,
        });
        let warden = Arc::clone(&conn);
        thread::Builder::new().name("fuse-warden".into()).spawn(move || warden.ward())?;
        let (listener, runtime) = (Arc::clone(&conn), Arc::clone(runtime));
        let listen = move || runtime.enter(&mut || listener.listen(&*runtime));
        let spawned = thread::Builder::new().name("fuse-listener".into()).spawn(listen);
        spawned.inspect_err(|_| conn.close("no thread is left for its replies"))?;
        Ok(conn)
    }

    /// The largest message in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many requests were answered.
    pub(crate) fn answered(&self) -> u64 {
        lock(&self.state).answered
    }

    /// Why the connection ended, if it has.
    pub(crate) fn over(&self) -> Option<&Arc<str>> {
        self.over.get()
    }

    /// Ends the connection: all requests that wait fail.
    pub(crate) fn close(&self, why: &str) {
        if self.over.set(why.into()).is_ok() {
            // A socket that is no longer connected is as good as one that was shut down.
            let _ = shutdown(&self.ends.socket, Shutdown::Both);
        }
        let mut state = lock(&self.state);
        let mut wakers = std::mem::take(&mut state.crowd);
        wakers.extend(state.slots.values_mut().filter_map(|slot| slot.waker.take()));
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.ring();
    }

    /// Ends the connection for what the program did, or did not do.
    fn cut(&self, why: &str) {
        self.cut.store(true, Relaxed);
        self.close(why);
    }

    /// Whether the program ended, and not we its connection.
    pub(crate) fn hung_up(&self) -> bool {
        self.over().is_some() && !self.cut.load(Relaxed)
    }

    /// The connection ends soon, and no request is the reason.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Relaxed);
    }

    /// Asks the program; see the [module](self).
    pub(crate) fn ask<'a>(&'a self, message: Message, caller: Caller, cancel: &'a Cancel) -> Exchange<'a> {
        Exchange { conn: self, message, caller, cancel, stage: Stage::New, interrupted: false }
    }

    /// Sends a request that has no reply.
    pub(crate) fn send_only(&self, mut message: Message) {
        let unique = self.number(&mut lock(&self.state));
        self.send(&mut message, unique, Caller::default());
    }

    fn number(&self, state: &mut State) -> u64 {
        state.next = state.next.wrapping_add(2);
        self.secret << 32 | u64::from(state.next)
    }

    fn send(&self, message: &mut Message, unique: u64, caller: Caller) {
        let data = message.data.clone();
        let head = message.seal(unique, caller);
        let mut queue = lock(&self.queue);
        if queue.messages.is_empty() {
            let parts = [IoSlice::new(head), IoSlice::new(&data)];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.ends.socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(_) => return,
                Err(Failure::AGAIN | Failure::INTR | Failure::NOBUFS) => {}
                Err(error) => {
                    drop(queue);
                    return self.close(&format!("sending to the program failed: {error}"));
                }
            }
        }
        queue.bytes += head.len() + data.len();
        queue.messages.push_back([head, &data].concat());
        drop(queue);
        self.ring();
    }

    /// Sends what waits for room, as far as there is some.
    fn flush(&self) {
        let mut queue = lock(&self.queue);
        while let Some(message) = queue.messages.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.ends.socket, message, flags) {
                Ok(_) => {
                    queue.bytes -= message.len();
                    queue.messages.pop_front();
                }
                Err(Failure::AGAIN | Failure::INTR | Failure::NOBUFS) => return,
                Err(error) => {
                    drop(queue);
                    return self.close(&format!("sending to the program failed: {error}"));
                }
            }
        }
        drop(queue);
        self.admit();
    }

    /// Lets the requests that wait in line try again.
    fn admit(&self) {
        let crowd = std::mem::take(&mut lock(&self.state).crowd);
        crowd.into_iter().for_each(Waker::wake);
    }

    /// The listener: receives, and goes on with what waited for it.
    fn listen(&self, runtime: &dyn Runtime) {
        let mut inbox = Inbox::new(self.limit);
        while self.over().is_none() {
            runtime.run_woken(&mut || self.receive(&mut inbox));
        }
    }

    /// Waits for one message.
    fn receive(&self, inbox: &mut Inbox) {
        let length = match inbox.receive(&self.ends.socket) {
            Ok(0) => return self.close("the program has ended or closed its connection"),
            Ok(length) => length,
            Err(Failure::INTR) => return,
            Err(error) => {
                return self.close(&format!("the connection to the program broke: {}", system(error)));
            }
        };
        match inbox.add(length) {
            Ok(Arrived::Reply { unique, reply }) => self.deliver(unique, reply),
            Ok(Arrived::Notice { code, body }) => self.notice(code, &body),
            Err(why) => self.cut(why),
        }
    }

    fn deliver(&self, unique: u64, reply: Replied) {
        if unique & INTERRUPT != 0 {
            // The program has not seen the request yet that it shall interrupt.
            if reply.errno == Errno::EAGAIN.0 {
                self.interrupt(unique & !INTERRUPT);
            }
            return;
        }
        let mut state = lock(&self.state);
        state.answered += 1;
        let Some(slot) = state.slots.get_mut(&unique) else { return };
        slot.reply = Some(reply);
        let waker = slot.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn notice(&self, code: i32, body: &[u8]) {
        match Notification::decode(code, body) {
            // We have no cache: there is nothing to give.
            Ok(Notification::Retrieve { notify_unique, nodeid, offset, .. }) => {
                let nothing = RetrieveIn { offset, size: 0 };
                let mut message = Message::new(Opcode::NotifyReply, nodeid).with(&nothing.encode());
                self.send(&mut message, notify_unique, Caller::default());
            }
            Ok(notification) => (self.on_notice)(notification),
            Err(error) => tracing::warn!(%error, "a notification of the program is ignored"),
        }
    }

    fn interrupt(&self, unique: u64) {
        if lock(&self.state).slots.get(&unique).is_some_and(|slot| slot.reply.is_none()) {
            let mut message = Message::new(Opcode::Interrupt, 0).with(&InterruptIn { unique }.encode());
            self.send(&mut message, unique | INTERRUPT, Caller::default());
        }
    }

    fn ring(&self) {
        // A counter that is full rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// The warden: sends what waits for room, notices that the program has ended or hangs.
    fn ward(&self) {
        let tick = self.hang.map(|hang| hang / 4);
        let tick = tick.map(|tick| Timespec {
            tv_sec: tick.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: tick.subsec_nanos().into(),
        });
        while self.over().is_none() {
            let queued = !lock(&self.queue).messages.is_empty();
            let room = if queued { PollFlags::OUT } else { PollFlags::empty() };
            let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&self.ends.socket, room)];
            fds.extend(self.ends.watch.as_ref().map(|watch| PollFd::new(watch, PollFlags::IN)));
            // A poll that fails finds nothing; whatever is wrong shows when the socket is used.
            let _ = poll(&mut fds, tick.as_ref());
            if !fds[0].revents().is_empty() {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            let ended = fds.get(2).is_some_and(|watch| !watch.revents().is_empty());
            self.flush();
            if ended {
                self.close("the program has ended");
            }
            self.patrol();
        }
    }

    /// Ends the connection when a request is older than allowed.
    fn patrol(&self) {
        let Some(hang) = self.hang else { return };
        let state = lock(&self.state);
        let hung = state.slots.values().any(|slot| slot.reply.is_none() && slot.since.elapsed() > hang);
        drop(state);
        if hung {
            self.cut(&format!("the program has not answered a request for {} s", hang.as_secs_f64()));
        }
    }
}

fn system(error: Failure) -> Error {
    Errno(error.raw_os_error()).into()
}

/// A request and the wait for its reply.
pub(crate) struct Exchange<'a> {
    conn: &'a Conn,
    message: Message,
    caller: Caller,
    cancel: &'a Cancel,
    stage: Stage,
    interrupted: bool,
}

enum Stage {
    New,
    /// In flight under a number; the second is how much had been answered when it was sent.
    Sent(u64, u64),
    Done,
}

impl Exchange<'_> {
    /// Sends the request unless too many are in flight.
    fn begin(&mut self, context: &Context<'_>) -> Option<u64> {
        let full = lock(&self.conn.queue).bytes > MOST_QUEUED;
        let mut state = lock(&self.conn.state);
        if full || state.slots.len() >= MOST_IN_FLIGHT {
            state.crowd.push(context.waker().clone());
            return None;
        }
        let unique = self.conn.number(&mut state);
        state.slots.insert(unique, Slot { reply: None, waker: None, since: Instant::now() });
        self.stage = Stage::Sent(unique, state.answered);
        drop(state);
        self.conn.send(&mut self.message, unique, self.caller);
        Some(unique)
    }

    /// Takes the request off the connection.
    fn end(&mut self) -> Option<Replied> {
        let Stage::Sent(unique, _) = self.stage else { return None };
        self.stage = Stage::Done;
        let mut state = lock(&self.conn.state);
        let slot = state.slots.remove(&unique);
        let crowd = std::mem::take(&mut state.crowd);
        drop(state);
        crowd.into_iter().for_each(Waker::wake);
        slot.and_then(|slot| slot.reply)
    }

    fn lost(&mut self, why: Arc<str>) -> Lost {
        let (sent, others_answered) = match self.stage {
            Stage::Sent(_, answered) => (true, lock(&self.conn.state).answered > answered),
            _ => (false, false),
        };
        let innocent = others_answered || self.conn.retired.load(Relaxed);
        self.end();
        Lost { sent, innocent, why }
    }
}

impl Future for Exchange<'_> {
    type Output = Result<Replied, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let conn = self.conn;
        let unique = match self.stage {
            Stage::Sent(unique, _) => unique,
            _ => {
                if let Some(why) = conn.over() {
                    return Poll::Ready(Err(self.lost(Arc::clone(why))));
                }
                match self.begin(context) {
                    Some(unique) => unique,
                    None => return Poll::Pending,
                }
            }
        };
        {
            let mut state = lock(&conn.state);
            match state.slots.get_mut(&unique) {
                Some(slot) if slot.reply.is_none() => slot.waker = Some(context.waker().clone()),
                _ => {
                    drop(state);
                    let gone = || Replied { errno: Errno::EIO.0, body: Bytes::new() };
                    return Poll::Ready(Ok(self.end().unwrap_or_else(gone)));
                }
            }
        }
        if let Some(why) = conn.over() {
            return Poll::Ready(Err(self.lost(Arc::clone(why))));
        }
        if !self.interrupted && Pin::new(&mut self.cancel.raised()).poll(context).is_ready() {
            self.interrupted = true;
            conn.interrupt(unique);
        }
        Poll::Pending
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
