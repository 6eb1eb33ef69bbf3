// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which nodes are known to be regular files, so that opening one needs no stat before.

use outrigger_core::{HeapRegion, Node, Region};
use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: usize = 8192;

/// A set of fixed size that forgets: each node has one place, taken by the last that claimed it.
///
/// The kind of a file never changes, and a node never stands for two files, so an answer is never out of date.
pub(crate) struct RegularNodes(HeapRegion);

impl RegularNodes {
    /// The empty set; it grows to 64 KiB.
    pub(crate) fn new() -> Self {
        RegularNodes(HeapRegion::new(SLOTS))
    }

    fn place(&self, node: Node) -> &AtomicU64 {
        self.0.word(node.0 as usize % SLOTS)
    }

    /// `node` is a regular file.
    pub(crate) fn add(&self, node: Node) {
        self.place(node).store(node.0, Ordering::Relaxed);
    }

    /// Whether `node` is known to be a regular file.
    pub(crate) fn has(&self, node: Node) -> bool {
        self.place(node).load(Ordering::Relaxed) == node.0
    }
}

impl std::fmt::Debug for RegularNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegularNodes")
    }
}
