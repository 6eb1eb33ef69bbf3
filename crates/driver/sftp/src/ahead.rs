// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings asked for before anybody wants them.
//!
//! A program that walks through a tree lists a directory, then one below it, then the next. The first directory that is
//! opened below one that was listed a moment ago starts it: all directories beside it are listed, and those in them, level
//! by level, a bounded number at a time. So a walk waits for a few round trips on each level of the tree instead of a few for
//! each directory.
//!
//! A listing that was asked for ahead is given out once, and only within [`crate::Options::ahead`] of its arrival. Whatever
//! this client changes in a directory drops the listing of it.

use crate::attr::kind;
use crate::link::Link;
use crate::listing::{Item, Listing};
use crate::places::join;
use outrigger_core::FileKind;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Directories being listed at once.
const AT_ONCE: usize = 64;
/// Names in listings that nobody has wanted yet, each of which takes some 200 bytes, and directories waiting to be listed.
/// Beyond these nothing is asked for ahead.
const NAMES_MAX: usize = 1 << 15;
const QUEUE_MAX: usize = 20_000;

/// Listings asked for ahead.
pub(crate) struct Ahead {
    link: Link,
    life: Duration,
    state: Mutex<State>,
    this: Weak<Ahead>,
}

#[derive(Default)]
struct State {
    /// What was listed ahead, by path, and since when it is complete.
    ready: HashMap<Vec<u8>, Ready>,
    /// Paths of what is to be listed, in the order of levels.
    queue: VecDeque<Vec<u8>>,
    /// Those in the queue that still are to be listed.
    wanted: HashSet<Vec<u8>>,
    /// Directories whose listing somebody has read, and when; and the listing, while the directories in it are not known.
    read: HashMap<Vec<u8>, (Option<Arc<Listing>>, Duration)>,
    running: usize,
    names: usize,
    /// How many names directories had of late: as many are expected of those being listed.
    usual: usize,
}

struct Ready {
    listing: Arc<Listing>,
    names: usize,
    since: Option<Duration>,
}

impl Ahead {
    pub(crate) fn new(link: Link) -> Arc<Self> {
        let life = link.options().ahead;
        Arc::new_cyclic(|this| Ahead { link, life, state: Mutex::default(), this: this.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.link.runtime().monotonic()
    }

    /// The listing of the directory at `path`, below the one at `parent`: the one asked for ahead, or a new one.
    pub(crate) fn list(&self, path: &[u8], parent: Option<&[u8]>) -> Arc<Listing> {
        if self.life.is_zero() {
            return Listing::begin(&self.link, path.to_vec(), false);
        }
        let now = self.now();
        let mut state = self.lock();
        state.drop_old(now, self.life);
        let listing = match state.take(path).filter(|listing| listing.take()) {
            Some(listing) => listing,
            None => Listing::begin(&self.link, path.to_vec(), false),
        };
        state.wanted.remove(path);
        // One without directories leads nowhere, and need not be kept.
        let leads_on = listing.all(|items| items.iter().any(is_directory)).unwrap_or(true);
        state.read.insert(path.to_vec(), (leads_on.then(|| Arc::clone(&listing)), now));
        // Nothing more is to be learnt from it then.
        let walked = |parent| Some((parent, state.read.get_mut(parent)?.0.take()?));
        if let Some((parent, above)) = parent.and_then(walked) {
            let beside = above.all(|items| directories(parent, items)).unwrap_or_default();
            state.want(beside.into_iter().filter(|beside| beside != path));
            // Those in this directory follow when it is known.
            drop(state);
            self.look_into(path.to_vec(), Arc::clone(&listing), false);
        } else {
            drop(state);
        }
        self.go_on();
        listing
    }

    /// Forgets what was listed of the directory at `path`: something in it has changed.
    pub(crate) fn forget(&self, path: &[u8]) {
        let mut state = self.lock();
        state.take(path);
        state.read.remove(path);
    }

    /// Forgets everything.
    pub(crate) fn forget_all(&self) {
        let mut state = self.lock();
        let running = state.running;
        *state = State { running, ..State::default() };
    }

    /// Starts as many as may run.
    fn go_on(&self) {
        loop {
            let mut state = self.lock();
            if state.running >= AT_ONCE || state.names + state.running * state.usual >= NAMES_MAX {
                return;
            }
            let Some(path) = state.queue.pop_front() else { return };
            if !state.wanted.remove(&path) {
                continue;
            }
            let listing = Listing::begin(&self.link, path.clone(), true);
            state.running += 1;
            let ready = Ready { listing: Arc::clone(&listing), names: 0, since: None };
            state.ready.insert(path.clone(), ready);
            drop(state);
            self.look_into(path, listing, true);
        }
    }

    /// When a listing is complete, the directories in it are to be listed.
    fn look_into(&self, path: Vec<u8>, listing: Arc<Listing>, counted: bool) {
        let this = self.this.clone();
        self.link.runtime().spawn(Box::pin(async move {
            listing.ended().await;
            let Some(this) = this.upgrade() else { return };
            this.complete(&path, &listing, counted);
            this.go_on();
        }));
    }

    fn complete(&self, path: &[u8], listing: &Arc<Listing>, counted: bool) {
        let found = listing.all(|items| (items.len(), directories(path, items)));
        let now = self.now();
        let mut state = self.lock();
        if counted {
            state.running -= 1;
        }
        let is_this = |ready: &&mut Ready| Arc::ptr_eq(&ready.listing, listing);
        let Some((names, below)) = found else {
            // Who asks for it finds out why by asking the server.
            if state.ready.get_mut(path).filter(is_this).is_some() {
                state.take(path);
            }
            return;
        };
        state.usual = (state.usual + names) / 2;
        if let Some(ready) = state.ready.get_mut(path).filter(is_this) {
            (ready.names, ready.since) = (names, Some(now));
            state.names += names;
        }
        state.want(below);
    }
}

impl State {
    /// Takes out what was listed ahead.
    fn take(&mut self, path: &[u8]) -> Option<Arc<Listing>> {
        let ready = self.ready.remove(path)?;
        self.names -= ready.names;
        Some(ready.listing)
    }

    fn want(&mut self, paths: impl IntoIterator<Item = Vec<u8>>) {
        for path in paths {
            if self.queue.len() >= QUEUE_MAX {
                return;
            }
            let is_known = self.ready.contains_key(&path) || self.read.contains_key(&path);
            if !is_known && self.wanted.insert(path.clone()) {
                self.queue.push_back(path);
            }
        }
    }

    fn drop_old(&mut self, now: Duration, life: Duration) {
        let is_old = |since: Duration| now.saturating_sub(since) > life;
        let names = &mut self.names;
        self.ready.retain(|_, ready| {
            let keep = ready.since.is_none_or(|since| !is_old(since));
            if !keep {
                *names -= ready.names;
            }
            keep
        });
        self.read.retain(|_, (_, since)| !is_old(*since));
        if self.ready.is_empty() && self.read.is_empty() {
            self.queue.clear();
            self.wanted.clear();
        }
    }
}

fn directories(path: &[u8], items: &[Item]) -> Vec<Vec<u8>> {
    let below = items.iter().filter(|item| is_directory(item));
    below.filter_map(|item| join(path.to_vec(), &item.name).ok()).collect()
}

fn is_directory(item: &Item) -> bool {
    // What links lead to may be above, and the walk would not end.
    !item.followed && kind(&item.attrs) == FileKind::Directory
}
