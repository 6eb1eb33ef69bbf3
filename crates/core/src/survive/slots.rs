// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fixed number of slots for records of one type.

use super::area::{Area, Word};
use super::record::Record;
use crate::keep::Region;
use std::marker::PhantomData;

/// In the head of a slot: it holds a record. The high half is the generation.
const BUSY: u64 = 1;
/// In the head of a slot: the second of its two places has the record.
const SECOND: u64 = 2;

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The number of the slot.
    pub index: u32,
    /// How often the slot was freed before: with the number it names this record and no later one.
    pub generation: u32,
}

/// Records that can be added, replaced and removed, each with one store that switches.
///
/// The first word counts the slots ever used; memory of others is not touched. A slot is its head and two places for its record: a
/// record that changes in more than one word is written into the other one first.
pub struct Slots<T, R: ?Sized = dyn Region> {
    area: Area<R>,
    capacity: u32,
    used: u32,
    free: Vec<u32>,
    of: PhantomData<fn() -> T>,
}

impl<T: Record, R: Region + ?Sized> Slots<T, R> {
    const SLOT: usize = 1 + 2 * T::WORDS;

    /// How many words so many slots need.
    pub const fn words(capacity: usize) -> usize {
        1 + capacity * Self::SLOT
    }

    /// The slots in `area`, as many as there is room for, with what former processes have left.
    pub fn open(area: Area<R>) -> Self {
        let capacity = u32::try_from(area.words().saturating_sub(1) / Self::SLOT).unwrap_or(u32::MAX);
        let used = if capacity == 0 { 0 } else { area.word(0).get() };
        let used = u32::try_from(used).unwrap_or(u32::MAX).min(capacity);
        let mut slots = Slots { area, capacity, used, free: Vec::new(), of: PhantomData };
        slots.free = (0..used).rev().filter(|&index| slots.head(index).get() & BUSY == 0).collect();
        slots
    }

    fn head(&self, index: u32) -> Word<'_> {
        self.area.word(1 + index as usize * Self::SLOT)
    }

    /// The words of the record in a slot with this head.
    fn content(&self, index: u32, head: u64) -> impl Iterator<Item = Word<'_>> {
        let start = 2 + index as usize * Self::SLOT + if head & SECOND == 0 { 0 } else { T::WORDS };
        (start..start + T::WORDS).map(|at| self.area.word(at))
    }

    fn slot(&self, index: u32) -> Slot {
        Slot { index, generation: (self.head(index).get() >> 32) as u32 }
    }

    /// How many records there can be.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether one more can be added.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.used < self.capacity
    }

    /// The record in a slot, if there is one.
    pub fn get(&self, index: u32) -> Option<T> {
        let head = if index < self.used { self.head(index).get() } else { 0 };
        if head & BUSY == 0 {
            return None;
        }
        let mut words = T::EMPTY;
        words
            .as_mut()
            .iter_mut()
            .zip(self.content(index, head))
            .for_each(|(word, stored)| *word = stored.get());
        Some(T::decode(&words))
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, T)> + '_ {
        (0..self.used).filter_map(|index| Some((self.slot(index), self.get(index)?)))
    }

    /// Adds a record; `None` when there is no room.
    pub fn insert(&mut self, record: &T) -> Option<Slot> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.used == self.capacity => return None,
            None => self.used,
        };
        let head = self.head(index).get();
        // One that was never freed is there after a clear, and after a kill in the middle of adding it.
        let generation = ((head >> 32) as u32).wrapping_add((head & BUSY) as u32);
        let slot = Slot { index, generation };
        self.content(index, 0).zip(record.encode().as_ref()).for_each(|(stored, &word)| stored.set(word));
        self.head(index).set(u64::from(slot.generation) << 32 | BUSY);
        if index == self.used {
            self.used += 1;
            self.area.word(0).set(self.used.into());
        }
        Some(slot)
    }

    /// Replaces the record in a slot.
    pub fn update(&self, index: u32, record: &T) {
        let (words, head) = (record.encode(), self.head(index).get());
        let store =
            |head| self.content(index, head).zip(words.as_ref()).for_each(|(stored, &word)| stored.set(word));
        let differs = |&(stored, word): &(Word<'_>, &u64)| stored.get() != *word;
        if self.content(index, head).zip(words.as_ref()).filter(differs).count() > 1 {
            store(head ^ SECOND);
            self.head(index).set(head ^ SECOND);
        } else {
            store(head);
        }
    }

    /// Removes the record in a slot.
    pub fn remove(&mut self, index: u32) {
        if self.get(index).is_some() {
            let generation = self.slot(index).generation.wrapping_add(1);
            self.head(index).set(u64::from(generation) << 32);
            self.free.push(index);
        }
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        if self.used > 0 {
            self.area.word(0).set(0);
        }
        self.used = 0;
        self.free.clear();
    }
}

impl<T, R: ?Sized> std::fmt::Debug for Slots<T, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} slots", self.used as usize - self.free.len(), self.capacity)
    }
}
