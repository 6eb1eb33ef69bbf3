// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a program: we play the kernel's side of the protocol over a socket that keeps messages apart.
//!
//! Whoever waits for a reply receives. An [`Exchange`] sends on its first poll and then, if nobody else does, receives
//! for a moment itself, passing on what belongs to others: so a quick request costs one send and one receive, and no
//! change of thread on our side. What takes longer is left to the [listener](Conn::listen), a thread that steps back
//! while others receive. A program that turned out to be slow is not waited for.

use crate::assembly::{Arrived, Assembly, GARBLED};
use crate::message::{Caller, Lost, Message, Replied};
use bytes::Bytes;
use outrigger_core::{Cancel, Errno, Error};
use outrigger_proto_fuse::{InterruptIn, Notification, Opcode, RetrieveIn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno as Failure;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread that wants a reply receives itself: several times what a program in the same machine needs.
const MOMENT: Duration = Duration::from_micros(200);
/// How long nobody must have received until the listener takes over.
const QUIET: Duration = Duration::from_millis(1);
/// After a reply that did not come in a [`MOMENT`]: at most so many requests are not waited for.
const MOST_SKIPPED: u32 = 128;
/// Requests in flight; more wait in line.
const MOST_IN_FLIGHT: usize = 128;
/// Bytes that wait for room in the socket; while there are more, new requests wait in line.
const MOST_QUEUED: usize = 4 << 20;
/// Marks the number of an INTERRUPT (as `FUSE_INT_REQ_BIT` of the kernel does).
const INTERRUPT: u64 = 1;

/// What is done with the program's notifications. Called while messages are received: it must not wait.
pub(crate) type OnNotice = Box<dyn Fn(Notification<'_>) + Send + Sync>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    /// Wakes the listener.
    bell: OwnedFd,
    /// The largest message in bytes.
    limit: usize,
    /// The high half of all requests' numbers: content of files cannot pass for a reply.
    secret: u64,
    /// A request older than this ends the connection.
    hang: Option<Duration>,
    state: Mutex<State>,
    receiver: Mutex<Assembly>,
    queue: Mutex<Queue>,
    rest: Rest,
    /// Requests that are not waited for before the next one is, and by how many the number grows next time.
    skip: AtomicU32,
    penalty: AtomicU32,
    /// Why the connection ended.
    over: OnceLock<Arc<str>>,
    /// Whether it was to end now.
    retired: AtomicBool,
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

/// How the listener knows whether it is needed.
#[derive(Default)]
struct Rest {
    needed: Mutex<bool>,
    bell: Condvar,
    /// Threads that received themselves, so far.
    others: AtomicU64,
    /// A thread would have received itself if the listener had not.
    give_way: AtomicBool,
}

impl Conn {
    /// A connection over `ends` with messages of up to `limit` bytes, and its listener.
    ///
    /// # Errors
    /// When the system has no descriptor or thread left.
    pub(crate) fn new(
        ends: Ends,
        limit: usize,
        hang: Option<Duration>,
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
            receiver: Mutex::new(Assembly::new(limit)),
            queue: Mutex::default(),
            rest: Rest::default(),
            skip: AtomicU32::new(0),
            penalty: AtomicU32::new(1),
            over: OnceLock::new(),
            retired: AtomicBool::new(false),
            on_notice,
        });
        let listener = Arc::clone(&conn);
        thread::Builder::new().name("fuse-listener".into()).spawn(move || listener.listen())?;
        Ok(conn)
    }

    /// The largest message in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Why the connection ended, if it has.
    pub(crate) fn over(&self) -> Option<&Arc<str>> {
        self.over.get()
    }

    /// Ends the connection: everybody who waits is told.
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
        self.need_listener();
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
    pub(crate) fn tell(&self, mut message: Message) {
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
        self.need_listener();
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

    /// Lets those who wait in line try again.
    fn admit(&self) {
        let crowd = std::mem::take(&mut lock(&self.state).crowd);
        crowd.into_iter().for_each(Waker::wake);
    }

    /// Receives one message if there is one; false when there is none.
    fn receive(&self, assembly: &mut Assembly) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let length = match recv(&self.ends.socket, assembly.room(), flags) {
            Ok((_, 0)) => return self.fails("the program has ended or closed its connection"),
            Ok((_, length)) => length,
            Err(Failure::AGAIN) => return false,
            Err(Failure::INTR) => return true,
            Err(error) => return self.fails(&format!("the connection to the program broke: {error}")),
        };
        match assembly.add(length, |unique| unique >> 32 == self.secret) {
            Ok(Arrived::Part) => {
                while let Some(unique) = assembly.garbled() {
                    self.deliver(unique, Replied { errno: GARBLED, body: Bytes::new() });
                }
                true
            }
            Ok(Arrived::Reply { unique, reply }) => {
                self.deliver(unique, reply);
                true
            }
            Ok(Arrived::Notice { code, body }) => {
                self.notice(code, &body);
                true
            }
            Err(why) => self.fails(why),
        }
    }

    fn fails(&self, why: &str) -> bool {
        self.close(why);
        false
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

    /// Receives for a [`MOMENT`] or until the reply to `unique` is there, unless others do.
    fn receive_myself(&self, unique: u64) {
        if self.skip.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return;
        }
        let mut assembly = match self.receiver.try_lock() {
            Ok(assembly) => assembly,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.rest.give_way.store(true, Relaxed),
        };
        self.rest.others.fetch_add(1, Relaxed);
        let end = Instant::now() + MOMENT;
        let done = loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let mut socket = [PollFd::new(&self.ends.socket, PollFlags::IN)];
            if !matches!(poll(&mut socket, Some(&timeout)), Ok(1..)) {
                break false;
            }
            while !self.is_answered(unique) && self.receive(&mut assembly) {}
            if self.is_answered(unique) {
                break true;
            }
        };
        drop(assembly);
        if done {
            self.penalty.store(1, Relaxed);
        } else {
            let penalty = self.penalty.load(Relaxed);
            self.skip.store(penalty, Relaxed);
            self.penalty.store((penalty * 2).min(MOST_SKIPPED), Relaxed);
        }
        // Others may have found the receiver taken and now rely on somebody.
        if !done || self.is_waited_for() {
            self.need_listener();
        }
    }

    /// Whether a reply is due or a message waits for room.
    fn is_waited_for(&self) -> bool {
        lock(&self.state).slots.values().any(|slot| slot.reply.is_none())
            || !lock(&self.queue).messages.is_empty()
    }

    fn is_answered(&self, unique: u64) -> bool {
        self.over().is_some() || lock(&self.state).slots.get(&unique).is_none_or(|slot| slot.reply.is_some())
    }

    fn ring(&self) {
        // A counter that is full rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn need_listener(&self) {
        *lock(&self.rest.needed) = true;
        self.rest.bell.notify_one();
    }

    /// The listener: receives whenever nobody else does.
    fn listen(&self) {
        while self.over().is_none() {
            self.rest.while_others_receive();
            let mut assembly = lock(&self.receiver);
            self.attend(&mut assembly);
        }
    }

    /// Receives and sends until the connection is over or others want to receive and nobody waits.
    fn attend(&self, assembly: &mut Assembly) {
        while self.over().is_none() {
            let queued = !lock(&self.queue).messages.is_empty();
            let wanted = if queued { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut fds =
                vec![PollFd::new(&self.ends.socket, wanted), PollFd::new(&self.bell, PollFlags::IN)];
            fds.extend(self.ends.watch.as_ref().map(|watch| PollFd::new(watch, PollFlags::IN)));
            let tick = self.hang.map(|hang| hang / 4);
            let tick = tick.map(|tick| Timespec {
                tv_sec: tick.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: tick.subsec_nanos().into(),
            });
            // A poll that fails finds nothing; whatever is wrong shows when the socket is used.
            let _ = poll(&mut fds, tick.as_ref());
            let rung = !fds[1].revents().is_empty();
            let ended = fds.get(2).is_some_and(|watch| !watch.revents().is_empty());
            if rung {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            self.flush();
            while self.receive(assembly) {}
            if ended {
                self.close("the program has ended");
            }
            self.patrol();
            if !self.is_waited_for() && self.rest.give_way.swap(false, Relaxed) {
                return;
            }
        }
    }

    /// Ends the connection when a request is older than allowed.
    fn patrol(&self) {
        let Some(hang) = self.hang else { return };
        let state = lock(&self.state);
        let hung = state.slots.values().any(|slot| slot.reply.is_none() && slot.since.elapsed() > hang);
        drop(state);
        if hung {
            self.close(&format!("the program has not answered a request for {} s", hang.as_secs_f64()));
        }
    }
}

impl Rest {
    /// Returns when the listener is needed.
    fn while_others_receive(&self) {
        let mut needed = lock(&self.needed);
        loop {
            if std::mem::take(&mut *needed) {
                return;
            }
            let seen = self.others.load(Relaxed);
            needed = self.bell.wait_timeout(needed, QUIET).unwrap_or_else(PoisonError::into_inner).0;
            if !*needed && self.others.load(Relaxed) == seen {
                return;
            }
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
        self.conn.receive_myself(unique);
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
