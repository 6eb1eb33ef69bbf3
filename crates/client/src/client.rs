// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking a service, one blocking call at a time.

use crate::asking::Asking;
use crate::inode::Inode;
use crate::wait::block_on;
use outrigger_core::ops::{Forget, GetAttr, StatFs, SyncFs};
use outrigger_core::reply::{Attrs, FsStat};
use outrigger_core::{
    Abilities, Answer, BoxFuture, Cancel, Class, Credentials, Cx, DriverClass, Errno, Error, Exchange, Node,
    Op, OpCode, Reply, Request, Result, Runtime, Service,
};
use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A user of one tree. Cloning is cheap and shares everything.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    settings: Settings,
}

struct Shared {
    service: Arc<dyn Service>,
    runtime: Arc<dyn Runtime>,
    abilities: Abilities,
    next_id: AtomicU64,
    /// Set when a request was not answered in the grace period after an interruption: later ones are not waited for.
    silent: AtomicBool,
    /// Whether it was asked for a change that no [`Client::sync`] has covered yet.
    changed: AtomicBool,
}

/// Which tree a client asks: equal for all clients of one service. See [`Client::tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TreeId(usize);

/// As whom, how long and until when a [`Client`] asks.
#[derive(Debug, Clone)]
pub struct Settings {
    /// On whose behalf.
    pub cred: Credentials,
    /// How long one call may take; `None` for as long as it needs.
    pub timeout: Option<Duration>,
    /// Ends every call when raised.
    pub cancel: Cancel,
    /// How long a call may still take after that when it has to be waited for: changes that have started, closing, tidying up.
    /// When it ends without an answer, none is waited for any more.
    pub grace: Duration,
}

/// Long enough for a change that is only slow.
const GRACE: Duration = Duration::from_secs(15);

impl Default for Settings {
    fn default() -> Self {
        Settings { cred: Credentials::ROOT, timeout: None, cancel: Cancel::default(), grace: GRACE }
    }
}

/// A request that was handed to the service.
struct Started<'a> {
    cx: &'a Cx,
    op: OpCode,
    class: Class,
    answer: Answer<'a>,
}

impl Started<'_> {
    /// Lets a service that does nothing before it is waited for begin.
    fn begin(&mut self) {
        if let Answer::Later(future) = &mut self.answer
            && let Poll::Ready(reply) = future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.answer = Answer::Ready(reply);
        }
    }
}

impl Client {
    /// A client of `service`, whose deadlines are on the clock of `runtime`.
    pub fn new(service: Arc<dyn Service>, runtime: Arc<dyn Runtime>, settings: Settings) -> Self {
        let abilities = service.abilities();
        Client {
            shared: Arc::new(Shared {
                service,
                runtime,
                abilities,
                next_id: AtomicU64::new(1),
                silent: AtomicBool::new(false),
                changed: AtomicBool::new(false),
            }),
            settings,
        }
    }

    /// What the tree's service can do.
    pub fn abilities(&self) -> &Abilities {
        &self.shared.abilities
    }

    /// Whether the service supports `op`.
    pub fn has(&self, op: OpCode) -> bool {
        self.shared.abilities.ops.has(op)
    }

    /// The service it asks.
    pub fn service(&self) -> &Arc<dyn Service> {
        &self.shared.service
    }

    /// Which tree it asks. Valid while a client of that tree exists; nodes are comparable only within one tree.
    pub fn tree(&self) -> TreeId {
        TreeId(Arc::as_ptr(&self.shared).addr())
    }

    /// The same client without its cancel token: for tidying up after an interruption.
    pub fn uninterrupted(&self) -> Self {
        let Settings { cred, timeout, grace, .. } = self.settings.clone();
        let timeout = Some(timeout.unwrap_or(grace).min(grace));
        let settings = Settings { cred, timeout, cancel: Cancel::default(), grace };
        Client { shared: Arc::clone(&self.shared), settings }
    }

    /// The root directory.
    ///
    /// # Errors
    /// Whatever asking for its attributes fails with.
    pub fn root(&self) -> Result<Inode> {
        let attrs = self.call(GetAttr { node: Node::ROOT, handle: None })?;
        Ok(Inode::root(self.clone(), attrs))
    }

