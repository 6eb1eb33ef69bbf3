// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading the worker's replies. The caller reads for a moment: most replies come at once, and no thread has to be woken for
//! them. What takes longer is read by the thread that also notices the worker's death.

use super::Shared;
use super::following::is_order;
use crate::connection::{Input, MOMENT};
use futures_channel::oneshot::Receiver;
use outrigger_core::wire::{Body, Frame};
use outrigger_core::{Errno, Reply, Result, lock};
use outrigger_succession::{RECORDED, State};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often a log is looked at to which nothing is added.
const PERIOD: Duration = Duration::from_secs(1);

/// Where replies come from.
pub(super) struct Replies {
    /// The thread that has this reads. None when the worker is known to have gone.
    input: Mutex<Option<Input>>,
    /// Readable when there is something for the thread that reads.
    bell: OwnedFd,
    /// Whether that thread sleeps until it is woken. Changed only with the state locked.
    sleeps: AtomicBool,
}

impl Replies {
    /// Those of the first worker.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn of(input: Input) -> Result<Self> {
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Replies { input: Mutex::new(Some(input)), bell, sleeps: AtomicBool::new(false) })
    }

    /// From now on it is another worker who replies.
    pub(super) fn come_from(&self, input: Input) {
        *lock(&self.input) = Some(input);
    }
}

impl Shared {
    /// Reads until the reply is there, but not for long, and not if somebody else reads.
    pub(super) fn read_until_answered(&self, receiver: &mut Receiver<Reply>) -> Option<Reply> {
        let mut look = || receiver.try_recv().ok().flatten();
        let mut reply = look();
        if reply.is_none()
            && let Ok(mut input) = self.replies.input.try_lock()
        {
            let end = Instant::now() + MOMENT;
            while reply.is_none() && self.read_one(&mut input, |input| input.frame_before(end)) {
                reply = look();
            }
            drop(input);
            self.leave_reading();
        }
        reply
    }

    /// Has the thread that reads look what there is.
    pub(super) fn ring(&self) {
        // It fails when it was rung very often already.
        let _ = rustix::io::write(&self.replies.bell, &1_u64.to_ne_bytes());
    }

    /// Leaves what is to come to the thread that reads. Gives nothing.
    pub(super) fn leave_reading(&self) -> Option<Reply> {
        let state = lock(&self.state);
        let log_began = !state.log.entries.is_empty() && self.replies.sleeps.load(Relaxed);
        if state.has_work() || log_began {
            drop(state);
            self.ring();
        }
        None
    }

    /// Delivers what no caller reads, until the worker hangs up.
    pub(super) fn read(&self, socket: &UnixStream) {
        // Without it a checkpoint comes later.
        drop(socket.set_read_timeout(Some(PERIOD)));
        loop {
            self.hand_over();
            let state = lock(&self.state);
            let (is_copied, has_work) = (state.is_copied(), state.has_work());
            drop(state);
            let goes_on = match (is_copied, has_work) {
                (true, _) => self.read_what_comes(socket),
                (false, true) => self.read_what_is_asked(),
                (false, false) => !self.rest(socket),
            };
            if !goes_on {
                *lock(&self.replies.input) = None;
                return;
            }
        }
    }

    /// Reads as long as replies are to come. `false` when the worker has hung up.
    fn read_what_is_asked(&self) -> bool {
        let mut input = lock(&self.replies.input);
        while lock(&self.state).has_work() && self.read_one(&mut input, |input| input.frame().map(Some)) {}
        input.is_some()
    }

    /// Waits for what a worker says that serves by itself. `false` when it has hung up.
    fn read_what_comes(&self, socket: &UnixStream) -> bool {
        let both = [PollFd::new(socket, PollFlags::IN), PollFd::new(&self.replies.bell, PollFlags::IN)];
        // An error is an interruption by a signal.
        let _ = poll(&mut both.clone(), None);
        let _ = rustix::io::read(&self.replies.bell, &mut [0; 8]);
        let mut input = lock(&self.replies.input);
        while self.read_one(&mut input, |input| input.frame_before(Instant::now())) {}
        input.is_some()
    }

    /// Waits until there may be something to do. Tells whether the worker has hung up.
    fn rest(&self, socket: &UnixStream) -> bool {
        let state = lock(&self.state);
        let is_open = !state.log.entries.is_empty();
        self.replies.sleeps.store(!is_open, Relaxed);
        let has_work = state.has_work();
        drop(state);
        let mut waited = [
            // Of replies others take care: they need not wake this thread.
            PollFd::new(socket, PollFlags::empty()),
            PollFd::new(&self.replies.bell, PollFlags::IN),
        ];
        let period = Timespec { tv_sec: PERIOD.as_secs() as i64, tv_nsec: 0 };
        let period = is_open.then_some(&period);
        // An error is an interruption by a signal.
        let woken = if has_work { Ok(1) } else { poll(&mut waited, period) };
        // It fails when it was not rung.
        let _ = rustix::io::read(&self.replies.bell, &mut [0; 8]);
        if woken == Ok(0) {
            self.tick();
        }
        !waited[0].revents().is_empty()
    }

    /// Delivers a frame if `read` finds one. `false` when there is none, and when the worker has gone.
    fn read_one(
        &self,
        input: &mut Option<Input>,
        read: impl FnOnce(&mut Input) -> Result<Option<Frame>>,
    ) -> bool {
        match input.as_mut().map(read) {
            Some(Ok(Some(Frame { id: RECORDED, .. }))) => self.follow(),
            Some(Ok(Some(Frame { id, body: Body::Reply(reply) }))) if is_order(id) => self.obeyed(id, reply),
            Some(Ok(Some(Frame { id, body: Body::Reply(reply) }))) => {
                self.work(|state| state.receive(id, reply))
            }
            Some(Err(error)) if error.errno == Errno::EAGAIN => self.tick(),
            Some(Ok(None)) => return false,
            outcome => {
                tracing::debug!(?outcome, "the worker's connection has ended");
                input.take().inspect(Input::hang_up);
                return false;
            }
        }
        true
    }

    /// Makes a checkpoint if it is time for one.
    fn tick(&self) {
        self.work(State::go_on);
    }

    /// Works on the state; what is to be sent then is left to the thread that may wait for the worker to read.
    fn work(&self, work: impl FnOnce(&mut State)) {
        let is_left = self.with(|state| {
            work(state);
            !state.outgoing.is_empty() || state.hangs_up
        });
        if is_left {
            self.left.notify_all();
        }
    }
}
