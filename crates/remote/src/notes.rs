// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records in memory that outlives the process, by keys.

use outrigger_core::survive::{Layout, Record, Slots};
use outrigger_core::{Errno, Keep, Result, lock};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

/// A table of records that are found by a key, which several threads use.
pub struct Notes<K, T>(Mutex<State<K, T>>);

struct State<K, T> {
    slots: Slots<T>,
    /// Where the record of each key is.
    places: HashMap<K, u32>,
}

impl<K: Eq + Hash, T: Record> Notes<K, T> {
    /// The table called `name`, with room for `most` records; `key` is that of a record that former processes left.
    ///
    /// # Errors
    /// Those of [`Layout::attach`]; `EUCLEAN` when it was made with another size.
    pub fn open(keep: &dyn Keep, name: &'static str, most: usize, key: impl Fn(&T) -> K) -> Result<Self> {
        let words = Slots::<T>::words(most);
        let area = Layout::of(name).attach(keep, words)?.area;
        if area.words() != words {
            return Err(Errno::EUCLEAN.because(format!("the region {name} has another size")));
        }
        let slots = Slots::open(area);
        let places = slots.iter().map(|(slot, record)| (key(&record), slot.index)).collect();
        Ok(Notes(Mutex::new(State { slots, places })))
    }

    /// Every record.
    pub fn all(&self) -> Vec<T> {
        lock(&self.0).slots.iter().map(|(_, record)| record).collect()
    }

    /// Stores the record of a key, in place of the one that it has: a kill leaves the former or the new one.
    ///
    /// # Errors
    /// `ENFILE` when there is no room.
    pub fn put(&self, key: K, record: &T) -> Result<()> {
        let State { slots, places } = &mut *lock(&self.0);
        if let Some(&place) = places.get(&key) {
            slots.update(place, record);
            return Ok(());
        }
        let slot = slots.insert(record);
        let slot = slot.ok_or_else(|| Errno::ENFILE.because("more is open than can be noted"))?;
        places.insert(key, slot.index);
        Ok(())
    }

    /// Changes the record of a key, if it has one: a kill leaves the former or the new one.
    pub fn change(&self, key: &K, change: impl FnOnce(&mut T)) {
        let State { slots, places } = &*lock(&self.0);
        if let Some((&place, mut record)) =
            places.get(key).and_then(|place| Some((place, slots.get(*place)?)))
        {
            change(&mut record);
            slots.update(place, &record);
        }
    }

    /// Takes the record of a key out.
    pub fn remove(&self, key: &K) {
        let State { slots, places } = &mut *lock(&self.0);
        if let Some(place) = places.remove(key) {
            slots.remove(place);
        }
    }

    /// Takes all records out.
    pub fn clear(&self) {
        let State { slots, places } = &mut *lock(&self.0);
        places.clear();
        slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use outrigger_core::survive::testing::each_death;
    use std::sync::Arc;

    fn open(keep: &dyn Keep, name: &'static str) -> Result<Notes<u64, [u64; 3]>> {
        Notes::open(keep, name, 2, |record: &[u64; 3]| record[0])
    }

    #[test]
    fn records_outlive_their_table() {
        let keep = HeapKeep::default();
        let notes = open(&keep, "open-files").expect("a table");
        [[1, 10, 10], [2, 20, 20]].iter().for_each(|record| notes.put(record[0], record).expect("room"));
        assert_eq!(notes.put(3, &[3, 30, 30]).unwrap_err().errno, Errno::ENFILE);
        notes.remove(&1);
        notes.put(2, &[2, 21, 21]).expect("in place of the former one");
        drop(notes);
        let later = open(&keep, "open-files").expect("a table");
        assert_eq!(later.all(), [[2, 21, 21]]);
        later.put(4, &[4, 40, 40]).expect("room");
        later.change(&2, |record| record[1] = 22);
        later.change(&1, |_| panic!("it has none"));
        assert_eq!(later.all(), [[4, 40, 40], [2, 22, 21]]);
        later.clear();
        assert!(open(&keep, "open-files").expect("a table").all().is_empty());
        assert!(Notes::open(&keep, "open-files", 2, |record: &[u64; 4]| record[0]).is_err());
    }

    /// Its words are stored one by one: half of a change would be a third record.
    #[test]
    fn a_kill_while_a_record_is_replaced_leaves_the_former_or_the_new_one() {
        each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let open = |keep: &dyn Keep| open(keep, "open-files").expect("a table");
            open(&*keep).put(1, &[1, 10, 100]).expect("room");
            open(&life.of(&keep)).put(1, &[2, 20, 200]).expect("in place of the former one");
            let left = open(&*keep).all();
            assert!([[1, 10, 100], [2, 20, 200]].contains(&left[0]) && left.len() == 1, "{left:?}");
        });
    }
}
