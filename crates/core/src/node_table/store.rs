// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records and names in a [`Region`], changed in transactions that a kill cannot tear.
//!
//! Records grow up from the start of a heap of words, and blocks of names down from its end; a name is called by its distance
//! from the end. Freed records and freed blocks of each size are in lists.
//!
//! A change of several words is a list of stores ([`Redo`]): a process that is killed has made it or not.

use crate::error::{Errno, Error, Result};
use crate::keep::{HeapRegion, Region};
use crate::survive::{Area, Layout, Redo, Row, Stored, Word, Writes};
use crate::wire::{Input, Wire};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const LAYOUT: Layout = Layout::of("nodes");
const RECORD: usize = 4;

/// The most writes of one change: the longest name, and the four records a rename touches.
const WRITES_MAX: usize = 96;
/// The most words there can be: names are called by their distance from the end in 32 bits.
const WORDS_MAX: usize = 1 << 32;
/// Words of the longest name with its length byte.
const NAME_WORDS_MAX: usize = 32;

crate::fields! {
    struct Head {
        /// Records ever used; slots are 1 to this.
        records: u64,
        /// Words of names ever used.
        names: u64,
        free_record: u64,
        /// Free blocks of 0 to 32 words.
        free_names: [u64; NAME_WORDS_MAX + 1],
    }
}

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing; `next` is the next free record.
    Free,
    /// A node and the first of its names; `next` is its second name.
    Node,
    /// A further name of the node `refs`; `next` is the name after it.
    Alias,
}

/// A record, 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// What it is.
    pub(super) kind: Kind,
    /// How often the slot was freed.
    pub(super) generation: u32,
    /// Slot of the directory of the name; 0 for no name.
    pub(super) parent: u32,
    /// Where the name is; 0 for no name.
    pub(super) name: u32,
    /// Slot of the next record in the list this one is in; 0 at the end.
    pub(super) next: u32,
    /// References from outside; for an alias, the slot of its node.
    pub(super) refs: u32,
    /// How many names have this node as their directory.
    pub(super) children: u32,
    /// What the driver knows the file by; 0 for none.
    pub(super) key: u64,
}

const KIND_SHIFT: u32 = 62;
const CHILDREN_MAX: u32 = (1 << 30) - 1;

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Record {
    fn decode(words: [u64; RECORD]) -> Self {
        let (generation, parent) = halves(words[0]);
        let (name, next) = halves(words[1]);
        let (refs, high) = halves(words[2]);
        let kind = match words[2] >> KIND_SHIFT {
            1 => Kind::Node,
            2 => Kind::Alias,
            _ => Kind::Free,
        };
        let children = high & CHILDREN_MAX;
        Record { kind, generation, parent, name, next, refs, children, key: words[3] }
    }

    fn encode(self) -> [u64; RECORD] {
        let kind = match self.kind {
            Kind::Free => 0,
            Kind::Node => 1,
            Kind::Alias => 2,
        };
        [
            join(self.generation, self.parent),
            join(self.name, self.next),
            join(self.refs, self.children) | kind << KIND_SHIFT,
            self.key,
        ]
    }
}

/// Where the words are.
pub(super) enum Memory {
    /// In memory that dies with the process that changes it, so that changes need no journal.
    Private(HeapRegion),
    /// In a region that may outlive it.
    Kept(Arc<dyn Region>),
}

impl Region for Memory {
    fn words(&self) -> usize {
        match self {
            Memory::Private(region) => region.words(),
            Memory::Kept(region) => region.words(),
        }
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        match self {
            Memory::Private(region) => region.word(index),
            Memory::Kept(region) => region.word(index),
        }
    }
}

/// The region, read.
pub(super) struct Store {
    /// Head and heap.
    all: Area<Memory>,
    heap: Area<Memory>,
    redo: Redo<Memory>,
    is_private: bool,
}

impl Store {
    /// Takes over what another owner left in `memory`, finishing the change it was killed in, or begins an empty store.
    pub(super) fn open(memory: Memory) -> Result<Self> {
        let is_private = matches!(memory, Memory::Private(_));
        let mut all = LAYOUT.open(Arc::new(memory))?.area;
        let list = all.take(<Redo>::words(WRITES_MAX))?;
        let mut heap = all.clone();
        heap.take_for::<Head<'_>>()?;
        if heap.words() < 3 * RECORD || u32::try_from(heap.words()).is_err() {
            return Err(Errno::EINVAL.because(format!("a node table in {} words", heap.words())));
        }
        let store = Store { redo: Redo::recover(list, all.clone())?, all, heap, is_private };
        let used =
            ((u64::from(store.records()) + 1) * RECORD as u64).saturating_add(store.head().names().get());
        if used > store.heap.words() as u64 {
            return Err(store.damaged("the sizes in its head"));
        }
        Ok(store)
    }

