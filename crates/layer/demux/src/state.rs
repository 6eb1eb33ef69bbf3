// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of the trees and of the numbers above.

use crate::names::{Hosted, OpenTree};
use crate::numbers::{Life, Numbers, Place, Slot, Slots};
use outrigger_core::{Attr, Error, Name, Node, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Trees that are not open and that the door does not refer to are kept up to this number.
const KEPT: usize = 1024;
/// How often they are looked through at least while there are more and new ones come.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) numbers: Numbers,
    /// Upper directories and roots of trees by their paths.
    places: HashMap<Vec<Name>, Node>,
    /// The paths of upper directories.
    uppers: HashMap<Node, Vec<Name>>,
    /// By the numbers of their roots.
    pub(crate) trees: HashMap<u64, Tree>,
    slots: Slots,
    /// When trees were looked through last for some to forget, and how many were left.
    left: (Duration, usize),
    /// A task looks for trees that are idle.
    pub(crate) watches: bool,
}

/// A name that leads to a tree.
pub(crate) struct Tree {
    pub(crate) path: Vec<Name>,
    pub(crate) opener: Arc<dyn OpenTree>,
    pub(crate) slot: Slot,
    pub(crate) phase: Phase,
    /// When the phase began.
    pub(crate) since: Duration,
    /// When a request was in it last.
    pub(crate) last_used: Duration,
    /// How often it was opened.
    pub(crate) lives: u32,
    /// Attempts to open it that failed, since one succeeded.
    pub(crate) failures: u32,
    /// Requests in it.
    pub(crate) in_flight: usize,
    /// Handles that it has given out.
    pub(crate) opens: u64,
    /// Its root when it answered last.
    pub(crate) attr: Option<Attr>,
    /// What closing the tree lost, until `Control::close` has reported it.
    pub(crate) lost: Option<Error>,
    /// It was told that it does not answer.
    pub(crate) is_told_silent: bool,
    /// Names, with the numbers of their directories above, that a kernel may remember to lead to nothing: they keep their directory.
    pub(crate) missing: HashSet<(Node, Name)>,
}

/// What a tree is doing.
pub(crate) enum Phase {
    Closed,
    Opening,
    Open(Arc<Open>),
    /// It may have something left to write.
    Closing(Arc<Open>),
    /// It cannot be opened, and is not tried again before `retry`.
    Broken {
        error: Error,
        retry: Duration,
    },
}

/// A tree that is open.
pub(crate) struct Open {
    pub(crate) hosted: Hosted,
    pub(crate) stateless_files: bool,
    pub(crate) stateless_dirs: bool,
}

impl Open {
    pub(crate) fn new(hosted: Hosted) -> Self {
        let abilities = hosted.service.abilities();
        Open { hosted, stateless_files: abilities.stateless_files, stateless_dirs: abilities.stateless_dirs }
    }
}

impl Tree {
    fn new(path: Vec<Name>, opener: Arc<dyn OpenTree>, slot: Slot, now: Duration) -> Self {
        Tree {
            path,
            opener,
            slot,
            phase: Phase::Closed,
            since: now,
            last_used: now,
            lives: 0,
            failures: 0,
            in_flight: 0,
            opens: 0,
            attr: None,
            lost: None,
            is_told_silent: false,
            missing: HashSet::new(),
        }
    }

    pub(crate) fn enter_phase(&mut self, phase: Phase, now: Duration) {
        (self.phase, self.since) = (phase, now);
    }

    pub(crate) fn opened(&mut self, open: Arc<Open>, attr: Attr, now: Duration) {
        self.lives += 1;
        (self.failures, self.opens, self.attr, self.last_used) = (0, 0, Some(attr), now);
        self.enter_phase(Phase::Open(open), now);
    }

    pub(crate) fn closed(&mut self, outcome: Result<()>, now: Duration) {
        if let Err(error) = outcome {
            tracing::error!(%error, tree = self.shown(), "what was written is lost");
            // The first one, where there are more: the log has all.
            self.lost.get_or_insert(error);
        }
        self.opens = 0;
        self.missing.clear();
        self.enter_phase(Phase::Closed, now);
    }

