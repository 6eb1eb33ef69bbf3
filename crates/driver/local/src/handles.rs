// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of things that are open, which a process that takes over finds again.

use outrigger_core::survive::{Area, Layout, Slot, Slots};
use outrigger_core::{Errno, Error, Handle, HeapRegion, Keep, Region, Result};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

/// So many things may be open in a table that does not outlive the process.
const UNKEPT: usize = 1 << 24;

outrigger_core::record! {
    /// What is written down about something open.
    struct Noted {
        /// The number of its descriptor, which is held.
        fd: i32,
        /// What else is known of it.
        known: u64,
    }
}

/// Something open that can be taken over by another process.
pub(crate) trait Kept: Clone {
    /// Its descriptor.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Everything else.
    fn known(&self) -> u64;

    /// What [`Kept::fd`] and [`Kept::known`] were taken from.
    fn adopt(fd: OwnedFd, known: u64) -> Self;
}

/// Things that have a [`Handle`]. A handle that was closed never names another thing: its high half is the generation of
/// its slot.
///
/// What a kill may lose is a descriptor that is held already and not noted yet, or not noted any more and still held: one a
/// thread.
pub(crate) struct Handles<T> {
    table: RwLock<Table<T>>,
    keep: Option<Arc<dyn Keep>>,
}

struct Table<T> {
    slots: Slots<Noted>,
    /// What is in each slot, with its generation.
    things: Vec<Option<(u32, T)>>,
}

fn handle(slot: Slot) -> Handle {
    Handle(u64::from(slot.generation) << 32 | u64::from(slot.index + 1))
}

fn slot(handle: Handle) -> Option<Slot> {
    let index = (handle.0 as u32).checked_sub(1)?;
    Some(Slot { index, generation: (handle.0 >> 32) as u32 })
}

impl<T> Table<T> {
    fn put(&mut self, slot: Slot, thing: T) {
        let index = slot.index as usize;
        if index >= self.things.len() {
            self.things.resize_with(index + 1, || None);
        }
        self.things[index] = Some((slot.generation, thing));
    }

    fn full(&self) -> Error {
        Errno::ENFILE.because(format!("{} are open, which is all that can be noted", self.slots.capacity()))
    }
}

impl<T: Kept> Handles<T> {
    /// The table called `name` in `keep`, with what a former process left in it, of at most `capacity` things; without a keep an
    /// empty one.
    ///
    /// # Errors
    /// Those of [`Layout::attach`].
    pub(crate) fn open(keep: Option<Arc<dyn Keep>>, name: &'static str, capacity: usize) -> Result<Self> {
        let area = match &keep {
            Some(keep) => Layout::of(name).attach(&**keep, Slots::<Noted>::words(capacity))?.area,
            None => {
                let region = HeapRegion::new(Slots::<Noted>::words(UNKEPT));
                Area::whole(Arc::new(region) as Arc<dyn Region>)
            }
        };
        let mut table = Table { slots: Slots::open(area), things: Vec::new() };
        if let Some(keep) = &keep {
            let left: Vec<(Slot, Noted)> = table.slots.iter().collect();
            left.into_iter().for_each(|(slot, noted)| table.adopt(&**keep, slot, noted));
        }
        Ok(Handles { table: RwLock::new(table), keep })
    }

    /// Everything in the table.
    pub(crate) fn all(&self) -> Vec<(Handle, T)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let named = |(index, thing): (usize, &Option<(u32, T)>)| {
            let (generation, thing) = thing.clone()?;
            Some((handle(Slot { index: index as u32, generation }), thing))
        };
        table.things.iter().enumerate().filter_map(named).collect()
    }

    /// Fails when the next [`Handles::insert`] would: to find out before anything is opened.
    ///
    /// # Errors
    /// `ENFILE` when as many things are open as can be noted.
    pub(crate) fn has_room(&self) -> Result<()> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if table.slots.has_room() { Ok(()) } else { Err(table.full()) }
    }

    /// Gives `thing` a handle, never 0.
    ///
    /// # Errors
    /// `ENFILE` when as many things are open as can be noted, `EMFILE` when its descriptor cannot be held.
    pub(crate) fn insert(&self, thing: T) -> Result<Handle> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if !table.slots.has_room() {
            return Err(table.full());
        }
        if let Some(keep) = &self.keep {
            keep.hold(thing.fd())?;
        }
        let noted = Noted { fd: thing.fd().as_raw_fd(), known: thing.known() };
        let slot = table.slots.insert(&noted).ok_or_else(|| table.full())?;
        table.put(slot, thing);
        Ok(handle(slot))
    }

    /// What `handle` names.
    ///
    /// # Errors
    /// `EBADF` when it names nothing.
    pub(crate) fn get(&self, handle: Handle) -> Result<T> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let find = |slot: Slot| match table.things.get(slot.index as usize)? {
            Some((generation, thing)) if *generation == slot.generation => Some(thing.clone()),
            _ => None,
        };
        slot(handle).and_then(find).ok_or_else(|| closed(handle))
    }

    /// Ends `handle`.
    ///
    /// # Errors
    /// `EBADF` when it names nothing.
    pub(crate) fn remove(&self, handle: Handle) -> Result<T> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Table { slots, things } = &mut *table;
        let place = slot(handle).and_then(|slot| {
            let place = things.get_mut(slot.index as usize)?;
            place
                .as_ref()
                .is_some_and(|(generation, _)| *generation == slot.generation)
                .then_some((slot, place))
        });
        let (slot, place) = place.ok_or_else(|| closed(handle))?;
        slots.remove(slot.index);
        let (_, thing) = place.take().ok_or_else(|| closed(handle))?;
        if let Some(keep) = &self.keep {
            keep.let_go(thing.fd());
        }
        Ok(thing)
    }
}

