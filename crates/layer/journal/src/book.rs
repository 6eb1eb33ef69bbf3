// SPDX-License-Identifier: MIT OR Apache-2.0
//! The region: counters, handles that append, one entry a slot, and what former processes left unsettled.
//!
//! | words | content |
//! |---|---|
//! | 0, 1 | mark and version |
//! | 2 to 9 | [`Counter`]s |
//! | 16 to 2071 | handles that append (`appenders`) |
//! | then 32 for each of [`SLOTS`] | the entry of that slot (`entry`) |
//! | then 32 for each of [`CARRIED`] | entries of former processes, a ring |

use crate::entry::{self, Entry, Slot, State};
use crate::{Counts, appenders};
use outrigger_core::{Errno, OpCode, Region, Result, wire};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many requests can be journalled at the same time.
pub const SLOTS: usize = 8192;
/// How many entries of former processes are kept: as many as one process can leave.
pub(crate) const CARRIED: usize = SLOTS;

/// "OUTRJRNL", read as a little-endian number.
const MARK: u64 = u64::from_le_bytes(*b"OUTRJRNL");
/// Version of the layout, and of the encoding of replies.
const VERSION: u64 = 1 << 32 | wire::VERSION as u64;

const MARK_AT: usize = 0;
const VERSION_AT: usize = 1;
pub(crate) const APPENDERS_AT: usize = 16;
const SLOTS_AT: usize = APPENDERS_AT + appenders::WORDS;
const CARRIED_AT: usize = SLOTS_AT + SLOTS * entry::WORDS;
/// Words of the region.
pub(crate) const WORDS: usize = CARRIED_AT + CARRIED * entry::WORDS;

/// A counter in the region.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counter {
    /// Slots ever used: the highest number plus one.
    Used = 2,
    /// Entries ever carried; the ring goes on at this one.
    Carried = 3,
    /// Requests answered when this process took over.
    AnsweredBefore = 4,
    /// Recorded replies answered to a request that came again.
    Replayed = 5,
    /// Changes that came again and were judged by the state of the tree.
    Redone = 6,
    /// Requests passed on without an entry.
    Unjournalled = 7,
    /// Processes that took over.
    Takeovers = 8,
}

/// The region, taken over.
pub(crate) struct Book {
    region: Arc<dyn Region>,
    /// Where in the ring the entry of a request is.
    carried: Mutex<HashMap<u64, usize>>,
    /// The largest id that was carried: most requests are newer, and need not look.
    newest: u64,
}

fn get(region: &dyn Region, word: usize) -> u64 {
    region.word(word).load(Relaxed)
}

fn count(region: &dyn Region, counter: Counter) -> u64 {
    get(region, counter as usize)
}

/// How many slots were ever used.
pub(crate) fn used(region: &dyn Region) -> usize {
    usize::try_from(count(region, Counter::Used)).map_or(SLOTS, |used| used.min(SLOTS))
}

/// Where the entry of `slot` is.
pub(crate) fn slot_at(slot: usize) -> usize {
    SLOTS_AT + slot * entry::WORDS
}

fn carried_at(index: usize) -> usize {
    CARRIED_AT + index * entry::WORDS
}

fn answered(region: &dyn Region) -> u64 {
    (0..used(region)).map(|slot| entry::answered(region, slot_at(slot))).fold(0, u64::wrapping_add)
}

/// What was counted.
pub(crate) fn counts(region: &dyn Region) -> Counts {
    Counts {
        answered: answered(region),
        carried: count(region, Counter::Carried),
        replayed: count(region, Counter::Replayed),
        redone: count(region, Counter::Redone),
        unjournalled: count(region, Counter::Unjournalled),
        takeovers: count(region, Counter::Takeovers),
    }
}

/// Checks that `region` holds a journal of this version.
///
/// # Errors
/// `EUCLEAN` when it does not.
pub(crate) fn check(region: &dyn Region) -> Result<()> {
    let right = region.words() == WORDS && get(region, MARK_AT) == MARK && get(region, VERSION_AT) == VERSION;
    let reason = "the region holds no journal of this version and size: start with a new region";
    if right { Ok(()) } else { Err(Errno::EUCLEAN.because(reason)) }
}

impl Book {
    /// Takes over `region`, or begins a journal in it when it is new. `culprit` is the request whose thread ended the
    /// process before, when that is known.
    pub(crate) fn attach(region: Arc<dyn Region>, culprit: Option<u64>) -> Result<Self> {
        if region.words() == WORDS && get(&*region, MARK_AT) == 0 {
            region.word(VERSION_AT).store(VERSION, Release);
            compiler_fence(SeqCst);
            region.word(MARK_AT).store(MARK, Release);
        } else {
            check(&*region)?;
            region.word(Counter::Takeovers as usize).fetch_add(1, Relaxed);
        }
        let mut book = Book { region, carried: Mutex::default(), newest: 0 };
        let mut carried = book.read_ring();
        book.carry(&mut carried, culprit);
        book.newest = carried.keys().copied().max().unwrap_or(0);
        book.carried = Mutex::new(carried);
        Ok(book)
    }

