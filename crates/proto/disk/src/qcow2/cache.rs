// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of an image in memory, and what of them is not in the file yet.

use super::Storage;
use crate::Medium;
use crate::container::read_padded;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// More than this is not kept, in bytes, unless it has to be written.
const MOST: usize = 8 << 20;
/// What is written at once at least, in bytes.
const SECTOR: usize = 512;

/// Tables of one kind, by their places; each is a cluster.
pub(super) struct Cache {
    tables: BTreeMap<u64, Table>,
    cluster: usize,
    /// How many bytes belong to tables that have to be written.
    dirty: usize,
}

struct Table {
    content: Box<[u8]>,
    /// What is not in the file yet.
    dirty: Range<usize>,
}

impl Cache {
    /// An empty one for tables of this size.
    pub fn new(cluster: u64) -> Self {
        Cache { tables: BTreeMap::new(), cluster: cluster as usize, dirty: 0 }
    }

    /// Whether the table at `place` would have to be read.
    pub fn lacks(&self, place: u64) -> bool {
        !self.tables.contains_key(&place)
    }

    /// The content of the table at `place`.
    pub fn table(&mut self, medium: &impl Medium, place: u64) -> io::Result<&[u8]> {
        Ok(&self.loaded(medium, place)?.content)
    }

    fn loaded(&mut self, medium: &impl Medium, place: u64) -> io::Result<&mut Table> {
        if !self.tables.contains_key(&place) {
            if self.tables.len() * self.cluster >= MOST {
                self.tables.retain(|_, table| !table.dirty.is_empty());
            }
            let mut content = vec![0; self.cluster].into_boxed_slice();
            read_padded(medium, &mut content, place)?;
            self.tables.insert(place, Table { content, dirty: 0..0 });
        }
        self.tables.get_mut(&place).ok_or(io::ErrorKind::NotFound.into())
    }

    /// Puts a new table there, all of which has to be written.
    pub fn put(&mut self, place: u64, content: Box<[u8]>) {
        let dirty = 0..content.len();
        let before = self.tables.insert(place, Table { content, dirty });
        if before.is_none_or(|table| table.dirty.is_empty()) {
            self.dirty += self.cluster;
        }
    }

    /// Changes the table at `place`, which is somewhere in `range`.
    pub fn change(
        &mut self,
        medium: &impl Medium,
        place: u64,
        range: Range<usize>,
        change: impl FnOnce(&mut [u8]),
    ) -> io::Result<()> {
        let cluster = self.cluster;
        let table = self.loaded(medium, place)?;
        change(&mut table.content);
        let was_clean = table.dirty.is_empty();
        table.dirty = match was_clean {
            true => range,
            false => table.dirty.start.min(range.start)..table.dirty.end.max(range.end),
        };
        if was_clean {
            self.dirty += cluster;
        }
        Ok(())
    }

    /// Forgets the table at `place`, which is none any more.
    pub fn forget(&mut self, place: u64) {
        if self.tables.remove(&place).is_some_and(|table| !table.dirty.is_empty()) {
            self.dirty -= self.cluster;
        }
    }

    /// Whether anything has to be written.
    pub fn is_dirty(&self) -> bool {
        self.dirty > 0
    }

    /// Whether so much has to be written that it should be.
    pub fn is_full(&self) -> bool {
        self.dirty >= MOST
    }

    /// Writes what has to be written; what cannot be stays for the next time.
    pub fn write(&mut self, storage: &impl Storage) -> io::Result<()> {
        if self.dirty == 0 {
            return Ok(());
        }
        for (&place, table) in self.tables.iter_mut().filter(|(_, table)| !table.dirty.is_empty()) {
            let start = table.dirty.start / SECTOR * SECTOR;
            let end = table.dirty.end.next_multiple_of(SECTOR);
            storage.write(&table.content[start..end], place + start as u64)?;
            table.dirty = 0..0;
            self.dirty -= self.cluster;
        }
        Ok(())
    }
}
