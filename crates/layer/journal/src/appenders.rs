// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which handles were opened with `APPEND`: a write through one of them goes to the end, wherever that is, so repeating
//! it needs to know where that was.
//!
//! A table in the region, two words for each handle: the handle plus one, and how many times it was opened. Opening
//! counts before the reply is noted and closing after, so a kill between leaves a count too high: that costs a look at
//! the size, while one too low would cost an append done twice.

use outrigger_core::{Handle, Region};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};
use std::sync::{Arc, PoisonError, RwLock};

/// How many handles have a place.
const PLACES: usize = 1024;
/// Words of the table: the places, and one that says that there were too many handles.
pub(crate) const WORDS: usize = 2 * PLACES + 8;

/// The table.
pub(crate) struct Appenders {
    region: Arc<dyn Region>,
    at: usize,
    known: RwLock<Known>,
    /// How many are known, to be read without the lock; `usize::MAX` when there were too many.
    count: AtomicUsize,
}

#[derive(Default)]
struct Known {
    places: HashMap<u64, usize>,
    free: Vec<usize>,
}

impl Appenders {
    /// Takes over the table that starts at word `at`.
    pub(crate) fn attach(region: Arc<dyn Region>, at: usize) -> Self {
        let get = |word| region.word(at + word).load(Relaxed);
        let mut known = Known::default();
        for place in (0..PLACES).rev() {
            match (get(2 * place), get(2 * place + 1)) {
                (0, _) | (_, 0) => known.free.push(place),
                (handle, _) => drop(known.places.insert(handle - 1, place)),
            }
        }
        let overflown = get(2 * PLACES) != 0;
        let count = AtomicUsize::new(if overflown { usize::MAX } else { known.places.len() });
        Appenders { region, at, known: RwLock::new(known), count }
    }

    fn store(&self, word: usize, value: u64) {
        self.region.word(self.at + word).store(value, Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether writes with `handle` go to the end.
    pub(crate) fn has(&self, handle: Handle) -> bool {
        match self.count.load(Relaxed) {
            0 => false,
            usize::MAX => true,
            _ => self.known.read().unwrap_or_else(PoisonError::into_inner).places.contains_key(&handle.0),
        }
    }

    /// Notes that `handle` was given out, and whether with `APPEND`.
    pub(crate) fn opened(&self, handle: Handle, appends: bool) {
        if !appends && self.count.load(Relaxed) == 0 {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match known.places.get(&handle.0).copied() {
            // Another file got the number, so whoever had it is gone.
            Some(place) if !appends => self.remove(&mut known, handle, place),
            Some(place) => {
                let count = self.region.word(self.at + 2 * place + 1).load(Relaxed);
                self.store(2 * place + 1, count.saturating_add(1));
            }
            None if appends => self.add(&mut known, handle),
            None => {}
        }
    }

    /// Notes that `handle` was given back once.
    pub(crate) fn released(&self, handle: Handle) {
        if !self.has(handle) {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = known.places.get(&handle.0).copied() else { return };
        match self.region.word(self.at + 2 * place + 1).load(Relaxed) {
            ..=1 => self.remove(&mut known, handle, place),
            count => self.store(2 * place + 1, count - 1),
        }
    }

    fn add(&self, known: &mut Known, handle: Handle) {
        let (Some(place), Some(number)) = (known.free.pop(), handle.0.checked_add(1)) else {
            self.store(2 * PLACES, 1);
            self.count.store(usize::MAX, Relaxed);
            return;
        };
        self.store(2 * place + 1, 0);
        self.store(2 * place, number);
        self.store(2 * place + 1, 1);
        known.places.insert(handle.0, place);
        self.recount(known);
    }

    fn remove(&self, known: &mut Known, handle: Handle, place: usize) {
        self.store(2 * place + 1, 0);
        self.store(2 * place, 0);
        known.places.remove(&handle.0);
        known.free.push(place);
        self.recount(known);
    }

    fn recount(&self, known: &Known) {
        if self.count.load(Relaxed) != usize::MAX {
            self.count.store(known.places.len(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapRegion;

    #[test]
    fn a_successor_knows_them_until_the_last_is_given_back() {
        let region: Arc<dyn Region> = Arc::new(HeapRegion::new(8 + WORDS));
        let table = Appenders::attach(Arc::clone(&region), 8);
        let (one, two) = (Handle(7), Handle(9));
        table.opened(one, true);
        table.opened(one, true);
        table.opened(two, true);
        table.opened(two, false);
        let successor = Appenders::attach(region, 8);
        for table in [&table, &successor] {
            assert!(table.has(one) && !table.has(two) && !table.has(Handle(1)));
        }
        successor.released(one);
        assert!(successor.has(one));
        successor.released(one);
        assert!(!successor.has(one));
    }

    #[test]
    fn when_there_are_too_many_every_handle_counts_as_one() {
        let region: Arc<dyn Region> = Arc::new(HeapRegion::new(WORDS));
        let table = Appenders::attach(Arc::clone(&region), 0);
        (0..=PLACES as u64).for_each(|handle| table.opened(Handle(handle), true));
        assert!(table.has(Handle(u64::MAX)));
        (0..=PLACES as u64).for_each(|handle| table.released(Handle(handle)));
        assert!(
            Appenders::attach(region, 0).has(Handle(3)),
            "one that is not in the table may still be open"
        );
    }
}
