// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mounted image that outlives the worker that serves it.
//!
//! Between two checkpoints the worker does not touch the image: what it writes waits in a memory file that this process
//! holds too (`kernel/worker/src/overlay.rs`). So when it dies the next worker mounts what the last checkpoint left, the
//! changes answered since are done again in order, at the times they had ([`replay`]), and then whatever was in flight.
//! `docs/design/0007-guarded-images.md` has the reasons.
//!
//! A worker may also serve a mount by itself, and record what becomes of it (`outrigger_succession`): this process follows
//! in a copy, brings the next worker up to date from that, and hands the mount over again.

mod following;
mod replay;
mod replies;

use crate::Options;
use crate::connection::{Input, PATIENCE, greeted};
use crate::worker::{CONTROL, Log as Messages, Worker};
use following::Following;
use futures_channel::oneshot::{self, Receiver};
use outrigger_core::supervise::{Death, History, Policy, Supervisor};
use outrigger_core::wire::{Body, Frame};
use outrigger_core::{Cx, Errno, Error, Reply, Request, Result, lock};
use outrigger_succession::control::Control;
use outrigger_succession::{Ask, Role, State, Task, deliver};
use replay::{Fault, Replay};
use replies::Replies;
use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// So many workers in a row that do not get as far as serving are the last ones, those aside that others kill.
const POLICY: Policy = Policy { at_once: 4, attempts: 5, hold: Duration::ZERO, settled: Duration::MAX };

/// Starts a worker with this file for its messages.
pub(crate) type Start = Box<dyn Fn(Messages) -> Result<(Worker, UnixStream)> + Send + Sync>;

/// See the [module](self).
pub(crate) struct Guarded {
    shared: Arc<Shared>,
    serving: Mutex<Option<Serving>>,
}

/// The threads that serve all requests: see [`Shared::supervise`] and [`Shared::write_what_is_left`]. The channel closes when
/// the first ends.
struct Serving {
    threads: [JoinHandle<()>; 2],
    ended: mpsc::Receiver<()>,
}

/// With so many frames without a reply, they are sent.
const MUCH: usize = 128;

/// What became of a request at once.
pub(crate) enum Asked {
    Answered(Reply),
    /// The reply will arrive here.
    Waits(Receiver<Reply>),
}

struct Shared {
    state: Mutex<State>,
    replies: Replies,
    following: Mutex<Following>,
    /// Where frames go. The thread that has it writes; frames are not mixed.
    writing: Mutex<Arc<UnixStream>>,
    /// Frames are left by the thread that may not wait for the worker to read.
    left: Condvar,
    worker: Mutex<Arc<Worker>>,
    history: Mutex<History>,
    control: Control,
    messages: File,
    /// None when the image is unmounted: the process that starts workers holds the image.
    start: Mutex<Option<Start>>,
    patience: Duration,
    policy: Policy,
    /// Unmounting has taken too long: no worker is started any more.
    is_late: AtomicBool,
    /// The end, and how it came.
    end: Mutex<Option<Result<()>>>,
}

/// A worker that has mounted the image.
struct Life {
    worker: Arc<Worker>,
    socket: Arc<UnixStream>,
    input: Input,
}

