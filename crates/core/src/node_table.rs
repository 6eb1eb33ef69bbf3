// SPDX-License-Identifier: MIT OR Apache-2.0
//! Node numbers for drivers that know files only by path ([`crate::Identity::ByPath`]).
//!
//! A [`NodeTable`] maps a [`Node`] to its place, a directory and a name, and follows what happens to it: renames (of a
//! directory with all that is below it, at the cost of one), further hard links, removal while a door still refers
//! to it, and references returned. A driver tells it what it found (with a key, if it can recognise a file by anything
//! but its path) and what it changed, and asks for the path of a node.
//!
//! * **Identity.** The low half of a node is a slot, the high half counts how often the slot was freed. A number that
//!   is no longer known fails with `ESTALE` and never means another file.
//! * **Life.** Finding a name counts one reference; [`NodeTable::forget`] returns them. A node without references and
//!   without known names below it is dropped. A node whose last name was removed stays until it is forgotten.
//! * **Memory.** 32 bytes an entry and its name in words of eight bytes, in a [`Region`]; an index of about 5 to 11
//!   bytes an entry (twice that where keys are used) in the process.
//! * **Crashes.** A region may outlive its process: each change is a transaction that a kill leaves done or not done,
//!   and [`NodeTable::attach`] takes over what is there. It reads the whole table once to build its index.

mod edit;
mod index;
mod store;

use crate::error::{Errno, Result};
use crate::keep::{HeapRegion, Region};
use crate::mutex::lock;
use crate::name::{Name, Target};
use crate::node::{Generation, Node};
use crate::wire::{Input, Malformed, Wire};
use bytes::Bytes;
use edit::{Edit, Outcome};
use index::Index;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard};
use store::{Kind, Memory, Record, Store};

/// The slot of the root.
const ROOT: u32 = Node::ROOT.0 as u32;
/// A count of references that has become too large to count down again.
const REFS_STUCK: u32 = u32::MAX;

/// What a driver recognises a file by, whatever its name: an inode number mixed with what else tells files apart.
/// A key that two files share makes them hard links of each other, so leave it out where it cannot be had.
pub type FileKey = NonZeroU64;

/// Nodes and where they are; see the [module](self).
pub struct NodeTable {
    inner: Mutex<Inner>,
}

struct Inner {
    store: Store,
    index: Index,
    /// Nodes that a change may have left of no use; looked at when the operation is over.
    suspects: Vec<u32>,
}

/// A name somewhere: the slot of its directory, and its bytes.
type Place<'a> = (u32, &'a [u8]);

/// All of the table; what is decoded is in this process's memory, with the same nodes, and those to come will be the same, too.
impl Wire for NodeTable {
    fn put(&self, out: &mut Vec<u8>) {
        self.lock().store.save(out);
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Store::restore(input).and_then(NodeTable::of).map_err(|_| Malformed::new("NodeTable"))
    }
}

impl NodeTable {
    /// The table in `region`: a new one where every word is still zero, else what another owner, perhaps killed in the middle of
    /// a change, left there.
    ///
    /// # Errors
    /// `EUCLEAN` when the region holds something else, or a table that contradicts itself; `EPROTO` for one of another version;
    /// `EINVAL` when it is too small for any node.
    pub fn attach(region: Arc<dyn Region>) -> Result<Self> {
        NodeTable::of(Store::open(Memory::Kept(region))?)
    }

    fn of(store: Store) -> Result<Self> {
        if store.records() == 0 {
            let mut change = store.change();
            let (slot, record) = change.take_record()?;
            debug_assert_eq!(slot, ROOT);
            change.put(slot, Record { kind: Kind::Node, refs: REFS_STUCK, ..record });
            change.commit();
        }
        let index = Index::build(&store)?;
        // A change and the dropping of what it left over are two transactions.
        let suspects = (1..=store.records()).collect();
        let mut inner = Inner { store, index, suspects };
        inner.drop_unused();
        Ok(NodeTable { inner: Mutex::new(inner) })
    }

