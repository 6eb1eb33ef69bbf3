// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metadata on disk: what a process knew of names, attributes and targets of symbolic links, for the next one.
//!
//! With the first request what was saved is known again ([`recall`]). Each part of it keeps the moment at which the tree below told it,
//! so its TTL goes on; what is too old by then is confirmed like anything else that was known once: a directory that has the same
//! times of change is not listed again. What is known is saved when the tree is used no longer, and while it is used, some time after
//! something was learnt ([`collect`]); as one file, which takes the place of the former one, unless nearly all of that would be the same.
//! Of a tree that is too large for that the parts used last are saved ([`fit`]).
//!
//! Nothing is saved that was called in question: by an error, by a notice, by a change that has not been made yet. Who dies after a
//! change has left what was known before; [`marks`] tell, and then all of it is confirmed first.

mod collect;
mod fit;
mod form;
mod marks;
mod recall;

pub use form::{Known, Learnt, SavedDir, SavedEntry, SavedTree};

use crate::disk::Store;
use crate::inner::Inner;
use bytes::Bytes;
use fit::{Used, fit};
use futures_channel::oneshot;
use marks::{Mark, Marks};
use outrigger_core::{Node, Result, Runtime, Time, lock};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The number by which the file is called.
const NAME: u64 = 0;
/// The file in which changes are marked.
const MARK: &str = "mark";
/// So long after something was learnt, what is known is saved.
const SAVED_AFTER: Duration = Duration::from_secs(30);
/// What is saved replaces the former file when one of so many names was learnt since.
const NEWS: usize = 50;

/// A place for metadata on disk.
#[derive(Clone)]
pub struct Metadata(Arc<Shared>);

/// How much metadata is on disk, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MetadataUsage {
    /// Bytes, of all trees that use the directory.
    pub bytes: u64,
    /// The most of them that this mount allows.
    pub bytes_max: u64,
    /// Names that were known again when the present server began.
    pub recalled: u64,
    /// How often it was saved since.
    pub saved: u64,
    /// How often that failed.
    pub failed: u64,
}

struct Shared {
    store: Store,
    tree: String,
    runtime: Arc<dyn Runtime>,
    marks: Mutex<Marks>,
    /// What a former process knew, until it is known again.
    found: Mutex<Option<SavedTree>>,
    /// That has happened.
    recalled: AtomicBool,
    /// What was found is damaged.
    damaged: bool,
    /// Something was learnt since it was saved, and whether a task is going to save it.
    learnt: AtomicBool,
    waits: AtomicBool,
    /// The tree was changed since.
    changed: AtomicBool,
    /// The time of day at which what the file holds was known, 0 without one.
    saved_at: AtomicU64,
    /// Held while the file is written or removed: what was collected before it was removed is not written.
    writing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    usage: MetadataUsage,
    /// How often everything was to be forgotten.
    cleared: u64,
}

/// Milliseconds since the epoch.
fn millis(time: Time) -> u64 {
    let secs = u64::try_from(time.secs).unwrap_or_default();
    secs.saturating_mul(1000).saturating_add(u64::from(time.nanos / 1_000_000))
}

impl Metadata {
    /// Metadata of the tree that `tree` identifies, and the user and options by which it is seen as it is: in a directory below
    /// `caches` (`$XDG_CACHE_HOME`) with that of all others, which takes at most `bytes_max`, and of which at most `entries_max`
    /// names are known again. Reads what a former process has left.
    ///
    /// # Errors
    /// Why there is no such directory, or `EPERM` where others could look into it.
    pub fn open(
        caches: &Path,
        tree: &str,
        (bytes_max, entries_max): (u64, usize),
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        let store = Store::below(caches, "metadata", tree, bytes_max)?;
        let writer = RandomState::new().hash_one(std::process::id()).max(1);
        let marks = Marks::new(store.beside(MARK).map_err(io::Error::from)?, writer);
        let (found, damaged) = match store.read(NAME, bytes_max).map(Bytes::from) {
            Some(file) => match SavedTree::decode(file, tree, entries_max) {
                Some(found) => (Some(in_view_of(marks.read(), found)), false),
                None => (None, true),
            },
            None => (None, false),
        };
        let usage = MetadataUsage { bytes_max, ..MetadataUsage::default() };
        let saved_at = AtomicU64::new(found.as_ref().map_or(0, |_| millis(runtime.wall())));
        Ok(Metadata(Arc::new(Shared {
            store,
            tree: tree.to_owned(),
            runtime,
            marks: Mutex::new(marks),
            found: Mutex::new(found),
            recalled: AtomicBool::new(false),
            damaged,
            learnt: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            saved_at,
            writing: Mutex::default(),
            state: Mutex::new(State { usage, cleared: 0 }),
        })))
    }

    /// Whether there is a file that cannot be used: it is damaged, or of another release.
    pub fn is_damaged(&self) -> bool {
        self.0.damaged
    }

    /// Whether a former process knew that there is such a tree.
    pub fn knows_tree(&self) -> bool {
        lock(&self.0.found).as_ref().is_some_and(|found| found.root.is_some())
    }

