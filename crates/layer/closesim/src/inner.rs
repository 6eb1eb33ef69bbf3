// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening, closing and the time in between.

use crate::held::{Cookies, Held, Kind, Open};
use crate::outcome::{Outcome, unfinished};
use crate::table::{Begun, Table};
use crate::{LAYER, Options};
use outrigger_core::gate::Gate;
use outrigger_core::hash::siphash13;
use outrigger_core::ops::{Forget, Open as OpenFile, OpenDir, OpenFlags};
use outrigger_core::reply::OpenHow;
use outrigger_core::{
    Abilities, BoxFuture, Credentials, Cx, Errno, Error, Node, OpCode, OpSet, Result, Runtime, Service, ask,
    lock,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Waker};

/// The state of the layer.
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) table: Mutex<Table>,
    /// Opens when something has been closed.
    gate: Gate,
    below: OnceLock<Below>,
    /// The number of the next open directory.
    next_dir: AtomicU64,
}

/// What the layer stands on.
pub(crate) struct Below {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) ops: OpSet,
    pub(crate) supplied: Supplied,
    /// Files of the tree are streams.
    opens_streams: bool,
}

/// What the tree lacks and this layer supplies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Supplied {
    /// Requests about files without a handle.
    pub(crate) files: bool,
    /// Requests about directories without a handle.
    pub(crate) dirs: bool,
    /// Whether a cookie of the tree leads to the same place in any open directory.
    pub(crate) cookies_last: bool,
}

impl Supplied {
    pub(crate) fn of(below: &Abilities) -> Self {
        let anonymous_dirs = below.anonymous_io && below.lasting_cookies;
        Supplied {
            files: below.ops.has(OpCode::Open) && !below.anonymous_io && !below.stateless_files,
            dirs: below.ops.has(OpCode::OpenDir) && !anonymous_dirs && !below.stateless_dirs,
            cookies_last: below.lasting_cookies || below.cookies_by_name,
        }
    }
}

/// Sets the outcome when the work is given up, or fails by a defect: callers may wait for it.
struct Ending<T: Clone + Send> {
    inner: Arc<Inner>,
    node: Node,
    outcome: Arc<Outcome<T>>,
}

impl<T: Clone + Send> Drop for Ending<T> {
    fn drop(&mut self) {
        self.outcome.set(unfinished());
        self.inner.settle(self.node);
        self.inner.gate.open();
    }
}

impl Inner {
    pub(crate) fn new(options: Options, runtime: Arc<dyn Runtime>) -> Self {
        let now = runtime.wall();
        // Not those of an earlier process, whose cookies lead nowhere.
        let next_dir = siphash13(&[now.secs.to_le_bytes(), i64::from(now.nanos).to_le_bytes()].concat());
        Inner {
            options,
            runtime,
            table: Mutex::default(),
            gate: Gate::default(),
            below: OnceLock::new(),
            next_dir: AtomicU64::new(next_dir),
        }
    }

    pub(crate) fn stand_on(&self, next: &Arc<dyn Service>) {
        self.below.get_or_init(|| {
            let abilities = next.abilities();
            Below {
                service: Arc::clone(next),
                ops: abilities.ops,
                supplied: Supplied::of(&abilities),
                opens_streams: abilities.opens_streams,
            }
        });
    }

    pub(crate) fn below(&self) -> &Below {
        self.below.get().expect("nothing is asked before the first request")
    }