    /// Its opening that is in use.
    pub(crate) fn life_of(&self, root: u64) -> Option<Life> {
        matches!(self.phase, Phase::Open(_)).then_some(Life { tree: root, number: self.lives })
    }

    /// What answers in one opening of it, while that lasts.
    pub(crate) fn open_in(&self, life: Life) -> Option<Arc<Open>> {
        match &self.phase {
            Phase::Open(open) if self.lives == life.number => Some(Arc::clone(open)),
            _ => None,
        }
    }

    /// As people read it, from the root.
    pub(crate) fn shown(&self) -> String {
        shown(&self.path)
    }

    /// Whether nothing is known of it but its name, or what will be found out again when it is used.
    fn is_forgettable(&self, now: Duration) -> bool {
        let is_idle = match &self.phase {
            Phase::Closed => true,
            Phase::Broken { retry, .. } => *retry <= now,
            Phase::Opening | Phase::Open(_) | Phase::Closing(_) => false,
        };
        is_idle && self.lost.is_none()
    }
}

/// A path as people read it.
pub(crate) fn shown(path: &[Name]) -> String {
    path.iter().map(|name| format!("/{name}")).collect()
}

impl State {
    /// The path of an upper directory.
    pub(crate) fn upper(&self, node: Node) -> Vec<Name> {
        self.uppers.get(&node).cloned().unwrap_or_default()
    }

    /// What is at a path.
    pub(crate) fn at(&self, path: &[Name]) -> Option<Node> {
        self.places.get(path).copied()
    }

    /// The number of an upper directory.
    pub(crate) fn add_upper(&mut self, path: Vec<Name>) -> Node {
        if let Some(node) = self.at(&path) {
            return node;
        }
        let node = self.numbers.add(Place::Upper);
        self.uppers.insert(node, path.clone());
        self.places.insert(path, node);
        node
    }

    /// The root of the tree at a path, which `opener` opens from the next time on.
    pub(crate) fn add_tree(&mut self, path: Vec<Name>, opener: Arc<dyn OpenTree>, now: Duration) -> Node {
        if let Some(node) = self.at(&path) {
            if let Some(tree) = self.trees.get_mut(&node.0)
                && tree.opener.identity() != opener.identity()
                && matches!(tree.phase, Phase::Closed | Phase::Broken { .. })
            {
                (tree.opener, tree.failures, tree.attr) = (opener, 0, None);
                tree.enter_phase(Phase::Closed, now);
            }
            return node;
        }
        self.make_room(now);
        let slot = self.slots.take();
        let node = self.numbers.add(Place::Root);
        self.trees.insert(node.0, Tree::new(path.clone(), opener, slot, now));
        self.places.insert(path, node);
        node
    }

    /// Forgets trees that are not open and that nothing refers to when there are many.
    fn make_room(&mut self, now: Duration) {
        // Those that have to stay are not looked at for each new one.
        let (since, left) = self.left;
        let is_early = self.trees.len() < 2 * left && now < since + PAUSE;
        if self.trees.len() < KEPT || is_early {
            return;
        }
        let gone = |(&root, tree): (&u64, &Tree)| {
            let unused = tree.is_forgettable(now) && self.numbers.references(Node(root)) == 0;
            unused.then(|| (root, tree.path.clone()))
        };
        let gone: Vec<(u64, Vec<Name>)> = self.trees.iter().filter_map(gone).collect();
        for (root, path) in gone {
            if let Some(tree) = self.trees.remove(&root) {
                self.slots.give_back(tree.slot);
            }
            self.places.remove(&path);
            self.numbers.drop_root(Node(root));
        }
        self.left = (now, self.trees.len());
    }

    /// The names of trees below an upper directory that a listing shows though [`crate::Names`] does not:
    /// not those that cannot be opened, which any name may lead to.
    pub(crate) fn in_use(&self, dir: &[Name]) -> impl Iterator<Item = &Name> {
        self.trees.values().filter_map(move |tree| {
            let (name, parent) = tree.path.split_last()?;
            let shows = parent == dir && !matches!(tree.phase, Phase::Closed | Phase::Broken { .. });
            shows.then_some(name)
        })
    }
}
