// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of many words that happen as a whole.

use super::area::{Area, Word};
use crate::error::{Errno, Result};
use crate::hash::fnv1a;
use crate::keep::Region;

/// A list of stores, each with its place: written down first, then committed by one store of the list's head, then made.
/// A kill before that store leaves nothing of them; after it, [`Redo::recover`] makes them again.
pub struct Redo<R: ?Sized = dyn Region> {
    /// The head, with the length of the list and its checksum, and then two words for each store.
    list: Area<R>,
    /// What the stores change.
    area: Area<R>,
}

/// Stores that were not made yet: what reads through them sees them done.
#[derive(Debug)]
pub struct Writes {
    /// Where the area starts in its region.
    start: usize,
    stores: Vec<(usize, u64)>,
}

impl<R: Region + ?Sized> Redo<R> {
    /// Words for a list of so many stores.
    pub const fn words(stores: usize) -> usize {
        1 + 2 * stores
    }

    /// Changes of `area`, whose list is at `list`.
    ///
    /// # Errors
    /// `EUCLEAN` when the list is damaged.
    pub fn recover(list: Area<R>, area: Area<R>) -> Result<Self> {
        let redo = Redo { list, area };
        let head = redo.list.word(0).get();
        let count = head as u32 as usize;
        if head != 0 {
            if count > redo.most() || head != redo.head(count) {
                return Err(damaged());
            }
            redo.repeat(count)?;
        }
        Ok(redo)
    }

    /// The most stores of one change.
    fn most(&self) -> usize {
        (self.list.words() - 1) / 2
    }

    fn head(&self, count: usize) -> u64 {
        let hash = fnv1a((1..=2 * count).map(|index| self.list.word(index).get()));
        count as u64 | (hash >> 32 ^ hash & u64::from(u32::MAX)) << 32
    }

    fn repeat(&self, count: usize) -> Result<()> {
        for at in (1..).step_by(2).take(count) {
            let index = self.list.word(at).get() as usize;
            if index >= self.area.words() {
                return Err(damaged());
            }
            self.area.word(index).set(self.list.word(at + 1).get());
        }
        self.list.word(0).set(0);
        Ok(())
    }

    /// A change of nothing yet.
    pub fn begin(&self) -> Writes {
        Writes { start: self.area.start(), stores: Vec::with_capacity(32) }
    }

    /// Makes the change: all of it or, if the process is killed before the commit, nothing. One at a time may do so.
    ///
    /// # Panics
    /// When it has more stores than the list has room for.
    pub fn commit(&self, writes: Writes) {
        let count = writes.stores.len();
        assert!(count <= self.most(), "a change of {count} words outgrew its list");
        for (at, &(index, value)) in (1..).step_by(2).zip(&writes.stores) {
            self.list.word(at).set(index as u64);
            self.list.word(at + 1).set(value);
        }
        self.list.word(0).set(self.head(count));
        self.make(writes);
        self.list.word(0).set(0);
    }

    /// Makes the stores one by one, where no kill need be feared.
    pub fn make(&self, writes: Writes) {
        writes.stores.into_iter().for_each(|(index, value)| self.area.word(index).set(value));
    }
}

fn damaged() -> crate::error::Error {
    Errno::EUCLEAN.because("the list of a change that was interrupted is damaged")
}

impl Writes {
    /// What `word` of the area will be.
    #[inline]
    pub fn get(&self, word: Word<'_>) -> u64 {
        let index = word.at() - self.start;
        let pending = self.stores.iter().find(|(at, _)| *at == index);
        pending.map_or_else(|| word.get(), |(_, value)| *value)
    }

    /// Replaces `word` of the area.
    #[inline]
    pub fn set(&mut self, word: Word<'_>, value: u64) {
        let index = word.at() - self.start;
        match self.stores.iter_mut().find(|(at, _)| *at == index) {
            Some((_, pending)) => *pending = value,
            None if word.get() == value => {}
            None => self.stores.push((index, value)),
        }
    }
}
