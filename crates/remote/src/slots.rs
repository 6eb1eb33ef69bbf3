// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of a few words in memory that outlives the process. A record is there from the store of its first word on, until that
//! is zero again.

use outrigger_core::{Errno, Keep, Region, Result};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};

/// A table of records of `N` words; the first word of each is never zero.
pub struct Slots<const N: usize> {
    region: Arc<dyn Region>,
    free: Mutex<Vec<usize>>,
}

impl<const N: usize> Slots<N> {
    /// The table called `name`, with room for `most` records.
    ///
    /// # Errors
    /// Those of [`Keep::region`]; `EUCLEAN` when it was made with another size.
    pub fn open(keep: &dyn Keep, name: &'static str, most: usize) -> Result<Self> {
        let region = keep.region(name, most * N)?;
        if region.words() != most * N {
            return Err(Errno::EUCLEAN.because(format!("the region {name} has another size")));
        }
        let free = (0..most).rev().filter(|slot| region.word(slot * N).load(Acquire) == 0).collect();
        Ok(Slots { region, free: Mutex::new(free) })
    }

    /// Every record, with its slot.
    pub fn all(&self) -> Vec<(usize, [u64; N])> {
        let slots = (0..self.region.words() / N).map(|slot| (slot, self.read(slot)));
        slots.filter(|(_, words)| words[0] != 0).collect()
    }

    fn read(&self, slot: usize) -> [u64; N] {
        std::array::from_fn(|index| self.region.word(slot * N + index).load(Acquire))
    }

    /// Stores a new record; its slot.
    ///
    /// # Errors
    /// `ENFILE` when there is no room.
    pub fn add(&self, words: [u64; N]) -> Result<usize> {
        let slot = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = slot.ok_or_else(|| Errno::ENFILE.because("more is open than can be noted"))?;
        self.set(slot, words);
        Ok(slot)
    }

    /// Replaces a record, its first word last.
    pub fn set(&self, slot: usize, words: [u64; N]) {
        for index in (0..N).rev() {
            self.region.word(slot * N + index).store(words[index], Release);
        }
    }

    /// Takes a record out.
    pub fn remove(&self, slot: usize) {
        self.region.word(slot * N).store(0, Release);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    #[test]
    fn records_outlive_their_table() {
        let keep = HeapKeep::default();
        let slots = Slots::<2>::open(&keep, "test", 2).expect("a table");
        let (one, two) = (slots.add([1, 10]).expect("room"), slots.add([2, 20]).expect("room"));
        assert_eq!(slots.add([3, 30]).unwrap_err().errno, Errno::ENFILE);
        slots.remove(one);
        slots.set(two, [2, 21]);
        drop(slots);
        let later = Slots::<2>::open(&keep, "test", 2).expect("a table");
        assert_eq!(later.all(), [(two, [2, 21])]);
        assert_eq!(later.add([4, 40]), Ok(one));
        assert!(Slots::<3>::open(&keep, "test", 2).is_err());
    }
}
