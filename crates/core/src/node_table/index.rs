// SPDX-License-Identifier: MIT OR Apache-2.0
//! From places and keys to records: what can be derived from the region, and is when a table is opened.

use super::ROOT;
use super::store::{Kind, Record, Store};
use crate::error::Result;
use hashbrown::HashTable;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Slots of the records that have a name, by directory and name, and of the nodes that have a key, by key.
pub(super) struct Index {
    names: HashTable<u32>,
    keys: HashTable<u32>,
    /// Seeded by chance: names come from strangers who might choose them to collide.
    hasher: RandomState,
}

fn hash_name(hasher: &RandomState, dir: u32, name: &[u8]) -> u64 {
    hasher.hash_one((dir, name))
}

fn hash_record(hasher: &RandomState, store: &Store, slot: u32) -> u64 {
    let record = store.record(slot);
    hash_name(hasher, record.parent, store.name(record.name).as_bytes())
}

impl Index {
    /// The index of what `store` holds, after checking that it hangs together.
    pub(super) fn build(store: &Store) -> Result<Self> {
        let names = HashTable::new();
        let mut index = Index { names, keys: HashTable::new(), hasher: RandomState::new() };
        store.check_free_lists()?;
        let mut children = vec![0_u32; store.records() as usize + 1];
        let root = store.record(ROOT);
        if root.kind != Kind::Node || root.generation != 0 {
            return Err(store.damaged("it has no root"));
        }
        for slot in 1..=store.records() {
            let record = store.record(slot);
            index.check(store, slot, &record)?;
            if record.kind != Kind::Free && record.parent != 0 {
                children[record.parent as usize] += 1;
                index.add_name(store, slot);
            }
            if record.kind == Kind::Node && record.key != 0 {
                index.add_key(store, slot);
            }
        }
        for slot in 1..=store.records() {
            let record = store.record(slot);
            if record.kind == Kind::Node && record.children != children[slot as usize] {
                return Err(store.damaged("a directory counts its names wrong"));
            }
        }
        check_paths(store)?;
        Ok(index)
    }

    fn check(&self, store: &Store, slot: u32, record: &Record) -> Result<()> {
        let is_node = |slot| store.record(slot).kind == Kind::Node;
        let named = record.parent != 0;
        let sound = match record.kind {
            Kind::Free => true,
            Kind::Alias => named && is_node(record.refs),
            Kind::Node => named || record.next == 0,
        };
        let follows = |next| {
            let alias = store.record(next);
            let owner = if record.kind == Kind::Alias { record.refs } else { slot };
            alias.kind == Kind::Alias && alias.refs == owner
        };
        let sound = sound
            && (record.kind == Kind::Free || record.next == 0 || follows(record.next))
            && (record.kind == Kind::Free || !named || is_node(record.parent) && store.is_name(record.name))
            && (slot != ROOT || !named);
        if !sound {
            return Err(store.damaged("a record refers to what is not there"));
        }
        let taken = named && record.kind != Kind::Free && {
            self.name(store, (record.parent, store.name(record.name).as_bytes())).is_some()
        };
        if taken { Err(store.damaged("a name occurs twice")) } else { Ok(()) }
    }

    /// The record of the name at a place.
    pub(super) fn name(&self, store: &Store, (dir, name): super::Place<'_>) -> Option<u32> {
        let same = |&slot: &u32| {
            let record = store.record(slot);
            record.parent == dir && store.name(record.name).as_bytes() == name
        };
        self.names.find(hash_name(&self.hasher, dir, name), same).copied()
    }

    /// The node with a key; none has key 0.
    pub(super) fn key(&self, store: &Store, key: u64) -> Option<u32> {
        let same = |&slot: &u32| store.record(slot).key == key;
        if key == 0 { None } else { self.keys.find(self.hasher.hash_one(key), same).copied() }
    }

    /// Enters the name in the record `slot`.
    pub(super) fn add_name(&mut self, store: &Store, slot: u32) {
        let hasher = &self.hasher;
        let rehash = |&slot: &u32| hash_record(hasher, store, slot);
        self.names.insert_unique(rehash(&slot), slot, rehash);
    }

    /// Takes out the name in the record `slot`; before the record changes.
    pub(super) fn remove_name(&mut self, store: &Store, slot: u32) {
        let hash = hash_record(&self.hasher, store, slot);
        if let Ok(entry) = self.names.find_entry(hash, |&at| at == slot) {
            entry.remove();
        }
    }

    /// Enters the key of the node in `slot`.
    pub(super) fn add_key(&mut self, store: &Store, slot: u32) {
        let hasher = &self.hasher;
        let rehash = |&slot: &u32| hasher.hash_one(store.record(slot).key);
        self.keys.insert_unique(rehash(&slot), slot, rehash);
    }

    /// Takes out the key of the node in `slot`, if it has one; before the record changes.
    pub(super) fn remove_key(&mut self, store: &Store, slot: u32) {
        let hash = self.hasher.hash_one(store.record(slot).key);
        if let Ok(entry) = self.keys.find_entry(hash, |&at| at == slot) {
            entry.remove();
        }
    }
}

/// Checks that each path and each list of names ends.
fn check_paths(store: &Store) -> Result<()> {
    // A record once found good need not be followed again, so this is linear.
    let mut good = vec![false; store.records() as usize + 1];
    good[0] = true;
    let up: fn(&Record) -> u32 = |record| if record.kind == Kind::Node { record.parent } else { 0 };
    let along: fn(&Record) -> u32 = |record| if record.kind == Kind::Free { 0 } else { record.next };
    for (step, what) in [(up, "a directory lies inside itself"), (along, "a list of names is a circle")] {
        good[1..].fill(false);
        for start in 1..=store.records() {
            let mut trail = Vec::new();
            let mut slot = start;
            while !good[slot as usize] {
                if trail.len() > store.records() as usize {
                    return Err(store.damaged(what));
                }
                trail.push(slot);
                slot = step(&store.record(slot));
            }
            trail.iter().for_each(|&slot| good[slot as usize] = true);
        }
    }
    Ok(())
}
