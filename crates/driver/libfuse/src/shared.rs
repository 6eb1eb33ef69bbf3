// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all requests share, and how each is seen through to its end.

use crate::async_mutex::AsyncMutex;
use crate::conn::OnNotice;
use crate::deadlines::{Alarm, Deadlines};
use crate::handles::Handles;
use crate::history::{Chronicle, Death};
use crate::life::{self, Life, Lives, Need, Starter, Terms};
use crate::message::{Caller, Fault};
use crate::nodes::{Epoch, Nodes};
use crate::options::Options;
use crate::turn::{Trial, Turn};
use crate::writes::Writes;
use outrigger_core::supervise::{Policy, Supervisor};
use outrigger_core::{
    Asked, BoxFuture, Cancel, Class, Cx, Errno, Error, Node, Notice, Notify, Reply, Request, Result, Runtime,
    lock,
};
use outrigger_proto_fuse::Notification;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// A program to start.
pub(crate) struct Recipe {
    pub(crate) starter: Starter,
    /// The command, for people.
    pub(crate) command: String,
}

/// Bytes of a request that are shown to people.
const SHOWN: usize = 1000;
/// A program that has lived so long was started well.
const SETTLED: Duration = Duration::from_secs(1);
/// A program that dies at once may do so because of what it does at its start. How long starts are tried is an option.
const POLICY: Policy = Policy { at_once: 4, attempts: 5, hold: Duration::ZERO, settled: SETTLED };

/// See the [module](self).
pub(crate) struct Shared {
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    pub(crate) writes: Writes,
    pub(crate) options: Options,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Operations, by opcode, that the program does not know.
    pub(crate) missing: AtomicU64,
    pub(crate) lives: Lives,
    /// What is started.
    pub(crate) recipe: Mutex<Arc<Recipe>>,
    /// What all programs must keep.
    pub(crate) terms: Terms,
    pub(crate) chronicle: Chronicle,
    deadlines: Arc<Deadlines>,
    notify: OnceLock<Arc<dyn Notify>>,
    /// For requests that may be what kills the program.
    alone: AsyncMutex,
    /// For writes that go to the end of a file.
    pub(crate) appends: AsyncMutex,
    supervisor: Mutex<Supervisor>,
    this: Weak<Shared>,
}

impl Shared {
    /// Starts the first program. Blocks.
    ///
    /// # Errors
    /// What went wrong, with what the program said.
    pub(crate) fn start(recipe: Recipe, options: Options, runtime: Arc<dyn Runtime>) -> Result<Arc<Self>> {
        let nodes = Nodes::new()?;
        let early: Arc<OnceLock<Weak<Shared>>> = Arc::default();
        let first = Life::begin(1, &recipe.starter, &options, &runtime, on_notice(&early))?;
        nodes.next_epoch(1);
        let mut supervisor = Supervisor::new(POLICY.held(options.retry));
        supervisor.started(runtime.monotonic());
        let shared = Arc::new_cyclic(|this| Shared {
            nodes,
            deadlines: Deadlines::new(Arc::clone(&runtime)),
            handles: Handles::default(),
            writes: Writes::new(options.kept_writes),
            options,
            runtime,
            missing: AtomicU64::new(0),
            terms: first.terms(),
            lives: Lives::new(Arc::new(first)),
            recipe: Mutex::new(Arc::new(recipe)),
            chronicle: Chronicle::default(),
            notify: OnceLock::new(),
            alone: AsyncMutex::default(),
            appends: AsyncMutex::default(),
            supervisor: Mutex::new(supervisor),
            this: Weak::clone(this),
        });
        // It is set here only.
        let _ = early.set(Arc::downgrade(&shared));
        Ok(shared)
    }

    pub(crate) fn attach(&self, notify: Arc<dyn Notify>) {
        // Called once.
        let _ = self.notify.set(notify);
    }

    /// Sees a request through, with as many programs as it takes.
    pub(crate) async fn perform(self: Arc<Self>, cx: Cx, mut request: Request) -> Reply {
        self.chronicle.asked(&mut request, cx.origin.pid);
        let leaving = self.nodes.expect_less(&request);
        self.nodes.expect_changes(&request);
        let reply = self.see_through(cx, &request).await;
        self.nodes.stored.settled(&leaving);
        reply
    }