    /// An empty table in this process's memory for as many entries as fit into `bytes`.
    ///
    /// # Errors
    /// `EINVAL` when no node fits.
    pub fn in_memory(bytes: usize) -> Result<Self> {
        NodeTable::of(Store::open(Memory::Private(HeapRegion::new(bytes / 8)))?)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Makes a change, then drops what it left of no use.
    fn change<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let result = work(&mut inner);
        inner.drop_unused();
        result
    }

    /// `name` in `dir` leads to the file with this key: its node, with one more reference.
    ///
    /// A known file under a new name gets the name as a further hard link. A known name that now leads to another file
    /// leaves the old one without it.
    ///
    /// # Errors
    /// `ESTALE` when `dir` is not known, `ENFILE` when the table is full.
    pub fn found(&self, dir: Node, name: &Name, key: Option<FileKey>) -> Result<Node> {
        self.change(|inner| {
            let dir = inner.slot(dir)?;
            let slot = inner.find_or_add((dir, name), key.map_or(0, NonZeroU64::get))?;
            inner.add_ref(slot);
            Ok(inner.node(slot))
        })
    }

    /// A new file without a name, with one reference.
    ///
    /// # Errors
    /// `ENFILE` when the table is full.
    pub fn found_nameless(&self, key: Option<FileKey>) -> Result<Node> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let key = key.map_or(0, NonZeroU64::get);
        let mut change = inner.store.change();
        let (slot, record) = change.take_record()?;
        change.put(slot, Record { kind: Kind::Node, refs: 1, key, ..record });
        change.commit();
        if key != 0 {
            inner.index.add_key(&inner.store, slot);
        }
        Ok(inner.node(slot))
    }

    /// The node `name` in `dir` is known to lead to. Counts no reference.
    pub fn get(&self, dir: Node, name: &Name) -> Option<Node> {
        let inner = self.lock();
        let dir = inner.slot(dir).ok()?;
        let record = inner.index.name(&inner.store, (dir, name))?;
        Some(inner.node(inner.owner(record)))
    }

    /// The names that lead from the root to `node`; none for the root itself.
    ///
    /// # Errors
    /// `ESTALE` when the node is not known, or when it or a directory above it has no name any more.
    pub fn path(&self, node: Node) -> Result<Vec<Name>> {
        let inner = self.lock();
        let mut slot = inner.slot(node)?;
        let mut path = Vec::new();
        while slot != ROOT {
            let record = inner.store.record(slot);
            if record.parent == 0 {
                return Err(Errno::ESTALE.because("the file was removed"));
            }
            path.push(inner.name(&record)?);
            slot = record.parent;
        }
        path.reverse();
        Ok(path)
    }

    /// The path of `node` as [`Locate`](crate::ops::Locate) gives it: of a file with several names the shortest one.
    ///
    /// # Errors
    /// `ESTALE` as for [`NodeTable::path`], when none is left; `ENAMETOOLONG` for more than a [`Target`] can have.
    pub fn locate(&self, node: Node) -> Result<Target> {
        let names = self.shortest_path(node)?;
        let path: Vec<u8> = names.iter().flat_map(|name| [b"/", &name[..]].concat()).collect();
        Target::new(if path.is_empty() { b"/".to_vec() } else { path })
    }

    /// As [`NodeTable::path`], of a file with several names by the shortest way.
    fn shortest_path(&self, node: Node) -> Result<Vec<Name>> {
        let ways = self.names(node)?.into_iter().filter_map(|(dir, name)| {
            let mut way = self.path(dir).ok()?;
            way.push(name);
            Some(way)
        });
        ways.min_by_key(Vec::len).map_or_else(|| self.path(node), Ok)
    }

    /// All names of `node`, each with its directory, the last one found first.
    ///
    /// # Errors
    /// `ESTALE` when the node is not known.
    pub fn names(&self, node: Node) -> Result<Vec<(Node, Name)>> {
        let inner = self.lock();
        let mut record = inner.store.record(inner.slot(node)?);
        let mut names = Vec::new();
        while record.parent != 0 {
            names.push((inner.node(record.parent), inner.name(&record)?));
            match record.next {
                0 => break,
                next => record = inner.store.record(next),
            }
        }
        Ok(names)
    }

    /// How many names of `node` are known; 0 when it is not known itself.
    pub fn links(&self, node: Node) -> usize {
        let inner = self.lock();
        let Ok(slot) = inner.slot(node) else { return 0 };
        let mut record = inner.store.record(slot);
        let mut count = usize::from(record.parent != 0);
        while record.parent != 0 && record.next != 0 {
            record = inner.store.record(record.next);
            count += 1;
        }
        count
    }

    /// Whether names in the directory `node` are known: it is not dropped before these.
    pub fn has_names_below(&self, node: Node) -> bool {
        let inner = self.lock();
        inner.slot(node).is_ok_and(|slot| inner.store.record(slot).children != 0)
    }

    /// What the driver recognises `node` by.
    ///
    /// # Errors
    /// `ESTALE` when the node is not known.
    pub fn key(&self, node: Node) -> Result<Option<FileKey>> {
        let inner = self.lock();
        let slot = inner.slot(node)?;
        Ok(NonZeroU64::new(inner.store.record(slot).key))
    }

    /// The node that has this key, if one is known. Counts no reference.
    pub fn keyed(&self, key: u64) -> Option<Node> {
        let inner = self.lock();
        inner.index.key(&inner.store, key).map(|slot| inner.node(slot))
    }

    /// `node` got a further name, and the caller a further reference (link(2)).
    ///
    /// # Errors
    /// `ESTALE` when a node is not known, `ENFILE` when the table is full, `EINVAL` for a directory with known names.
    pub fn linked(&self, node: Node, dir: Node, name: &Name) -> Result<()> {
        self.change(|inner| {
            let (slot, place) = (inner.slot(node)?, (inner.slot(dir)?, &name[..]));
            if slot == ROOT || inner.store.record(slot).children != 0 || inner.is_above(slot, place.0) {
                return Err(Errno::EINVAL.because("a directory has one name only"));
            }
            let replaced = inner.index.name(&inner.store, place);
            if replaced.is_none_or(|record| inner.owner(record) != slot) {
                inner.keep_one_name(place.0);
                inner.replace(replaced, |edit| edit.add_name(slot, place))?;
            }
            inner.add_ref(slot);
            Ok(())
        })
    }

    /// `name` in `dir` was removed (unlink(2), rmdir(2)).
    pub fn removed(&self, dir: Node, name: &Name) {
        self.change(|inner| {
            if let Ok(dir) = inner.slot(dir) {
                inner.detach((dir, name));
            }
        });
    }

    /// `from` became `to`, replacing what had that name (rename(2)). Does nothing when both were the same file.
    ///
    /// # Errors
    /// `ESTALE` when a directory is not known, `ENFILE` when the table is full, `EINVAL` when a directory would
    /// come to lie inside itself.
    pub fn renamed(&self, from: (Node, &Name), to: (Node, &Name)) -> Result<()> {
        self.change(|inner| {
            let from: Place<'_> = (inner.slot(from.0)?, from.1);
            let to: Place<'_> = (inner.slot(to.0)?, to.1);
            let replaced = inner.index.name(&inner.store, to);
            let Some(moved) = inner.index.name(&inner.store, from) else {
                inner.detach(to);
                return Ok(());
            };
            if replaced.is_some_and(|record| inner.owner(record) == inner.owner(moved)) {
                return Ok(());
            }
            inner.refuse_circle(moved, to.0)?;
            inner.keep_one_name(to.0);
            inner.suspects.push(from.0);
            inner.replace(replaced, |edit| edit.move_name(moved, to))
        })
    }

    /// The files at two places changed places (`RENAME_EXCHANGE` of renameat2(2)).
    ///
    /// # Errors
    /// As [`NodeTable::renamed`].
    pub fn exchanged(&self, one: (Node, &Name), other: (Node, &Name)) -> Result<()> {
        self.change(|inner| {
            let one: Place<'_> = (inner.slot(one.0)?, one.1);
            let other: Place<'_> = (inner.slot(other.0)?, other.1);
            if one == other {
                return Ok(());
            }
            let records = (inner.index.name(&inner.store, one), inner.index.name(&inner.store, other));
            for (record, place) in [(records.0, other), (records.1, one)] {
                record.map_or(Ok(()), |record| inner.refuse_circle(record, place.0))?;
            }
            inner.keep_one_name(one.0);
            inner.keep_one_name(other.0);
            inner.suspects.extend([one.0, other.0]);
            match records {
                (Some(a), Some(b)) => inner.edit(|edit| edit.exchange(a, b)),
                (Some(a), None) => inner.edit(|edit| edit.move_name(a, other))?,
                (None, Some(b)) => inner.edit(|edit| edit.move_name(b, one))?,
                (None, None) => {}
            }
            Ok(())
        })
    }

    /// Returns `count` references to `node`.
    pub fn forget(&self, node: Node, count: u64) {
        self.change(|inner| {
            if let Ok(slot) = inner.slot(node) {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                let less = |refs: u32| if refs == REFS_STUCK { refs } else { refs.saturating_sub(count) };
                inner.store.change_refs(slot, less);
                inner.suspects.push(slot);
            }
        });
    }

    /// How many references to `node` are out; `None` when it is not known or they were too many to count.
    pub fn references(&self, node: Node) -> Option<u32> {
        let inner = self.lock();
        let slot = inner.slot(node).ok()?;
        Some(inner.store.record(slot).refs).filter(|&refs| refs != REFS_STUCK)
    }

    /// The node that uses `slot`, the low half of a node, now.
    pub fn at_slot(&self, slot: u32) -> Option<Node> {
        let inner = self.lock();
        (inner.store.record(slot).kind == Kind::Node).then(|| inner.node(slot))
    }

    /// The largest slot that was ever used: with [`NodeTable::at_slot`], all nodes can be looked at.
    pub fn slots(&self) -> u32 {
        self.lock().store.records()
    }

    /// How many nodes are known, the root included.
    pub fn len(&self) -> usize {
        let inner = self.lock();
        (1..=inner.store.records()).filter(|&slot| inner.store.record(slot).kind == Kind::Node).count()
    }

    /// Whether nothing but the root is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    /// The generation of a node of this table.
    pub const fn generation(node: Node) -> Generation {
        Generation(node.0 >> 32)
    }
}