    pub(crate) fn region(&self) -> &Arc<dyn Region> {
        &self.region
    }

    /// What earlier processes left.
    fn read_ring(&self) -> HashMap<u64, usize> {
        let region = &*self.region;
        // Beyond the entries ever carried nothing was touched, and shall not be: that would take memory.
        let touched = usize::try_from(count(region, Counter::Carried)).map_or(CARRIED, |n| n.min(CARRIED));
        let read = |index| entry::read(region, carried_at(index)).map(|entry| (entry.id, index));
        (0..touched).filter_map(read).collect()
    }

    /// Moves what the process before left in the slots to the ring. When this process is killed meanwhile, the next one
    /// goes on: an entry is first copied and then cleared, and a copy of a request replaces an older one.
    fn carry(&self, carried: &mut HashMap<u64, usize>, culprit: Option<u64>) {
        let region = &*self.region;
        let total = answered(region);
        let did_nothing = total == count(region, Counter::AnsweredBefore);
        for at in (0..used(region)).map(slot_at) {
            let Some(left) = entry::read(region, at) else { continue };
            if self.is_aside(&left, carried) {
                entry::clear(region, at);
                continue;
            }
            let guilty = match culprit {
                Some(id) => id == left.id,
                None => did_nothing && left.state != State::Replied && !left.patient,
            };
            let index = carried.get(&left.id).copied().unwrap_or_else(|| self.next_in_ring(carried));
            entry::carry(region, at, carried_at(index), guilty.into());
            carried.insert(left.id, index);
            entry::clear(region, at);
        }
        region.word(Counter::AnsweredBefore as usize).store(total, Release);
    }

    /// Whether an entry is of something that the door did aside, under the id of a request: what that handed out and
    /// nobody took, it gave back. Nobody sends such a request again.
    fn is_aside(&self, left: &Entry, carried: &HashMap<u64, usize>) -> bool {
        match left.op {
            OpCode::Forget => true,
            OpCode::Release | OpCode::ReleaseDir => {
                let other =
                    carried.get(&left.id).and_then(|&at| entry::glance(&*self.region, carried_at(at)));
                other.is_some_and(|other| other.op != left.op)
            }
            _ => false,
        }
    }

    /// The next place in the ring, whose entry is forgotten.
    fn next_in_ring(&self, carried: &mut HashMap<u64, usize>) -> usize {
        let number = self.region.word(Counter::Carried as usize).fetch_add(1, Relaxed);
        let index = (number % CARRIED as u64) as usize;
        let former = entry::glance(&*self.region, carried_at(index)).map(|entry| entry.id);
        if let Some(id) = former.filter(|id| carried.get(id) == Some(&index)) {
            carried.remove(&id);
        }
        index
    }

    /// Adds 1 to `counter`.
    pub(crate) fn add(&self, counter: Counter) {
        self.region.word(counter as usize).fetch_add(1, Relaxed);
    }

    /// Where the entry of `slot` is; `None` for a slot without one.
    pub(crate) fn slot(&self, slot: u32) -> Option<usize> {
        let slot = slot as usize;
        if slot >= SLOTS {
            return None;
        }
        if used(&*self.region) <= slot {
            self.region.word(Counter::Used as usize).fetch_max(slot as u64 + 1, Relaxed);
        }
        Some(slot_at(slot))
    }

    fn ring(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a former process left about the request `id`.
    pub(crate) fn carried(&self, id: u64) -> Option<Entry> {
        if id > self.newest {
            return None;
        }
        let index = self.ring().get(&id).copied()?;
        entry::read(&*self.region, carried_at(index))
    }

    /// Moves what is known about the request of `slot` from the ring into its slot.
    pub(crate) fn resume<'r>(&self, id: u64, slot: Slot<'r>, now: i64) -> Slot<'r> {
        let Some(index) = self.ring().remove(&id) else { return slot };
        let slot = slot.resume(carried_at(index), now);
        entry::clear(&*self.region, carried_at(index));
        slot
    }

    /// Forgets what a former process left about the request `id`.
    pub(crate) fn forget(&self, id: u64) {
        if let Some(index) = self.ring().remove(&id) {
            entry::clear(&*self.region, carried_at(index));
        }
    }
}
