// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of things that are open, which a process that takes over finds again.

use crate::notes::{Note, Notes};
use outrigger_core::{Errno, Error, Handle, Result};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{PoisonError, RwLock};

/// Something open that can be taken over by another process.
pub(crate) trait Kept: Clone {
    /// Its descriptor.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Everything else.
    fn known(&self) -> u64;

    /// What [`Kept::fd`] and [`Kept::known`] were taken from.
    fn adopt(fd: OwnedFd, known: u64) -> Self;
}

/// Things that have a [`Handle`]. A handle that was closed never names another thing: its high half counts how often
/// its place was used.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    table: RwLock<Table<T>>,
    notes: Option<Notes>,
}

#[derive(Debug)]
struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    round: u32,
    thing: Option<T>,
}

fn join(place: u32, round: u32) -> Handle {
    Handle(u64::from(round) << 32 | u64::from(place + 1))
}

fn split(handle: Handle) -> Option<(u32, u32)> {
    let place = (handle.0 as u32).checked_sub(1)?;
    Some((place, (handle.0 >> 32) as u32))
}

impl<T> Table<T> {
    /// The place of the next thing.
    fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }
}

fn full(notes: &Notes) -> Error {
    Errno::ENFILE.because(format!("{} are open, which is all that can be noted", notes.capacity()))
}

impl<T: Kept> Handles<T> {
    /// A table with what is in `notes`, under the handles it had; an empty one without notes.
    pub(crate) fn new(notes: Option<Notes>) -> Self {
        let mut table = Table { slots: Vec::new(), free: Vec::new() };
        if let Some(notes) = &notes {
            for place in 0..notes.used() {
                let Note { round, content } = notes.adopt(place);
                let thing = content.map(|(fd, known)| T::adopt(fd, known));
                if thing.is_none() {
                    table.free.push(place);
                }
                table.slots.push(Slot { round, thing });
            }
        }
        Handles { table: RwLock::new(table), notes }
    }

