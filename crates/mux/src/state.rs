// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callers and what they wait for: the part of a connection that callers and the connection itself share.

use crate::window::{Sent, Window};
use crate::{Error, Frame, Lane, Limits, Protocol};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What is done with a reply.
pub(crate) type Then = Box<dyn FnOnce(Result<Bytes, Error>) + Send>;
/// Room taken until a request is done with: one request, and its bytes of content.
pub(crate) type Room = Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>;

/// The most that is taken from the queue at once, in bytes: what comes later may have to go first.
const BATCH: usize = 64 << 10;

/// How many times its patience a request waits at most, while others are answered.
const EXTENSIONS: u32 = 4;

pub(crate) struct Shared {
    pub(crate) protocol: Arc<dyn Protocol>,
    limits: Limits,
    state: Mutex<State>,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// Something may be there to be sent.
    pub(crate) to_send: Notify,
    /// A deadline may have become the first one.
    pub(crate) to_time: Notify,
}

pub(crate) struct State {
    first: VecDeque<Queued>,
    bulk: VecDeque<Queued>,
    /// Requests that were sent, by tag.
    sent: HashMap<u32, Waiting>,
    /// When sent requests are given up: by time and call.
    late: BTreeMap<(Instant, u64), u32>,
    next_tag: u32,
    next_call: u64,
    /// When [`Shared::give_up`] will be called next.
    alarm: Option<Instant>,
    /// When something was received or sent last, or began to be waited for.
    progress: Instant,
    pub(crate) window: Window,
    pub(crate) finishing: bool,
    pub(crate) ended: Option<Arc<str>>,
}

struct Queued {
    call: u64,
    since: Instant,
    frame: Frame,
    then: Option<Then>,
    room: Room,
}

struct Waiting {
    call: u64,
    /// `None` when the caller no longer waits.
    then: Option<Then>,
    late: Option<Instant>,
    sent: Sent,
    /// Bytes of content that the request had with it.
    brought: usize,
    /// Given back with it, or when it is given up.
    room: Room,
}

/// What there is to be written.
pub(crate) enum Work {
    /// These frames, head and body.
    Frames(VecDeque<Bytes>),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    Finished,
}

/// What the timer found.
pub(crate) enum Timer {
    /// To look again at this time.
    At(Instant),
    /// No caller waits.
    Idle,
}

