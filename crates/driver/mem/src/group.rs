// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one operation puts into the log.
//!
//! A group is asked for before any lock of an inode is taken, and committed before they are released: so the groups of
//! operations on one inode are in the log in the order in which they happened.

use crate::Mem;
use crate::content::{Edit, Extent};
use crate::inode::{Inode, State};
use crate::record::{INODE_WORDS, NAME_WORDS, Record};
use outrigger_core::survive::{Records, Room};
use outrigger_core::{Errno, Name, Result};
use std::sync::Arc;

/// The most words of an operation on names: those of a rename that leaves a whiteout.
pub(crate) const NAMES: usize = 5 * INODE_WORDS + 4 * NAME_WORDS;

/// The records of one operation.
pub(crate) struct Group<'a> {
    mem: &'a Mem,
    /// Words promised by the log; `None` when nothing is logged.
    promised: Option<usize>,
    records: Records,
    /// Inodes that no request finds before they are in the log.
    born: Vec<Arc<Inode>>,
    /// Pages to be freed after the commit, when the locks are released: the group is dropped last.
    freed: Vec<Extent>,
}

impl Mem {
    /// Begins a change. The caller holds no lock of an inode.
    ///
    /// # Errors
    /// `ENOSPC` when the log has no room.
    pub(crate) fn change(&self, room: Room) -> Result<Group<'_>> {
        let mut promised = None;
        if let Some(log) = &self.log {
            self.tend_log();
            if !log.reserve(room) {
                self.compact();
                if !log.reserve(room) {
                    return Err(Errno::ENOSPC.because("the log of the tree in memory is full"));
                }
            }
            let (Room::More(words) | Room::Less(words)) = room;
            promised = Some(words);
        }
        Ok(self.group(promised))
    }

    /// Begins a change that happens even if the log has no room, so that a successor does not learn of it.
    pub(crate) fn change_anyway(&self, words: usize) -> Group<'_> {
        self.change(Room::Less(words)).unwrap_or_else(|_| self.group(None))
    }

    fn group(&self, promised: Option<usize>) -> Group<'_> {
        Group { mem: self, promised, records: Records::default(), born: Vec::new(), freed: Vec::new() }
    }

    /// How content is changed.
    pub(crate) fn edit(&self) -> Edit<'_> {
        Edit::new(&self.space, &self.store)
    }
}

impl Group<'_> {
    /// Adds what `record` makes, if there is a log.
    pub fn push(&mut self, record: impl FnOnce() -> Record) {
        if self.promised.is_some() {
            self.records.put(&record());
        }
    }

    /// The attributes of an inode. The caller holds its state exclusively.
    pub fn inode(&mut self, inode: &Inode, state: &State) {
        // One that is gone must not come back.
        if !state.dead {
            self.push(|| Record::Inode(inode.facts(state)));
        }
    }

    /// A new inode.
    pub fn born(&mut self, inode: &Arc<Inode>) {
        let state = inode.state.read();
        self.inode(inode, &state);
        if !inode.is_referenced() {
            self.push(|| Record::Referenced { ino: inode.ino, yes: false });
        }
        for (name, value) in &state.xattrs.0 {
            self.push(|| Record::Xattr { ino: inode.ino, name: name.clone(), value: value.clone() });
        }
        if let Some(target) = state.body.target() {
            self.push(|| Record::Target { ino: inode.ino, target: target.clone() });
        }
        self.born.push(Arc::clone(inode));
    }

    /// A name that is new or leads elsewhere.
    pub fn name(&mut self, dir: &Inode, number: u64, name: &Name, ino: u64) {
        self.push(|| Record::Name { dir: dir.ino, number, ino, name: name.clone() });
    }

    /// A name that is gone.
    pub fn name_gone(&mut self, dir: &Inode, number: u64) {
        self.push(|| Record::NameGone { dir: dir.ino, number });
    }

    /// A change of content.
    pub fn content(&mut self, inode: &Inode, edit: Edit<'_>) {
        for change in edit.changes {
            self.push(|| Record::Content { ino: inode.ino, change });
        }
        self.freed.extend(edit.freed);
    }

    /// Makes the change what a successor will find. The caller holds the locks of all that changed.
    pub fn commit(&mut self) {
        let table = &self.mem.table;
        let born = std::mem::take(&mut self.born);
        let insert = || born.into_iter().for_each(|inode| table.insert(inode));
        match &self.mem.log {
            Some(log) if !self.records.words().is_empty() => {
                debug_assert!(self.promised.is_some_and(|words| words >= self.records.words().len()));
                log.append(self.records.words(), insert);
                self.records.clear();
            }
            _ => insert(),
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if let (Some(log), Some(words)) = (&self.mem.log, self.promised) {
            log.release(words);
        }
    }
}