impl Inner {
    fn node(&self, slot: u32) -> Node {
        Node(u64::from(self.store.generation(slot)) << 32 | u64::from(slot))
    }

    fn slot(&self, node: Node) -> Result<u32> {
        let slot = node.0 as u32;
        let record = self.store.record(slot);
        if slot != 0 && record.kind == Kind::Node && u64::from(record.generation) == node.0 >> 32 {
            Ok(slot)
        } else {
            Err(Errno::ESTALE.because(format!("{node:?} is not known any more")))
        }
    }

    /// The node a record with a name belongs to.
    fn owner(&self, slot: u32) -> u32 {
        let record = self.store.record(slot);
        if record.kind == Kind::Alias { record.refs } else { slot }
    }

    fn name(&self, record: &Record) -> Result<Name> {
        Name::new(Bytes::copy_from_slice(self.store.name(record.name).as_bytes()))
    }

    /// Whether `slot` is `below` or above it. Ends, because no change closes a circle.
    fn is_above(&self, slot: u32, mut below: u32) -> bool {
        while below != 0 {
            if below == slot {
                return true;
            }
            below = self.store.record(below).parent;
        }
        false
    }

    /// Refuses to let the owner of `record` get a name in `dir` when it is `dir` or above it.
    fn refuse_circle(&self, record: u32, dir: u32) -> Result<()> {
        if self.is_above(self.owner(record), dir) {
            return Err(Errno::EINVAL.because("a directory cannot be moved into itself"));
        }
        Ok(())
    }

