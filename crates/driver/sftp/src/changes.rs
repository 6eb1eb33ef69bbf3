// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this client has changed, and when, in the order of the changes.
//!
//! The reply to a change comes after the change, so whoever asks afterwards must see it, also where the answer was asked for
//! before: a directory that was listed ahead, content that was read ahead. Each change gets a number when it has ended, and what
//! is asked for ahead carries the number of the last change there was then. An answer that was asked for before the last change
//! of what it is about is not believed.

use crate::inner::{Inner, lock};
use outrigger_core::paths::{Subject, subjects};
use outrigger_core::{FileKind, Node, Traverse};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The changes of so many paths are remembered; of others the last change of any is.
const PATHS_MAX: usize = 1 << 13;

/// The last change of each path.
#[derive(Default)]
pub(crate) struct Changes {
    last: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    of: HashMap<Vec<u8>, u64>,
    /// The last change of every path that is not remembered.
    others: u64,
}

impl Changes {
    /// The number of the last change.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// What is at `path` was changed.
    pub(crate) fn note(&self, path: &[u8]) {
        let mut state = lock(&self.state);
        let number = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        if state.of.len() >= PATHS_MAX && !state.of.contains_key(path) {
            *state = State { of: HashMap::new(), others: number - 1 };
        }
        state.of.insert(path.to_vec(), number);
    }

    /// Everything may have been changed.
    pub(crate) fn note_all(&self) {
        let mut state = lock(&self.state);
        let others = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        *state = State { of: HashMap::new(), others };
    }

    /// Whether what is at `path` was changed after the change with the number `asked`; no path is one that may be any.
    pub(crate) fn after(&self, asked: u64, path: impl FnOnce() -> Option<Vec<u8>>) -> bool {
        if self.last() <= asked {
            return false;
        }
        let Some(path) = path() else { return true };
        let state = lock(&self.state);
        state.of.get(&path).copied().unwrap_or(0).max(state.others) > asked
    }
}

/// A change of ours under way. When this is dropped the change has ended: nothing is believed any more of what it concerns
/// that was asked for before.
pub(crate) struct Underway<'a> {
    inner: &'a Inner,
    subjects: Vec<Subject>,
    /// Where its subjects are when it begins: it may move or remove them.
    paths: Vec<Vec<u8>>,
    moves_a_directory: bool,
}

impl Inner {
    /// The change `op` begins.
    pub(crate) fn begin_change(&self, op: &mut impl Traverse) -> Underway<'_> {
        let subjects = subjects(op);
        let paths = self.places_of(&subjects);
        let table = self.inodes.table();
        let names = |Subject { node, names }: &Subject| names.first().map(|name| (*node, name.clone()));
        // With a second name the first one is moved; one that is not known may be a directory's.
        let moves_a_directory = subjects.iter().filter_map(names).count() > 1
            && subjects
                .iter()
                .find_map(names)
                .and_then(|(dir, name)| table.get(dir, &name))
                .is_none_or(|node| self.inodes.kind(node).is_ok_and(|kind| kind == FileKind::Directory));
        Underway { inner: self, subjects, paths, moves_a_directory }
    }

    /// `node` was changed here: what was asked for about it before is not believed.
    pub(crate) fn changed(&self, node: Node) {
        self.files.changes(node);
        self.places_of(&[Subject { node, names: Vec::new() }])
            .iter()
            .for_each(|path| self.ahead.changed(path));
    }

    /// All paths of the subjects of a change.
    fn places_of(&self, subjects: &[Subject]) -> Vec<Vec<u8>> {
        let mut paths = Vec::new();
        for Subject { node, names } in subjects {
            paths.extend(self.inodes.path(*node));
            for (dir, name) in self.inodes.table().names(*node).unwrap_or_default() {
                paths.extend(self.inodes.child(dir, &name));
            }
            paths.extend(names.iter().filter_map(|name| self.inodes.child(*node, name).ok()));
        }
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let Underway { inner, subjects, paths, moves_a_directory } = self;
        subjects.iter().for_each(|subject| inner.files.changes(subject.node));
        if *moves_a_directory {
            // The paths of everything below it have changed.
            return inner.ahead.all_changed();
        }
        paths.extend(inner.places_of(subjects));
        paths.sort_unstable();
        paths.dedup();
        paths.iter().for_each(|path| inner.ahead.changed(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_before_a_change_is_older_than_it() {
        let changes = Changes::default();
        let after = |asked, path: &[u8]| changes.after(asked, || Some(path.to_vec()));
        assert!(!after(0, b"/a"));
        changes.note(b"/a");
        let asked = changes.last();
        assert!(after(0, b"/a") && !after(0, b"/b") && !after(asked, b"/a"));
        changes.note_all();
        assert!(after(asked, b"/a") && after(asked, b"/b") && !after(changes.last(), b"/b"));
        let asked = changes.last();
        changes.note(b"/c");
        for number in 0..PATHS_MAX {
            changes.note(format!("/{number}").as_bytes());
        }
        assert!(after(asked, b"/c"), "what is not remembered any more may have been changed");
    }
}
