// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all parts share, and how a tree is opened, used and closed.

use crate::Options;
use crate::directory::Listing;
use crate::names::{Hosted, Names};
use crate::notices::Heard;
use crate::numbers::Life;
use crate::state::{Open, Phase, State, Tree};
use futures_channel::oneshot;
use outrigger_core::gate::Gate;
use outrigger_core::ops::GetAttr;
use outrigger_core::runtime::until;
use outrigger_core::{
    Attr, Credentials, Cx, Errno, Error, Node, Notify, Result, Runtime, Service, Time, ask, lock,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// The id of requests that are made for no request of the door.
const OWN_ID: u64 = 1 << 61;

pub(crate) struct Inner {
    pub(crate) names: Arc<dyn Names>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) options: Options,
    /// The times of the upper directories.
    pub(crate) born: Time,
    state: Mutex<State>,
    /// The upper directory that was listed last, if that is not at its end.
    pub(crate) listing: Mutex<Option<Listing>>,
    /// Opened after each change of a tree's phase.
    pub(crate) gate: Gate,
    /// Where notices go.
    pub(crate) above: OnceLock<Arc<dyn Notify>>,
}

/// An open tree while a request is in it: it is not closed meanwhile.
pub(crate) struct Use {
    inner: Arc<Inner>,
    pub(crate) life: Life,
    pub(crate) open: Arc<Open>,
    /// Whether the tree counts as used by it.
    pub(crate) counts: bool,
}

impl Drop for Use {
    fn drop(&mut self) {
        let now = self.inner.runtime.monotonic();
        if let Some(tree) = self.inner.lock().trees.get_mut(&self.life.tree) {
            tree.in_flight -= 1;
            if self.counts {
                tree.last_used = now;
            }
        }
    }
}

/// What a waiting request finds.
enum Entering {
    Entered(Use),
    /// It has to be opened first.
    Opens,
}

