// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records and names in a [`Region`], changed in transactions that a kill cannot tear.
//!
//! # Layout, in words
//!
//! | from | what |
//! |---|---|
//! | 0 | magic and version |
//! | 1 | length of the region |
//! | 2 | records ever used; slots are 1 to this |
//! | 3 | words of names ever used, counted from the end of the region |
//! | 4 | first free record |
//! | 5 to 37 | first free name block of 0 to 32 words |
//! | 64 | the journal's head: how many writes, and their checksum |
//! | 65 to 256 | the journal: index and value of each write |
//! | 288 + 4 * slot | records, growing up |
//! | ... to the end | blocks of names, growing down; a name is called by its distance from the end |
//!
//! # Transactions
//!
//! All writes of one change first go to the journal; storing its head commits them; then they are made, and the head
//! is cleared. Whoever opens a region whose head is not clear makes the writes again. A process that is killed leaves
//! a prefix of what it was to store, so the change has happened or it has not.

use crate::error::{Errno, Result};
use crate::hash::fnv1a;
use crate::keep::{HeapRegion, Region};
use crate::wire::{Input, Wire};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// "ORNodes" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ORNodes\x01");
const MAGIC_AT: usize = 0;
const LENGTH_AT: usize = 1;
const RECORDS_AT: usize = 2;
const NAMES_AT: usize = 3;
const FREE_RECORD_AT: usize = 4;
const FREE_NAME_AT: usize = 5;
const JOURNAL_AT: usize = 64;
const FIRST_RECORD: usize = 288;
const RECORD: usize = 4;

/// The most writes of one change: the longest name, and the four records a rename touches.
const WRITES_MAX: usize = 96;
/// Words of the longest name with its length byte.
const NAME_WORDS_MAX: usize = 32;

const _: () = assert!(JOURNAL_AT + 1 + 2 * WRITES_MAX <= FIRST_RECORD);
const _: () = assert!(FREE_NAME_AT + NAME_WORDS_MAX < JOURNAL_AT);

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
    /// What the driver knows the file by; 0 for nothing.
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

impl Memory {
    fn words(&self) -> usize {
        match self {
            Memory::Private(region) => region.words(),
            Memory::Kept(region) => region.words(),
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        match self {
            Memory::Private(region) => region.word(index),
            Memory::Kept(region) => region.word(index),
        }
    }
}

/// The region, read.
pub(super) struct Store {
    memory: Memory,
    words: usize,
}

impl Store {
    /// Writes an empty store into `memory`, which must be all zeroes or may lose what it holds.
    pub(super) fn format(memory: Memory) -> Result<Self> {
        let words = memory.words().min(u32::MAX as usize);
        if words < FIRST_RECORD + 2 * RECORD {
            return Err(Errno::EINVAL.because(format!("a node table needs more than {words} words")));
        }
        let store = Store { memory, words };
        for index in 0..FIRST_RECORD {
            store.put(index, 0);
        }
        store.put(LENGTH_AT, words as u64);
        fence(Ordering::SeqCst);
        store.put(MAGIC_AT, MAGIC);
        Ok(store)
    }

    /// Whether nobody has formatted `region` yet: that writes its first word last.
    pub(super) fn is_blank(region: &dyn Region) -> bool {
        region.words() == 0 || region.word(MAGIC_AT).load(Ordering::SeqCst) == 0
    }

    /// Appends what the store holds.
    pub(super) fn save(&self, out: &mut Vec<u8>) {
        let names = self.words - self.get(NAMES_AT) as usize;
        for part in [0..self.end_of_records(), names..self.words] {
            (part.len() as u64).put(out);
            part.for_each(|index| self.get(index).put(out));
        }
    }

    /// The store that was saved, in `memory` of the same size, which must be all zeroes.
    pub(super) fn restore(memory: Memory, saved: &mut Input) -> Result<Self> {
        let words = memory.words();
        let store = Store { memory, words };
        let (records, names) = (store.restore_part(0, saved)?, store.restore_part(words, saved)?);
        if (records, names as u64) != (store.end_of_records(), store.get(NAMES_AT)) {
            return Err(Errno::EUCLEAN.because("a saved node table that is not whole"));
        }
        Store::recover(store.memory)
    }

    /// Puts words where they were: from the start of the region on, or up to its end. Gives how many there are.
    fn restore_part(&self, place: usize, saved: &mut Input) -> Result<usize> {
        let count = u64::get(saved)? as usize;
        if count > self.words.min(saved.len() / 8) {
            return Err(Errno::EUCLEAN.because("a saved node table that is cut off"));
        }
        let start = place.saturating_sub(count);
        for index in start..start + count {
            self.put(index, u64::get(saved)?);
        }
        Ok(count)
    }

    /// Behind the last record that was ever used.
    fn end_of_records(&self) -> usize {
        FIRST_RECORD + (self.records() as usize + 1) * RECORD
    }

