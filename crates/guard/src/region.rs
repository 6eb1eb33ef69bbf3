// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared between processes, and memory in a file.

use outrigger_core::Region;
use outrigger_core::{Errno, Error, Result};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
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

/// Words in a file of this user, behind a head of [`FileRegion::HEAD`] bytes that is not mapped. What was stored is there when the
/// process that stored it is killed; when the machine stops, only what [`FileRegion::sync`] has written is sure.
///
/// Whoever can make the file shorter ends this process by SIGBUS: it belongs where no other user can reach it.
#[derive(Debug)]
pub struct FileRegion(Mapping);

/// Zeros for a file system that reserves no room by itself.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

impl FileRegion {
    /// Bytes of the file before the words: a multiple of the size of a page.
    pub const HEAD: u64 = 1 << 16;

    /// The `words` words of `file`, which is made as long as that takes; new ones are zero.
    ///
    /// # Errors
    /// `EINVAL` for no words at all; `ENOSPC` when there is no room: all of it is reserved here, for a store into a page without
    /// any would end the process.
    pub fn open(file: &File, words: usize) -> Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(|| Errno::EINVAL.because(format!("a region of {words} words")))?;
        let len = FileRegion::HEAD + bytes as u64;
        match fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => fill(file, len)?,
            reserved => reserved.map_err(failed)?,
        }
        Mapping::map(file.as_fd(), FileRegion::HEAD, words).map(FileRegion)
    }

    /// Waits until what was stored is on stable storage.
    ///
    /// # Errors
    /// Those of msync(2).
    pub fn sync(&self) -> Result<()> {
        let Mapping { start, words } = self.0;
        // SAFETY: the range is the mapping, which lives as long as `self`; nothing in memory changes.
        unsafe { msync(start.as_ptr().cast(), words * size_of::<AtomicU64>(), MsyncFlags::SYNC) }
            .map_err(failed)
    }
}

/// Writes zeros from the end of `file` on until it has `len` bytes.
fn fill(file: &File, len: u64) -> Result<()> {
    let mut at = file.metadata()?.len();
    while at < len {
        let count = (len - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..count as usize], at)?;
        at += count;
    }
    Ok(())
}

impl Region for FileRegion {
    fn words(&self) -> usize {
        self.0.words()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.0.word(index)
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
        Mapping::map(fd, 0, words)
    }

    /// Words of a file from the byte `offset` on. The file is as long, and stays so.
    fn map(fd: BorrowedFd<'_>, offset: u64, words: usize) -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let len = words * size_of::<AtomicU64>();
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
        let start = NonNull::new(start.map_err(failed)?.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Mapping { start, words })
    }

    fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `words` words long, page-aligned, readable and writable, and lives until `self` is
        // dropped; seals, or those who may reach the file, keep it from shrinking. Any bits are a valid u64. Other processes change
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
        // SAFETY: the mapping was made by `map` with this length, and no reference into it outlives `self`.
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

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} words", self.words)
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
    fn words_in_a_file_are_there_when_it_is_opened_again() {
        let dir = std::env::temp_dir().join(format!("outrigger-region-{}", std::process::id()));
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&dir);
        let region = FileRegion::open(&open().expect("a file"), 1 << 16).expect("room");
        assert_eq!(region.word(4711).load(Ordering::Relaxed), 0);
        region.word(4711).store(42, Ordering::Relaxed);
        region.sync().expect("written");
        drop(region);
        let file = open().expect("the same");
        let again = FileRegion::open(&file, 1 << 16).expect("room");
        assert_eq!((again.words(), again.word(4711).load(Ordering::Relaxed)), (1 << 16, 42));
        let mut head = [1; 8];
        file.read_exact_at(&mut head, 0).expect("a head");
        assert_eq!(head, [0; 8], "the head is not part of the words");
        std::fs::remove_file(dir).expect("removed");
        assert_eq!(FileRegion::open(&file, 0).unwrap_err().errno, Errno::EINVAL);
    }

    #[test]
    fn a_file_system_that_reserves_no_room_gets_zeros() {
        let file = File::from(memfd_create(c"zeros", MemfdFlags::empty()).expect("memfd"));
        file.write_all_at(b"x", 9).expect("written");
        fill(&file, 3 * ZEROS.len() as u64 + 5).expect("filled");
        assert_eq!(file.metadata().expect("a size").len(), 3 * ZEROS.len() as u64 + 5);
        let mut first = [0; 1];
        file.read_exact_at(&mut first, 9).expect("read");
        assert_eq!(&first, b"x", "what was there stays");
    }

    #[test]
    fn other_descriptors_are_refused() {
        let file = File::open("/dev/null").expect("/dev/null");
        assert_eq!(SharedRegion::open(file.into()).unwrap_err().errno, Errno::EINVAL);
        let unsealed = memfd_create(c"unsealed", MemfdFlags::ALLOW_SEALING).expect("memfd");
        assert_eq!(SharedRegion::open(unsealed).unwrap_err().errno, Errno::EINVAL);
        assert_eq!(SharedRegion::create("test", 0).unwrap_err().errno, Errno::EINVAL);
        assert!(SharedRegion::create("test", usize::MAX).is_err());
    }
}
