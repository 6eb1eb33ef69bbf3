// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings asked for ahead of a program that walks through a tree.
//!
//! Such a program lists a directory, then one in it, then the next. The first directory that is opened in one that was listed a
//! moment ago starts it: all directories beside it are listed, and those in them, level by level, as many at a time as the tree
//! below answers side by side ([`Parallel::listings`](outrigger_core::Parallel)). So a walk waits for a few round trips on each
//! level of the tree instead of a few for each directory.
//!
//! Where listings have no attributes, the directories in them are looked up ahead as well; and where the one that a walk begins in was asked
//! for with attributes, so are the others.
//!
//! What was listed ahead is known as if a program had asked for it then: as long as all else, and not after a change.

use crate::fill::Fill;
use crate::inner::Inner;
use crate::moment::{Moment, after};
use crate::names::{File, Names};
use crate::options::{Options, Ttls};
use crate::table::Table;
use futures_util::future::join_all;
use outrigger_core::ops::Lookup;
use outrigger_core::{Cx, FileKind, Name, Node, ask, lock};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Names in listings that no program has read yet, and directories waiting to be listed. Beyond these none is listed ahead.
const NAMES_MAX: usize = 1 << 15;
const QUEUE_MAX: usize = 20_000;
/// Directories of one that are looked up ahead, and how many of them side by side.
const LOOKUPS_MAX: usize = 4096;
const LOOKUPS_AT_ONCE: usize = 64;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Walks {
    life: Duration,
    names_max: usize,
    /// Attributes are wanted of the files in them, though that costs.
    attrs: bool,
    /// Directories that programs have opened: until when one opened in them begins a walk, unless one has.
    read: HashMap<Node, (Moment, bool)>,
    /// Directories to be listed, in the order of levels; those that still are to be are `wanted`.
    queue: VecDeque<Node>,
    wanted: HashSet<Node>,
    /// Directories whose own are to be listed when they are known.
    deep: HashSet<Node>,
    /// Directories being listed ahead.
    running: HashSet<Node>,
    /// Those that were, and no program has opened: how many names they have, and until when these count.
    unread: HashMap<Node, (usize, Moment)>,
    names: usize,
    /// How many names directories had of late: as many are expected of those being listed.
    usual: usize,
}

impl Walks {
    pub(crate) fn new(options: &Options) -> Self {
        Walks { life: options.ahead, names_max: NAMES_MAX.min(options.entries / 4), ..Walks::default() }
    }

    /// A program opens `dir`, which is in `parent`; answers whether it begins to walk through that, and whether it walks at all.
    fn opened(&mut self, dir: Node, parent: Option<Node>, now: Moment) -> (bool, bool) {
        self.drop_old(now);
        self.wanted.remove(&dir);
        self.no_longer_unread(dir);
        let above = parent.and_then(|parent| self.read.get_mut(&parent));
        let (begins, walks) = match above {
            Some((_, begun)) => (!std::mem::replace(begun, true), true),
            None => (false, false),
        };
        let until = after(now, self.life);
        self.read.entry(dir).or_insert((until, false)).0 = until;
        (begins, walks)
    }

    fn no_longer_unread(&mut self, dir: Node) {
        let names = self.unread.remove(&dir).map_or(0, |(names, _)| names);
        self.names -= names;
    }

    fn drop_old(&mut self, now: Moment) {
        self.read.retain(|_, (until, _)| now < *until);
        let old: Vec<Node> =
            self.unread.iter().filter(|(_, (_, until))| now >= *until).map(|(&node, _)| node).collect();
        old.into_iter().for_each(|node| self.no_longer_unread(node));
        if self.read.is_empty() {
            self.queue.clear();
            self.wanted.clear();
            self.deep.clear();
        }
    }

    fn want(&mut self, dirs: Vec<Node>) {
        for dir in dirs {
            if self.queue.len() >= QUEUE_MAX {
                return;
            }
            let known =
                self.running.contains(&dir) || self.unread.contains_key(&dir) || self.read.contains_key(&dir);
            if !known && self.wanted.insert(dir) {
                self.queue.push_back(dir);
            }
        }
    }

    /// The next directory to be listed, of which at most so many are at once.
    fn next(&mut self, at_once: usize) -> Option<Node> {
        if self.running.len() >= at_once || self.names + self.running.len() * self.usual >= self.names_max {
            return None;
        }
        while let Some(dir) = self.queue.pop_front() {
            if self.wanted.remove(&dir) {
                self.running.insert(dir);
                self.deep.insert(dir);
                return Some(dir);
            }
        }
        None
    }

    /// `dir` has this many names, or could not be listed; answers whether it was listed ahead, and whether the directories in
    /// it are to be listed.
    fn listed(&mut self, dir: Node, names: Option<usize>, now: Moment) -> (bool, bool) {
        let (ahead, deep) = (self.running.remove(&dir), self.deep.remove(&dir));
        if let (true, Some(names)) = (ahead, names) {
            self.usual = self.usual.midpoint(names);
            if !self.read.contains_key(&dir) {
                self.unread.insert(dir, (names, after(now, self.life)));
                self.names += names;
            }
        }
        (ahead, deep)
    }
}

impl Table {
    /// The directories in one of which all names are known.
    fn directories_in(&mut self, dir: Node) -> Vec<Node> {
        let Some(names) = self.names_of(dir) else { return Vec::new() };
        let names = lock(&names);
        let below = names.from(0).map(|(_, slot)| slot.file);
        let is_known = |file: &File| file.node != Node::default();
        below
            .filter(|file| file.kind == Some(FileKind::Directory) && is_known(file))
            .map(|file| file.node)
            .collect()
    }