    fn head(&self) -> Head<'_, Memory> {
        self.all.view::<Head<'_>>()
    }

    /// Appends what the store holds.
    pub(super) fn save(&self, out: &mut Vec<u8>) {
        let (words, names) = (self.all.words(), self.head().names().get() as usize);
        (words as u64).put(out);
        for part in [0..self.end_of_records(), words - names..words] {
            (part.len() as u64).put(out);
            part.for_each(|index| self.all.word(index).get().put(out));
        }
    }

    /// The store that was saved, in memory of this process.
    pub(super) fn restore(saved: &mut Input) -> Result<Self> {
        let words = Some(usize::get(saved)?).filter(|&words| words <= WORDS_MAX);
        let words =
            words.ok_or_else(|| Errno::EUCLEAN.because("a saved node table of an impossible size"))?;
        let memory = HeapRegion::new(Layout::words(<Redo>::words(WRITES_MAX) + words));
        let store = Store::open(Memory::Private(memory))?;
        let (records, names) = (store.restore_part(0, saved)?, store.restore_part(store.all.words(), saved)?);
        if (records, names as u64) != (store.end_of_records(), store.head().names().get()) {
            return Err(Errno::EUCLEAN.because("a saved node table that is not whole"));
        }
        Ok(store)
    }

    /// Puts words where they were: from the start on, or up to the end. Gives how many there are.
    fn restore_part(&self, place: usize, saved: &mut Input) -> Result<usize> {
        let count = u64::get(saved)? as usize;
        if count > self.all.words().min(saved.len() / 8) {
            return Err(Errno::EUCLEAN.because("a saved node table that is cut off"));
        }
        let start = place.saturating_sub(count);
        for index in start..start + count {
            self.all.word(index).set(u64::get(saved)?);
        }
        Ok(count)
    }

    /// The end of the last record that was ever used.
    fn end_of_records(&self) -> usize {
        <Head<'_>>::WORDS + (self.records() as usize + 1) * RECORD
    }

    /// The error for a region whose content contradicts itself.
    pub(super) fn damaged(&self, what: &str) -> Error {
        Errno::EUCLEAN.because(format!("the node table is damaged: {what}"))
    }

    /// The words of the record in `slot`.
    #[inline]
    fn at(&self, slot: u32) -> Row<'_, u64, Memory> {
        self.heap.row::<[u64; RECORD]>().at(slot as usize)
    }

    /// A word of the name at `name`.
    #[inline]
    fn name_word(&self, name: u32, index: usize) -> Word<'_> {
        self.heap.word(self.heap.words() - name as usize + index)
    }

    /// The largest slot ever used.
    pub(super) fn records(&self) -> u32 {
        u32::try_from(self.head().records().get()).unwrap_or(u32::MAX)
    }

    /// The record in `slot`; a free one for a slot never used.
    pub(super) fn record(&self, slot: u32) -> Record {
        if slot > self.records() {
            return Record::decode([0; RECORD]);
        }
        Record::decode(self.at(slot).read())
    }

    /// How often a slot that is in use was freed before.
    pub(super) fn generation(&self, slot: u32) -> u32 {
        halves(self.at(slot).at(0).get()).0
    }

    /// Changes the number of references of the node in `slot`: one word, so it needs no list.
    pub(super) fn change_refs(&self, slot: u32, change: impl FnOnce(u32) -> u32) {
        let word = self.at(slot).at(2);
        let (refs, rest) = halves(word.get());
        word.set(join(change(refs), rest));
    }

    /// Whether `name` can be where a name is.
    pub(super) fn is_name(&self, name: u32) -> bool {
        name != 0 && u64::from(name) <= self.head().names().get() && {
            let len = self.name_word(name, 0).get() as u8 as usize;
            len != 0 && name_words(len) <= name as usize
        }
    }

    /// The bytes of the name at `name`.
    pub(super) fn name(&self, name: u32) -> NameBytes {
        let first = self.name_word(name, 0).get().to_le_bytes();
        let mut bytes = [0; NAME_WORDS_MAX * 8];
        let len = first[0] as usize;
        bytes[..8].copy_from_slice(&first);
        for (i, chunk) in bytes.chunks_exact_mut(8).enumerate().take(name_words(len)).skip(1) {
            chunk.copy_from_slice(&self.name_word(name, i).get().to_le_bytes());
        }
        NameBytes(bytes)
    }

    /// Starts a change.
    pub(super) fn change(&self) -> Change<'_> {
        Change { store: self, writes: self.redo.begin() }
    }

    /// Checks that the free lists end and hold what is free.
    pub(super) fn check_free_lists(&self) -> Result<()> {
        let mut slot = self.head().free_record().get();
        for _ in 0..=self.records() {
            if slot == 0 {
                break;
            }
            let record = u32::try_from(slot).map(|slot| self.record(slot));
            match record {
                Ok(record) if record.kind == Kind::Free => slot = record.next.into(),
                _ => return Err(self.damaged("its list of free records")),
            }
        }
        if slot != 0 {
            return Err(self.damaged("its list of free records"));
        }
        (1..=NAME_WORDS_MAX).try_for_each(|size| self.check_free_names(size))
    }

    fn check_free_names(&self, size: usize) -> Result<()> {
        let used = self.head().names().get();
        let mut name = self.head().free_names().at(size).get();
        for _ in 0..=used {
            match name {
                0 => return Ok(()),
                _ if name > used || name < size as u64 => break,
                _ => name = self.name_word(name as u32, 0).get(),
            }
        }
        Err(self.damaged("its lists of free names"))
    }
}

