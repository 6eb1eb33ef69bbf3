// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes that only a descriptor leads to: the root, and files without a name that somebody still refers to.

use crate::handles::{Handles, Kept};
use outrigger_core::{Handle, Keep, Node, Result, lock};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// A node and its descriptor.
#[derive(Clone, Debug)]
struct HeldNode {
    node: Node,
    fd: Arc<OwnedFd>,
}

impl Kept for HeldNode {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn known(&self) -> u64 {
        self.node.0
    }

    fn adopt(fd: OwnedFd, known: u64) -> Self {
        HeldNode { node: Node(known), fd: Arc::new(fd) }
    }
}

/// Descriptors by node, each with its handle in the table; without one if it could not be noted.
type ByNode = HashMap<Node, (Option<Handle>, Arc<OwnedFd>)>;

/// What is held.
#[derive(Debug)]
pub(crate) struct HeldNodes {
    table: Handles<HeldNode>,
    by_node: Mutex<ByNode>,
}

impl HeldNodes {
    /// What is in `keep`; nothing without.
    ///
    /// # Errors
    /// Those of [`Handles::open`].
    pub(crate) fn open(keep: Option<Arc<dyn Keep>>, most: usize) -> Result<Self> {
        let table = Handles::<HeldNode>::open(keep, "local-held", most)?;
        let named = |(handle, held): (Handle, HeldNode)| (held.node, (Some(handle), held.fd));
        let by_node = Mutex::new(table.all().into_iter().map(named).collect());
        Ok(HeldNodes { table, by_node })
    }

    fn lock(&self) -> MutexGuard<'_, ByNode> {
        lock(&self.by_node)
    }

    /// The descriptor of `node`.
    pub(crate) fn get(&self, node: Node) -> Option<Arc<OwnedFd>> {
        self.lock().get(&node).map(|(_, fd)| Arc::clone(fd))
    }

    /// Keeps the descriptor of `node`, for this process only when no more can be noted. Tells whether there was none.
    pub(crate) fn put(&self, node: Node, fd: Arc<OwnedFd>) -> bool {
        let mut by_node = self.lock();
        if by_node.contains_key(&node) {
            return false;
        }
        let handle = self.table.insert(HeldNode { node, fd: Arc::clone(&fd) }).ok();
        by_node.insert(node, (handle, fd));
        true
    }

    /// Lets go of the descriptor of `node`, if there is one.
    pub(crate) fn remove(&self, node: Node) {
        let removed = self.lock().remove(&node);
        if let Some((Some(handle), _)) = &removed {
            drop(self.table.remove(*handle));
        }
    }
}