    async fn see_through(self: &Arc<Self>, cx: Cx, request: &Request) -> Reply {
        let mut trial = Trial { appends: cx.appends, ..Trial::default() };
        let caller = Caller { uid: cx.cred.uid, gid: cx.cred.gid, pid: cx.origin.pid };
        loop {
            let alone = if trial.suspect.is_suspicious() { Some(self.alone.enter().await) } else { None };
            let life = match self.life().await {
                Ok(life) => life,
                Err(Fault::Failed(error)) => return Reply::Error(error),
                Err(Fault::Lost(_)) => continue,
            };
            let mut turn = Turn { shared: self, life: &life, caller, cancel: &cx.cancel, trial: &mut trial };
            let lost = match turn.attempt(request).await {
                Ok(reply) => return reply,
                Err(Fault::Failed(error)) => return Reply::Error(trial.explain(error)),
                Err(Fault::Lost(lost)) => lost,
            };
            // How it ended is known when there is a successor.
            if let Err(Fault::Failed(error)) = self.life().await {
                return Reply::Error(error);
            }
            if let Err(error) = trial.lost(&lost, life.was_killed()) {
                self.give_up(request, &error);
                return Reply::Error(error);
            }
            drop(alone);
        }
    }

    /// Whether the program knows extended attributes.
    pub(crate) async fn has_xattrs(self: &Arc<Self>) -> bool {
        let Ok(name) = outrigger_core::XattrName::new(b"user.outrigger".to_vec()) else { return false };
        let get = outrigger_core::ops::GetXattr { node: Node::ROOT, name };
        let cx = Cx::new(0, outrigger_core::Credentials::ROOT, "fuse");
        let reply = Running::new(Arc::clone(self), &cx, get.into()).await;
        reply.error().is_none_or(|error| !matches!(error.errno, Errno::EOPNOTSUPP | Errno::ETIMEDOUT))
    }

    /// Tells people of a request that is refused since programs die of it.
    fn give_up(self: &Arc<Self>, request: &Request, error: &Error) {
        let mut request = request.clone();
        let node = outrigger_core::paths::subjects(&mut request).first().map_or(Node::ROOT, |one| one.node);
        let path = self.path(node);
        tracing::error!(op = request.op().name(), path, %error, "a request is given up");
        let mut shown = format!("{} {path}: {request:?}", request.op().name());
        shown.truncate(shown.floor_char_boundary(SHOWN));
        let (this, error) = (Arc::clone(self), error.to_string());
        self.runtime.spawn_blocking(Box::new(move || this.report(Some(shown), error)));
    }

    /// Tells people; see [`Chronicle::report`].
    fn report(&self, request: Option<String>, error: String) {
        let command = lock(&self.recipe).command.clone();
        self.chronicle.report(command, request, error, |node| self.path(node));
    }

    /// The path of a file, for people.
    fn path(&self, node: Node) -> String {
        match self.nodes.path(node) {
            Ok(path) if path.is_empty() => "/".to_owned(),
            Ok(path) => path.iter().map(|name| format!("/{name}")).collect(),
            Err(_) => format!("#{}", node.0),
        }
    }

    /// Ends what is left of a program that died, and remembers how that came. Blocks.
    fn bury(&self, dead: &Life) -> Error {
        let why = dead.conn.over().cloned().unwrap_or_default();
        let end = dead.end();
        let said = dead.said();
        let error = Errno::EIO.because(life::with_output(&why, &said));
        let (incarnation, at) = (dead.epoch, SystemTime::now());
        self.chronicle.died(Death { incarnation, served: true, at, reason: why.to_string(), end, said });
        error
    }

    /// The running program, or the next one.
    async fn life(&self) -> Result<Arc<Life>, Fault> {
        let is_given_up = || lock(&self.supervisor).is_given_up(self.runtime.monotonic());
        poll_fn(|context| match self.lives.need(context.waker(), is_given_up()) {
            Ok(Need::Use(life)) => Poll::Ready(Ok(life)),
            Ok(Need::Wait) => Poll::Pending,
            Ok(Need::Start(dead)) => {
                if let Some(this) = self.this.upgrade() {
                    self.runtime.spawn_blocking(Box::new(move || this.restart(dead)));
                }
                Poll::Pending
            }
            Err(fault) => Poll::Ready(Err(fault)),
        })
        .await
    }

    /// Ends what is left of a program and starts the next one, again and again until that is given up. Blocks.
    pub(crate) fn restart(&self, dead: Option<Arc<Life>>) {
        let mut epoch = self.nodes.epoch();
        if let Some(dead) = dead {
            let reason = self.bury(&dead);
            tracing::warn!(%reason, "the program is started again");
            self.failed(dead.has_served());
        }
        if !lock(&self.supervisor).has_failed() {
            self.chronicle.recovered();
        }
        let last = loop {
            let pause = lock(&self.supervisor).pause();
            std::thread::sleep(pause);
            if self.lives.ended() {
                return;
            }
            epoch += 1;
            let error = match self.begin(epoch) {
                Ok(life) => {
                    self.started(life);
                    // A request that this one dies of, too, is to be found out first.
                    std::thread::sleep(SETTLED);
                    return self.look_for_stored(epoch);
                }
                Err(error) => error,
            };
            self.not_started(epoch, &error);
            if self.failed(false) {
                break error;
            }
        };
        tracing::error!(reason = %last, "the program cannot be started again");
        let error = last.errno.because(format!("the program cannot be started again: {last}"));
        self.lives.started(Err(error.clone()));
        self.report(None, error.to_string());
    }

