// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings asked for before anybody wants them.
//!
//! A program that walks through a tree lists a directory, then one below it, then the next. The first directory that is
//! opened below one that was listed a moment ago starts it: all directories beside it are listed, and those in them, level
//! by level, a bounded number at a time. So a walk waits for a few round trips on each level of the tree instead of a few for
//! each directory.
//!
//! A listing that was asked for ahead is given out once, and only within [`crate::Options::ahead`] of its arrival. Whatever
//! this client changes in a directory, or about a file in it, drops the listing of it; what one that is being read tells of a
//! file that was changed after the listing was asked for is not believed (see [`crate::changes`]).

use crate::attr::kind;
use crate::changes::Changes;
use crate::link::Link;
use crate::listing::{Item, Listing};
use outrigger_core::FileKind;
use outrigger_toolkit_remote::join;
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
    changes: Changes,
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
    /// Directories whose listing somebody has read, what is known of those in them, and since when.
    read: HashMap<Vec<u8>, (Below, Duration)>,
    running: usize,
    names: usize,
    /// How many names directories had of late: as many are expected of those being listed.
    usual: usize,
}

/// The directories in one that was listed.
#[derive(Default)]
enum Below {
    /// Nothing more is to be learnt.
    #[default]
    Done,
    /// They come with this listing.
    Coming(Arc<Listing>),
    /// These paths. The listing, which may be long, is not needed for them.
    Known(Vec<Vec<u8>>),
}

impl Below {
    fn of(path: &[u8], listing: &Arc<Listing>) -> Self {
        match listing.all(|items| directories(path, items)) {
            None => Below::Coming(Arc::clone(listing)),
            Some(none) if none.is_empty() => Below::Done,
            Some(known) => Below::Known(known),
        }
    }
}

struct Ready {
    listing: Arc<Listing>,
    names: usize,
    since: Option<Duration>,
}

impl Ahead {
    pub(crate) fn new(link: Link) -> Arc<Self> {
        let life = link.options().ahead;
        Arc::new_cyclic(|this| Ahead {
            link,
            life,
            changes: Changes::default(),
            state: Mutex::default(),
            this: this.clone(),
        })
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
            return self.begin(path, false);
        }
        let now = self.now();
        let mut state = self.lock();
        state.drop_old(now, self.life);
        let listing = match state.take(path).filter(|listing| listing.take()) {
            Some(listing) => listing,
            None => self.begin(path, false),
        };
        state.wanted.remove(path);
        let below = Below::of(path, &listing);
        let comes = matches!(below, Below::Coming(_));
        state.read.insert(path.to_vec(), (below, now));
        let above =
            parent.and_then(|parent| state.read.get_mut(parent)).map(|(below, _)| std::mem::take(below));
        let beside = match (above, parent) {
            (Some(Below::Known(beside)), _) => Some(beside),
            (Some(Below::Coming(above)), Some(parent)) => {
                Some(above.all(|items| directories(parent, items)).unwrap_or_default())
            }
            _ => None,
        };
        let walks = beside.is_some();
        state.want(beside.into_iter().flatten().filter(|beside| beside != path));
        drop(state);
        if walks {
            // Those in this directory follow when it is known.
            self.look_into(path.to_vec(), Arc::clone(&listing), false);
        } else if comes {
            self.settle(path.to_vec(), Arc::clone(&listing));
        }
        self.go_on();
        listing
    }

    /// A new listing of the directory at `path`.
    pub(crate) fn begin(&self, path: &[u8], ahead: bool) -> Arc<Listing> {
        Listing::begin(&self.link, path.to_vec(), ahead, self.changes.last())
    }

    /// What is at `path` was changed here: what was listed of it, and of the directory it is in, is not believed any more.
    pub(crate) fn changed(&self, path: &[u8]) {
        self.changes.note(path);
        self.forget(path);
        if let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
            self.forget(&path[..slash.max(1)]);
        }
    }

    /// Anything may have been changed here.
    pub(crate) fn all_changed(&self) {
        self.changes.note_all();
        self.forget_all();
    }

    /// Whether what a listing tells of what is at `path`, in its directory, may be older than a change of ours.
    pub(crate) fn is_outdated(&self, listing_asked: u64, path: impl FnOnce() -> Option<Vec<u8>>) -> bool {
        self.changes.after(listing_asked, path)
    }

    /// Forgets what was listed of the directory at `path`.
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
            let listing = self.begin(&path, true);
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

    /// When a listing is complete that somebody reads, only the directories in it are kept.
    fn settle(&self, path: Vec<u8>, listing: Arc<Listing>) {
        let this = self.this.clone();
        self.link.runtime().spawn(Box::pin(async move {
            listing.ended().await;
            let Some(this) = this.upgrade() else { return };
            this.lock().settle(&path, &listing);
        }));
    }

    fn complete(&self, path: &[u8], listing: &Arc<Listing>, counted: bool) {
        let found = listing.all(|items| (items.len(), directories(path, items)));
        let now = self.now();
        let mut state = self.lock();
        if counted {
            state.running -= 1;
        }
        state.settle(path, listing);
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
    /// What was read of a directory is known.
    fn settle(&mut self, path: &[u8], listing: &Arc<Listing>) {
        if let Some((below, _)) = self.read.get_mut(path)
            && matches!(below, Below::Coming(coming) if Arc::ptr_eq(coming, listing))
        {
            *below = match Below::of(path, listing) {
                // It has failed.
                Below::Coming(_) => Below::Done,
                below => below,
            };
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Name;
    use outrigger_proto_sftp::Attrs;

    fn item(name: &str, permissions: u32) -> Item {
        let attrs = Attrs { permissions: Some(permissions), ..Attrs::NONE };
        Item { name: Name::try_from(name).expect("a name"), attrs, followed: false }
    }

    #[test]
    fn a_listing_that_was_read_is_not_kept_for_its_directories() {
        let (flat, deep) = (Arc::new(Listing::default()), Arc::new(Listing::default()));
        let mut state = State::default();
        for (path, listing) in [(&b"/flat"[..], &flat), (b"/deep", &deep)] {
            state.read.insert(path.to_vec(), (Below::of(path, listing), Duration::ZERO));
        }
        assert_eq!(Arc::strong_count(&flat), 2, "what comes is waited for");
        flat.end_with(vec![item("file", 0o100_644)]);
        deep.end_with(vec![item("file", 0o100_644), item("dir", 0o040_755)]);
        state.settle(b"/flat", &flat);
        state.settle(b"/deep", &deep);
        assert_eq!((Arc::strong_count(&flat), Arc::strong_count(&deep)), (1, 1));
        assert!(matches!(state.read[&b"/flat"[..]].0, Below::Done));
        assert!(
            matches!(&state.read[&b"/deep"[..]].0, Below::Known(paths) if paths == &[b"/deep/dir".to_vec()])
        );
    }
}
