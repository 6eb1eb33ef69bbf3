// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advisory locks of ranges of one file, and whose they are (fcntl(2)): for whoever keeps locks by itself.

use crate::node::LockOwner;
use crate::ops::{Lock, LockKind};

/// A lock and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLock {
    /// Who has it.
    pub owner: LockOwner,
    /// The range and the kind.
    pub lock: Lock,
}

/// The locks of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeLocks(Vec<HeldLock>);

fn overlap(a: &Lock, b: &Lock) -> bool {
    a.start <= b.end && b.start <= a.end
}

impl RangeLocks {
    /// The first lock of somebody else that stands in the way.
    pub fn conflict(&self, owner: LockOwner, lock: &Lock) -> Option<HeldLock> {
        let exclusive = lock.kind == LockKind::Write;
        let in_the_way = |held: &&HeldLock| {
            held.owner != owner
                && overlap(&held.lock, lock)
                && (exclusive || held.lock.kind == LockKind::Write)
        };
        self.0.iter().find(in_the_way).copied()
    }

    /// Gives `owner` this kind of lock on the range: cuts what it held there, and joins neighbours of one kind.
    pub fn apply(&mut self, owner: LockOwner, mut lock: Lock) {
        let mut rest = Vec::new();
        self.0.retain(|held| {
            let mut old = held.lock;
            if held.owner != owner {
                return true;
            }
            let touches = old.start <= lock.end.saturating_add(1) && lock.start <= old.end.saturating_add(1);
            if touches && old.kind == lock.kind {
                lock.start = lock.start.min(old.start);
                lock.end = lock.end.max(old.end);
                return false;
            }
            if !overlap(&old, &lock) {
                return true;
            }
            if old.start < lock.start {
                rest.push(Lock { end: lock.start - 1, ..old });
            }
            if old.end > lock.end {
                old.start = lock.end + 1;
                rest.push(old);
            }
            false
        });
        if lock.kind != LockKind::Unlock {
            rest.push(lock);
        }
        self.0.extend(rest.into_iter().map(|lock| HeldLock { owner, lock }));
    }

    /// Takes all locks from `owner`; answers whether there was one.
    pub fn release(&mut self, owner: LockOwner) -> bool {
        let before = self.0.len();
        self.0.retain(|held| held.owner != owner);
        self.0.len() < before
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &HeldLock> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(kind: LockKind, start: u64, end: u64) -> Lock {
        Lock { start, end, kind, pid: 0 }
    }

    #[test]
    fn ranges_are_cut_and_joined_and_shared_locks_stand_in_no_ones_way() {
        let (one, two) = (LockOwner(1), LockOwner(2));
        let mut locks = RangeLocks::default();
        locks.apply(one, lock(LockKind::Write, 0, 99));
        locks.apply(one, lock(LockKind::Unlock, 40, 49));
        assert_eq!(locks.conflict(two, &lock(LockKind::Write, 40, 49)), None);
        let held = locks.conflict(two, &lock(LockKind::Read, 45, u64::MAX)).unwrap();
        assert_eq!((held.owner, held.lock.start, held.lock.end), (one, 50, 99));
        locks.apply(one, lock(LockKind::Read, 0, 99));
        assert_eq!(locks.conflict(two, &lock(LockKind::Read, 0, 99)), None);
        assert!(locks.conflict(one, &lock(LockKind::Write, 0, 99)).is_none(), "nobody is in his own way");
        locks.apply(one, lock(LockKind::Read, 100, u64::MAX));
        assert_eq!(locks.len(), 1, "neighbours are joined");
        assert!(locks.release(one) && locks.is_empty() && !locks.release(one));
    }
}
