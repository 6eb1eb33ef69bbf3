// SPDX-License-Identifier: MIT OR Apache-2.0
//! The region: counters, one entry a slot, and what former processes left unsettled.

use crate::Counts;
use crate::entry::{Entry, Slot, State, Words};
use outrigger_core::survive::{Area, Layout, Opened, Stored};
use outrigger_core::{Keep, Region, Result, lock};
use std::collections::HashMap;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, MutexGuard};

/// The name of the region.
pub const REGION: &str = "journal";
/// How many requests can be journalled at the same time.
pub const SLOTS: usize = 8192;
/// How many entries of former processes are kept: as many as one process can leave.
pub(crate) const CARRIED: usize = SLOTS;

const LAYOUT: Layout = Layout::of(REGION);

outrigger_core::fields! {
    /// What is counted in the region.
    pub(crate) struct Counters {
        /// Slots ever used: the highest number plus one.
        used: u64,
        /// Entries ever carried; the ring goes on at this one.
        carried: u64,
        /// Requests answered when this process took over.
        answered_before: u64,
        /// Recorded replies answered to a request that came again.
        replayed: u64,
        /// Changes that came again and were judged by the state of the tree.
        redone: u64,
        /// Requests passed on without an entry.
        unjournalled: u64,
        /// Processes that took over.
        takeovers: u64,
    }
}

/// The entries of the slots, and those of former processes.
type Entries = [Words<'static>; SLOTS];
type Ring = [Words<'static>; CARRIED];

/// The parts of the region.
#[derive(Clone)]
pub(crate) struct Parts {
    counters: Area,
    slots: Area,
    ring: Area,
}

impl Parts {
    fn of(Opened { mut area, .. }: Opened) -> Result<Self> {
        Ok(Parts {
            counters: area.take_for::<Counters<'_>>()?,
            slots: area.take_for::<Entries>()?,
            ring: area.take_for::<Ring>()?,
        })
    }

    /// Those of a journal that another process writes.
    ///
    /// # Errors
    /// Those of [`Layout::look`].
    pub(crate) fn look(region: Arc<dyn Region>) -> Result<Self> {
        Parts::of(LAYOUT.look(region)?)
    }

    /// What is counted.
    #[inline]
    pub(crate) fn counters(&self) -> Counters<'_> {
        self.counters.view::<Counters<'_>>()
    }

    #[inline]
    fn slot(&self, slot: usize) -> Words<'_> {
        self.slots.view::<Entries>().at(slot)
    }

    fn in_ring(&self, index: usize) -> Words<'_> {
        self.ring.view::<Ring>().at(index)
    }

    /// How many slots were ever used.
    #[inline]
    fn used(&self) -> usize {
        usize::try_from(self.counters().used().get()).map_or(SLOTS, |used| used.min(SLOTS))
    }

    /// The entries of the slots that were ever used.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Words<'_>> {
        (0..self.used()).map(|slot| self.slot(slot))
    }

    fn answered(&self) -> u64 {
        self.entries().map(|entry| entry.answered().get()).fold(0, u64::wrapping_add)
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> Counts {
        let counters = self.counters();
        Counts {
            answered: self.answered(),
            carried: counters.carried().get(),
            replayed: counters.replayed().get(),
            redone: counters.redone().get(),
            unjournalled: counters.unjournalled().get(),
            takeovers: counters.takeovers().get(),
        }
    }
}

/// The region, taken over.
pub(crate) struct Book {
    parts: Parts,
    /// Where in the ring the entry of a request is.
    carried: Mutex<HashMap<u64, usize>>,
    /// The largest id that was carried: most requests are newer, and need not look.
    newest: u64,
}

