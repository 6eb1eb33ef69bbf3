// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is written down about open descriptors, for a process that takes over.
//!
//! # Layout, in words of a region
//!
//! | from | what |
//! |---|---|
//! | 0 | magic and version |
//! | 1 | how many places were ever used |
//! | 2 + 2 * place | low half: the descriptor's number plus 1, 0 for none; high half: the round of the place |
//! | 3 + 2 * place | what else is known of it |
//!
//! One store, of a place's first word, begins and ends a note: a kill leaves it written or not. What a kill may lose is
//! a descriptor that is held already and not noted yet, or not noted any more and still held: one a thread.

use outrigger_core::{Errno, Keep, Region, Result};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// "ORFiles" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ORFiles\x01");
const MAGIC_AT: usize = 0;
const USED_AT: usize = 1;
const FIRST_PLACE: usize = 2;
const PLACE: usize = 2;

/// Notes in one region of a keep.
#[derive(Clone)]
pub(crate) struct Notes {
    keep: Arc<dyn Keep>,
    region: Arc<dyn Region>,
    capacity: u32,
}

/// What a place holds.
pub(crate) struct Note {
    /// How often the place was given up.
    pub(crate) round: u32,
    /// A descriptor that is held, and what else is known of it.
    pub(crate) content: Option<(OwnedFd, u64)>,
}

impl Notes {
    /// The notes called `name`, at most `capacity`: new ones, or what a former process left.
    ///
    /// # Errors
    /// Those of [`Keep::region`]; `EUCLEAN` when the region holds something else.
    pub(crate) fn open(keep: Arc<dyn Keep>, name: &'static str, capacity: u32) -> Result<Self> {
        let region = keep.region(name, FIRST_PLACE + capacity as usize * PLACE)?;
        if region.words() < FIRST_PLACE {
            return Err(Errno::EUCLEAN.because(format!("the region {name} is too small for any note")));
        }
        let capacity = ((region.words() - FIRST_PLACE) / PLACE).min(capacity as usize) as u32;
        let notes = Notes { keep, region, capacity };
        match notes.get(MAGIC_AT) {
            0 => notes.put(MAGIC_AT, MAGIC),
            MAGIC => {}
            _ => {
                return Err(
                    Errno::EUCLEAN.because(format!("the region {name} holds no notes of this version"))
                );
            }
        }
        Ok(notes)
    }

    fn get(&self, index: usize) -> u64 {
        self.region.word(index).load(Ordering::Acquire)
    }

    fn put(&self, index: usize, value: u64) {
        self.region.word(index).store(value, Ordering::Release);
    }

    /// How many places may be used.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many places were ever used.
    pub(crate) fn used(&self) -> u32 {
        u32::try_from(self.get(USED_AT)).unwrap_or(u32::MAX).min(self.capacity)
    }

    /// Holds `fd` and notes it in `place`, which is free and below the capacity.
    ///
    /// # Errors
    /// Those of [`Keep::hold`].
    pub(crate) fn write(&self, place: u32, round: u32, fd: BorrowedFd<'_>, known: u64) -> Result<()> {
        self.keep.hold(fd)?;
        if place >= self.used() {
            self.put(USED_AT, u64::from(place) + 1);
        }
        let at = FIRST_PLACE + place as usize * PLACE;
        self.put(at + 1, known);
        self.put(at, word(round, Some(fd)));
        Ok(())
    }

    /// Ends the note in `place`, whose next user has the round `round`; `fd` may be closed afterwards.
    pub(crate) fn erase(&self, place: u32, round: u32, fd: BorrowedFd<'_>) {
        self.put(FIRST_PLACE + place as usize * PLACE, word(round, None));
        self.keep.let_go(fd);
    }

    /// Takes over what a former process noted in `place`. A descriptor that is not held any more is as good as closed.
    pub(crate) fn adopt(&self, place: u32) -> Note {
        let at = FIRST_PLACE + place as usize * PLACE;
        let (noted, known) = (self.get(at), self.get(at + 1));
        let round = (noted >> 32) as u32;
        let Some(number) = (noted as u32).checked_sub(1) else { return Note { round, content: None } };
        match self.keep.adopt(number as RawFd) {
            Ok(fd) => {
                self.put(at, word(round, Some(fd.as_fd())));
                Note { round, content: Some((fd, known)) }
            }
            Err(error) => {
                tracing::warn!(%error, number, "an open file of the former process is lost");
                let round = round.wrapping_add(1);
                self.put(at, word(round, None));
                Note { round, content: None }
            }
        }
    }
}

fn word(round: u32, fd: Option<BorrowedFd<'_>>) -> u64 {
    u64::from(round) << 32 | fd.map_or(0, |fd| fd.as_raw_fd() as u64 + 1)
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} notes", self.used(), self.capacity)
    }
}
