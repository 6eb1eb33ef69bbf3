// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the content of all files is: the pages of one memory file (memfd_create(2)).
//!
//! A page number is given out once and never again while the tree is served, and a page without references
//! is emptied. So a late reader sees zeroes and never the content of another file, and pages given out are zeroes
//! without work. There are 2^51 numbers: 70 years of writing a page each microsecond.

use crate::content::PAGE;
use outrigger_core::{Errno, ReadAt, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// How many pages a file of the host can have.
pub(crate) const PAGES_MAX: u64 = i64::MAX as u64 / PAGE;

/// The memory file.
pub(crate) struct Store {
    /// Made when it is first needed, unless it was there before the tree.
    file: OnceLock<File>,
    /// The first page never given out.
    next: AtomicU64,
    /// Whether pages are emptied when they are freed: not before the tree is complete, and not when it ends, because
    /// somebody may take it over.
    empties: AtomicBool,
}

impl Store {
    /// A memory file that no other process has.
    pub fn private() -> Arc<Self> {
        let store = Store { file: OnceLock::new(), next: AtomicU64::new(0), empties: AtomicBool::new(true) };
        Arc::new(store)
    }

    /// The memory file `file`, in which nothing is emptied until [`Store::begin`].
    pub fn kept(file: OwnedFd) -> Arc<Self> {
        let store = Store {
            file: OnceLock::from(File::from(file)),
            next: AtomicU64::new(0),
            empties: AtomicBool::new(false),
        };
        Arc::new(store)
    }

    /// An empty memory file.
    pub fn create() -> Result<OwnedFd> {
        memfd_create(c"outrigger-mem", MemfdFlags::CLOEXEC)
            .map_err(|errno| Errno(errno.raw_os_error()).because(format!("memfd_create: {errno}")))
    }

    fn file(&self) -> Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let made = Store::create()?.into();
        Ok(self.file.get_or_init(|| made))
    }

    /// The first page never given out.
    pub fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// From now on pages from `next` on are given out, and freed pages are emptied.
    pub fn begin(&self, next: u64) {
        self.next.store(next, Relaxed);
        self.empties.store(true, Relaxed);
    }

    /// From now on freed pages stay as they are.
    pub fn end(&self) {
        self.empties.store(false, Relaxed);
    }

    /// Gives out `pages` pages, all zeroes.
    pub fn allocate(self: &Arc<Self>, pages: u64) -> Result<Run> {
        let taken = |next: u64| next.checked_add(pages).filter(|&end| end <= PAGES_MAX);
        let first = self.next.fetch_update(Relaxed, Relaxed, taken).map_err(|_| Errno::ENOSPC)?;
        Ok(Run::new(self, first, pages))
    }

    /// Writes all of `data` at byte `at`.
    pub fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        Ok(self.file()?.write_all_at(data, at)?)
    }

    /// Reads the bytes at `at` into `out`, which is zeroes: so is what the file does not have.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.read_some(at, out).map(drop)
    }

    /// Reads the bytes at `at` as far as the memory file goes; answers how many.
    fn read_some(&self, at: u64, out: &mut [u8]) -> Result<usize> {
        let (file, mut done) = (self.file()?, 0);
        while done < out.len() {
            match file.read_at(&mut out[done..], at + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// Empties pages without references.
    pub fn empty(&self, first: u64, pages: u64) {
        if let Some(file) = self.file.get().filter(|_| pages > 0) {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Memory files have holes, so this does not fail.
            let _ = fallocate(file, how, first * PAGE, pages * PAGE);
        }
    }
}

/// Pages that are emptied when the last who refers to them lets go.
pub(crate) struct Run {
    store: Arc<Store>,
    /// Their first number.
    pub first: u64,
    /// How many there are.
    pub pages: u64,
}

impl Run {
    /// Pages from `first` on without other references.
    pub fn new(store: &Arc<Store>, first: u64, pages: u64) -> Self {
        Run { store: Arc::clone(store), first, pages }
    }

    /// The page after the last.
    pub fn end(&self) -> u64 {
        self.first + self.pages
    }

    /// The pages below `page` and the others.
    pub fn split(mut self, page: u64) -> (Self, Self) {
        let rest = Run::new(&self.store, page, self.end() - page);
        self.pages = page - self.first;
        (self, rest)
    }

    /// Takes over the pages of the run that starts where this one ends.
    pub fn join(&mut self, next: &mut Run) {
        self.pages += std::mem::take(&mut next.pages);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.store.empties.load(Relaxed) {
            self.store.empty(self.first, self.pages);
        }
    }
}

/// Content on its way to a reader: its pages are not emptied before it has arrived.
pub(crate) struct Pinned {
    store: Arc<Store>,
    _runs: Vec<Arc<Run>>,
}

impl Pinned {
    pub fn new(store: &Arc<Store>, runs: Vec<Arc<Run>>) -> Self {
        Pinned { store: Arc::clone(store), _runs: runs }
    }
}

impl ReadAt for Pinned {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.store.read_some(offset, buf)?;
        // The pages are there even where the memory file ends before them.
        buf[count..].fill(0);
        Ok(buf.len())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.store.file().ok().map(AsFd::as_fd)
    }
}