impl Inner {
    pub(crate) fn new(names: Arc<dyn Names>, runtime: Arc<dyn Runtime>, options: Options) -> Self {
        let (born, state) = (runtime.wall(), Mutex::new(State::default()));
        let (listing, gate, above) = (Mutex::default(), Gate::default(), OnceLock::new());
        Inner { names, runtime, options, born, state, listing, gate, above }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The tree with this root, opened if it is not open. With a `life`, that opening of it and no other.
    ///
    /// # Errors
    /// Why it could not be opened; `ETIMEDOUT` while that takes long; `ESTALE` when `life` is over; `EINTR`.
    pub(crate) async fn enter(self: &Arc<Self>, cx: &Cx, tree: u64, life: Option<Life>) -> Result<Use> {
        let limit = self.runtime.monotonic() + self.options.opening;
        let entering = self.gate.wait(|| match self.try_enter(tree, life)? {
            Ok(Entering::Entered(entered)) => Some(Ok(entered)),
            Ok(Entering::Opens) => {
                self.begin(tree);
                None
            }
            Err(error) => Some(Err(error)),
        });
        match cx.cancel.unless_raised(until(&*self.runtime, limit, entering)).await {
            Some(Some(entered)) => entered,
            Some(None) => Err(self.too_long(tree)),
            None => Err(Errno::EINTR.into()),
        }
    }

    fn too_long(&self, tree: u64) -> Error {
        let state = self.lock();
        let name = state.trees.get(&tree).map(|tree| tree.opener.location().to_owned()).unwrap_or_default();
        Errno::ETIMEDOUT.because(format!("{name}: it is still being opened after {:?}", self.options.opening))
    }

    /// Nothing while it is being opened or closed.
    fn try_enter(self: &Arc<Self>, root: u64, life: Option<Life>) -> Option<Result<Entering>> {
        let now = self.runtime.monotonic();
        let mut state = self.lock();
        let Some(tree) = state.trees.get_mut(&root) else { return Some(Err(Errno::ESTALE.into())) };
        if life.is_some_and(|life| tree.life_of(root) != Some(life)) {
            return Some(Err(
                Errno::ESTALE.because("the tree was closed meanwhile; its names can be used again")
            ));
        }
        match &tree.phase {
            Phase::Open(open) => {
                let (open, life) = (Arc::clone(open), Life { tree: root, number: tree.lives });
                tree.in_flight += 1;
                Some(Ok(Entering::Entered(Use { inner: Arc::clone(self), life, open, counts: true })))
            }
            Phase::Broken { error, retry } if now < *retry => Some(Err(error.clone())),
            Phase::Closed | Phase::Broken { .. } => {
                tree.enter_phase(Phase::Opening, now);
                Some(Ok(Entering::Opens))
            }
            Phase::Opening if now > tree.since + self.options.opening => {
                let why = format!("{}: it has been being opened for long", tree.opener.location());
                Some(Err(Errno::ETIMEDOUT.because(why)))
            }
            Phase::Opening | Phase::Closing(_) => None,
        }
    }

    /// Opens a tree in a task of its own: who asked for it may give up.
    fn begin(self: &Arc<Self>, root: u64) {
        let inner = Arc::clone(self);
        let Some(opener) = self.lock().trees.get(&root).map(|tree| Arc::clone(&tree.opener)) else { return };
        self.runtime.spawn(Box::pin(async move {
            let outcome = match opener.open().await {
                Ok(hosted) => inner.greet(hosted).await,
                Err(error) => Err(error),
            };
            inner.opened(root, outcome);
        }));
    }

    /// The root of a new tree answers, or the tree is closed again.
    async fn greet(&self, hosted: Hosted) -> Result<(Hosted, Attr)> {
        let (uid, gid) = self.options.owner;
        let cx = Cx::new(OWN_ID, Credentials::new(uid, gid), "demux");
        match ask(&*hosted.service, &cx, GetAttr { node: Node::ROOT, handle: None }).await {
            Ok(root) => Ok((hosted, root.attr)),
            Err(error) => {
                // Nothing was written yet.
                let _ = hosted.ending.close().await;
                Err(error)
            }
        }
    }

    fn opened(self: &Arc<Self>, root: u64, outcome: Result<(Hosted, Attr)>) {
        let now = self.runtime.monotonic();
        let heard = {
            let mut state = self.lock();
            let Some(tree) = state.trees.get_mut(&root) else { return };
            match outcome {
                Ok((hosted, attr)) => {
                    let open = Arc::new(Open::new(hosted));
                    tree.opened(Arc::clone(&open), attr, now);
                    Some((open, Life { tree: root, number: tree.lives }))
                }
                Err(mut error) => {
                    // A kernel would ask no other tree either.
                    if error.errno == Errno::ENOSYS {
                        error.errno = Errno::EIO;
                    }
                    let (first, most) = self.options.back_off;
                    let pause = first.saturating_mul(1 << tree.failures.min(16)).min(most);
                    tree.failures += 1;
                    tree.enter_phase(Phase::Broken { error, retry: now + pause }, now);
                    None
                }
            }
        };
        if let Some((open, life)) = heard {
            open.hosted.service.attach(Arc::new(Heard { inner: Arc::downgrade(self), life }));
            self.watch_idleness();
        }
        self.gate.open();
    }

    /// Closes a tree in a task of its own, which tells how it went.
    pub(crate) fn close(
        self: &Arc<Self>,
        root: u64,
        open: Arc<Open>,
        told: Option<oneshot::Sender<Result<()>>>,
    ) {
        let inner = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            let outcome = open.hosted.ending.close().await;
            inner.closed(root, outcome.clone());
            // Nobody may wait for it any more.
            told.map(|told| told.send(outcome));
        }));
    }

    fn closed(&self, root: u64, outcome: Result<()>) {
        let now = self.runtime.monotonic();
        if let Some(tree) = self.lock().trees.get_mut(&root) {
            tree.closed(outcome, now);
        }
        self.gate.open();
    }

    /// What a request that is made for a request of the door, or for none, may show of a tree.
    pub(crate) fn with_tree<T>(&self, root: u64, look: impl FnOnce(&mut Tree) -> T) -> Option<T> {
        self.lock().trees.get_mut(&root).map(look)
    }

    /// For how long the upper directories are the same without asking.
    pub(crate) const TTL: Duration = Duration::from_secs(1);
}