impl<T: Kept> Table<T> {
    /// Takes over what a former process noted. A descriptor that is not held any more is as good as closed.
    fn adopt(&mut self, keep: &dyn Keep, slot: Slot, Noted { fd: number, known }: Noted) {
        match keep.adopt(number) {
            Ok(fd) => {
                // It may have another number here.
                self.slots.update(slot.index, &Noted { fd: fd.as_raw_fd(), known });
                self.put(slot, T::adopt(fd, known));
            }
            Err(error) => {
                tracing::warn!(%error, number, "an open file of the former process is lost");
                self.slots.remove(slot.index);
            }
        }
    }
}

fn closed(handle: Handle) -> Error {
    Errno::EBADF.because(format!("{handle:?} is not open"))
}

impl<T> fmt::Debug for Handles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.read().unwrap_or_else(PoisonError::into_inner).slots.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use outrigger_core::survive::testing::each_death;
    use std::os::fd::AsFd;
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

    fn open(keep: Option<&Arc<HeapKeep>>) -> Handles<Thing> {
        Handles::open(keep.map(|keep| Arc::clone(keep) as _), "local-files", 4).expect("a table")
    }

    #[test]
    fn a_closed_handle_stays_closed_when_its_slot_is_used_again() {
        for keep in [None, Some(&Arc::default())] {
            let table = open(keep);
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
        let table = open(Some(&keep));
        let handles: Vec<Handle> = (0..4).map(|i| table.insert(thing(i)).expect("room")).collect();
        assert_eq!(table.insert(thing(9)).unwrap_err().errno, Errno::ENFILE, "no more can be noted");
        table.remove(handles[1]).expect("open");
        let reused = table.insert(thing(11)).expect("a place is free again");
        table.remove(handles[2]).expect("open");
        std::mem::forget(table);

        let table = open(Some(&keep));
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
    fn a_kill_leaves_each_handle_open_or_closed() {
        each_death(|life| {
            let keep = Arc::<HeapKeep>::default();
            let mortal: Arc<dyn Keep> = Arc::new(life.of(&keep));
            let table = Handles::open(Some(mortal), "local-files", 4).expect("a table");
            let mut given = Vec::new();
            for value in 0..4 {
                if let (Ok(handle), false) = (table.insert(thing(value)), life.is_over()) {
                    given.push((handle, value));
                }
            }
            let closed = given.first().copied().filter(|_| !life.is_over());
            closed.iter().for_each(|(handle, _)| drop(table.remove(*handle)));
            std::mem::forget(table);
            let next = open(Some(&keep));
            for (handle, value) in given {
                let may_be_closed = closed.is_some_and(|(closed, _)| closed == handle);
                let left = known(&next, handle);
                assert!(
                    left == Ok(value) || may_be_closed && left == Err(Errno::EBADF),
                    "{handle:?}: {left:?}"
                );
            }
        });
    }

    #[test]
    fn foreign_regions_are_refused_and_lost_descriptors_are_closed_handles() {
        let keep = Arc::<HeapKeep>::default();
        keep.region("local-files", 99).expect("memory").word(0).store(7, Ordering::Relaxed);
        let refused = Handles::<Thing>::open(Some(keep), "local-files", 4).expect_err("not ours");
        assert_eq!(refused.errno, Errno::EUCLEAN);

        let keep = Arc::<HeapKeep>::default();
        let table = open(Some(&keep));
        let lost = thing(1);
        let handle = table.insert(lost.clone()).expect("room");
        keep.let_go(lost.fd());
        std::mem::forget(table);
        let table = open(Some(&keep));
        assert_eq!(known(&table, handle), Err(Errno::EBADF));
        assert_ne!(table.insert(thing(2)).expect("room"), handle);
    }
}
