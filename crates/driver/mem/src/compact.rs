// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making the log shorter while the tree is in use.
//!
//! A log with the same meaning is begun in the other half, and from then on every group goes into both. Meanwhile each
//! inode is put into the new one as it is, one at a time under its own lock; large directories in pieces. Records say
//! what is, so it does not matter which of them come before and which after the inode they are about. When all inodes
//! are there, the new log is complete.
//!
//! The work is done a little at a time by each request, before it takes any lock: some microseconds each.

use crate::Mem;
use crate::content::Change;
use crate::inode::{Body, Inode, State};
use crate::record::Record;
use crate::table::SHARDS;
use outrigger_core::Node;
use outrigger_core::survive::{Log, Records};

/// How many words one change adds to the shorter log, roughly: many times what it adds to the log.
const SLICE: usize = 512;
/// How many names are put into the log under one lock.
const NAMES_AT_ONCE: usize = 256;

/// How far the work on a shorter log is.
#[derive(Default)]
pub(crate) struct Cursor {
    running: bool,
    /// The next shard of the table.
    shard: usize,
    /// Inodes of shards before that.
    todo: Vec<u64>,
    /// A directory that is in the log, and up to which of its names.
    names: Option<(u64, u64)>,
}

impl Mem {
    /// Does a little of the work on a shorter log, if there is some. The caller holds no lock of an inode.
    pub(crate) fn tend_log(&self) {
        if let Some(log) = self.log.as_ref().filter(|log| log.is_due())
            && let Some(mut cursor) = self.cursor.try_lock()
        {
            self.compact_some(log, &mut cursor, SLICE);
        }
    }

    /// Makes the log as short as can be. The caller holds no lock of an inode.
    pub(crate) fn compact(&self) {
        let Some(log) = &self.log else { return };
        let mut cursor = self.cursor.lock();
        while log.may_shrink() && self.compact_some(log, &mut cursor, SLICE) {}
    }

    /// Adds `budget` words or more to the shorter log; `true` when more is to be done.
    fn compact_some(&self, log: &Log, cursor: &mut Cursor, budget: usize) -> bool {
        if !cursor.running {
            *cursor = Cursor { running: true, ..Cursor::default() };
            log.begin_copy(|| Records::of(&self.tree_record()).words().to_vec());
        }
        let (mut records, mut done) = (Records::default(), 0);
        while done < budget {
            records.clear();
            let more = match cursor.names {
                Some(names) => self.copy_names(log, names, cursor, &mut records),
                None => match cursor.next(self) {
                    Some(ino) => self.copy_inode(log, ino, cursor, &mut records),
                    None => {
                        log.end_copy();
                        false
                    }
                },
            };
            if !more {
                *cursor = Cursor::default();
                return false;
            }
            done += records.words().len();
        }
        true
    }

    /// The record every log begins with.
    pub(crate) fn tree_record(&self) -> Record {
        Record::Tree { generation: self.generation.0, last: self.table.last(), next: self.store.next() }
    }

    /// Copies an inode, of a directory not the names; `false` when there is no shorter log any more.
    fn copy_inode(&self, log: &Log, ino: u64, cursor: &mut Cursor, records: &mut Records) -> bool {
        let Ok(inode) = self.table.get(Node(ino)) else { return true };
        // Exclusively, because readers put their time into the log.
        let state = inode.state.write();
        if state.dead {
            return true;
        }
        put_inode(&inode, &state, records);
        if inode.is_dir() {
            cursor.names = Some((ino, 0));
        }
        let locks = inode.locks.lock();
        records.put(&Record::Referenced { ino, yes: inode.is_referenced() });
        locks.records(ino).for_each(|record| records.put(&record));
        log.copy(records.words())
    }

    /// Copies some names of a directory.
    fn copy_names(
        &self,
        log: &Log,
        (dir, last): (u64, u64),
        cursor: &mut Cursor,
        records: &mut Records,
    ) -> bool {
        cursor.names = None;
        let Ok(inode) = self.table.get(Node(dir)) else { return true };
        let state = inode.state.write();
        let Body::Dir(names) = &state.body else { return true };
        for (number, name, inode) in names.after(last).take(NAMES_AT_ONCE) {
            records.put(&Record::Name { dir, number, ino: inode.ino, name: name.clone() });
            cursor.names = Some((dir, number));
        }
        log.copy(records.words())
    }
}

impl Cursor {
    fn next(&mut self, mem: &Mem) -> Option<u64> {
        while self.todo.is_empty() && self.shard < SHARDS {
            self.todo = mem.table.numbers(self.shard);
            self.shard += 1;
        }
        self.todo.pop()
    }
}

/// The records that make an inode anew, without names, references and locks.
fn put_inode(inode: &Inode, state: &State, records: &mut Records) {
    let ino = inode.ino;
    records.put(&Record::Gone(ino));
    records.put(&Record::Inode(inode.facts(state)));
    for (name, value) in &state.xattrs.0 {
        records.put(&Record::Xattr { ino, name: name.clone(), value: value.clone() });
    }
    match &state.body {
        Body::File(content) => {
            for (page, extent) in content.extents() {
                let change = Change::Put { page, pages: extent.pages, start: extent.start() };
                records.put(&Record::Content { ino, change });
            }
        }
        Body::Dir(names) => records.put(&Record::Numbers { dir: ino, last: names.last() }),
        Body::Link(target) => records.put(&Record::Target { ino, target: target.clone() }),
        Body::Special => {}
    }
}