/// The bytes of a name, copied out of the region.
pub(super) struct NameBytes([u8; NAME_WORDS_MAX * 8]);

impl NameBytes {
    /// The name.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0[1..=self.0[0] as usize]
    }
}

fn name_words(len: usize) -> usize {
    (len + 1).div_ceil(8)
}

/// A change being put together: reads see its own writes, the region sees none before [`Change::commit`].
pub(super) struct Change<'a> {
    store: &'a Store,
    writes: Writes,
}

impl<'a> Change<'a> {
    fn head(&self) -> Head<'a, Memory> {
        self.store.head()
    }

    /// The record in `slot`.
    pub(super) fn record(&self, slot: u32) -> Record {
        let words = self.store.at(slot);
        Record::decode(std::array::from_fn(|i| self.writes.get(words.at(i))))
    }

    /// Replaces the record in `slot`.
    pub(super) fn put(&mut self, slot: u32, record: Record) {
        self.store
            .at(slot)
            .iter()
            .zip(record.encode())
            .for_each(|(word, value)| self.writes.set(word, value));
    }

    /// Counts one child more (or less) in the directory in `slot`; no directory has slot 0.
    pub(super) fn count_child(&mut self, slot: u32, by: i32) {
        if slot != 0 {
            let record = self.record(slot);
            self.put(slot, Record { children: record.children.saturating_add_signed(by), ..record });
        }
    }

    fn room(&self, more: usize) -> Result<()> {
        let records = (self.writes.get(self.head().records()) as usize + 1) * RECORD;
        if records + self.writes.get(self.head().names()) as usize + more > self.store.heap.words() {
            return Err(Errno::ENFILE.because("the node table is full"));
        }
        Ok(())
    }

    /// Takes a free slot. Its generation stays; the caller fills in the rest.
    pub(super) fn take_record(&mut self) -> Result<(u32, Record)> {
        let free = self.writes.get(self.head().free_record()) as u32;
        if free != 0 {
            let record = self.record(free);
            self.writes.set(self.head().free_record(), record.next.into());
            return Ok((free, Record { next: 0, ..record }));
        }
        self.room(RECORD)?;
        let slot = self.writes.get(self.head().records()) as u32 + 1;
        self.writes.set(self.head().records(), slot.into());
        Ok((slot, Record::decode([0; RECORD])))
    }

    /// Gives a slot back; what was in it is gone, and its next user has another generation.
    pub(super) fn free_record(&mut self, slot: u32) {
        let generation = self.record(slot).generation.wrapping_add(1);
        let next = self.writes.get(self.head().free_record()) as u32;
        self.put(slot, Record { generation, next, ..Record::decode([0; RECORD]) });
        self.writes.set(self.head().free_record(), slot.into());
    }

    /// Stores a name of 1 to 255 bytes.
    pub(super) fn take_name(&mut self, bytes: &[u8]) -> Result<u32> {
        let size = name_words(bytes.len());
        let free = self.head().free_names().at(size);
        let mut name = self.writes.get(free) as u32;
        if name != 0 {
            let next = self.writes.get(self.store.name_word(name, 0));
            self.writes.set(free, next);
        } else {
            self.room(size)?;
            name = self.writes.get(self.head().names()) as u32 + size as u32;
            self.writes.set(self.head().names(), name.into());
        }
        let mut padded = [0; NAME_WORDS_MAX * 8];
        padded[0] = bytes.len() as u8;
        padded[1..=bytes.len()].copy_from_slice(bytes);
        for (i, chunk) in padded.chunks_exact(8).enumerate().take(size) {
            let word = chunk.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
            self.writes.set(self.store.name_word(name, i), word);
        }
        Ok(name)
    }

    /// Gives the block of a name back.
    pub(super) fn free_name(&mut self, name: u32) {
        if name != 0 {
            let word = self.store.name_word(name, 0);
            let free = self.head().free_names().at(name_words(self.writes.get(word) as u8 as usize));
            self.writes.set(word, self.writes.get(free));
            self.writes.set(free, name.into());
        }
    }

    /// Makes the change, all of it or, if the process is killed before the commit, nothing.
    pub(super) fn commit(self) {
        // What dies with the process needs no list.
        if self.store.is_private {
            self.store.redo.make(self.writes)
        } else {
            self.store.redo.commit(self.writes)
        }
    }
}