    /// A start has failed.
    pub(crate) fn not_started(&self, incarnation: u32, error: &Error) {
        let (at, reason) = (SystemTime::now(), error.to_string());
        let said = String::new();
        self.chronicle.died(Death { incarnation, served: false, at, reason, end: None, said });
    }

    /// A program has died, which `has_served` before, or could not be started: whether starts are given up.
    fn failed(&self, has_served: bool) -> bool {
        let (mut supervisor, now) = (lock(&self.supervisor), self.runtime.monotonic());
        supervisor.failed(now, has_served);
        supervisor.is_given_up(now)
    }

    /// What is started from now on is another program.
    pub(crate) fn forgive(&self) {
        lock(&self.supervisor).forgive();
    }

    /// A program serves.
    pub(crate) fn started(&self, life: Life) {
        lock(&self.supervisor).started(self.runtime.monotonic());
        self.lives.started(Ok(Arc::new(life)));
    }

    pub(crate) fn begin(&self, epoch: Epoch) -> Result<Life> {
        let this: Arc<OnceLock<Weak<Shared>>> = Arc::default();
        let _ = this.set(Weak::clone(&self.this));
        let recipe = Arc::clone(&lock(&self.recipe));
        let mut life = Life::begin(epoch, &recipe.starter, &self.options, &self.runtime, on_notice(&this))?;
        self.terms.suit(&life.terms())?;
        self.nodes.next_epoch(epoch);
        match life::block_on(self.recover(&life)) {
            Ok(()) => {
                life.begins();
                Ok(life)
            }
            Err(Fault::Failed(error)) => Err(error),
            Err(Fault::Lost(lost)) => Err(Errno::EIO.because(life::with_output(&lost.why, &life.said()))),
        }
    }

    /// What cannot wait until it is used: writes that only the old program knew of, and locks.
    async fn recover(&self, life: &Life) -> Result<(), Fault> {
        let cancel = Cancel::default();
        let mut trial = Trial::default();
        let turn = Turn { shared: self, life, caller: Caller::default(), cancel: &cancel, trial: &mut trial };
        let (written, locking) = (self.writes.all(), self.handles.locking());
        if !(written.is_empty() && locking.is_empty()) {
            turn.know_root().await?;
        }
        for (node, writes) in written {
            let open = turn.repeat(node, &writes).await;
            if let Err(Fault::Failed(error)) = open {
                let why = format!("writes were lost when the program was started again: {error}");
                tracing::error!(%error, "acknowledged writes are lost");
                for handle in self.writes.handles(node) {
                    if let Ok(open) = self.handles.get(handle) {
                        *lock(&open.failed) = Some(Errno::EIO.because(why.clone()));
                    }
                }
                self.writes.give_up(node);
            } else {
                open?;
            }
        }
        for open in locking {
            if let Err(Fault::Lost(lost)) = turn.their_handle(&open).await {
                return Err(lost.into());
            }
        }
        Ok(())
    }

    /// Finds out what the programs before have lost, if this one still serves. Blocks.
    pub(crate) fn look_for_stored(&self, epoch: Epoch) {
        let life = self.lives.now().filter(|life| life.epoch == epoch && !self.nodes.stored.is_empty());
        let Some(life) = life else { return };
        let (cancel, mut trial) = (Cancel::default(), Trial::default());
        let turn =
            Turn { shared: self, life: &life, caller: Caller::default(), cancel: &cancel, trial: &mut trial };
        // What could not be looked for is when the next program serves.
        let _ = life::block_on(turn.look_for_stored());
    }

    /// Returns references to the running program.
    pub(crate) fn forget(&self, node: Node, count: u64) {
        let forgotten = self.nodes.forget(node, count);
        if let Some(life) = self.lives.now() {
            life.forget(&forgotten);
        }
    }

    /// Passes a notification of the program on, in our numbers.
    fn notice(&self, notification: &Notification<'_>) {
        let Some(notify) = self.notify.get() else { return };
        if let Some(notice) = self.translate(notification) {
            notify.notify(notice);
        }
    }

