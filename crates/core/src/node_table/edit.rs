// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of names, put together as one transaction.

use super::Place;
use super::store::{Change, Kind, Record, Store};
use crate::error::Result;

/// Whether a change is to be made.
pub(super) trait Outcome {
    /// Whether nothing failed.
    fn succeeded(&self) -> bool;
}

impl Outcome for () {
    fn succeeded(&self) -> bool {
        true
    }
}

impl<T> Outcome for Result<T> {
    fn succeeded(&self) -> bool {
        self.is_ok()
    }
}

/// A change of names, and the records whose names the index has to learn anew.
pub(super) struct Edit<'a> {
    /// What the region is to hold.
    pub(super) change: Change<'a>,
    /// Records whose old names leave the index.
    pub(super) outdated: Vec<u32>,
    /// Records whose new names enter it.
    pub(super) renewed: Vec<u32>,
}

impl<'a> Edit<'a> {
    /// A change of nothing yet.
    pub(super) fn new(store: &'a Store) -> Self {
        Edit { change: store.change(), outdated: Vec::new(), renewed: Vec::new() }
    }

    /// A new node at a place that is free.
    pub(super) fn add_node(&mut self, (dir, name): Place<'_>, key: u64) -> Result<u32> {
        let (slot, record) = self.change.take_record()?;
        let name = self.change.take_name(name)?;
        self.change.put(slot, Record { kind: Kind::Node, parent: dir, name, key, ..record });
        self.change.count_child(dir, 1);
        self.renewed.push(slot);
        Ok(slot)
    }

    /// Gives the node in `slot` a further name, which becomes its first; the one it had moves to a record of its own.
    pub(super) fn add_name(&mut self, slot: u32, (dir, name): Place<'_>) -> Result<()> {
        let name_at = self.change.take_name(name)?;
        let node = self.change.record(slot);
        let mut next = node.next;
        if node.parent != 0 {
            let (alias, record) = self.change.take_record()?;
            let (kind, refs, parent, name) = (Kind::Alias, slot, node.parent, node.name);
            self.change.put(alias, Record { kind, refs, parent, name, next, ..record });
            next = alias;
            self.outdated.push(slot);
            self.renewed.push(alias);
        }
        self.change.put(slot, Record { parent: dir, name: name_at, next, ..node });
        self.change.count_child(dir, 1);
        self.renewed.push(slot);
        Ok(())
    }

    /// Takes the name in `record` off its node.
    pub(super) fn take_name_off(&mut self, record: u32) {
        let taken = self.change.record(record);
        self.outdated.push(record);
        self.change.free_name(taken.name);
        self.change.count_child(taken.parent, -1);
        match taken.kind {
            Kind::Alias => {
                self.unlink_alias(taken.refs, record, taken.next);
                self.change.free_record(record);
            }
            _ if taken.next != 0 => {
                // The second name becomes the first.
                let alias = self.change.record(taken.next);
                let (parent, name, next) = (alias.parent, alias.name, alias.next);
                self.change.put(record, Record { parent, name, next, ..taken });
                self.change.free_record(taken.next);
                self.outdated.push(taken.next);
                self.renewed.push(record);
            }
            _ => self.change.put(record, Record { parent: 0, name: 0, ..taken }),
        }
    }

    /// Makes the record before `alias` in the list of names of the node in `slot` point after it.
    fn unlink_alias(&mut self, mut slot: u32, alias: u32, next: u32) {
        while slot != 0 {
            let record = self.change.record(slot);
            if record.next == alias {
                return self.change.put(slot, Record { next, ..record });
            }
            slot = record.next;
        }
    }

    /// Moves the name in `record` to a place that is free.
    pub(super) fn move_name(&mut self, record: u32, (dir, name): Place<'_>) -> Result<()> {
        let name = self.change.take_name(name)?;
        let old = self.change.record(record);
        self.change.free_name(old.name);
        self.change.count_child(old.parent, -1);
        self.change.count_child(dir, 1);
        let moved = self.change.record(record);
        self.change.put(record, Record { parent: dir, name, ..moved });
        self.outdated.push(record);
        self.renewed.push(record);
        Ok(())
    }

    /// Exchanges the places of two names; directories keep their number of names.
    pub(super) fn exchange(&mut self, a: u32, b: u32) {
        let (old_a, old_b) = (self.change.record(a), self.change.record(b));
        self.change.put(a, Record { parent: old_b.parent, name: old_b.name, ..old_a });
        self.change.put(b, Record { parent: old_a.parent, name: old_a.name, ..old_b });
        self.outdated.extend([a, b]);
        self.renewed.extend([a, b]);
    }
}
