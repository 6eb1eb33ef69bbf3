// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records in memory that outlives the process.

use outrigger_core::survive::{self, Layout, Record};
use outrigger_core::{Errno, Keep, Result, lock};
use std::sync::{Mutex, MutexGuard};

/// A table of records that several threads use.
pub struct Slots<T>(Mutex<survive::Slots<T>>);

impl<T: Record> Slots<T> {
    /// The table called `name`, with room for `most` records.
    ///
    /// # Errors
    /// Those of [`Layout::attach`]; `EUCLEAN` when it was made with another size.
    pub fn open(keep: &dyn Keep, name: &'static str, most: usize) -> Result<Self> {
        let words = survive::Slots::<T>::words(most);
        let area = Layout::of(name).attach(keep, words)?.area;
        if area.words() != words {
            return Err(Errno::EUCLEAN.because(format!("the region {name} has another size")));
        }
        Ok(Slots(Mutex::new(survive::Slots::open(area))))
    }

    fn lock(&self) -> MutexGuard<'_, survive::Slots<T>> {
        lock(&self.0)
    }

    /// Every record, with its slot.
    pub fn all(&self) -> Vec<(usize, T)> {
        self.lock().iter().map(|(slot, record)| (slot.index as usize, record)).collect()
    }

    /// Stores a new record; its slot.
    ///
    /// # Errors
    /// `ENFILE` when there is no room.
    pub fn add(&self, record: &T) -> Result<usize> {
        let slot = self.lock().insert(record);
        let slot = slot.ok_or_else(|| Errno::ENFILE.because("more is open than can be noted"))?;
        Ok(slot.index as usize)
    }

    /// The record in a slot, if there is one.
    pub fn get(&self, slot: usize) -> Option<T> {
        self.lock().get(slot as u32)
    }

    /// Replaces a record: a kill leaves the former or the new one.
    pub fn set(&self, slot: usize, record: &T) {
        self.lock().update(slot as u32, record);
    }

    /// Takes a record out.
    pub fn remove(&self, slot: usize) {
        self.lock().remove(slot as u32);
    }

    /// Takes all records out.
    pub fn clear(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use outrigger_core::survive::testing::each_death;
    use std::sync::Arc;

    #[test]
    fn records_outlive_their_table() {
        let keep = HeapKeep::default();
        let slots = Slots::<[u64; 2]>::open(&keep, "open-files", 2).expect("a table");
        let (one, two) = (slots.add(&[1, 10]).expect("room"), slots.add(&[2, 20]).expect("room"));
        assert_eq!(slots.add(&[3, 30]).unwrap_err().errno, Errno::ENFILE);
        slots.remove(one);
        slots.set(two, &[2, 21]);
        drop(slots);
        let later = Slots::<[u64; 2]>::open(&keep, "open-files", 2).expect("a table");
        assert_eq!(later.all(), [(two, [2, 21])]);
        assert_eq!(later.add(&[4, 40]), Ok(one));
        assert!(Slots::<[u64; 3]>::open(&keep, "open-files", 2).is_err());
    }

    /// Its words are stored one by one: half of a change would be a third record.
    #[test]
    fn a_kill_while_a_record_is_replaced_leaves_the_former_or_the_new_one() {
        each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let open = |keep: &dyn Keep| Slots::<[u64; 3]>::open(keep, "open-files", 2).expect("a table");
            let slot = open(&*keep).add(&[1, 10, 100]).expect("room");
            open(&life.of(&keep)).set(slot, &[2, 20, 200]);
            let left = open(&*keep).all();
            assert!([[1, 10, 100], [2, 20, 200]].contains(&left[0].1) && left.len() == 1, "{left:?}");
        });
    }
}