    fn add_ref(&mut self, slot: u32) {
        self.store.change_refs(slot, |refs| refs.saturating_add(1));
    }

    fn find_or_add(&mut self, place: Place<'_>, key: u64) -> Result<u32> {
        let mut replaced = None;
        if let Some(record) = self.index.name(&self.store, place) {
            let slot = self.owner(record);
            let known = self.store.record(slot).key;
            if key == 0 || known == key {
                return Ok(slot);
            }
            if known == 0 && self.index.key(&self.store, key).is_none() {
                self.set_key(slot, key);
                return Ok(slot);
            }
            replaced = Some(record);
        }
        self.keep_one_name(place.0);
        match self.index.key(&self.store, key) {
            // A directory found inside itself was moved by others: what was known of its place is wrong, so it
            // becomes a new node.
            Some(slot) if self.is_above(slot, place.0) => self.set_key(slot, 0),
            Some(slot) => {
                let node = self.store.record(slot);
                let is_directory = node.children != 0 && node.parent != 0;
                let moved = if is_directory { Some(slot) } else { None };
                self.replace(replaced, |edit| match moved {
                    Some(record) => edit.move_name(record, place),
                    None => edit.add_name(slot, place),
                })?;
                self.suspects.push(node.parent);
                return Ok(slot);
            }
            None => {}
        }
        let slot = self.replace(replaced, |edit| edit.add_node(place, key))?;
        if key != 0 {
            self.index.add_key(&self.store, slot);
        }
        Ok(slot)
    }