    /// How much there is, and what became of it.
    pub(crate) fn usage(&self) -> MetadataUsage {
        MetadataUsage { bytes: self.0.store.usage().bytes, ..lock(&self.0.state).usage }
    }

    /// A change sets out, or has ended.
    pub(crate) fn change(&self) {
        self.0.learnt.store(true, Ordering::Relaxed);
        self.0.changed.store(true, Ordering::Relaxed);
        lock(&self.0.marks).change(millis(self.0.runtime.wall()));
    }

    /// Something was learnt.
    pub(crate) fn learn(&self) {
        self.0.learnt.store(true, Ordering::Relaxed);
    }

    /// Removes what is saved. What was collected before is not saved any more.
    pub(crate) fn clear(&self) {
        lock(&self.0.state).cleared += 1;
        self.0.saved_at.store(0, Ordering::Relaxed);
        let shared = Arc::clone(&self.0);
        self.0.runtime.spawn_blocking(Box::new(move || {
            let _writing = lock(&shared.writing);
            if shared.store.clear().is_err() {
                lock(&shared.state).usage.failed += 1;
            }
        }));
    }
}

/// What was found, as far as nobody has changed the tree since.
fn in_view_of(mark: Option<Mark>, mut found: SavedTree) -> SavedTree {
    match mark {
        Some(mark) if (mark.writer, mark.until) == (found.writer, found.mark) => {}
        // Its process changed nothing, and neither did another one.
        Some(Mark { writer: 0, .. }) if found.mark == 0 => {}
        // The file that told of its changes is gone.
        Some(Mark { writer: 0, .. }) | None => found.expire(Learnt::MAX),
        Some(mark) => found.expire(mark.until),
    }
    found
}

impl Shared {
    fn write(&self, saved: SavedTree, used: &Used, cleared: u64) {
        let mut file = saved.encode(&self.tree);
        let largest = self.store.largest() as usize;
        if file.len() > largest {
            let SavedTree { writer, mark, .. } = saved;
            let head = SavedTree { writer, mark, root: saved.root.clone(), dirs: Vec::new() };
            let room = largest.saturating_sub(head.encode(&self.tree).len());
            file = fit(saved, used, room).encode(&self.tree);
        }
        let _writing = lock(&self.writing);
        if lock(&self.state).cleared != cleared {
            return;
        }
        let written = self.store.write(NAME, &file);
        let usage = &mut lock(&self.state).usage;
        if written.is_ok() {
            usage.saved += 1;
        } else {
            usage.failed += 1;
            self.saved_at.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it is worth it to write all of this. Not to do so is not to have asked.
    fn is_news(&self, saved: &SavedTree) -> bool {
        let (all, news) = saved.news(self.saved_at.load(Ordering::Relaxed));
        news * NEWS >= all
    }
}

impl Inner {
    /// Something is changed, or has been: what is saved tells of the time before.
    pub(crate) fn mark_change(&self) {
        self.metadata.iter().for_each(Metadata::change);
    }

    /// Has what is known saved in a while, if something was learnt.
    pub(crate) fn save_later(self: &Arc<Self>) {
        let Some(Metadata(shared)) = &self.metadata else { return };
        if !shared.learnt.load(Ordering::Relaxed) || shared.waits.swap(true, Ordering::Relaxed) {
            return;
        }
        let (inner, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        self.runtime.spawn(Box::pin(async move {
            runtime.sleep_until(runtime.monotonic() + SAVED_AFTER).await;
            if let Some(inner) = Weak::upgrade(&inner)
                && let Some(Metadata(shared)) = &inner.metadata
            {
                shared.waits.store(false, Ordering::Relaxed);
                inner.save().await;
            }
        }));
    }

    /// The files that the tree below may have in another state than it says: it stores whole files, when they are closed.
    fn ahead_of_server(&self) -> HashSet<Node> {
        if !self.below.get().is_some_and(|below| below.abilities.whole_files) {
            return HashSet::new();
        }
        let written = self.handles.written_files().into_iter().map(|(open, _)| open.node);
        self.unstored().into_iter().chain(written).collect()
    }

    /// Saves what is known, if enough was learnt.
    pub(crate) async fn save(&self) {
        let Some(Metadata(shared)) = &self.metadata else { return };
        if !shared.learnt.swap(false, Ordering::Relaxed) {
            return;
        }
        let cleared = lock(&shared.state).cleared;
        let (mark, others) = lock(&shared.marks).save();
        let ahead = self.ahead_of_server();
        let (when, changed) = (self.when(), shared.changed.swap(false, Ordering::Relaxed));
        let (mut saved, used) = lock(&self.table).collect(when, &ahead);
        if !changed && !shared.is_news(&saved) {
            return;
        }
        shared.saved_at.store(millis(when.wall), Ordering::Relaxed);
        (saved.writer, saved.mark) = (mark.writer, mark.until);
        if others > 0 {
            saved.expire(others);
        }
        let (sender, receiver) = oneshot::channel();
        let own = Arc::clone(shared);
        self.runtime.spawn_blocking(Box::new(move || {
            own.write(saved, &used, cleared);
            // Nobody may wait for it any more.
            let _ = sender.send(());
        }));
        let _ = receiver.await;
    }
}
