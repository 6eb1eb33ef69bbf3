// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of open files and directories.

use outrigger_core::{Errno, Error, Handle};
use std::sync::{Arc, PoisonError, RwLock};

/// Things that have a [`Handle`]. A handle that was closed never names another thing: its high half counts how often
/// its slot was used.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    slots: RwLock<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    round: u32,
    thing: Option<Arc<T>>,
}

fn split(handle: Handle) -> Option<(usize, u32)> {
    let place = (handle.0 as u32).checked_sub(1)?;
    Some((place as usize, (handle.0 >> 32) as u32))
}

impl<T> Handles<T> {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Handles { slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    /// Gives `thing` a handle, never 0.
    pub(crate) fn insert(&self, thing: Arc<T>) -> Handle {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let place = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot { round: 0, thing: None });
            (table.slots.len() - 1) as u32
        });
        let slot = &mut table.slots[place as usize];
        slot.thing = Some(thing);
        Handle(u64::from(slot.round) << 32 | u64::from(place + 1))
    }

    /// What `handle` names.
    ///
    /// # Errors
    /// `EBADF` when it names nothing.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Error> {
        let table = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let find = |(place, round): (usize, u32)| {
            let slot = table.slots.get(place).filter(|slot| slot.round == round)?;
            slot.thing.clone()
        };
        split(handle).and_then(find).ok_or_else(|| Errno::EBADF.because(format!("{handle:?} is not open")))
    }

    /// Ends `handle`.
    ///
    /// # Errors
    /// `EBADF` when it names nothing.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Error> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let taken = split(handle).and_then(|(place, round)| {
            let slot = table.slots.get_mut(place).filter(|slot| slot.round == round)?;
            let thing = slot.thing.take()?;
            slot.round = slot.round.wrapping_add(1);
            table.free.push(place as u32);
            Some(thing)
        });
        taken.ok_or_else(|| Errno::EBADF.because(format!("{handle:?} is not open")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_stays_closed_when_its_slot_is_used_again() {
        let table = Handles::new();
        let first = table.insert(Arc::new("first"));
        assert_eq!(table.get(first).map(|thing| *thing), Ok("first"));
        assert_eq!(table.remove(first).map(|thing| *thing), Ok("first"));
        let second = table.insert(Arc::new("second"));
        assert_ne!(first, second);
        for result in [table.get(first), table.remove(first), table.get(Handle(0)), table.get(Handle(99))] {
            assert_eq!(result.map_err(|error| error.errno), Err(Errno::EBADF));
        }
    }
}
