// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that the server has received and not answered yet, in memory that outlives it: the kernel passes no call on twice, so that these
//! would wait for ever.

use super::source::Call;
use super::turns::THREADS_MAX;
use libc::seccomp_data;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::array;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// One for each thread that answers calls: the first one, and those that relieve it.
const SLOTS: usize = THREADS_MAX + 1;
/// The numbers of a call.
const WORDS: usize = 10;

/// What the server writes to and the keeper reads. All zero at first.
#[repr(C)]
struct Shared {
    /// The number of the call that was received last; 0 before the first one.
    newest: AtomicU64,
    /// How many threads have a slot.
    threads: AtomicU64,
    slots: [Slot; SLOTS],
}

/// The call that a thread answers.
#[repr(C)]
pub(crate) struct Slot {
    /// Whether there is one.
    is_taken: AtomicU64,
    call: [AtomicU64; WORDS],
}

/// The calls.
pub(crate) struct Progress {
    /// It stays mapped as long as this process lives.
    shared: &'static Shared,
    file: OwnedFd,
}

impl Progress {
    /// Without any call.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and mmap(2).
    pub(crate) fn new() -> io::Result<Self> {
        let file = memfd_create("outrigger calls", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, size_of::<Shared>() as u64)?;
        Progress::of(file)
    }

    /// That of another process.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn of(file: OwnedFd) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start = unsafe { mmap(ptr::null_mut(), size_of::<Shared>(), access, flags, &file, 0) }?;
        // SAFETY: the mapping is as large as the structure, begins with a page, and is never removed; the structure consists of atomic
        // numbers, for which all bits may be 0, and which others may change.
        Ok(Progress { shared: unsafe { &*start.cast::<Shared>() }, file })
    }

    /// A slot for one more thread.
    pub(crate) fn slot(&self) -> &Slot {
        &self.shared.slots[self.shared.threads.fetch_add(1, Ordering::Relaxed) as usize % SLOTS]
    }

    /// Writes down that a thread has received a call; one at a time receives calls.
    pub(crate) fn begin(&self, slot: &Slot, call: &Call) {
        for (word, value) in slot.call.iter().zip(words(call)) {
            word.store(value, Ordering::Relaxed);
        }
        slot.is_taken.store(1, Ordering::Release);
        self.note(call.id);
    }

    /// Writes down the number of a call that needs no slot: this process does not end before it is answered.
    pub(crate) fn note(&self, id: u64) {
        self.shared.newest.store(id, Ordering::Release);
    }

    /// Calls without an answer, and some with one, if the server died just then. They are forgotten.
    pub(crate) fn take(&self) -> Vec<Call> {
        let taken = self.shared.slots.iter().filter(|slot| slot.is_taken.swap(0, Ordering::AcqRel) != 0);
        taken.map(|slot| call(array::from_fn(|index| slot.call[index].load(Ordering::Relaxed)))).collect()
    }

    /// The number of the call that was written down last, if there was any.
    pub(crate) fn newest(&self) -> Option<u64> {
        Some(self.shared.newest.load(Ordering::Acquire)).filter(|&id| id != 0)
    }
}

impl AsFd for Progress {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Slot {
    /// The call has its answer.
    pub(crate) fn end(&self) {
        self.is_taken.store(0, Ordering::Release);
    }
}

/// The numbers of a call.
fn words(call: &Call) -> [u64; WORDS] {
    let seccomp_data { nr, arch, instruction_pointer, args: [a, b, c, d, e, f] } = call.data;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (who, what) = (pair(call.pid, call.flags), pair(nr.cast_unsigned(), arch));
    [call.id, who, what, instruction_pointer, a, b, c, d, e, f]
}

/// The call with these numbers.
fn call([id, who, what, instruction_pointer, args @ ..]: [u64; WORDS]) -> Call {
    let data = seccomp_data {
        nr: (what as u32).cast_signed(),
        arch: (what >> 32) as u32,
        instruction_pointer,
        args,
    };
    Call { id, pid: who as u32, flags: (who >> 32) as u32, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_sees_calls_until_they_have_their_answers() {
        let ours = Progress::new().unwrap();
        let theirs = Progress::of(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((theirs.newest(), theirs.take().len()), (None, 0));
        let numbers = |id| [id, 2 | 3 << 32, 0xffff_ffff | 4 << 32, 5, 6, 7, 8, 9, 10, u64::MAX];
        let slots = [ours.slot(), ours.slot(), ours.slot()];
        for (slot, id) in slots.iter().zip([1, 2, u64::MAX]) {
            ours.begin(slot, &call(numbers(id)));
        }
        slots[1].end();
        let left = theirs.take();
        assert_eq!((left[0].pid, left[0].flags, left[0].data.nr, left[0].data.arch), (2, 3, -1, 4));
        let left: Vec<_> = left.iter().map(words).collect();
        assert_eq!((theirs.newest(), left), (Some(u64::MAX), vec![numbers(1), numbers(u64::MAX)]));
        assert!(theirs.take().is_empty());
        theirs.note(7);
        assert_eq!(ours.newest(), Some(7));
    }
}