    /// Those of them of which only the names are known.
    fn unfound_directories_in(&mut self, dir: Node) -> Vec<Name> {
        let Some(names) = self.names_of(dir) else { return Vec::new() };
        let names = lock(&names);
        let is_unfound = |file: &File| file.kind == Some(FileKind::Directory) && file.node == Node::default();
        let unfound = names.from(0).filter(|(_, slot)| is_unfound(&slot.file));
        unfound.take(LOOKUPS_MAX).map(|(name, _)| name.clone()).collect()
    }
}

impl Inner {
    /// How many directories may be listed ahead at once.
    fn listings(&self) -> usize {
        match self.below().abilities.parallel.listings {
            0 | 1 => 0,
            several => several as usize,
        }
    }

    /// A program opens a directory, of which the listing is known or being received.
    pub(crate) fn walks_into(self: &Arc<Self>, cx: &Cx, dir: Node, known: bool) {
        let now = self.now();
        let mut table = lock(&self.table);
        let mut walks = lock(&self.walks);
        if self.listings() == 0 || walks.life.is_zero() || table.ttls(dir) == Ttls::Never {
            return;
        }
        let parent = table.record(dir).and_then(|record| record.dir);
        let (begins, deep) = walks.opened(dir, parent, now);
        let mut more = Vec::new();
        if begins && let Some(parent) = parent {
            more = table.directories_in(parent);
            let have_attrs = table.names_of(parent).is_some_and(|names| lock(&names).have_attrs());
            walks.attrs = have_attrs && self.lists_names_alone();
        }
        if deep && known {
            more.extend(table.directories_in(dir));
        } else if deep {
            walks.deep.insert(dir);
        }
        walks.want(more);
        drop((walks, table));
        self.list_ahead(cx);
        for dir in parent.filter(|_| begins).into_iter().chain((deep && known).then_some(dir)) {
            self.find_directories(cx, dir);
        }
    }

    /// Whether a program that opens `dir` walks, and wants the attributes of files.
    pub(crate) fn walk_wants_attrs(&self, dir: Node) -> bool {
        let parent = lock(&self.table).record(dir).and_then(|record| record.dir);
        let walks = lock(&self.walks);
        walks.attrs && parent.is_some_and(|parent| walks.read.contains_key(&parent))
    }

    /// Looks up the directories in `dir` that are known by their names only, so that they are listed ahead.
    fn find_directories(self: &Arc<Self>, cx: &Cx, dir: Node) {
        let mut table = lock(&self.table);
        let names = if self.lists_names_alone() { table.unfound_directories_in(dir) } else { Vec::new() };
        if names.is_empty() {
            return;
        }
        // Its number means this directory until the answers have come.
        table.pin(dir);
        drop(table);
        let (inner, cx) = (Arc::clone(self), Cx { ahead: true, ..self.cx(cx) });
        self.runtime.spawn(Box::pin(async move {
            for some in names.chunks(LOOKUPS_AT_ONCE) {
                let found = join_all(some.iter().map(|name| inner.find_ahead(&cx, dir, name))).await;
                lock(&inner.walks).want(found.into_iter().flatten().collect());
                inner.list_ahead(&cx);
            }
            lock(&inner.table).unpin(dir);
            inner.settle(&cx).await;
        }));
    }

    /// Looks up a name that a program is expected to ask for.
    async fn find_ahead(&self, cx: &Cx, dir: Node, name: &Name) -> Option<Node> {
        let asked = self.asked();
        let mut entry = ask(&*self.below().service, cx, Lookup { dir, name: name.clone() }).await.ok()?;
        let mut table = lock(&self.table);
        table.received(entry.node);
        self.learn_entry(&mut table, dir, name, &mut entry, asked);
        entry.attr.is_dir().then_some(entry.node)
    }

    /// A listing was received, or failed.
    pub(crate) fn listing_ended(self: &Arc<Self>, cx: &Cx, dir: Node, fill: &Fill) {
        let now = self.now();
        let mut table = lock(&self.table);
        let mut walks = lock(&self.walks);
        let names = {
            let names = lock(&fill.names);
            names.is_complete().then(|| names.len())
        };
        let (ahead, deep) = walks.listed(dir, names, now);
        if deep && names.is_some() {
            walks.want(table.directories_in(dir));
        }
        if ahead {
            table.unpin(dir);
        }
        drop((walks, table));
        if names.is_some() {
            self.xattrs_of_listed(cx, dir);
        }
        if ahead || deep {
            self.list_ahead(cx);
        }
        if deep && names.is_some() {
            self.find_directories(cx, dir);
        }
    }

    /// Has as many directories listed as may be at once.
    fn list_ahead(self: &Arc<Self>, cx: &Cx) {
        let cx = Cx { ahead: true, ..self.cx(cx) };
        loop {
            let mut table = lock(&self.table);
            let mut walks = lock(&self.walks);
            let Some(dir) = walks.next(self.listings()) else { return };
            let (now, attrs) = (self.now(), walks.attrs);
            let is_known = |names: &Names| names.is_listable(now) && (names.have_attrs() || !attrs);
            let known = table.names_of(dir).is_some_and(|names| is_known(&lock(&names)));
            let is_there = table.record(dir).is_some_and(|record| record.kind() == Some(FileKind::Directory));
            if known || !is_there || table.ttls(dir) == Ttls::Never {
                walks.listed(dir, None, now);
                walks.want(if known { table.directories_in(dir) } else { Vec::new() });
                continue;
            }
            table.pin(dir);
            drop((walks, table));
            self.fill(&cx, dir, attrs);
        }
    }
}
