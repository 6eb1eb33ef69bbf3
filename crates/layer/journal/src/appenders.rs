// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which handles were opened with `APPEND`: a write through one of them goes to the end, wherever that is, so repeating
//! it needs to know where that was.
//!
//! Opening counts before the reply is noted and closing after, so a kill between leaves a count too high: that costs a look at
//! the size, while one too low would cost an append done twice.

use crate::book::{Counters, Parts};
use outrigger_core::Handle;
use outrigger_core::survive::{Area, Slots};
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock};

outrigger_core::record! {
    /// A handle that appends, and how often it was opened.
    #[derive(Clone, Copy)]
    pub(crate) struct Appender { handle: Handle, opens: u64 }
}

/// The table.
pub(crate) struct Appenders {
    known: RwLock<Known>,
    /// Where it is noted that there were too many handles.
    counters: Area,
    /// How many are known, to be read without the lock; `usize::MAX` when there were too many.
    count: AtomicUsize,
}

struct Known {
    slots: Slots<Appender>,
    /// The slot of each, and what is in it.
    places: HashMap<Handle, (u32, Appender)>,
}

impl Appenders {
    /// Takes over the table of a journal.
    pub(crate) fn attach(parts: &Parts) -> Self {
        let (slots, counters) = parts.appenders();
        let places: HashMap<_, _> =
            slots.iter().map(|(slot, known)| (known.handle, (slot.index, known))).collect();
        let overflown = counters.view::<Counters<'_>>().overflown().get() != 0;
        let count = AtomicUsize::new(if overflown { usize::MAX } else { places.len() });
        Appenders { known: RwLock::new(Known { slots, places }), counters, count }
    }

    /// Whether writes with `handle` go to the end.
    pub(crate) fn has(&self, handle: Handle) -> bool {
        match self.count.load(Relaxed) {
            0 => false,
            usize::MAX => true,
            _ => self.known.read().unwrap_or_else(PoisonError::into_inner).places.contains_key(&handle),
        }
    }

    /// Notes that `handle` was given out, and whether with `APPEND`.
    pub(crate) fn opened(&self, handle: Handle, appends: bool) {
        if !appends && self.count.load(Relaxed) == 0 {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match known.places.get(&handle) {
            // Another file got the number, so the one that had it is gone.
            Some(_) if !appends => self.remove(&mut known, handle),
            Some(_) => known.count(handle, 1),
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
        match known.places.get(&handle) {
            Some((_, Appender { opens: ..=1, .. })) => self.remove(&mut known, handle),
            Some(_) => known.count(handle, -1),
            None => {}
        }
    }

    fn add(&self, known: &mut Known, handle: Handle) {
        let appender = Appender { handle, opens: 1 };
        match known.slots.insert(&appender) {
            Some(slot) => {
                known.places.insert(handle, (slot.index, appender));
                self.recount(known);
            }
            None => {
                self.counters.view::<Counters<'_>>().overflown().set(1);
                self.count.store(usize::MAX, Relaxed);
            }
        }
    }

    fn remove(&self, known: &mut Known, handle: Handle) {
        if let Some((index, _)) = known.places.remove(&handle) {
            known.slots.remove(index);
            self.recount(known);
        }
    }

    fn recount(&self, known: &Known) {
        if self.count.load(Relaxed) != usize::MAX {
            self.count.store(known.places.len(), Relaxed);
        }
    }
}

impl Known {
    fn count(&mut self, handle: Handle, more: i64) {
        if let Some((index, appender)) = self.places.get_mut(&handle) {
            appender.opens = appender.opens.saturating_add_signed(more);
            self.slots.update(*index, appender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::Book;
    use outrigger_core::HeapKeep;

    fn table(keep: &HeapKeep) -> Appenders {
        Appenders::attach(Book::attach(keep, None).expect("a journal").parts())
    }

    #[test]
    fn a_successor_knows_them_until_the_last_is_given_back() {
        let keep = HeapKeep::default();
        let table = table(&keep);
        let (one, two) = (Handle(7), Handle(9));
        table.opened(one, true);
        table.opened(one, true);
        table.opened(two, true);
        table.opened(two, false);
        let successor = self::table(&keep);
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
        let keep = HeapKeep::default();
        let table = table(&keep);
        (0..=1024).for_each(|handle| table.opened(Handle(handle), true));
        assert!(table.has(Handle(u64::MAX)));
        (0..=1024).for_each(|handle| table.released(Handle(handle)));
        assert!(self::table(&keep).has(Handle(3)), "one that is not in the table may still be open");
    }
}
