// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of the tree's size and inode limits is in use.

use crate::content::PAGE;
use outrigger_core::{Errno, Error, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that never passes its limit.
struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// Takes as much of `wanted` as is left, in whole multiples of `unit`.
    fn take_some(&self, wanted: u64, unit: u64) -> u64 {
        let mut granted = 0;
        let grant = |used: u64| {
            let left = self.limit.saturating_sub(used);
            granted = wanted.min(left - left % unit);
            (granted > 0).then(|| used + granted)
        };
        match self.used.fetch_update(Relaxed, Relaxed, grant) {
            Ok(_) => granted,
            Err(_) => 0,
        }
    }

    fn take(&self, wanted: u64) -> bool {
        let grant = |used: u64| used.checked_add(wanted).filter(|&used| used <= self.limit);
        self.used.fetch_update(Relaxed, Relaxed, grant).is_ok()
    }

    fn give_back(&self, amount: u64) {
        self.used.fetch_sub(amount, Relaxed);
    }

    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Relaxed))
    }
}

/// The two budgets of a tree: bytes (pages of content, extended attributes) and inodes.
pub(crate) struct Space {
    bytes: Budget,
    inodes: Budget,
}

fn full() -> Error {
    Errno::ENOSPC.because("the tree in memory has reached its size limit")
}

impl Space {
    pub fn new(bytes: u64, inodes: u64) -> Self {
        let budget = |limit| Budget { limit, used: AtomicU64::new(0) };
        Space { bytes: budget(bytes), inodes: budget(inodes) }
    }

    /// Takes up to `wanted` pages; answers how many.
    pub fn take_some_pages(&self, wanted: u64) -> u64 {
        self.bytes.take_some(wanted.saturating_mul(PAGE), PAGE) / PAGE
    }

    /// Takes `count` pages or fails with `ENOSPC`.
    pub fn take_pages(&self, count: u64) -> Result<()> {
        self.take_bytes(count.saturating_mul(PAGE))
    }

    pub fn give_back_pages(&self, count: u64) {
        self.bytes.give_back(count * PAGE);
    }

    /// Takes `count` bytes or fails with `ENOSPC`.
    pub fn take_bytes(&self, count: u64) -> Result<()> {
        if self.bytes.take(count) { Ok(()) } else { Err(full()) }
    }

    pub fn give_back_bytes(&self, count: u64) {
        self.bytes.give_back(count);
    }

    /// Takes one inode or fails with `ENOSPC`.
    pub fn take_inode(&self) -> Result<()> {
        if self.inodes.take(1) {
            Ok(())
        } else {
            Err(Errno::ENOSPC.because("the tree in memory has reached its inode limit"))
        }
    }

    pub fn give_back_inode(&self) {
        self.inodes.give_back(1);
    }

    /// Counts what a file of a former process takes, even beyond the limits, which may be lower now.
    pub fn restore(&self, pages: u64, xattrs: u64) {
        self.bytes.used.fetch_add(pages.saturating_mul(PAGE).saturating_add(xattrs), Relaxed);
        self.inodes.used.fetch_add(1, Relaxed);
    }

    /// Limit and free bytes.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes.limit, self.bytes.free())
    }

    /// Limit and free inodes.
    pub fn inodes(&self) -> (u64, u64) {
        (self.inodes.limit, self.inodes.free())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_grants_what_is_left_and_no_more() {
        let space = Space::new(10 * PAGE + 1, 1);
        assert_eq!(space.take_some_pages(8), 8);
        assert_eq!(space.take_some_pages(8), 2);
        assert_eq!(space.take_some_pages(8), 0);
        assert_eq!(space.take_bytes(2).unwrap_err().errno, Errno::ENOSPC);
        space.take_bytes(1).unwrap();
        space.give_back_pages(1);
        assert_eq!(space.bytes(), (10 * PAGE + 1, PAGE));
        space.take_inode().unwrap();
        assert_eq!(space.take_inode().unwrap_err().errno, Errno::ENOSPC);
    }
}