impl Shared {
    pub(crate) fn new(protocol: Arc<dyn Protocol>, limits: Limits) -> Self {
        let state = State {
            first: VecDeque::new(),
            bulk: VecDeque::new(),
            sent: HashMap::new(),
            late: BTreeMap::new(),
            next_tag: protocol.last_tag(),
            next_call: 0,
            alarm: None,
            progress: Instant::now(),
            window: Window::new(),
            finishing: false,
            ended: None,
        };
        Shared {
            protocol,
            state: Mutex::new(state),
            requests: Arc::new(Semaphore::new(limits.requests)),
            bytes: Arc::new(Semaphore::new(limits.bytes)),
            limits,
            to_send: Notify::new(),
            to_time: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for the request.
    pub(crate) async fn room(&self, frame: &Frame) -> Result<Room, Error> {
        let bytes = frame.bulk_bytes().min(self.limits.bytes) as u32;
        let one = Arc::clone(&self.requests).acquire_owned().await.map_err(|_| self.lost(false))?;
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.map_err(|_| self.lost(false))?;
        Ok(Some((one, bytes)))
    }

    /// The error for a request that the connection's end has left without a reply.
    pub(crate) fn lost(&self, sent: bool) -> Error {
        let why = self.lock().ended.clone();
        Error::Lost { why: why.unwrap_or_else(|| "the connection is being closed".into()), sent }
    }

    /// Puts a request in line and gives the number of the call.
    pub(crate) fn enqueue(&self, frame: Frame, then: Option<Then>, room: Room) -> Result<u64, Error> {
        self.push(frame, then, room).map_err(|_| self.lost(false))
    }

    /// Puts a request in line, or tells `then` that it is too late for that.
    pub(crate) fn enqueue_or_tell(&self, frame: Frame, then: Then, room: Room) {
        if let Err(Some(then)) = self.push(frame, Some(then), room) {
            then(Err(self.lost(false)));
        }
    }

    fn push(&self, frame: Frame, then: Option<Then>, room: Room) -> Result<u64, Option<Then>> {
        let mut state = self.lock();
        if state.ended.is_some() || state.finishing {
            return Err(then);
        }
        let since = Instant::now();
        if state.is_idle() {
            state.progress = since;
        }
        state.next_call += 1;
        let call = state.next_call;
        let is_earlier = state.wants(since.checked_add(self.limits.patience));
        let queue = match frame.lane {
            Lane::First => &mut state.first,
            Lane::Bulk(_) => &mut state.bulk,
        };
        queue.push_back(Queued { call, since, frame, then, room });
        drop(state);
        self.to_send.notify_one();
        if is_earlier {
            self.to_time.notify_one();
        }
        Ok(call)
    }

    /// Takes back a request whose caller no longer waits.
    pub(crate) fn cancel(&self, call: u64) {
        let mut state = self.lock();
        state.first.retain(|queued| queued.call != call);
        state.bulk.retain(|queued| queued.call != call);
        let abandoned = state.sent.iter_mut().find(|(_, waiting)| waiting.call == call);
        // Dropped after the lock: it may hold anything.
        let (tag, then) = abandoned.map(|(tag, waiting)| (*tag, waiting.then.take())).unzip();
        drop(state);
        drop(then);
        if let Some(head) = tag.and_then(|tag| self.protocol.take_back(tag)) {
            // Without a connection there is nothing to take back.
            let _ = self.enqueue(Frame::first(head), None, None);
        }
    }

    /// What is to be written now.
    pub(crate) fn work(&self) -> Work {
        let now = Instant::now();
        let mut state = self.lock();
        let (mut frames, mut unwanted) = (VecDeque::new(), Vec::new());
        let mut bytes = 0;
        let mut is_earlier = false;
        while bytes < BATCH {
            let Some(queued) = state.next_to_send() else { break };
            if queued.frame.wanted.as_ref().is_some_and(|wanted| wanted.strong_count() == 0) {
                unwanted.extend(queued.then);
                continue;
            }
            let Queued { call, mut frame, then, room, .. } = queued;
            let tag = state.free_tag();
            self.protocol.set_tag(&mut frame.head, tag);
            let late = now.checked_add(self.limits.patience);
            let (sent, brought) = (state.window.send(now, frame.bulk_bytes()), frame.body.len());
            state.sent.insert(tag, Waiting { call, then, late, sent, brought, room });
            if let Some(late) = late {
                state.late.insert((late, call), tag);
                is_earlier |= state.wants(Some(late));
            }
            bytes += frame.head.len() + frame.body.len();
            frames.push_back(frame.head.freeze());
            frames.extend(Some(frame.body).filter(|body| !body.is_empty()));
        }
        let done = state.finishing && state.first.is_empty() && state.bulk.is_empty();
        drop(state);
        let lost = Error::Lost { why: "its caller has given up".into(), sent: false };
        unwanted.into_iter().for_each(|then| then(Err(lost.clone())));
        if is_earlier {
            self.to_time.notify_one();
        }
        match (frames.is_empty(), done) {
            (false, _) => Work::Frames(frames),
            (true, true) => Work::Finished,
            (true, false) => Work::Nothing,
        }
    }

    /// Something was written.
    pub(crate) fn wrote(&self) {
        self.lock().progress = Instant::now();
    }

    /// Gives a frame to the caller that waits for it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn received(&self, frame: Bytes) -> Result<(), String> {
        let now = Instant::now();
        let also = self.protocol.also_ends(&frame);
        let Some(tag) = self.protocol.tag(&frame) else {
            return Err("a message without a number came".into());
        };
        let mut state = self.lock();
        state.progress = now;
        // Dropped after the lock: it may hold anything.
        let _ended = also.and_then(|also| state.end(now, also));
        let Some(waiting) = state.sent.remove(&tag) else {
            drop(state);
            if self.protocol.is_stray(&frame) {
                return Ok(());
            }
            return Err(format!("an answer to nothing that was asked came, with the number {tag}"));
        };
        if let Some(late) = waiting.late {
            state.late.remove(&(late, waiting.call));
        }
        state.window.receive(now, &waiting.sent, waiting.brought + frame.len());
        let more = !state.bulk.is_empty();
        drop(state);
        if more {
            self.to_send.notify_one();
        }
        if let Some(then) = waiting.then {
            then(Ok(frame));
        }
        Ok(())
    }

    /// Gives up what has waited too long, and tells when to look again.
    pub(crate) fn give_up(&self) -> Timer {
        let now = Instant::now();
        let mut state = self.lock();
        let mut given_up = state.take_late(now, self.limits.patience);
        given_up.extend(state.take_stuck(now, self.limits.patience));
        let next = state.next_alarm(self.limits.patience);
        state.alarm = next;
        // What was given up may be answered yet, so its number stays taken.
        let is_useless = state.sent.len() >= self.limits.requests.saturating_mul(2);
        drop(state);
        let any = !given_up.is_empty();
        for GivenUp { then, room, error } in given_up {
            drop(room);
            then.into_iter().for_each(|then| then(Err(error.clone())));
        }
        if any && is_useless {
            self.close("too many requests were left without an answer".into());
        }
        next.map_or(Timer::Idle, Timer::At)
    }

    pub(crate) fn silence(&self) -> Duration {
        let state = self.lock();
        if state.is_idle() {
            Duration::ZERO
        } else {
            Instant::now().saturating_duration_since(state.progress)
        }
    }

    pub(crate) fn finish(&self) {
        self.lock().finishing = true;
        self.to_send.notify_one();
    }

    /// Ends everything. The first reason counts.
    pub(crate) fn close(&self, why: Arc<str>) {
        let mut state = self.lock();
        let why = Arc::clone(state.ended.get_or_insert(why));
        let mut waiting: Vec<(Option<Then>, bool, Room)> = Vec::new();
        state.late.clear();
        waiting.extend(state.sent.drain().map(|(_, waiting)| (waiting.then, true, waiting.room)));
        for queue in [std::mem::take(&mut state.first), std::mem::take(&mut state.bulk)] {
            waiting.extend(queue.into_iter().map(|queued| (queued.then, false, queued.room)));
        }
        drop(state);
        self.requests.close();
        self.bytes.close();
        for (then, sent, room) in waiting {
            drop(room);
            then.into_iter().for_each(|then| then(Err(Error::Lost { why: Arc::clone(&why), sent })));
        }
        // Wakes the connection, also when it has not begun to wait yet.
        self.to_send.notify_one();
        self.to_time.notify_one();
    }
}

/// A request that has waited too long.
struct GivenUp {
    then: Option<Then>,
    room: Room,
    error: Error,
}

impl Queued {
    /// Since when nothing has happened for it: the silence before it was asked is none of its business.
    fn silent_since(&self, progress: Instant) -> Instant {
        self.since.max(progress)
    }