    /// Takes over what another owner left in `memory`, finishing the change it was killed in.
    pub(super) fn recover(memory: Memory) -> Result<Self> {
        let words = memory.words().min(u32::MAX as usize);
        let store = Store { memory, words };
        if words < FIRST_RECORD || store.get(MAGIC_AT) != MAGIC || store.get(LENGTH_AT) != words as u64 {
            return Err(Errno::EUCLEAN.because("the region holds no node table of this version and size"));
        }
        let (count, checksum) = halves(store.get(JOURNAL_AT));
        if count != 0 {
            let count = count as usize;
            if count > WRITES_MAX || checksum != store.journal_checksum(count) {
                return Err(store.damaged("its journal"));
            }
            store.replay(count)?;
        }
        if (store.end_of_records() as u64).saturating_add(store.get(NAMES_AT)) > words as u64 {
            return Err(store.damaged("the sizes in its head"));
        }
        Ok(store)
    }

    fn replay(&self, count: usize) -> Result<()> {
        for at in (JOURNAL_AT + 1..).step_by(2).take(count) {
            let index = self.get(at) as usize;
            if index >= self.words || (JOURNAL_AT..FIRST_RECORD).contains(&index) {
                return Err(self.damaged("its journal"));
            }
            self.put(index, self.get(at + 1));
        }
        fence(Ordering::SeqCst);
        self.put(JOURNAL_AT, 0);
        Ok(())
    }

    /// The error for a region whose content contradicts itself.
    pub(super) fn damaged(&self, what: &str) -> crate::error::Error {
        Errno::EUCLEAN.because(format!("the node table is damaged: {what}"))
    }

    fn get(&self, index: usize) -> u64 {
        self.memory.word(index).load(Ordering::Relaxed)
    }

    fn put(&self, index: usize, value: u64) {
        self.memory.word(index).store(value, Ordering::Relaxed);
    }

    /// Over the journal's words.
    fn journal_checksum(&self, count: usize) -> u32 {
        let hash = fnv1a((JOURNAL_AT + 1..).take(2 * count).map(|at| self.get(at)));
        (hash >> 32) as u32 ^ hash as u32
    }

    /// The largest slot ever used.
    pub(super) fn records(&self) -> u32 {
        u32::try_from(self.get(RECORDS_AT)).unwrap_or(u32::MAX)
    }

    /// The record in `slot`; a free one for a slot never used.
    pub(super) fn record(&self, slot: u32) -> Record {
        if slot > self.records() {
            return Record::decode([0; RECORD]);
        }
        let at = FIRST_RECORD + slot as usize * RECORD;
        Record::decode(std::array::from_fn(|i| self.get(at + i)))
    }

    /// Changes the number of references of the node in `slot`: one word, so it needs no journal.
    pub(super) fn set_refs(&self, slot: u32, refs: u32) {
        let record = Record { refs, ..self.record(slot) };
        self.put(FIRST_RECORD + slot as usize * RECORD + 2, record.encode()[2]);
    }

    /// Whether `name` can be where a name is.
    pub(super) fn is_name(&self, name: u32) -> bool {
        let (used, name) = (self.get(NAMES_AT), u64::from(name));
        name != 0 && name <= used && {
            let len = self.get(self.words - name as usize) as u8 as usize;
            len != 0 && name_words(len) as u64 <= name
        }
    }

    /// The bytes of the name at `name`.
    pub(super) fn name(&self, name: u32) -> NameBytes {
        let at = self.words - name as usize;
        let first = self.get(at).to_le_bytes();
        let mut bytes = [0; NAME_WORDS_MAX * 8];
        let len = first[0] as usize;
        bytes[..8].copy_from_slice(&first);
        for (i, chunk) in bytes.chunks_exact_mut(8).enumerate().take(name_words(len)).skip(1) {
            chunk.copy_from_slice(&self.get(at + i).to_le_bytes());
        }
        NameBytes(bytes)
    }

    /// Starts a change.
    pub(super) fn change(&self) -> Change<'_> {
        Change { store: self, writes: Vec::with_capacity(32) }
    }

