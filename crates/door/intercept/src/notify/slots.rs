// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of calls that the server has received and not answered yet, in memory that it shares with the keeper: the kernel gives a
//! call out once, so that only who knows its number can answer it when the server has died.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of the memory: a page.
const SIZE: usize = 4096;
/// How many numbers fit in: more than the server has threads.
const COUNT: usize = SIZE / size_of::<AtomicU64>();
/// How many calls may have been received and not be noted yet. The kernel counts calls, so their numbers are those behind the last one.
const UNNOTED: u64 = 16;

/// The memory. It stays mapped until the process ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    /// The last number that was received, and then those that are not answered; 0 is none.
    numbers: &'static [AtomicU64],
}

impl Slots {
    /// New memory, and the file by which another process has it, too.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2).
    pub(crate) fn new() -> io::Result<(OwnedFd, Self)> {
        let file = memfd_create("outrigger-calls", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, SIZE as u64)?;
        let slots = Slots::of(&file)?;
        Ok((file, slots))
    }

    /// The memory of a file from [`Self::new`].
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            mmap(ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        // SAFETY: the mapping is one page, aligned, never unmapped, and of a file that nobody makes smaller; all bits are valid numbers,
        // and every access is atomic.
        let numbers = unsafe { slice::from_raw_parts(start.cast::<AtomicU64>(), COUNT) };
        Ok(Slots { numbers })
    }

    /// A call was received.
    pub(crate) fn begin(self, id: u64) {
        let (last, slots) = (&self.numbers[0], &self.numbers[1..]);
        let take =
            |slot: &AtomicU64| slot.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // There are more slots than threads.
        let _ = slots.iter().any(take);
        last.store(id, Ordering::Release);
    }

    /// A call was answered.
    pub(crate) fn end(self, id: u64) {
        let free =
            |slot: &AtomicU64| slot.compare_exchange(id, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let _ = self.numbers[1..].iter().any(free);
    }

    /// Calls that may wait for an answer, now that the server is dead. Forgets them.
    pub(crate) fn take(self) -> Vec<u64> {
        let last = self.numbers[0].swap(0, Ordering::AcqRel);
        let noted = self.numbers[1..].iter().map(|slot| slot.swap(0, Ordering::AcqRel)).filter(|&id| id != 0);
        let unnoted = (1..=UNNOTED).map(|more| last.wrapping_add(more)).filter(|_| last != 0);
        noted.chain(unnoted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_without_an_answer_are_known_to_who_shares_the_memory() {
        let (file, server) = Slots::new().unwrap();
        let keeper = Slots::of(&file).unwrap();
        assert!(keeper.take().is_empty());
        for id in [7, 8, u64::MAX] {
            server.begin(id);
        }
        server.end(8);
        let left = keeper.take();
        assert_eq!(left[..2], [7, u64::MAX]);
        assert_eq!(left[2..], (0..UNNOTED).collect::<Vec<_>>(), "numbers go on from 0");
        assert!(keeper.take().is_empty());
    }
}