    /// Does work about `node` to its end, whether or not anyone waits for it.
    pub(crate) fn carry_out<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        node: Node,
        outcome: &Arc<Outcome<T>>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) {
        let ending = Ending { inner: Arc::clone(self), node, outcome: Arc::clone(outcome) };
        let mut task: BoxFuture<'static, ()> = Box::pin(async move {
            let value = work.await;
            ending.outcome.set(value);
        });
        // What is answered at once needs no task.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.runtime.spawn(task);
        }
    }

    /// An open file for a caller, which is opened if need be.
    pub(crate) async fn hold(self: &Arc<Self>, cx: &Cx, node: Node, kind: Kind) -> Result<Arc<Held>> {
        let begun = self.gate.wait(|| lock(&self.table).begin(node, &cx.cred, kind));
        let outcome = match cx.cancel.unless_raised(begun).await.ok_or(Errno::EINTR)? {
            Begun::Open(held) => return Ok(held),
            Begun::Joins(outcome) => outcome,
            Begun::Starts(outcome) => {
                let opened = Arc::clone(self).open_file(cx.aside(), node, kind);
                self.carry_out(node, &outcome, opened);
                outcome
            }
        };
        cx.cancel.unless_raised(outcome.wait()).await.ok_or(Errno::EINTR)?
    }

    async fn open_file(self: Arc<Self>, cx: Cx, node: Node, kind: Kind) -> Result<Arc<Held>> {
        if self.below().opens_streams && kind != Kind::List {
            return Err(Errno::EOPNOTSUPP
                .because("a stream has no content at offsets, which callers without opens ask for"));
        }
        let service = &*self.below().service;
        let mut flags = if kind == Kind::Write { OpenFlags::READ_WRITE } else { OpenFlags::empty() };
        let mut opened = match kind {
            Kind::List => ask(service, &cx, OpenDir { node }).await,
            _ => ask(service, &cx, OpenFile { node, flags }).await,
        };
        if kind == Kind::Write && opened.as_ref().is_err_and(is_refusal) {
            flags = OpenFlags::WRITE_ONLY;
            opened = ask(service, &cx, OpenFile { node, flags }).await;
        }
        let opened = opened.map_err(|error| match error.errno {
            // The caller has named no file that could be missing, but one that it knows.
            Errno::ENOENT => Errno::ESTALE.because("the file was removed"),
            _ => error,
        })?;
        let flush = !opened.how.contains(OpenHow::NO_FLUSH);
        let open = Open { node, handle: opened.handle, kind, flags, flush, cx };
        Ok(self.keep(open))
    }

    pub(crate) fn keep(self: &Arc<Self>, open: Open) -> Arc<Held> {
        let numbers_cookies = open.kind == Kind::List && !self.below().supplied.cookies_last;
        let cookies = numbers_cookies.then(|| Cookies::of(self.next_dir.fetch_add(1, Ordering::Relaxed)));
        let (inner, used, stores) = (Arc::clone(self), AtomicU64::default(), AtomicBool::default());
        let held = Arc::new(Held { inner, open, used, cookies, stores });
        held.touch(self.runtime.monotonic());
        // What goes is dropped when the table is not locked any more.
        let (_gone, sweeps) = lock(&self.table).keep(&held, self.options.max);
        if sweeps {
            let sweep = close_idle(Arc::downgrade(self), Arc::clone(&self.runtime));
            self.runtime.spawn(Box::pin(sweep));
        }
        held
    }

    /// Takes out of the table what `goes` chooses; it is closed when no request uses it.
    pub(crate) fn retire(&self, goes: impl Fn(&Held) -> bool) {
        let _gone = lock(&self.table).retire(|held| goes(held));
    }

    /// Called by each handle once it is closed.
    pub(crate) fn has_closed(self: &Arc<Self>, open: &Open, stored: bool, error: Option<Error>) {
        let (node, written) = (open.node, open.kind == Kind::Write);
        if let Some(error) = &error {
            tracing::warn!(?node, %error, written, "a file could not be closed");
        }
        lock(&self.table).has_closed(node, stored, error.filter(|_| written));
        self.settle(node);
        self.gate.open();
    }

    /// Returns the references to `node` that were returned while it was in use here.
    pub(crate) fn settle(self: &Arc<Self>, node: Node) {
        let count = lock(&self.table).settle(node);
        if count > 0 {
            let (inner, cx) = (Arc::clone(self), Cx::new(0, Credentials::ROOT, LAYER.name).aside());
            let forget = async move { ask(&*inner.below().service, &cx, Forget { node, count }).await };
            self.carry_out(node, &Arc::default(), forget);
        }
    }

    /// Waits until nothing of `node`, or of all nodes, is being closed.
    pub(crate) async fn has_left(&self, cx: &Cx, node: Option<Node>) -> Result<()> {
        let left = self.gate.wait(|| (!lock(&self.table).is_leaving(node)).then_some(()));
        Ok(cx.cancel.unless_raised(left).await.ok_or(Errno::EINTR)?)
    }

    pub(crate) fn end(&self) {
        let _gone = lock(&self.table).end();
    }

    /// Waits until everything is closed.
    ///
    /// # Errors
    /// A failure that no `fsync` has answered.
    pub(crate) async fn closed(&self) -> Result<()> {
        self.gate.wait(|| lock(&self.table).is_closed().then_some(())).await;
        lock(&self.table).any_failure().map_or(Ok(()), Err)
    }
}

/// Whether permission is missing.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error.errno, Errno::EACCES | Errno::EPERM)
}

/// Closes what is idle, until nothing is open or the layer is gone.
async fn close_idle(inner: Weak<Inner>, runtime: Arc<dyn Runtime>) {
    let look = |inner: Arc<Inner>| {
        let (_gone, next) = lock(&inner.table).retire_idle(inner.runtime.monotonic(), &inner.options);
        next
    };
    while let Some(next) = inner.upgrade().and_then(look) {
        runtime.sleep_until(next).await;
    }
}
