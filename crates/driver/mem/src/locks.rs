// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advisory locks: POSIX locks of ranges (fcntl(2)) and locks of whole open files (flock(2)).

use crate::Mem;
use crate::inode::Inode;
use crate::record::Record;
use outrigger_core::ops::{GetLock, Lock, LockKind, SetLock};
use outrigger_core::range_locks::{HeldLock, RangeLocks};
use outrigger_core::survive::Room;
use outrigger_core::{Cx, Errno, LockOwner, Node, Result};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};

/// The most words of a record of a lock.
pub(crate) const LOCK_WORDS: usize = 7;

/// The locks of one file.
#[derive(Default)]
pub(crate) struct Locks {
    ranges: RangeLocks,
    wholes: RangeLocks,
    waiters: Vec<Waiter>,
}

/// Someone to wake when locks of this file are released.
struct Waiter {
    /// The owner noted in [`Waits`], for a POSIX lock.
    noted: Option<LockOwner>,
    waker: Waker,
}

/// Which owner waits for whose POSIX lock, over all files: a cycle is a deadlock.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Vec<(LockOwner, LockOwner)>>);

impl Waits {
    /// Notes that `waiter` waits for `holder`; `EDEADLK` when `holder` already waits, through others, for `waiter`.
    fn add(&self, waiter: LockOwner, holder: LockOwner) -> Result<()> {
        let mut edges = self.0.lock();
        let mut seen = vec![holder];
        let mut next = 0;
        while let Some(&owner) = seen.get(next) {
            if owner == waiter {
                return Err(Errno::EDEADLK.because("the holder of the lock waits for the owner that asks"));
            }
            let further = edges.iter().filter(|(from, _)| *from == owner).map(|(_, to)| *to);
            let further: Vec<LockOwner> = further.filter(|to| !seen.contains(to)).collect();
            seen.extend(further);
            next += 1;
        }
        edges.push((waiter, holder));
        Ok(())
    }

    fn remove(&self, waiter: LockOwner) {
        let mut edges = self.0.lock();
        if let Some(at) = edges.iter().position(|(from, _)| *from == waiter) {
            edges.swap_remove(at);
        }
    }
}

impl Locks {
    fn list(&mut self, flock: bool) -> &mut RangeLocks {
        if flock { &mut self.wholes } else { &mut self.ranges }
    }

    /// Gives `owner` this kind of lock on the range.
    pub fn apply(&mut self, flock: bool, owner: LockOwner, lock: Lock) {
        self.list(flock).apply(owner, lock);
    }

    /// Takes all locks of one kind from `owner`; answers whether there was one.
    pub fn release(&mut self, flock: bool, owner: LockOwner) -> bool {
        self.list(flock).release(owner)
    }

    /// All locks as records of the inode `ino`.
    pub fn records(&self, ino: u64) -> impl Iterator<Item = Record> {
        let record = move |flock| {
            move |held: &HeldLock| Record::Lock { ino, flock, owner: held.owner, lock: held.lock }
        };
        self.ranges.iter().map(record(false)).chain(self.wholes.iter().map(record(true)))
    }

    /// Everyone who waited; their waits are over until they look again.
    fn take_waiters(&mut self, waits: &Waits) -> Vec<Waiter> {
        let waiters = std::mem::take(&mut self.waiters);
        waiters.iter().filter_map(|waiter| waiter.noted).for_each(|owner| waits.remove(owner));
        waiters
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wake(waiters: Vec<Waiter>) {
    waiters.into_iter().for_each(|waiter| waiter.waker.wake());
}

pub(crate) fn get(mem: &Mem, op: &GetLock) -> Result<Option<Lock>> {
    let inode = mem.table.get(op.node)?;
    check(&op.lock)?;
    if op.lock.kind == LockKind::Unlock {
        return Err(Errno::EINVAL.because("F_GETLK asks about a lock, not about its release"));
    }
    Ok(inode.locks.lock().ranges.conflict(op.owner, &op.lock).map(|held| held.lock))
}

fn check(lock: &Lock) -> Result<()> {
    if lock.start <= lock.end {
        Ok(())
    } else {
        Err(Errno::EINVAL.because("a lock that ends before it starts"))
    }
}

pub(crate) fn set(mem: &Mem, cx: &Cx, op: &SetLock) -> Result<()> {
    let inode = mem.table.get(op.node)?;
    check(&op.lock)?;
    let mut lock = op.lock;
    if op.flock {
        (lock.start, lock.end) = (0, u64::MAX);
    }
    if op.flock && lock.kind != LockKind::Unlock {
        // flock(2): a conversion first removes the lock held, so that two converting holders cannot wait for each other.
        release(mem, &inode, op.owner, &[true]);
    }
    loop {
        let mut group = mem.change(match lock.kind {
            LockKind::Unlock => Room::Less(LOCK_WORDS),
            _ => Room::More(LOCK_WORDS),
        })?;
        let mut locks = inode.locks.lock();
        let blocker = match lock.kind {
            LockKind::Unlock => None,
            _ => locks.list(op.flock).conflict(op.owner, &lock),
        };
        let Some(blocker) = blocker else {
            locks.apply(op.flock, op.owner, lock);
            group.push(|| Record::Lock { ino: inode.ino, flock: op.flock, owner: op.owner, lock });
            group.commit();
            let waiters = locks.take_waiters(&mem.waits);
            drop(locks);
            wake(waiters);
            return Ok(());
        };
        if !op.wait {
            return Err(Errno::EAGAIN.into());
        }
        // Locks of flock(2) are not watched for deadlocks, as the manual page has it.
        if !op.flock {
            mem.waits.add(op.owner, blocker.owner)?;
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        locks.waiters.push(Waiter { noted: (!op.flock).then_some(op.owner), waker: waker.clone() });
        drop((locks, group));
        wait(mem, cx, &inode.locks, &waker)?;
    }
}

/// Parks until something was released or the request is cancelled.
fn wait(mem: &Mem, cx: &Cx, locks: &Mutex<Locks>, waker: &Waker) -> Result<()> {
    loop {
        let cancelled = pin!(cx.cancel.raised()).poll(&mut Context::from_waker(waker)).is_ready();
        let mut locks = locks.lock();
        let Some(at) = locks.waiters.iter().position(|waiter| waiter.waker.will_wake(waker)) else {
            return Ok(());
        };
        if cancelled {
            if let Some(owner) = locks.waiters.swap_remove(at).noted {
                mem.waits.remove(owner);
            }
            return Err(Errno::EINTR.into());
        }
        drop(locks);
        thread::park();
    }
}

fn release(mem: &Mem, inode: &Inode, owner: LockOwner, kinds: &[bool]) {
    let mut group = mem.change_anyway(2 * LOCK_WORDS);
    let mut locks = inode.locks.lock();
    let mut released = false;
    for &flock in kinds {
        if locks.release(flock, owner) {
            group.push(|| Record::Unlocked { ino: inode.ino, flock, owner });
            released = true;
        }
    }
    if released {
        group.commit();
        let waiters = locks.take_waiters(&mem.waits);
        drop(locks);
        wake(waiters);
    }
}

/// Releases the POSIX locks of `owner` on a file, and its flock(2) lock too when asked.
pub(crate) fn release_all(mem: &Mem, node: Node, owner: LockOwner, flock: bool) -> Result<()> {
    let inode = mem.table.get(node)?;
    release(mem, &inode, owner, if flock { &[false, true] } else { &[false] });
    Ok(())
}
