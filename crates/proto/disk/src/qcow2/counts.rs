// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often each cluster of the file is referred to, and finding some without references.
//!
//! A table has the places of blocks; a block, one cluster, has the numbers for as many clusters as fit into it.

use super::cache::Cache;
use super::header::{COUNTS, COUNTS_MOST, Header};
use super::{Storage, damaged, full};
use crate::Medium;
use crate::bytes::be64;
use std::io;
use std::ops::Range;

/// The bits of an entry that are a place.
const PLACE: u64 = !0x1ff;

/// So many clusters beyond the end of the file may be counted as in use, by a writer that was cut off before it used them.
/// The next free one is searched no further.
const LOST: u64 = 1 << 20;

/// The refcounts of an image that is written.
pub(super) struct Counts {
    /// Places of blocks.
    table: Vec<u64>,
    /// Where the table is.
    place: u64,
    /// Which of its entries are not in the file yet.
    dirty: Range<usize>,
    blocks: Cache,
    cluster_bits: u32,
    /// The bits of a number are two to the power of this.
    order: u32,
    /// No cluster before this one is free.
    search: u64,
    /// Clusters that are never given away, whatever their numbers are.
    fixed: Vec<Range<u64>>,
}

impl Counts {
    /// Reads the table.
    pub fn read(medium: &impl Medium, header: &Header) -> io::Result<Self> {
        let (place, length) = header.counts;
        let mut bytes = vec![0; length as usize];
        medium.read(&mut bytes, place)?;
        let cluster = header.cluster();
        let table = bytes.chunks_exact(8).map(|entry| be64(entry, 0) & PLACE);
        let table: Vec<u64> = table.collect();
        if table.iter().any(|place| !place.is_multiple_of(cluster) || *place >= medium.size()) {
            return Err(damaged("a block of refcounts lies outside the file"));
        }
        let clusters = |start: u64, length: u64| start / cluster..(start + length).div_ceil(cluster);
        let fixed = vec![0..1, clusters(place, length), clusters(header.l1.0, header.l1.1 as u64 * 8)];
        let (cluster_bits, order, blocks) = (header.cluster_bits, header.count_order, Cache::new(cluster));
        Ok(Counts { table, place, dirty: 0..0, blocks, cluster_bits, order, search: 1, fixed })
    }

    /// For how many clusters a block has numbers.
    fn per_block(&self) -> u64 {
        1 << (self.cluster_bits + 3 - self.order)
    }

    fn block(&self, cluster: u64) -> Option<u64> {
        let entry = self.table.get(usize::try_from(cluster / self.per_block()).ok()?)?;
        (*entry != 0).then_some(*entry)
    }

    /// How often a cluster is referred to.
    fn count(&mut self, medium: &impl Medium, cluster: u64) -> io::Result<u64> {
        let Some(block) = self.block(cluster) else { return Ok(0) };
        let index = (cluster % self.per_block()) as usize;
        Ok(number(self.blocks.table(medium, block)?, index, self.order))
    }

    fn set(&mut self, medium: &impl Medium, cluster: u64, count: u64) -> io::Result<()> {
        let Some(block) = self.block(cluster) else { return Ok(()) };
        let (index, order) = ((cluster % self.per_block()) as usize, self.order);
        let start = (index << order) / 8;
        let range = start..start + (1 << order >> 3).max(1);
        self.blocks.change(medium, block, range, |content| set_number(content, index, order, count))
    }

    /// Takes up to `wanted` clusters side by side, at least one. Gives the first and how many there are.
    pub fn take(&mut self, storage: &impl Storage, wanted: u64) -> io::Result<(u64, u64)> {
        let mut first = self.search;
        let most = (storage.size() >> self.cluster_bits) + LOST;
        loop {
            if first > most {
                return Err(damaged("clusters far beyond the end of the file are in use"));
            }
            self.must_have_block(storage, first)?;
            if let Some(fixed) = self.fixed.iter().find(|fixed| fixed.contains(&first)) {
                first = fixed.end;
            } else if self.count(storage, first)? == 0 {
                break;
            } else {
                first += 1;
            }
        }
        let mut taken = 0;
        while taken < wanted && (taken == 0 || self.is_free(storage, first + taken)?) {
            self.set(storage, first + taken, 1)?;
            taken += 1;
        }
        self.search = first + taken;
        Ok((first << self.cluster_bits, taken))
    }

    /// Whether a cluster can be taken without further ado.
    fn is_free(&mut self, medium: &impl Medium, cluster: u64) -> io::Result<bool> {
        let usable =
            self.block(cluster).is_some() && !self.fixed.iter().any(|fixed| fixed.contains(&cluster));
        Ok(usable && self.count(medium, cluster)? == 0)
    }

    /// Makes the block for a cluster if there is none: in the first cluster it has numbers for.
    fn must_have_block(&mut self, storage: &impl Storage, cluster: u64) -> io::Result<()> {
        if self.block(cluster).is_some() {
            return Ok(());
        }
        let index = (cluster / self.per_block()) as usize;
        if index >= self.table.len() {
            self.grow(storage)?;
            return self.must_have_block(storage, cluster);
        }
        let mut own = index as u64 * self.per_block();
        while let Some(fixed) = self.fixed.iter().find(|fixed| fixed.contains(&own)) {
            own = fixed.end;
        }
        if own / self.per_block() != index as u64 {
            return Err(damaged("its tables have no refcounts"));
        }
        let mut content = vec![0; 1 << self.cluster_bits].into_boxed_slice();
        set_number(&mut content, (own % self.per_block()) as usize, self.order, 1);
        self.blocks.put(own << self.cluster_bits, content);
        self.table[index] = own << self.cluster_bits;
        self.dirty = match self.dirty.is_empty() {
            true => index..index + 1,
            false => self.dirty.start.min(index)..self.dirty.end.max(index + 1),
        };
        Ok(())
    }