impl Guarded {
    /// Starts the first worker of an image that is opened with these options.
    ///
    /// # Errors
    /// What it says about the image, or how it ended.
    pub(crate) fn begin(start: Start, options: &Options) -> Result<Self> {
        let messages = Messages::new()?.file;
        let control = Control::at(Arc::new(messages.try_clone()?), CONTROL);
        control.set_clock(None)?;
        let patience = options.patience.unwrap_or(PATIENCE);
        let Life { worker, socket, input } = Life::begin(&start, &messages, patience)?;
        let mut state = State::new(Role::Own, options.files())?;
        state.log.checkpoints = control.checkpoints()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            replies: Replies::of(input)?,
            following: Mutex::default(),
            writing: Mutex::new(Arc::clone(&socket)),
            left: Condvar::new(),
            worker: Mutex::new(worker),
            history: Mutex::new(History { started: 1, ..History::default() }),
            control,
            messages,
            start: Mutex::new(Some(start)),
            patience,
            policy: POLICY.held(options.hold),
            is_late: AtomicBool::new(false),
            end: Mutex::new(None),
        });
        let (alive, ended) = mpsc::channel();
        let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
        let supervise = move || {
            one.supervise(socket);
            drop(alive);
        };
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let threads = [
            named("outrigger-kernel").spawn(supervise)?,
            named("outrigger-frames").spawn(move || other.write_what_is_left())?,
        ];
        Ok(Guarded { shared, serving: Mutex::new(Some(Serving { threads, ended })) })
    }

    /// Asks the worker, whichever serves.
    ///
    /// # Errors
    /// When the content of a write cannot be had.
    pub(crate) fn ask(&self, cx: &Cx, request: Request) -> Result<Asked> {
        let (sender, mut receiver) = oneshot::channel();
        let ask = Ask::of(cx, request, sender)?;
        self.shared.with(|state| {
            if state.is_copied() {
                return Err(Errno::EBUSY.because("the kernel code serves the mount by itself"));
            }
            state.take(ask);
            Ok(())
        })?;
        self.shared.flush();
        let reply = match cx.more_to_follow {
            true => self.shared.leave_reading(),
            false => self.shared.read_until_answered(&mut receiver),
        };
        Ok(reply.map_or(Asked::Waits(receiver), Asked::Answered))
    }

    /// Returns references, which has no reply.
    pub(crate) fn forget(&self, node: outrigger_core::Node, count: u64) {
        let is_much = self.shared.with(|state| {
            state.forget(node, count);
            state.outgoing.len() >= MUCH
        });
        if is_much {
            self.shared.left.notify_all();
        }
    }

    /// What became of the workers so far.
    pub(crate) fn history(&self) -> History {
        lock(&self.shared.history).clone()
    }

    /// The process that serves now.
    pub(crate) fn worker(&self) -> u32 {
        lock(&self.shared.worker).id()
    }

    /// Unmounts, and waits until everything is in the image.
    ///
    /// # Errors
    /// `EIO` with the reason when it is not.
    pub(crate) fn end(&self) -> Result<()> {
        let Some(Serving { threads, ended }) = lock(&self.serving).take() else { return Ok(()) };
        self.shared.with(|state| match state.is_copied() {
            // Its process unmounts what it knows more of than this one.
            true => state.hang_up(),
            false => state.end(),
        });
        self.shared.flush();
        self.shared.ring();
        if ended.recv_timeout(self.shared.patience) == Err(RecvTimeoutError::Timeout) {
            let late = Errno::EIO.because("unmounting took too long (patience=)");
            self.shared.is_late.store(true, Ordering::Relaxed);
            self.shared.with(|state| state.fail(&late));
            lock(&self.shared.worker).kill();
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
        *lock(&self.shared.start) = None;
        lock(&self.shared.end).clone().unwrap_or(Ok(()))
    }
}

impl Life {
    fn begin(start: &Start, messages: &File, patience: Duration) -> Result<Self, Fault> {
        let (worker, socket) = start(Messages::again(messages)?)?;
        let (socket, input) = greeted(&worker, socket, patience).map_err(|error| {
            // One that took too long was killed by us.
            let by_others = error.errno != Errno::ETIMEDOUT && worker.was_killed();
            if by_others { Fault::Killed(error) } else { Fault::Differs(error) }
        })?;
        Ok(Life { worker: Arc::new(worker), socket: Arc::new(socket), input })
    }
}