    fn translate(&self, notification: &Notification<'_>) -> Option<Notice> {
        let ours = |id| self.nodes.ours(id);
        let name = |bytes: &[u8]| outrigger_core::Name::new(bytes.to_vec()).ok();
        Some(match *notification {
            Notification::Poll { kh } => Notice::Wake { key: kh },
            Notification::InvalInode { nodeid, off, len } => {
                Notice::InvalidateNode { node: ours(nodeid)?, offset: off, len: len.max(0) }
            }
            Notification::InvalEntry { parent, name: bytes, .. } => {
                Notice::InvalidateEntry { dir: ours(parent)?, name: name(bytes)? }
            }
            Notification::Delete { parent, child, name: bytes } => {
                Notice::Deleted { dir: ours(parent)?, node: ours(child)?, name: name(bytes)? }
            }
            Notification::Store { nodeid, offset, data } => {
                Notice::Store { node: ours(nodeid)?, offset, data: data.to_vec().into() }
            }
            Notification::IncEpoch => Notice::InvalidateAll,
            // Every request that is in flight is with the program already, and nodes are dropped when the door does.
            Notification::Retrieve { .. } | Notification::Resend | Notification::Prune { .. } => return None,
        })
    }
}

fn on_notice(shared: &Arc<OnceLock<Weak<Shared>>>) -> OnNotice {
    let shared = Arc::clone(shared);
    Box::new(move |notification| {
        if let Some(shared) = shared.get().and_then(Weak::upgrade) {
            shared.notice(&notification);
        }
    })
}

/// A request until its deadline, or until it is cancelled. What was begun goes on after that, without a reply: a change
/// is finished, and what a query obtained is returned.
pub(crate) struct Running {
    work: Option<BoxFuture<'static, Reply>>,
    alarm: Option<Alarm>,
    /// Not of a wait for a lock: a program that obeys answers it, and one that gave the lock later would leave it without an owner.
    cancel: Option<Cancel>,
    class: Class,
    asked: Asked,
    shared: Arc<Shared>,
}

impl Running {
    /// `request`, begun.
    pub(crate) fn new(shared: Arc<Shared>, cx: &Cx, request: Request) -> Self {
        let forever = request.waits();
        let ours = shared.options.timeout.filter(|_| !forever);
        let ours = ours.map(|timeout| shared.runtime.monotonic().saturating_add(timeout));
        let deadline = [ours, cx.deadline].into_iter().flatten().min();
        let alarm = deadline.map(|deadline| shared.deadlines.alarm(deadline));
        let (class, asked) = (request.class(), Asked::of(&request));
        let cancel = (!forever).then(|| cx.cancel.clone());
        let work: BoxFuture<'static, Reply> = Box::pin(Arc::clone(&shared).perform(cx.clone(), request));
        Running { work: Some(work), alarm, cancel, class, asked, shared }
    }

    /// Lets the work go on alone.
    fn detach(&mut self) {
        if let Some(work) = self.work.take() {
            let (shared, asked) = (Arc::clone(&self.shared), self.asked);
            self.shared.runtime.spawn(Box::pin(async move {
                let reply = work.await;
                shared.give_back(asked, &reply).await;
            }));
        }
    }
}

impl Future for Running {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let Some(work) = &mut self.work else {
            return Poll::Ready(Reply::Error(Errno::EIO.into()));
        };
        if let Poll::Ready(reply) = work.as_mut().poll(context) {
            self.work = None;
            return Poll::Ready(reply);
        }
        let raised = |cancel: &Cancel| Pin::new(&mut cancel.raised()).poll(context).is_ready();
        let (errno, why) = if self.cancel.as_ref().is_some_and(raised) {
            (Errno::EINTR, "the request was cancelled")
        } else if self.alarm.as_mut().is_some_and(|alarm| alarm.poll(context).is_ready()) {
            (Errno::ETIMEDOUT, "the program has not answered in time")
        } else {
            return Poll::Pending;
        };
        self.detach();
        let goes_on = if self.class == Class::Change { "; the change may still happen" } else { "" };
        Poll::Ready(Reply::Error(errno.because(format!("{why}{goes_on}"))))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.detach();
    }
}

impl Shared {
    /// Gives back what a reply hands out that is not delivered.
    async fn give_back(self: Arc<Self>, asked: Asked, reply: &Reply) {
        for request in asked.returns(reply) {
            match request.returns() {
                Some((node, count)) => self.forget(node, count),
                None => {
                    let cx = Cx::new(0, outrigger_core::Credentials::ROOT, "fuse");
                    // Whatever it answers, the handle is gone.
                    let _ = Arc::clone(&self).perform(cx, request).await;
                }
            }
        }
    }
}
