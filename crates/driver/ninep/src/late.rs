// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies about names that come too late: what a server says of a name before it is changed here must not be believed afterwards, or the
//! table of names has one that is gone, and a file that has lost its last name seems to have another one. Attributes in a listing are
//! believed as long as nothing at all is changed here.

use outrigger_core::{Name, Node, lock};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Which names were changed here while questions about names were under way.
#[derive(Debug, Default)]
pub(crate) struct NameChanges(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    now: u64,
    /// When the questions were asked that are under way, and how many at once.
    asked: BTreeMap<u64, usize>,
    /// When a name was changed, if that was after the first of these.
    changed: HashMap<(Node, Name), u64>,
}

impl NameChanges {
    /// Begins a question about names.
    pub(crate) fn ask(&self) -> Asked<'_> {
        let mut state = lock(&self.0);
        let at = state.now;
        *state.asked.entry(at).or_default() += 1;
        Asked { all: self, at }
    }

    /// The server has changed what a name leads to, or may have. What follows from that for the table comes after this.
    pub(crate) fn changed(&self, dir: Node, name: &Name) {
        let mut state = lock(&self.0);
        state.now += 1;
        if !state.asked.is_empty() {
            let now = state.now;
            state.changed.insert((dir, name.clone()), now);
        }
    }
}

/// Counts what begins and what ends here that changes something, whatever it is.
#[derive(Debug, Default, Clone)]
pub(crate) struct Doings(Arc<AtomicU64>);

impl Doings {
    /// Nothing has begun or ended since as long as this is the same.
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Something begins here; dropping it ends that.
    pub(crate) fn begin(&self) -> Doing {
        self.0.fetch_add(1, Ordering::AcqRel);
        Doing(self.clone())
    }
}

/// Something that changes something.
pub(crate) struct Doing(Doings);

impl Drop for Doing {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A question about names, until this is dropped.
pub(crate) struct Asked<'a> {
    all: &'a NameChanges,
    at: u64,
}

impl Asked<'_> {
    /// Has `note` note what the reply says of a name, unless that was changed since the question was asked. No change comes between.
    pub(crate) fn unless_changed<T>(&self, dir: Node, name: &Name, note: impl FnOnce() -> T) -> Option<T> {
        let state = lock(&self.all.0);
        let changed = state.changed.get(&(dir, name.clone()));
        changed.is_none_or(|&changed| changed <= self.at).then(note)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.all.0);
        let first = state.asked.first_key_value().map(|(&at, _)| at);
        if let Some(count) = state.asked.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                state.asked.remove(&self.at);
            }
        }
        match state.asked.first_key_value().map(|(&at, _)| at) {
            None => state.changed.clear(),
            now if now == first => {}
            Some(oldest) => state.changed.retain(|_, changed| *changed > oldest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_before_a_change_is_not_believed_after_it_and_changes_are_forgotten() {
        let (changes, [f, g]) =
            (NameChanges::default(), ["f", "g"].map(|name| Name::try_from(name).unwrap()));
        let is_believed =
            |asked: &Asked<'_>, name: &Name| asked.unless_changed(Node::ROOT, name, || ()).is_some();
        let before = changes.ask();
        changes.changed(Node::ROOT, &f);
        let after = changes.ask();
        assert!(!is_believed(&before, &f) && is_believed(&before, &g) && is_believed(&after, &f));
        changes.changed(Node::ROOT, &g);
        assert!(!is_believed(&after, &g));
        drop(before);
        assert_eq!(lock(&changes.0).changed.len(), 1, "no request is left from before the first change");
        drop(after);
        changes.changed(Node::ROOT, &f);
        assert!(lock(&changes.0).changed.is_empty() && is_believed(&changes.ask(), &f));
    }
}
