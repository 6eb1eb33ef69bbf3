// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open file or directory, which closes itself when it is used no more, and positions in a directory.
//!
//! The cookie of a tree is valid while the directory is open, and may mean another place in the same directory when that is
//! opened again. So callers get numbers that say which open directory they belong to, unless the tree's cookies last.

use crate::inner::Inner;
use crate::outcome::unfinished;
use outrigger_core::ops::{Flush, OpenFlags, Release, ReleaseDir};
use outrigger_core::{Cx, Errno, Error, Handle, LockOwner, Node, Reply, Request, Result, lock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What something is open for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file for reading.
    Read,
    /// A file for writing, and for reading where the tree permits it.
    Write,
    /// A directory.
    List,
}

impl Kind {
    pub(crate) fn of(writes: bool) -> Self {
        if writes { Kind::Write } else { Kind::Read }
    }
}

/// An open handle. The table has one reference and each request in flight another; with the last one it is closed.
pub(crate) struct Held {
    pub(crate) inner: Arc<Inner>,
    pub(crate) open: Open,
    /// When it was used last, in nanoseconds of the runtime's clock.
    pub(crate) used: AtomicU64,
    /// Of a directory whose cookies do not last.
    pub(crate) cookies: Option<Cookies>,
    /// Whether what opens the file waits until this is closed.
    pub(crate) stores: AtomicBool,
}

/// What closing takes.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) node: Node,
    pub(crate) handle: Handle,
    pub(crate) kind: Kind,
    pub(crate) flags: OpenFlags,
    /// Whether the tree wants to know of each descriptor that is closed.
    pub(crate) flush: bool,
    /// That of the request for which it was opened, without its deadline and cancellation.
    pub(crate) cx: Cx,
}

impl Held {
    /// Notes that it is used now.
    pub(crate) fn touch(&self, now: Duration) {
        self.used.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(Ordering::Relaxed))
    }

    /// Whether it is open for writing, to this file or to any.
    pub(crate) fn is_written(&self, node: Option<Node>) -> bool {
        self.open.kind == Kind::Write && node.is_none_or(|node| node == self.open.node)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (inner, open) = (Arc::clone(&self.inner), self.open.clone());
        let stores = self.stores.load(Ordering::Relaxed);
        // The table may be locked: nothing is asked before the task runs.
        self.inner.runtime.spawn(Box::pin(async move {
            let mut closing = Closing { inner, open, stores, outcome: unfinished() };
            closing.outcome = closing.close().await;
        }));
    }
}

/// A handle until it is closed, however that ends.
struct Closing {
    inner: Arc<Inner>,
    open: Open,
    stores: bool,
    outcome: Result<()>,
}

impl Closing {
    async fn close(&self) -> Result<()> {
        let Open { node, handle, kind, flags, flush, .. } = self.open;
        let owner = LockOwner::default();
        let release = Release { node, handle, flags, owner, flock_release: false };
        match kind {
            Kind::List => self.ask(ReleaseDir { node, handle }.into()).await,
            Kind::Write if flush => {
                let flushed = self.ask(Flush { node, handle, owner }.into()).await;
                flushed.and(self.ask(release.into()).await)
            }
            _ => self.ask(release.into()).await,
        }
    }

    /// A tree without the operation has nothing to do at a close.
    async fn ask(&self, request: Request) -> Result<()> {
        match self.inner.below().service.call(&self.open.cx, request).await {
            Reply::Error(error) if error.errno != Errno::ENOSYS => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let error: Option<Error> = std::mem::replace(&mut self.outcome, Ok(())).err();
        self.inner.has_closed(&self.open, self.stores, error);
    }
}

/// So many cookies of one open directory are remembered.
const MOST: usize = 1 << 14;
/// The low bits of a number count the cookies of an open directory.
const COUNT_BITS: u32 = 40;
/// So many bits above these tell open directories apart; the sum is below what [`outrigger_core::reply::COOKIE_MAX`] permits.
const DIR_BITS: u32 = 22;

/// What was handed out of an open directory.
pub(crate) struct Cookies {
    /// Which open directory this is.
    dir: u64,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    /// The latest ones of the tree.
    cookies: VecDeque<u64>,
    /// How many there were before these.
    before: u64,
}

/// The place in a request where its listing goes on, if it lists.
pub(crate) fn position(request: &mut Request) -> Option<&mut u64> {
    match request {
        Request::ReadDir(op) => Some(&mut op.cookie),
        Request::ReadDirPlus(op) => Some(&mut op.cookie),
        _ => None,
    }
}

impl Cookies {
    pub(crate) fn of(dir: u64) -> Self {
        Cookies { dir: dir & ((1 << DIR_BITS) - 1), given: Mutex::default() }
    }

    /// The tree's cookie for one that was handed out.
    pub(crate) fn find(&self, cookie: u64) -> Option<u64> {
        let (dir, count) = (cookie >> COUNT_BITS, cookie & ((1 << COUNT_BITS) - 1));
        let given = lock(&self.given);
        let place = count.checked_sub(given.before + 1).filter(|_| dir == self.dir)?;
        given.cookies.get(usize::try_from(place).ok()?).copied()
    }

    /// Remembers the cookies of a piece of the directory, and puts in their places what callers get.
    pub(crate) fn hand_out(&self, reply: &mut Reply) {
        let mut given = lock(&self.given);
        let mut put = |cookie: &mut u64| {
            if given.cookies.len() == MOST {
                given.cookies.pop_front();
                given.before += 1;
            }
            given.cookies.push_back(*cookie);
            // The count begins with 1: no cookie is 0.
            *cookie = self.dir << COUNT_BITS | (given.before + given.cookies.len() as u64);
        };
        match reply {
            Reply::Dirents(piece) => piece.entries.iter_mut().for_each(|entry| put(&mut entry.cookie)),
            Reply::DirentsPlus(piece) => piece.entries.iter_mut().for_each(|entry| put(&mut entry.cookie)),
            _ => {}
        }
    }
}