    /// Moves the table after everything it had numbers for, where there is room for a larger one.
    fn grow(&mut self, storage: &impl Storage) -> io::Result<()> {
        let (per_block, cluster) = (self.per_block(), 1_u64 << self.cluster_bits);
        let (old, start) = (self.table.len() as u64, self.table.len() as u64 * per_block);
        let (mut entries, mut blocks) = (old + old / 2 + 1, 1);
        let clusters = loop {
            let clusters = (entries * 8).div_ceil(cluster);
            let needed = (clusters + blocks).div_ceil(per_block);
            if needed <= blocks && old + blocks <= entries {
                break clusters;
            }
            blocks = blocks.max(needed);
            entries = entries.max(old + blocks);
        };
        let entries = clusters * cluster / 8;
        if entries * 8 > COUNTS_MOST || (start + blocks + clusters) << self.cluster_bits > i64::MAX as u64 {
            return Err(full());
        }
        let used = blocks + clusters;
        for block in 0..blocks {
            let mut content = vec![0; cluster as usize].into_boxed_slice();
            let here = used.saturating_sub(block * per_block).min(per_block);
            (0..here as usize).for_each(|index| set_number(&mut content, index, self.order, 1));
            self.blocks.put((start + block) << self.cluster_bits, content);
        }
        let mut table = self.table.clone();
        table.extend((0..blocks).map(|block| (start + block) << self.cluster_bits));
        table.resize(entries as usize, 0);
        let place = (start + blocks) << self.cluster_bits;
        // What the table refers to is there before the table, and the table before what refers to it.
        self.blocks.write(storage)?;
        storage.write(&encoded(&table), place)?;
        storage.flush()?;
        let mut words = place.to_be_bytes().to_vec();
        words.extend_from_slice(&(clusters as u32).to_be_bytes());
        storage.write(&words, COUNTS)?;
        storage.flush()?;
        let before = std::mem::replace(&mut self.fixed[1], start + blocks..start + used);
        (self.table, self.place, self.dirty) = (table, place, 0..0);
        before.into_iter().try_for_each(|cluster| self.give_back(storage, cluster).map(drop))
    }

    /// Counts one reference less. Tells whether that was the last.
    pub fn give_back(&mut self, medium: &impl Medium, cluster: u64) -> io::Result<bool> {
        let count = self.count(medium, cluster)?;
        if count == 0 || self.fixed.iter().any(|fixed| fixed.contains(&cluster)) {
            return Ok(false);
        }
        self.set(medium, cluster, count - 1)?;
        if count == 1 {
            self.search = self.search.min(cluster);
        }
        Ok(count == 1)
    }

    /// Whether anything has to be written.
    pub fn is_dirty(&self) -> bool {
        self.blocks.is_dirty() || !self.dirty.is_empty()
    }

    /// Whether so much has to be written that it should be.
    pub fn is_full(&self) -> bool {
        self.blocks.is_full()
    }

    /// Writes what has to be written.
    pub fn write(&mut self, storage: &impl Storage) -> io::Result<()> {
        self.blocks.write(storage)?;
        if self.dirty.is_empty() {
            return Ok(());
        }
        storage.flush()?;
        let entries = encoded(&self.table[self.dirty.clone()]);
        storage.write(&entries, self.place + self.dirty.start as u64 * 8)?;
        self.dirty = 0..0;
        Ok(())
    }
}

/// A table as it is in the file.
pub(super) fn encoded(table: &[u64]) -> Vec<u8> {
    table.iter().flat_map(|entry| entry.to_be_bytes()).collect()
}

/// The number with this index, of 2^`order` bits.
fn number(content: &[u8], index: usize, order: u32) -> u64 {
    match order {
        0..3 => {
            let (bits, place) = (1 << order, index << order);
            u64::from(content[place / 8] >> (place % 8)) & ((1 << bits) - 1)
        }
        _ => {
            let length = 1 << (order - 3);
            content[index * length..][..length].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        }
    }
}

fn set_number(content: &mut [u8], index: usize, order: u32, value: u64) {
    match order {
        0..3 => {
            let (bits, place) = (1 << order, index << order);
            let mask = (((1_u32 << bits) - 1) as u8) << (place % 8);
            content[place / 8] = content[place / 8] & !mask | (value as u8) << (place % 8) & mask;
        }
        _ => {
            let length = 1 << (order - 3);
            content[index * length..][..length].copy_from_slice(&value.to_be_bytes()[8 - length..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_width_stand_side_by_side() {
        for order in 0..=6 {
            let bits = 1_u32 << order;
            let most = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
            let mut content = [0; 64];
            let value = |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & most;
            let count = 64 * 8 / bits as usize;
            (0..count).for_each(|index| set_number(&mut content, index, order, most));
            (0..count).for_each(|index| set_number(&mut content, index, order, value(index)));
            assert!((0..count).all(|index| number(&content, index, order) == value(index)), "{bits} bits");
        }
    }
}
