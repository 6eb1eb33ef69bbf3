// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that requests hold while they wait for answers.

use outrigger_core::gate::Gate;
use outrigger_core::{Node, lock};
use std::collections::HashSet;
use std::sync::Mutex;

/// What is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum What {
    /// The copy of this file or directory is being made.
    Copy(Node),
    /// The names in this directory are being changed. Taken after every copy that the change needs: a copy takes this lock too.
    Names(Node),
}

/// The locks that are held.
#[derive(Default)]
pub(crate) struct Locks {
    held: Mutex<HashSet<What>>,
    gate: Gate,
}

/// A lock; released when it is dropped.
pub(crate) struct Held<'a> {
    locks: &'a Locks,
    what: What,
}

impl Locks {
    /// Waits for a lock.
    pub(crate) async fn take(&self, what: What) -> Held<'_> {
        self.gate.wait(|| lock(&self.held).insert(what).then_some(())).await;
        Held { locks: self, what }
    }

    /// Waits for the locks of the names in two directories, which may be the same.
    pub(crate) async fn names(&self, one: Node, other: Node) -> (Held<'_>, Option<Held<'_>>) {
        let first = self.take(What::Names(one.min(other))).await;
        let second = match one == other {
            true => None,
            false => Some(self.take(What::Names(one.max(other))).await),
        };
        (first, second)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.locks.held).remove(&self.what);
        self.locks.gate.open();
    }
}