    /// Size and free space.
    ///
    /// # Errors
    /// `ENOSYS` when the tree does not know.
    pub fn statfs(&self) -> Result<FsStat> {
        self.call(StatFs { node: Node::ROOT })
    }

    /// Puts all changes made through this tree's clients on stable storage (syncfs(2)), if there are any since the last time.
    /// Trees that keep nothing back, whose directories are the host's (`local`) or that have no such operation accept silently:
    /// see [`File::sync_if_able`](crate::File::sync_if_able) for their files.
    ///
    /// # Errors
    /// What the tree answers, such as `ENOSPC` for a write that was delayed. Then the next time asks it again.
    pub fn sync(&self) -> Result<()> {
        let kept_back = self.shared.abilities.class != DriverClass::PassThrough && self.has(OpCode::SyncFs);
        if !self.shared.changed.swap(false, Ordering::Relaxed) || !kept_back {
            return Ok(());
        }
        match self.call(SyncFs { node: Node::ROOT }) {
            Err(error) if lacks(&error) => Ok(()),
            synced => synced.inspect_err(|_| self.shared.changed.store(true, Ordering::Relaxed)),
        }
    }

    /// Does one operation and waits for its result.
    ///
    /// # Errors
    /// Whatever the service answers; `EINTR` once the client is cancelled, `ETIMEDOUT` when the timeout passes, or when a change
    /// that has started is given up after an interruption.
    pub fn call<O: Op>(&self, op: O) -> Result<O::Out> {
        O::result(self.answer(op.into()))
    }

    /// Asks for attributes that no cache of this process may answer ([`Cx::fresh`]).
    pub(crate) fn call_fresh(&self, op: GetAttr) -> Result<Attrs> {
        let cx = Cx { fresh: true, ..self.cx(self.settings.cancel.clone()) };
        GetAttr::result(self.outcome(self.start(&cx, op.into())))
    }

    /// Does several operations at once, in any order, and waits for all their results, which are in the order of `ops`.
    /// What a tree that is asked through a connection needs for each of them is needed once.
    pub fn call_all<O: Op>(&self, ops: impl IntoIterator<Item = O>) -> Vec<Result<O::Out>> {
        let requests: Vec<Request> = ops.into_iter().map(Into::into).collect();
        let context = |_| Cx { more_to_follow: true, ..self.cx(self.settings.cancel.clone()) };
        let mut contexts: Vec<Cx> = requests.iter().map(context).collect();
        if let Some(last) = contexts.last_mut() {
            last.more_to_follow = false;
        }
        let ask = |(cx, request)| self.start(cx, request);
        let mut started: Vec<Started<'_>> = contexts.iter().zip(requests).map(ask).collect();
        started.iter_mut().for_each(Started::begin);
        started.into_iter().map(|one| O::result(self.outcome(one))).collect()
    }

    /// Moves content between an open file and one of the host, see [`Service::exchange`].
    pub(crate) fn exchange(&self, exchange: Exchange, host: BorrowedFd<'_>) -> Result<u64> {
        let cx = self.cx(self.settings.cancel.clone());
        let answer = match cx.cancel.is_raised() {
            true => Answer::error(Errno::EINTR),
            false => self.shared.service.exchange(&cx, exchange, host),
        };
        // Counts as a write for interruptions and timeouts.
        let (op, class) = (OpCode::Write, Class::Change);
        self.shared.changed.store(true, Ordering::Relaxed);
        match self.outcome(Started { cx: &cx, op, class, answer }) {
            Reply::Count(count) => Ok(count.0),
            Reply::Error(error) => Err(error),
            _ => Err(Errno::EPROTO.into()),
        }
    }

    /// Returns a reference to a node.
    pub(crate) fn forget(&self, node: Node) {
        if node != Node::ROOT {
            self.finish(Forget { node, count: 1 });
        }
    }

