// SPDX-License-Identifier: MIT OR Apache-2.0
//! What outlives the process that serves a tree: memory and open files that a keeper holds for it.
//!
//! A process that serves may die at any instruction. What it put into a [`Region`] and which descriptors it asked its
//! [`Keep`] to hold are there for the process that takes over. So the rule for each store: everything in a region
//! makes sense after a kill between any two stores (order them, or let one store switch from old to new).

use crate::error::{Errno, Result};
use crate::mutex::lock;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

/// A fixed number of words that start as zero.
///
/// An implementation may share them with other processes; then they still hold what was stored when a process that
/// stored it is killed. Words never touched should cost no memory.
pub trait Region: Send + Sync {
    /// How many words there are.
    fn words(&self) -> usize;

    /// The word at `index`.
    ///
    /// # Panics
    /// When `index` is not below [`Region::words`].
    fn word(&self, index: usize) -> &AtomicU64;
}

/// Holds memory and descriptors for a process that may die, and gives them to its successor.
pub trait Keep: Send + Sync {
    /// The memory called `name`: `words` words that are zero when that name was not asked for before, else what is left
    /// of former processes, with the size it was made with.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC` or `EMFILE` when it cannot be had.
    fn region(&self, name: &'static str, words: usize) -> Result<Arc<dyn Region>>;

    /// Keeps `fd` open when this process dies. To find it again, note its number in a region afterwards.
    ///
    /// # Errors
    /// `EMFILE` when no more can be held.
    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()>;

    /// Ends [`Keep::hold`]: called before the descriptor is closed, after its note was erased.
    fn let_go(&self, fd: BorrowedFd<'_>);

    /// The descriptor that a former process held under this number. It stays held; it may come under another number,
    /// so note it anew.
    ///
    /// # Errors
    /// `EBADF` when none is held under this number.
    fn adopt(&self, number: RawFd) -> Result<OwnedFd>;
}

/// Words of a piece of a [`HeapRegion`]: 8 KiB.
const PIECE: usize = 1024;
/// Pieces that are listed together.
const GROUP: usize = 512;

/// A list whose items are made when they are first needed.
type Lazily<T> = Box<[OnceLock<T>]>;

/// A region in this process's memory, for tables that need not outlive it. Memory is taken in pieces of 8 KiB when
/// they are first touched, so that a large region of which little is used costs nearly nothing.
pub struct HeapRegion {
    words: usize,
    groups: Lazily<Lazily<Box<[AtomicU64]>>>,
}

impl HeapRegion {
    /// A region of `words` words.
    pub fn new(words: usize) -> Self {
        HeapRegion { words, groups: (0..words.div_ceil(PIECE * GROUP)).map(|_| OnceLock::new()).collect() }
    }
}

impl Region for HeapRegion {
    fn words(&self) -> usize {
        self.words
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let (piece, at) = (index / PIECE, index % PIECE);
        let group = self.groups[piece / GROUP].get_or_init(|| (0..GROUP).map(|_| OnceLock::new()).collect());
        &group[piece % GROUP].get_or_init(|| (0..PIECE).map(|_| AtomicU64::new(0)).collect())[at]
    }
}

impl fmt::Debug for HeapRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapRegion of {} words", self.words)
    }
}

/// The part of a keep that belongs to one user among several of a kind: regions of the same name elsewhere are others.
pub struct PartOfKeep {
    keep: Arc<dyn Keep>,
    name: String,
}

impl PartOfKeep {
    /// The part of `keep` called `name`.
    pub fn new(keep: Arc<dyn Keep>, name: impl Into<String>) -> Self {
        PartOfKeep { keep, name: name.into() }
    }
}

impl Keep for PartOfKeep {
    fn region(&self, name: &'static str, words: usize) -> Result<Arc<dyn Region>> {
        // Regions are asked for when a tree is opened: some names for each part.
        self.keep.region(format!("{}/{name}", self.name).leak(), words)
    }

    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.keep.hold(fd)
    }

    fn let_go(&self, fd: BorrowedFd<'_>) {
        self.keep.let_go(fd);
    }

    fn adopt(&self, number: RawFd) -> Result<OwnedFd> {
        self.keep.adopt(number)
    }
}

/// A keep within this process: what a driver left survives the driver, not the process. For tests of taking over.
#[derive(Debug, Default)]
pub struct HeapKeep {
    regions: Mutex<HashMap<&'static str, Arc<HeapRegion>>>,
    held: Mutex<HashMap<RawFd, OwnedFd>>,
}

impl HeapKeep {
    /// How many descriptors are held.
    pub fn held(&self) -> usize {
        lock(&self.held).len()
    }
}

impl Keep for HeapKeep {
    fn region(&self, name: &'static str, words: usize) -> Result<Arc<dyn Region>> {
        let mut regions = lock(&self.regions);
        let region = regions.entry(name).or_insert_with(|| Arc::new(HeapRegion::new(words)));
        Ok(Arc::clone(region) as Arc<dyn Region>)
    }

    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let copy = fd.try_clone_to_owned().map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))?;
        lock(&self.held).insert(fd.as_raw_fd(), copy);
        Ok(())
    }

    fn let_go(&self, fd: BorrowedFd<'_>) {
        lock(&self.held).remove(&fd.as_raw_fd());
    }

    fn adopt(&self, number: RawFd) -> Result<OwnedFd> {
        let mut held = lock(&self.held);
        let missing = || Errno::EBADF.because(format!("no descriptor is held under the number {number}"));
        let fd = held.remove(&number).ok_or_else(missing)?;
        let copy = fd.try_clone().map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))?;
        held.insert(fd.as_raw_fd(), copy);
        Ok(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_successor_finds_words_and_descriptors() {
        let keep = HeapKeep::default();
        let (mut reader, writer) = std::io::pipe().unwrap();
        keep.hold(writer.as_fd()).unwrap();
        let words = keep.region("words", 2).unwrap();
        words.word(1).store(writer.as_raw_fd() as u64, Relaxed);
        drop((words, writer));

        let words = keep.region("words", 99).unwrap();
        assert_eq!(words.words(), 2, "the size is that of the first");
        let number = words.word(1).load(Relaxed) as RawFd;
        let writer = keep.adopt(number).unwrap();
        std::fs::File::from(writer.try_clone().unwrap()).write_all(b"x").unwrap();
        keep.let_go(writer.as_fd());
        drop(writer);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!((said.as_str(), keep.held()), ("x", 0), "it is released");
        assert_eq!(keep.adopt(number).unwrap_err().errno, Errno::EBADF);
    }
}