    /// Checks that the free lists end and hold what is free.
    pub(super) fn check_free_lists(&self) -> Result<()> {
        let mut slot = self.get(FREE_RECORD_AT);
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
        let used = self.get(NAMES_AT);
        let mut name = self.get(FREE_NAME_AT + size);
        for _ in 0..=used {
            match name {
                0 => return Ok(()),
                _ if name > used || name < size as u64 => break,
                _ => name = self.get(self.words - name as usize),
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
    writes: Vec<(usize, u64)>,
}

impl Change<'_> {
    fn get(&self, index: usize) -> u64 {
        let pending = self.writes.iter().find(|(at, _)| *at == index);
        pending.map_or_else(|| self.store.get(index), |(_, value)| *value)
    }

    fn set(&mut self, index: usize, value: u64) {
        match self.writes.iter_mut().find(|(at, _)| *at == index) {
            Some(write) => write.1 = value,
            None if self.store.get(index) == value => {}
            None => self.writes.push((index, value)),
        }
    }

    /// The record in `slot`.
    pub(super) fn record(&self, slot: u32) -> Record {
        let at = FIRST_RECORD + slot as usize * RECORD;
        Record::decode(std::array::from_fn(|i| self.get(at + i)))
    }

    /// Replaces the record in `slot`.
    pub(super) fn put(&mut self, slot: u32, record: Record) {
        let at = FIRST_RECORD + slot as usize * RECORD;
        for (i, word) in record.encode().into_iter().enumerate() {
            self.set(at + i, word);
        }
    }

    /// Counts one child more (or less) in the directory in `slot`; no directory has slot 0.
    pub(super) fn count_child(&mut self, slot: u32, by: i32) {
        if slot != 0 {
            let record = self.record(slot);
            self.put(slot, Record { children: record.children.saturating_add_signed(by), ..record });
        }
    }

    fn room(&self, more: usize) -> Result<()> {
        let records = (self.get(RECORDS_AT) as usize + 1) * RECORD;
        if FIRST_RECORD + records + self.get(NAMES_AT) as usize + more > self.store.words {
            return Err(Errno::ENFILE.because("the node table is full"));
        }
        Ok(())
    }

    /// Takes a free slot. Its generation stays; the caller fills in the rest.
    pub(super) fn take_record(&mut self) -> Result<(u32, Record)> {
        let free = self.get(FREE_RECORD_AT) as u32;
        if free != 0 {
            let record = self.record(free);
            self.set(FREE_RECORD_AT, record.next.into());
            return Ok((free, Record { next: 0, ..record }));
        }
        self.room(RECORD)?;
        let slot = self.get(RECORDS_AT) as u32 + 1;
        self.set(RECORDS_AT, slot.into());
        Ok((slot, Record::decode([0; RECORD])))
    }

    /// Gives a slot back; what was in it is gone, and its next user has another generation.
    pub(super) fn free_record(&mut self, slot: u32) {
        let generation = self.record(slot).generation.wrapping_add(1);
        let next = self.get(FREE_RECORD_AT) as u32;
        self.put(slot, Record { generation, next, ..Record::decode([0; RECORD]) });
        self.set(FREE_RECORD_AT, slot.into());
    }

    /// Stores a name of 1 to 255 bytes.
    pub(super) fn take_name(&mut self, bytes: &[u8]) -> Result<u32> {
        let size = name_words(bytes.len());
        let mut name = self.get(FREE_NAME_AT + size) as u32;
        if name != 0 {
            let next = self.get(self.store.words - name as usize);
            self.set(FREE_NAME_AT + size, next);
        } else {
            self.room(size)?;
            name = self.get(NAMES_AT) as u32 + size as u32;
            self.set(NAMES_AT, name.into());
        }
        let mut padded = [0; NAME_WORDS_MAX * 8];
        padded[0] = bytes.len() as u8;
        padded[1..=bytes.len()].copy_from_slice(bytes);
        let at = self.store.words - name as usize;
        for (i, chunk) in padded.chunks_exact(8).enumerate().take(size) {
            let word = chunk.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
            self.set(at + i, word);
        }
        Ok(name)
    }

    /// Gives the block of a name back.
    pub(super) fn free_name(&mut self, name: u32) {
        if name != 0 {
            let at = self.store.words - name as usize;
            let size = name_words(self.get(at) as u8 as usize);
            let next = self.get(FREE_NAME_AT + size);
            self.set(at, next);
            self.set(FREE_NAME_AT + size, name.into());
        }
    }

    /// Makes the change, all of it or, if the process is killed before the commit, nothing.
    pub(super) fn commit(self) {
        let (store, count) = (self.store, self.writes.len());
        if let Memory::Private(_) = store.memory {
            return self.writes.into_iter().for_each(|(index, value)| store.put(index, value));
        }
        assert!(count <= WRITES_MAX, "a change of {count} writes outgrew the journal");
        for (i, (index, value)) in self.writes.iter().enumerate() {
            store.put(JOURNAL_AT + 1 + 2 * i, *index as u64);
            store.put(JOURNAL_AT + 2 + 2 * i, *value);
        }
        let head = join(count as u32, store.journal_checksum(count));
        // The fences keep the stores in the order of the text, for the compiler as well.
        fence(Ordering::SeqCst);
        store.put(JOURNAL_AT, head);
        fence(Ordering::SeqCst);
        for (index, value) in self.writes {
            store.put(index, value);
        }
        fence(Ordering::SeqCst);
        store.put(JOURNAL_AT, 0);
    }
}
