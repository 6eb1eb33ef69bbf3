// SPDX-License-Identifier: GPL-2.0-only
//! Which file a node number stands for: an `O_PATH` descriptor, which keeps the inode whatever becomes of its names.

use crate::task::Fd;
use outrigger_core::{Errno, Node, Result};
use std::collections::HashMap;

/// What tells apart the files of one kernel: device and inode number, both of which a file keeps while it is held.
pub type Key = (u32, u32, u64);

/// The nodes that are referred to.
pub struct Nodes {
    held: HashMap<Node, Held>,
    numbers: HashMap<Key, Node>,
    next: u64,
}

struct Held {
    fd: Fd,
    key: Key,
    references: u64,
}

impl Nodes {
    /// The root alone, which is never forgotten.
    pub fn new(root: Fd, key: Key) -> Self {
        let held = HashMap::from([(Node::ROOT, Held { fd: root, key, references: 1 })]);
        Nodes { held, numbers: HashMap::from([(key, Node::ROOT)]), next: Node::ROOT.0 + 1 }
    }

    /// The descriptor of a node.
    ///
    /// # Errors
    /// `ESTALE` when there is no reference to it.
    pub fn fd(&self, node: Node) -> Result<Fd> {
        self.held.get(&node).map(|held| held.fd).ok_or(Errno::ESTALE.into())
    }

    /// Counts a reference to the file `fd` refers to. A descriptor that is not needed is given back, to be closed.
    pub fn found(&mut self, fd: Fd, key: Key) -> (Node, Option<Fd>) {
        if let Some(&node) = self.numbers.get(&key)
            && let Some(held) = self.held.get_mut(&node)
        {
            held.references += 1;
            return (node, Some(fd));
        }
        let node = Node(self.next);
        self.next += 1;
        self.numbers.insert(key, node);
        self.held.insert(node, Held { fd, key, references: 1 });
        (node, None)
    }

    /// Takes back references. The descriptor of a node without references is to be closed.
    pub fn forget(&mut self, node: Node, count: u64) -> Option<Fd> {
        let held = self.held.get_mut(&node).filter(|_| node != Node::ROOT)?;
        held.references = held.references.saturating_sub(count);
        if held.references > 0 {
            return None;
        }
        let Held { fd, key, .. } = self.held.remove(&node)?;
        self.numbers.remove(&key);
        Some(fd)
    }

    /// All descriptors, to be closed.
    pub fn drain(&mut self) -> Vec<Fd> {
        self.numbers.clear();
        self.held.drain().map(|(_, held)| held.fd).collect()
    }
}