impl Shared {
    /// Works on the state, then gives the replies that became of it.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = work(&mut state);
        let answered = state.answers();
        drop(state);
        deliver(answered);
        result
    }

    /// Sends frames until there are none. The thread that reads replies must not call this.
    fn flush(&self) {
        let socket = lock(&self.writing);
        loop {
            let mut state = lock(&self.state);
            let (outgoing, hangs_up) =
                (std::mem::take(&mut state.outgoing), std::mem::take(&mut state.hangs_up));
            drop(state);
            if outgoing.is_empty() && !hangs_up {
                return;
            }
            // A worker that has died needs no message, and may have hung up first.
            drop((&**socket).write_all(&self.encoded(outgoing)));
            if hangs_up {
                drop(socket.shutdown(Shutdown::Write));
            }
        }
    }

    /// The frames. What fits none is answered so.
    fn encoded(&self, outgoing: Vec<Task>) -> Vec<u8> {
        let mut frames = Vec::new();
        for Task { id, cred, request, .. } in outgoing {
            let body = Body::Request { cred, within: None, request };
            if let Err(error) = (Frame { id, body }).encode_to(&mut frames) {
                self.with(|state| state.receive(id, Reply::Error(error)));
            }
        }
        frames
    }

    fn begin(&self) -> Result<Life, Fault> {
        match &*lock(&self.start) {
            Some(start) => Life::begin(start, &self.messages, self.patience),
            None => Err(Errno::EIO.because("the image was unmounted").into()),
        }
    }

    fn write_what_is_left(&self) {
        let mut state = lock(&self.state);
        loop {
            if !state.outgoing.is_empty() || state.hangs_up {
                drop(state);
                self.flush();
                state = lock(&self.state);
            } else if state.failed.is_none() {
                state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                return;
            }
        }
    }

    /// Serves with one worker after the other.
    fn supervise(&self, mut socket: Arc<UnixStream>) {
        loop {
            self.read(&socket);
            self.take_over();
            let (worker, began) = (Arc::clone(&lock(&self.worker)), Instant::now());
            if lock(&self.state).failed.is_some() {
                self.dismiss(&Errno::EIO.because("the image was unmounted"));
                self.left.notify_all();
                let reason = worker.wait();
                // The next one finds the last checkpoint, which is in order, and knows nothing of later changes.
                let has_changes = !lock(&self.state).log.is_empty() && !worker.was_killed();
                let lost = reason.clone().filter(|_| has_changes);
                let lost = lost.map_or(Ok(()), |why| Err(Errno::EIO.because(why)));
                *lock(&self.end) = Some(self.unmounted(reason).and(lost));
                return;
            }
            // One that has hung up and lives on would unmount what others know nothing of.
            worker.kill();
            let guilty = !worker.was_killed();
            let reason = worker.wait();
            let why = reason.unwrap_or_else(|| "the kernel code has hung up".to_owned());
            tracing::warn!("{why}");
            let error = Errno::EIO.because(why.clone());
            self.with(|state| state.died(guilty, &error));
            self.bereaved(guilty, &error);
            match self.revive() {
                Ok(next) => socket = next,
                Err(error) => {
                    let error = Errno::EIO.because(format!("{error} ({why})"));
                    self.with(|state| state.fail(&error));
                    self.dismiss(&error);
                    self.left.notify_all();
                    *lock(&self.end) = Some(Err(error));
                    return;
                }
            }
            let death = Death { at: SystemTime::now(), reason: why };
            lock(&self.history).recovered(death, began.elapsed());
        }
    }

    /// Starts a worker that knows what the one before had replied.
    fn revive(&self) -> Result<Arc<UnixStream>> {
        let (mut supervisor, begun) = (Supervisor::new(self.policy), Instant::now());
        loop {
            let fault = match self.try_to_revive() {
                Ok(socket) => return Ok(socket),
                Err(fault) => fault,
            };
            // It is not the image that those die of whom others kill.
            let by_others = matches!(fault, Fault::Killed(_));
            if !by_others {
                supervisor.failed(begun.elapsed(), false);
            }
            let longest = self.patience.max(self.policy.hold);
            let is_over = supervisor.is_given_up(begun.elapsed()) || by_others && begun.elapsed() > longest;
            if is_over || self.is_late.load(Ordering::Relaxed) {
                return Err(fault.into());
            }
            std::thread::sleep(supervisor.pause());
        }
    }

    fn try_to_revive(&self) -> Result<Arc<UnixStream>, Fault> {
        self.control.set_clock(Some([0; 2])).map_err(Error::from)?;
        let mut life = self.begin()?;
        let checkpoints = self.control.checkpoints().map_err(Error::from)?;
        let entries = self.with(|state| {
            if state.log.checkpoints != checkpoints {
                state.was_checkpoint(checkpoints);
            }
            std::mem::take(&mut state.log.entries)
        });
        let mut replay = Replay::new(&life.socket, &mut life.input, &self.control);
        let mut outcome = replay.all(&entries);
        if outcome.is_err() {
            // It must not unmount what is half done.
            life.worker.kill();
            if matches!(outcome, Err(Fault::Lost)) && life.worker.was_killed() {
                outcome = Err(Fault::Killed(Errno::EIO.because("others have killed the kernel code")));
            }
            drop(life.worker.wait());
        }
        *lock(&self.writing) = Arc::clone(&life.socket);
        self.with(|state| {
            state.log.entries = entries;
            outcome?;
            *lock(&self.worker) = Arc::clone(&life.worker);
            state.serves = true;
            replay.finish(state);
            state.go_on();
            Ok::<(), Fault>(())
        })?;
        self.replies.come_from(life.input);
        self.left.notify_all();
        Ok(life.socket)
    }

    /// How an unmount ended. What a worker that died of it left is unmounted by the next one.
    fn unmounted(&self, mut reason: Option<String>) -> Result<()> {
        for _ in 0..POLICY.attempts {
            let Some(why) = reason else { return Ok(()) };
            tracing::warn!("{why}");
            let life = self.begin()?;
            drop(life.socket.shutdown(Shutdown::Write));
            reason = life.worker.wait();
        }
        reason.map_or(Ok(()), |why| Err(Errno::EIO.because(why)))
    }
}