impl Book {
    /// Takes over the journal in `keep`, or begins one. `culprit` is the request whose thread ended the process before, when that
    /// is known.
    ///
    /// # Errors
    /// Those of [`Layout::attach`].
    pub(crate) fn attach(keep: &dyn Keep, culprit: Option<u64>) -> Result<Self> {
        let words = Counters::WORDS + Entries::WORDS + Ring::WORDS;
        let opened = LAYOUT.attach(keep, words)?;
        let is_new = opened.is_new;
        let mut book = Book { parts: Parts::of(opened)?, carried: Mutex::default(), newest: 0 };
        if !is_new {
            book.parts.counters().takeovers().increase(1);
        }
        let mut carried = book.read_ring();
        book.carry(&mut carried, culprit);
        book.newest = carried.keys().copied().max().unwrap_or(0);
        book.carried = Mutex::new(carried);
        Ok(book)
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What earlier processes left.
    fn read_ring(&self) -> HashMap<u64, usize> {
        // Beyond the entries ever carried nothing was touched, and shall not be: that would take memory.
        let carried = self.parts.counters().carried().get();
        let touched = usize::try_from(carried).map_or(CARRIED, |n| n.min(CARRIED));
        let read = |index| self.parts.in_ring(index).read().map(|entry| (entry.id, index));
        (0..touched).filter_map(read).collect()
    }

    /// Moves what the process before left in the slots to the ring. When this process is killed meanwhile, the next one
    /// goes on: an entry is first copied and then cleared, and a copy of a request replaces an older one.
    fn carry(&self, carried: &mut HashMap<u64, usize>, culprit: Option<u64>) {
        let (total, counters) = (self.parts.answered(), self.parts.counters());
        let did_nothing = total == counters.answered_before().get();
        for slot in self.parts.entries() {
            let Some(left) = slot.read() else { continue };
            if self.is_aside(&left, carried) {
                slot.clear();
                continue;
            }
            let guilty = match culprit {
                Some(id) => id == left.id,
                None => did_nothing && left.state != State::Replied && !left.patient,
            };
            let index = carried.get(&left.id).copied().unwrap_or_else(|| self.next_in_ring(carried));
            self.parts.in_ring(index).carry(slot, guilty.into());
            carried.insert(left.id, index);
            slot.clear();
        }
        counters.answered_before().set(total);
    }

    /// Whether an entry is of something that the door did aside, under the id of a request: what that handed out and
    /// nobody took, it gave back. Nobody sends such a request again.
    fn is_aside(&self, left: &Entry, carried: &HashMap<u64, usize>) -> bool {
        let other = || carried.get(&left.id).and_then(|&index| self.parts.in_ring(index).glance());
        left.op.returns() || left.op.ends() && other().is_some_and(|other| other.op != left.op)
    }

    /// The next place in the ring, whose entry is forgotten.
    fn next_in_ring(&self, carried: &mut HashMap<u64, usize>) -> usize {
        let number = self.parts.counters().carried().increase(1);
        let index = (number % CARRIED as u64) as usize;
        let former = self.parts.in_ring(index).glance().map(|entry| entry.id);
        if let Some(id) = former.filter(|id| carried.get(id) == Some(&index)) {
            carried.remove(&id);
        }
        index
    }

    /// The entry of `slot`; `None` for a slot without one.
    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> Option<Words<'_>> {
        let slot = slot as usize;
        if slot >= SLOTS {
            return None;
        }
        if self.parts.used() <= slot {
            self.parts.counters().used().atomic().fetch_max(slot as u64 + 1, AcqRel);
        }
        Some(self.parts.slot(slot))
    }

    fn ring(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        lock(&self.carried)
    }

    /// What a former process left about the request `id`.
    pub(crate) fn carried(&self, id: u64) -> Option<Entry> {
        if id > self.newest {
            return None;
        }
        let index = self.ring().get(&id).copied()?;
        self.parts.in_ring(index).read()
    }

    /// Moves what is known about the request of `slot` from the ring into its slot.
    pub(crate) fn resume<'r>(&self, id: u64, slot: Slot<'r>, now: i64) -> Slot<'r> {
        let Some(index) = self.ring().remove(&id) else { return slot };
        let slot = slot.resume(self.parts.in_ring(index), now);
        self.parts.in_ring(index).clear();
        slot
    }

    /// Forgets what a former process left about the request `id`.
    pub(crate) fn forget(&self, id: u64) {
        if let Some(index) = self.ring().remove(&id) {
            self.parts.in_ring(index).clear();
        }
    }
}
