// SPDX-License-Identifier: MIT OR Apache-2.0
//! All that is known of files as bytes, for another process that goes on with the same worker.

use super::{Files, TABLE};
use crate::recent::Recent;
use crate::silly_rename::Nameless;
use outrigger_core::node_table::NodeTable;
use outrigger_core::wire::{Input, Malformed};
use outrigger_core::{Result, Wire};

impl Files {
    /// Appends everything.
    pub fn save(&self, out: &mut Vec<u8>) {
        self.table.save(out);
        put_all(self.known.iter().map(|(key, value)| (*key, *value)), out);
        put_all(self.keys.iter().map(|(key, value)| (*key, *value)), out);
        self.next_key.put(out);
        put_all(self.open.iter().map(|(key, value)| (*key, *value)), out);
        self.next_handle.put(out);
        self.life.put(out);
        self.idle.put(out);
        (self.idle_most as u64).put(out);
        put_all(self.removed.iter().copied(), out);
        self.recent.now().put(out);
        (self.most as u64).put(out);
        (self.crowded as u64).put(out);
        self.found_twice.put(out);
        put_all(self.linked.iter().copied(), out);
        self.silly_rename.save(out);
    }

    /// What was [saved](Files::save).
    ///
    /// # Errors
    /// `EPROTO` and `EUCLEAN` when it is something else.
    pub fn restored(saved: &mut Input) -> Result<Self> {
        let mut files = Files {
            table: NodeTable::restored(TABLE, saved)?,
            known: all(saved)?,
            keys: all(saved)?,
            next_key: u64::get(saved)?,
            open: all(saved)?,
            next_handle: u64::get(saved)?,
            life: u64::get(saved)?,
            idle: Vec::get(saved)?,
            idle_most: u64::get(saved)? as usize,
            removed: all(saved)?,
            recent: Recent::at(u64::get(saved)?),
            most: u64::get(saved)? as usize,
            crowded: u64::get(saved)? as usize,
            found_twice: bool::get(saved)?,
            linked: all(saved)?,
            silly_rename: Nameless::restored(saved)?,
        };
        let held = files.known.iter().filter(|(_, known)| known.life == files.life);
        held.for_each(|(node, known)| files.recent.was_used(*node, known.used));
        Ok(files)
    }
}

fn put_all<T: Wire>(items: impl ExactSizeIterator<Item = T>, out: &mut Vec<u8>) {
    (items.len() as u64).put(out);
    items.for_each(|item| item.put(out));
}

fn all<T: Wire, C: FromIterator<T>>(saved: &mut Input) -> Result<C, Malformed> {
    let count = u64::get(saved)?;
    (0..count).map(|_| T::get(saved)).collect()
}
