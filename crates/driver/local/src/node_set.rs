// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of nodes that take no more memory than a fixed table.

use outrigger_core::{HeapRegion, Node, Region};
use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: usize = 8192;

/// A set of fixed size that forgets: each node has one place, taken by the last that claimed it.
///
/// A node never stands for two files, so an answer is never out of date.
pub(crate) struct NodeSet(HeapRegion);

impl NodeSet {
    /// The empty set; it grows to 64 KiB.
    pub(crate) fn new() -> Self {
        NodeSet(HeapRegion::new(SLOTS))
    }

    fn place(&self, node: Node) -> &AtomicU64 {
        self.0.word(node.0 as usize % SLOTS)
    }

    /// Puts `node` into it.
    pub(crate) fn add(&self, node: Node) {
        self.place(node).store(node.0, Ordering::Relaxed);
    }

    /// Whether `node` was put into it, and no other one has taken its place.
    pub(crate) fn has(&self, node: Node) -> bool {
        self.place(node).load(Ordering::Relaxed) == node.0
    }
}

impl std::fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeSet")
    }
}
