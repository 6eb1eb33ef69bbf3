// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our numbers of open files and directories, and what it takes to open them again.

use crate::async_mutex::AsyncMutex;
use crate::listing::Listing;
use crate::message::Caller;
use crate::nodes::Epoch;
use outrigger_core::ops::{Lock, OpenFlags};
use outrigger_core::{Errno, Error, Handle, LockOwner, Node, Result, lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// All open files and directories.
#[derive(Default)]
pub(crate) struct Handles {
    next: AtomicU64,
    open: Mutex<HashMap<Handle, Arc<Open>>>,
}

/// An open file or directory.
pub(crate) struct Open {
    pub(crate) node: Node,
    /// Which of the files that have had the path of the node.
    pub(crate) version: u32,
    pub(crate) handle: Handle,
    /// What it was opened with, less what only the first opening does.
    pub(crate) flags: OpenFlags,
    /// It was opened so that each write goes to the end of the file: ours to find, so that writes can be repeated.
    pub(crate) appends: bool,
    /// Who opened it.
    pub(crate) caller: Caller,
    /// The program's handle, and in which epoch.
    pub(crate) theirs: Mutex<(Epoch, u64)>,
    /// Where a directory's listing is.
    pub(crate) listing: Mutex<Listing>,
    /// Held while it is listed.
    pub(crate) one_listing: AsyncMutex,
    /// Locks held, to be taken again.
    pub(crate) locks: Mutex<Vec<Held>>,
    /// Why writes that were acknowledged are lost, until a program has the error.
    pub(crate) failed: Mutex<Option<Error>>,
}

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) owner: LockOwner,
    pub(crate) lock: Lock,
    pub(crate) flock: bool,
}

impl Handles {
    /// A handle for a file that the program has opened as `theirs`.
    pub(crate) fn add(
        &self,
        (node, version): (Node, u32),
        flags: OpenFlags,
        caller: Caller,
        theirs: (Epoch, u64),
    ) -> Arc<Open> {
        let handle = Handle(self.next.fetch_add(1, Relaxed) + 1);
        let open = Arc::new(Open {
            node,
            version,
            handle,
            flags: lasting(flags),
            appends: flags.contains(OpenFlags::APPEND),
            caller,
            theirs: Mutex::new(theirs),
            listing: Mutex::default(),
            one_listing: AsyncMutex::default(),
            locks: Mutex::default(),
            failed: Mutex::default(),
        });
        lock(&self.open).insert(handle, Arc::clone(&open));
        open
    }

    /// The open file or directory.
    ///
    /// # Errors
    /// `EBADF` when it is not open.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<Open>> {
        lock(&self.open).get(&handle).cloned().ok_or_else(|| Errno::EBADF.because("the file is not open"))
    }

    /// Closes; false when it was closed before.
    pub(crate) fn remove(&self, handle: Handle) -> bool {
        lock(&self.open).remove(&handle).is_some()
    }

    /// Those that hold locks.
    pub(crate) fn locking(&self) -> Vec<Arc<Open>> {
        lock(&self.open).values().filter(|open| !lock(&open.locks).is_empty()).cloned().collect()
    }
}

/// Flags that an opened file keeps. Appending is ours: a write that is repeated must go to the same place.
pub(crate) fn lasting(flags: OpenFlags) -> OpenFlags {
    let once = OpenFlags::EXCL | OpenFlags::TRUNC | OpenFlags::from_bits_retain(libc::O_CREAT as u32);
    flags - once - OpenFlags::APPEND
}

/// Notes in `held` that `new` was taken, or released.
pub(crate) fn note(held: &mut Vec<Held>, new: Held) {
    use outrigger_core::ops::LockKind;
    let mut kept = Vec::with_capacity(held.len() + 2);
    for old in held.drain(..) {
        let other = old.owner != new.owner || old.flock != new.flock;
        if other || old.lock.end < new.lock.start || new.lock.end < old.lock.start {
            kept.push(old);
            continue;
        }
        if old.flock {
            continue;
        }
        // What of the old range the new one does not cover stays (fcntl(2)).
        if old.lock.start < new.lock.start {
            kept.push(Held { lock: Lock { end: new.lock.start - 1, ..old.lock }, ..old });
        }
        if old.lock.end > new.lock.end {
            kept.push(Held { lock: Lock { start: new.lock.end + 1, ..old.lock }, ..old });
        }
    }
    if new.lock.kind != LockKind::Unlock {
        kept.push(new);
    }
    *held = kept;
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::LockKind::{self, Read, Unlock, Write};

    fn held(kind: LockKind, start: u64, end: u64) -> Held {
        Held { owner: LockOwner(1), lock: Lock { start, end, kind, pid: 0 }, flock: false }
    }

    #[test]
    fn locks_are_split_and_replaced_as_fcntl_does() {
        let mut locks = Vec::new();
        note(&mut locks, held(Write, 0, u64::MAX));
        note(&mut locks, held(Unlock, 10, 19));
        assert_eq!(locks, [held(Write, 0, 9), held(Write, 20, u64::MAX)]);
        note(&mut locks, held(Read, 5, 30));
        assert_eq!(locks, [held(Write, 0, 4), held(Write, 31, u64::MAX), held(Read, 5, 30)]);
        note(&mut locks, Held { owner: LockOwner(2), ..held(Unlock, 0, u64::MAX) });
        assert_eq!(locks.len(), 3, "others' locks stay");
    }
}