    fn set_key(&mut self, slot: u32, key: u64) {
        self.index.remove_key(&self.store, slot);
        let mut change = self.store.change();
        let record = change.record(slot);
        change.put(slot, Record { key, ..record });
        change.commit();
        if key != 0 {
            self.index.add_key(&self.store, slot);
        }
    }

    /// What has names below it is a directory, and a directory has one name. Others that were found are out of date.
    fn keep_one_name(&mut self, dir: u32) {
        while self.store.record(dir).next != 0 {
            let alias = self.store.record(dir).next;
            let parent = self.store.record(alias).parent;
            self.edit(|edit| edit.take_name_off(alias));
            self.suspects.push(parent);
        }
    }

    /// Takes the name at `place` from whatever has it.
    fn detach(&mut self, place: Place<'_>) {
        if let Some(record) = self.index.name(&self.store, place) {
            let slot = self.owner(record);
            self.edit(|edit| edit.take_name_off(record));
            self.suspects.extend([slot, place.0]);
        }
    }

    /// Takes the name in the record `replaced` off its node and does `work`, in one change.
    fn replace<T>(
        &mut self,
        replaced: Option<u32>,
        work: impl FnOnce(&mut Edit<'_>) -> Result<T>,
    ) -> Result<T> {
        self.suspects.extend(replaced.map(|record| self.owner(record)));
        self.edit(|edit| {
            replaced.into_iter().for_each(|record| edit.take_name_off(record));
            work(edit)
        })
    }

    /// Does `work` in one change and keeps the index of names in step; does nothing when `work` fails.
    fn edit<T: Outcome>(&mut self, work: impl FnOnce(&mut Edit<'_>) -> T) -> T {
        let mut edit = Edit::new(&self.store);
        let result = work(&mut edit);
        if result.succeeded() {
            let Edit { change, outdated, renewed } = edit;
            outdated.iter().for_each(|&record| self.index.remove_name(&self.store, record));
            change.commit();
            renewed.iter().for_each(|&record| self.index.add_name(&self.store, record));
        }
        result
    }

    /// Drops each suspect that has no references and that has no names below it; then perhaps its directories.
    fn drop_unused(&mut self) {
        while let Some(slot) = self.suspects.pop() {
            let node = self.store.record(slot);
            if slot == ROOT || node.kind != Kind::Node || node.refs != 0 || node.children != 0 {
                continue;
            }
            while self.store.record(slot).parent != 0 {
                self.suspects.push(self.store.record(slot).parent);
                self.edit(|edit| edit.take_name_off(slot));
            }
            self.index.remove_key(&self.store, slot);
            let mut change = self.store.change();
            change.free_record(slot);
            change.commit();
        }
    }
}

#[cfg(test)]
mod tests;
