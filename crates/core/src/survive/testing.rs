// SPDX-License-Identifier: MIT OR Apache-2.0
//! Death at each access to what outlives a process, for tests of taking over.
//!
//! ```
//! use outrigger_core::survive::testing::{Life, each_death};
//! use outrigger_core::{HeapKeep, Keep};
//! use std::sync::Arc;
//! use std::sync::atomic::Ordering::Relaxed;
//!
//! let deaths = each_death(|life: &Arc<Life>| {
//!     let keep = Arc::new(HeapKeep::default());
//!     let store = |keep: &dyn Keep, word, value| {
//!         keep.region("pair", 2).expect("memory").word(word).store(value, Relaxed);
//!     };
//!     let mortal = life.of(&keep);
//!     store(&mortal, 1, 7);
//!     store(&mortal, 0, 1);
//!     let left = keep.region("pair", 2).expect("memory");
//!     let [head, content] = [0, 1].map(|word| left.word(word).load(Relaxed));
//!     assert!(head == 0 || content == 7);
//! });
//! assert_eq!(deaths, 2);
//! ```

use crate::error::Result;
use crate::keep::{HeapKeep, HeapRegion, Keep, Region};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// How many accesses to its regions a process has before it dies.
#[derive(Debug)]
pub struct Life(AtomicUsize);

impl Life {
    /// So many.
    pub fn new(accesses: usize) -> Arc<Self> {
        Arc::new(Life(AtomicUsize::new(accesses)))
    }

    /// Whether the process has died: it tried one access more.
    pub fn is_over(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Counts an access; whether it happens.
    fn access(&self) -> bool {
        // 1 stands for none left, since the one that is too much ends the life.
        let left = self.0.load(Relaxed);
        self.0.store(left.saturating_sub(1), Relaxed);
        left > 1
    }

    /// `region` as the process sees it: when it has died, it goes on alone in a copy.
    pub fn in_region(self: &Arc<Self>, region: Arc<dyn Region>) -> Arc<dyn Region> {
        let words = region.words();
        let [grave, copied] = [(); 2].map(|()| HeapRegion::new(words));
        Arc::new(Mortal { region, grave, copied, life: Arc::clone(self) })
    }

    /// `keep` as the process sees it.
    pub fn of(self: &Arc<Self>, keep: &Arc<HeapKeep>) -> MortalKeep {
        MortalKeep { keep: Arc::clone(keep), life: Arc::clone(self) }
    }
}

/// Calls `one` with a life of no access, of one, of two, until one is long enough. Gives how many were not.
pub fn each_death(mut one: impl FnMut(&Arc<Life>)) -> usize {
    let dies = |accesses: &usize| {
        let life = Life::new(accesses + 1);
        one(&life);
        life.is_over()
    };
    (0..).take_while(dies).count()
}

struct Mortal {
    region: Arc<dyn Region>,
    /// What the process stores after its death.
    grave: HeapRegion,
    /// Which words are in there.
    copied: HeapRegion,
    life: Arc<Life>,
}

impl Region for Mortal {
    fn words(&self) -> usize {
        self.region.words()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        if self.life.access() {
            return self.region.word(index);
        }
        let word = self.grave.word(index);
        if self.copied.word(index).swap(1, Relaxed) == 0 {
            word.store(self.region.word(index).load(Relaxed), Relaxed);
        }
        word
    }
}

/// A keep whose process dies; see [`Life::of`].
#[derive(Debug)]
pub struct MortalKeep {
    keep: Arc<HeapKeep>,
    life: Arc<Life>,
}

impl Keep for MortalKeep {
    fn region(&self, name: &'static str, words: usize) -> Result<Arc<dyn Region>> {
        Ok(self.life.in_region(self.keep.region(name, words)?))
    }

    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.keep.hold(fd)
    }

    fn let_go(&self, fd: BorrowedFd<'_>) {
        if !self.life.is_over() {
            self.keep.let_go(fd);
        }
    }

    fn adopt(&self, number: RawFd) -> Result<OwnedFd> {
        self.keep.adopt(number)
    }
}
