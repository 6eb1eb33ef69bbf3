// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for state that may outlive the process that changes it.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

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

/// Words per piece of a [`HeapRegion`]: 64 KiB.
const PIECE: usize = 8192;

/// A region in this process's memory, for tables that need not outlive it. Memory is taken in pieces of 64 KiB when
/// they are first touched.
pub struct HeapRegion {
    words: usize,
    pieces: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl HeapRegion {
    /// A region of `words` words.
    pub fn new(words: usize) -> Self {
        HeapRegion { words, pieces: (0..words.div_ceil(PIECE)).map(|_| OnceLock::new()).collect() }
    }
}

impl Region for HeapRegion {
    fn words(&self) -> usize {
        self.words
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let piece =
            self.pieces[index / PIECE].get_or_init(|| (0..PIECE).map(|_| AtomicU64::new(0)).collect());
        &piece[index % PIECE]
    }
}

impl fmt::Debug for HeapRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapRegion of {} words", self.words)
    }
}
