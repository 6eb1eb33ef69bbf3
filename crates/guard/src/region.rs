// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared between processes.

use outrigger_core::Region;
use outrigger_core::{Errno, Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words in memory that other processes may have too, reached through a descriptor (memfd_create(2)).
pub struct SharedRegion {
    fd: OwnedFd,
    mapping: Mapping,
}

/// The words of a region, without its descriptor.
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

/// The size can change no more: a smaller file would turn accesses into SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl SharedRegion {
    /// A new region of `words` words, all zero. Pages are taken when they are first touched. The name is for those who
    /// look at open files.
    ///
    /// # Errors
    /// `EINVAL` for no words at all; those of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn create(name: &str, words: usize) -> Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(|| Errno::EINVAL.because(format!("a region of {words} words")))?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(format!("outrigger-{name}"), flags).map_err(failed)?;
        ftruncate(&fd, bytes as u64).map_err(failed)?;
        fcntl_add_seals(&fd, SEALS).map_err(failed)?;
        SharedRegion::open(fd)
    }

    /// The region of a descriptor that another process got from [`SharedRegion::fd`].
    ///
    /// # Errors
    /// `EINVAL` when the descriptor is not one of a region; those of mmap(2).
    pub fn open(fd: OwnedFd) -> Result<Self> {
        let mapping = Mapping::of(fd.as_fd())?;
        Ok(SharedRegion { fd, mapping })
    }

    /// The descriptor, to be given to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Mapping {
    /// As [`SharedRegion::open`].
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<Self> {
        let refused = |_| Errno::EINVAL.because("the descriptor does not belong to a region");
        if !fcntl_get_seals(fd).map_err(refused)?.contains(SEALS) {
            return Err(Errno::EINVAL.because("the region's size is not sealed"));
        }
        let size = fstat(fd).map_err(failed)?.st_size;
        let words = usize::try_from(size).unwrap_or(0) / size_of::<AtomicU64>();
        if words == 0 {
            return Err(Errno::EINVAL.because("the region is empty"));
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let start =
            unsafe { mmap(std::ptr::null_mut(), words * size_of::<AtomicU64>(), access, flags, fd, 0) };
        let start = NonNull::new(start.map_err(failed)?.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Mapping { start, words })
    }

    fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `words` words long, page-aligned, readable and writable, and lives until `self` is
        // dropped; the seals keep the file below it from shrinking. Any bits are a valid u64. Other processes change
        // the words at any time, which is what atomics allow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Region for SharedRegion {
    fn words(&self) -> usize {
        self.mapping.words()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.mapping.word(index)
    }
}

impl Region for Mapping {
    fn words(&self) -> usize {
        self.words
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.as_slice()[index]
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let bytes = self.words * size_of::<AtomicU64>();
        // SAFETY: the mapping was made by `of` with this length, and no reference into it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

// SAFETY: the memory belongs to no thread; all access goes through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRegion of {} words", self.words())
    }
}

fn failed(errno: rustix::io::Errno) -> Error {
    Errno(errno.raw_os_error()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_one_descriptor_share_their_words() {
        let one = SharedRegion::create("test", 1 << 20).expect("memory");
        let other = SharedRegion::open(one.fd().try_clone_to_owned().expect("dup")).expect("the same");
        one.word(123_456).store(42, Ordering::Relaxed);
        assert_eq!((other.words(), other.word(123_456).load(Ordering::Relaxed)), (1 << 20, 42));
        drop(one);
        assert_eq!(other.word(123_456).load(Ordering::Relaxed), 42);
        assert!(ftruncate(other.fd(), 8).is_err(), "the size is sealed");
    }

    #[test]
    fn other_descriptors_are_refused() {
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        assert_eq!(SharedRegion::open(file.into()).unwrap_err().errno, Errno::EINVAL);
        let unsealed = memfd_create(c"unsealed", MemfdFlags::ALLOW_SEALING).expect("memfd");
        assert_eq!(SharedRegion::open(unsealed).unwrap_err().errno, Errno::EINVAL);
        assert_eq!(SharedRegion::create("test", 0).unwrap_err().errno, Errno::EINVAL);
        assert!(SharedRegion::create("test", usize::MAX).is_err());
    }
}