    /// Does one operation even when the client is cancelled: for closing handles. A tree that does not answer is not waited for beyond
    /// the timeout. `None` where the tree has no such operation.
    pub(crate) fn finish<O: Op>(&self, op: O) -> Option<Result<O::Out>> {
        self.has(O::CODE).then(|| {
            let cx = self.cx(Cancel::default());
            O::result(self.outcome(self.start(&cx, op.into())))
        })
    }

    fn cx(&self, cancel: Cancel) -> Cx {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let mut cx = Cx::new(id, self.settings.cred.clone(), "client");
        cx.origin.pid = Asking::process();
        cx.deadline =
            self.settings.timeout.map(|timeout| self.shared.runtime.monotonic().saturating_add(timeout));
        cx.cancel = cancel;
        cx
    }

    fn answer(&self, request: Request) -> Reply {
        let cx = self.cx(self.settings.cancel.clone());
        self.outcome(self.start(&cx, request))
    }

    fn start<'a>(&'a self, cx: &'a Cx, request: Request) -> Started<'a> {
        let (op, class) = (request.op(), request.op().class());
        if request.changes_tree() {
            self.shared.changed.store(true, Ordering::Relaxed);
        }
        let answer = match cx.cancel.is_raised() {
            true => Answer::error(Errno::EINTR),
            false => self.shared.service.call(cx, request),
        };
        Started { cx, op, class, answer }
    }

    fn outcome(&self, started: Started<'_>) -> Reply {
        let Started { cx, op, class, answer } = started;
        match answer {
            Answer::Ready(reply) => reply,
            Answer::Later(future) => self.wait(cx, op, class, future),
        }
    }

    fn wait(&self, cx: &Cx, op: OpCode, class: Class, mut future: BoxFuture<'_, Reply>) -> Reply {
        let runtime = &self.shared.runtime;
        let mut raised = pin!(self.settings.cancel.raised());
        let mut deadline = cx.deadline.map(|deadline| runtime.sleep_until(deadline));
        let mut grace = None;
        block_on(poll_fn(|context| {
            if let Poll::Ready(reply) = future.as_mut().poll(context) {
                return Poll::Ready(reply);
            }
            if self.shared.silent.load(Ordering::Relaxed) {
                return Poll::Ready(self.unanswered(op, "is not waited for any more"));
            }
            if grace.is_none() && raised.as_mut().poll(context).is_ready() {
                if class == Class::Query && cx.cancel.is_raised() {
                    return Poll::Ready(Reply::Error(Errno::EINTR.into()));
                }
                // The outcome of a change that has started would be unknown: wait for it a little.
                grace = Some(runtime.sleep_until(runtime.monotonic().saturating_add(self.settings.grace)));
            }
            if has_passed(&mut grace, context) {
                return Poll::Ready(self.given_up(op));
            }
            match has_passed(&mut deadline, context) {
                true => Poll::Ready(self.timed_out(op)),
                false => Poll::Pending,
            }
        }))
    }

    /// `ETIMEDOUT` instead of `EINTR`: the change may have been made, which the caller must report.
    fn given_up(&self, op: OpCode) -> Reply {
        self.shared.silent.store(true, Ordering::Relaxed);
        let seconds = self.settings.grace.as_secs_f32();
        self.unanswered(op, &format!("took longer than {seconds} s after the interruption"))
    }

    fn timed_out(&self, op: OpCode) -> Reply {
        let seconds = self.settings.timeout.unwrap_or_default().as_secs_f32();
        self.unanswered(op, &format!("took longer than {seconds} s"))
    }

    fn unanswered(&self, op: OpCode, why: &str) -> Reply {
        let Abilities { driver, tree, .. } = &self.shared.abilities;
        Reply::Error(Errno::ETIMEDOUT.because(format!("{} on {tree} ({driver}) {why}", op.name())))
    }
}

/// Whether an error says that a tree cannot synchronise at all (fsync(2): `EINVAL`).
pub(crate) fn lacks(error: &Error) -> bool {
    matches!(error.errno, Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// Whether the timer, if there is one, has expired.
fn has_passed(time: &mut Option<BoxFuture<'_, ()>>, context: &mut Context<'_>) -> bool {
    time.as_mut().is_some_and(|time| time.as_mut().poll(context).is_ready())
}