    /// Everything in the table.
    pub(crate) fn all(&self) -> Vec<(Handle, T)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let named = |(place, slot): (usize, &Slot<T>)| {
            slot.thing.clone().map(|thing| (join(place as u32, slot.round), thing))
        };
        table.slots.iter().enumerate().filter_map(named).collect()
    }

    /// Fails when the next [`Handles::insert`] would: to find out before anything is opened.
    ///
    /// # Errors
    /// `ENFILE` when as many things are open as can be noted.
    pub(crate) fn has_room(&self) -> Result<()> {
        let Some(notes) = &self.notes else { return Ok(()) };
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if table.next() < notes.capacity() { Ok(()) } else { Err(full(notes)) }
    }

    /// Gives `thing` a handle, never 0.
    ///
    /// # Errors
    /// `ENFILE` when as many things are open as can be noted, `EMFILE` when its descriptor cannot be held.
    pub(crate) fn insert(&self, thing: T) -> Result<Handle> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let place = table.next();
        let round = table.slots.get(place as usize).map_or(0, |slot| slot.round);
        if let Some(notes) = &self.notes {
            if place >= notes.capacity() {
                return Err(full(notes));
            }
            notes.write(place, round, thing.fd(), thing.known())?;
        }
        let slot = Slot { round, thing: Some(thing) };
        match table.slots.get_mut(place as usize) {
            Some(free) => {
                *free = slot;
                table.free.pop();
            }
            None => table.slots.push(slot),
        }
        Ok(join(place, round))
    }

    /// What `handle` names.
    ///
    /// # Errors
    /// `EBADF` when it names nothing.
    pub(crate) fn get(&self, handle: Handle) -> Result<T> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let find = |(place, round): (u32, u32)| {
            let slot = table.slots.get(place as usize).filter(|slot| slot.round == round)?;
            slot.thing.clone()
        };
        split(handle).and_then(find).ok_or_else(|| Errno::EBADF.because(format!("{handle:?} is not open")))
    }

    /// Ends `handle`.
    ///
    /// # Errors
    /// `EBADF` when it names nothing.
    pub(crate) fn remove(&self, handle: Handle) -> Result<T> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let taken = split(handle).and_then(|(place, round)| {
            let slot = table.slots.get_mut(place as usize).filter(|slot| slot.round == round)?;
            let thing = slot.thing.take()?;
            slot.round = slot.round.wrapping_add(1);
            if let Some(notes) = &self.notes {
                notes.erase(place, slot.round, thing.fd());
            }
            table.free.push(place);
            Some(thing)
        });
        taken.ok_or_else(|| Errno::EBADF.because(format!("{handle:?} is not open")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{HeapKeep, Keep};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[derive(Clone, Debug)]
    struct Thing(Arc<OwnedFd>, u64);

    impl Kept for Thing {
        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn known(&self) -> u64 {
            self.1
        }

        fn adopt(fd: OwnedFd, known: u64) -> Self {
            Thing(Arc::new(fd), known)
        }
    }

    fn thing(known: u64) -> Thing {
        Thing::adopt(std::fs::File::open("/dev/null").expect("/dev/null").into(), known)
    }

    fn known(table: &Handles<Thing>, handle: Handle) -> Result<u64, Errno> {
        table.get(handle).map(|thing| thing.1).map_err(|error| error.errno)
    }

    fn notes(keep: &Arc<HeapKeep>, capacity: u32) -> Option<Notes> {
        Some(Notes::open(Arc::clone(keep) as _, "things", capacity).expect("notes"))
    }

    #[test]
    fn a_closed_handle_stays_closed_when_its_slot_is_used_again() {
        for notes in [None, notes(&Arc::default(), 8)] {
            let table = Handles::new(notes);
            let first = table.insert(thing(1)).expect("room");
            assert_eq!(known(&table, first), Ok(1));
            assert_eq!(table.remove(first).map(|thing| thing.1), Ok(1));
            let second = table.insert(thing(2)).expect("room");
            assert_ne!(first, second);
            for handle in [first, Handle(0), Handle(99)] {
                assert_eq!(known(&table, handle), Err(Errno::EBADF));
                assert!(table.remove(handle).is_err());
            }
        }
    }

    #[test]
    fn a_successor_has_the_same_handles() {
        let keep = Arc::<HeapKeep>::default();
        let table = Handles::new(notes(&keep, 4));
        let handles: Vec<Handle> = (0..4).map(|i| table.insert(thing(i)).expect("room")).collect();
        assert_eq!(table.insert(thing(9)).unwrap_err().errno, Errno::ENFILE, "no more can be noted");
        table.remove(handles[1]).expect("open");
        let reused = table.insert(thing(11)).expect("a place is free again");
        table.remove(handles[2]).expect("open");
        std::mem::forget(table);

        let table = Handles::<Thing>::new(notes(&keep, 4));
        assert_eq!(table.all().len(), 3);
        let expected = [(handles[0], Ok(0)), (reused, Ok(11)), (handles[3], Ok(3))];
        for (handle, value) in expected {
            assert_eq!(known(&table, handle), value);
        }
        assert_eq!(known(&table, handles[1]), Err(Errno::EBADF));
        assert_eq!(known(&table, handles[2]), Err(Errno::EBADF));
        let fresh = table.insert(thing(12)).expect("room");
        assert!(!handles.contains(&fresh) && fresh != reused, "no handle is given out twice");
        for handle in [handles[0], reused, handles[3], fresh] {
            table.remove(handle).expect("open");
        }
        assert_eq!(keep.held(), 0, "closed descriptors are not held");
    }

    #[test]
    fn foreign_regions_are_refused_and_lost_descriptors_are_closed_handles() {
        let keep = Arc::<HeapKeep>::default();
        keep.region("things", 99).expect("memory").word(0).store(7, Ordering::Relaxed);
        assert_eq!(Notes::open(keep, "things", 4).expect_err("not ours").errno, Errno::EUCLEAN);

        let keep = Arc::<HeapKeep>::default();
        let table = Handles::new(notes(&keep, 4));
        let lost = thing(1);
        let handle = table.insert(lost.clone()).expect("room");
        keep.let_go(lost.fd());
        std::mem::forget(table);
        let table = Handles::<Thing>::new(notes(&keep, 4));
        assert_eq!(known(&table, handle), Err(Errno::EBADF));
        assert_ne!(table.insert(thing(2)).expect("room"), handle);
    }
}