    /// When it is given up unless something is sent or received before.
    fn late(&self, progress: Instant, patience: Duration) -> Option<Instant> {
        self.silent_since(progress).checked_add(patience)
    }
}

impl Waiting {
    /// Until when to wait, given when something came last: what is before it in line may be what takes its time.
    fn extension(&self, progress: Instant, patience: Duration) -> Option<Instant> {
        let latest = self.sent.at.checked_add(patience * EXTENSIONS)?;
        Some(latest.min(progress.checked_add(patience)?))
    }
}

impl State {
    /// Whether something that is to be given up at `time` comes before what the timer waits for.
    fn wants(&self, time: Option<Instant>) -> bool {
        time.is_some_and(|time| self.alarm.is_none_or(|alarm| time < alarm))
    }

    /// Takes out the first request whose time has come.
    fn first_late(&mut self, now: Instant) -> Option<((Instant, u64), u32)> {
        let first = self.late.first_entry()?;
        (first.key().0 <= now).then(|| first.remove_entry())
    }

    /// Takes away those who wait for a reply and have waited too long.
    fn take_late(&mut self, now: Instant, patience: Duration) -> Vec<GivenUp> {
        let mut given_up = Vec::new();
        while let Some(((_, call), tag)) = self.first_late(now) {
            let Some(waiting) = self.sent.get_mut(&tag) else { continue };
            waiting.late = waiting.extension(self.progress, patience).filter(|&later| later > now);
            if let Some(later) = waiting.late {
                self.late.insert((later, call), tag);
                continue;
            }
            let error = Error::TimedOut { after: now.saturating_duration_since(waiting.sent.at), sent: true };
            given_up.push(GivenUp { then: waiting.then.take(), room: waiting.room.take(), error });
        }
        given_up
    }

    /// Takes away what could not be sent for too long.
    fn take_stuck(&mut self, now: Instant, patience: Duration) -> Vec<GivenUp> {
        let progress = self.progress;
        let mut given_up = Vec::new();
        for queue in [&mut self.first, &mut self.bulk] {
            let is_stuck = |queued: &Queued| queued.late(progress, patience).is_some_and(|time| time <= now);
            let (stuck, waits): (VecDeque<Queued>, _) = std::mem::take(queue).into_iter().partition(is_stuck);
            *queue = waits;
            given_up.extend(stuck.into_iter().map(|queued| {
                let after = now.saturating_duration_since(queued.silent_since(progress));
                let error = Error::TimedOut { after, sent: false };
                GivenUp { then: queued.then, room: queued.room, error }
            }));
        }
        given_up
    }

    /// When something is to be given up next.
    fn next_alarm(&self, patience: Duration) -> Option<Instant> {
        let queued = self.first.iter().chain(&self.bulk);
        let queued = queued.filter_map(|queued| queued.late(self.progress, patience));
        queued.chain(self.late.first_key_value().map(|((late, _), _)| *late)).min()
    }

    /// A request to which no reply follows.
    fn end(&mut self, now: Instant, tag: u32) -> Option<Waiting> {
        let waiting = self.sent.remove(&tag)?;
        if let Some(late) = waiting.late {
            self.late.remove(&(late, waiting.call));
        }
        self.window.receive(now, &waiting.sent, 0);
        Some(waiting)
    }

    fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.first.is_empty() && self.bulk.is_empty()
    }

    fn next_to_send(&mut self) -> Option<Queued> {
        if let Some(queued) = self.first.pop_front() {
            return Some(queued);
        }
        if self.bulk.is_empty() {
            return None;
        }
        if self.window.is_open() {
            return self.bulk.pop_front();
        }
        self.window.was_full();
        None
    }

    /// A number that no request in flight has.
    fn free_tag(&mut self) -> u32 {
        loop {
            self.next_tag = self.next_tag.wrapping_add(1);
            if !self.sent.contains_key(&self.next_tag) {
                return self.next_tag;
            }
        }
    }
}
