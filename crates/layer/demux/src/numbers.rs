// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of nodes and inodes above, and what they stand for.

use outrigger_core::Node;
use std::collections::HashMap;

/// One opening of one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    /// The number of the tree's root above.
    pub(crate) tree: u64,
    /// Which opening, from 1.
    pub(crate) number: u32,
}

/// What a node above stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// An upper directory.
    Upper,
    /// The root of a tree, whether it is open or not.
    Root,
    /// A node of a tree.
    Inside(Life, Node),
}

#[derive(Debug)]
struct Known {
    place: Place,
    /// References that the door has.
    references: u64,
}

/// The node numbers above.
#[derive(Debug)]
pub(crate) struct Numbers {
    known: HashMap<u64, Known>,
    inside: HashMap<(Life, u64), u64>,
    next: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        let root = Known { place: Place::Upper, references: 0 };
        let known = HashMap::from([(Node::ROOT.0, root)]);
        Numbers { known, inside: HashMap::new(), next: Node::ROOT.0 + 1 }
    }
}

impl Numbers {
    /// What a node stands for; `None` when the door refers to it no more, or never did.
    pub(crate) fn place(&self, node: Node) -> Option<Place> {
        self.known.get(&node.0).map(|known| known.place)
    }

    /// A number for a directory of this service. It stays until [`Numbers::drop_root`].
    pub(crate) fn add(&mut self, place: Place) -> Node {
        let number = self.next;
        self.next += 1;
        self.known.insert(number, Known { place, references: 0 });
        Node(number)
    }

    /// The number of a node that a tree has answered: counts one reference, unless it is the tree's root.
    pub(crate) fn refer_inside(&mut self, life: Life, inner: Node) -> Node {
        if inner == Node::ROOT {
            return self.refer(Node(life.tree));
        }
        let number = match self.inside.get(&(life, inner.0)) {
            Some(&number) => number,
            None => {
                let number = self.add(Place::Inside(life, inner)).0;
                self.inside.insert((life, inner.0), number);
                number
            }
        };
        self.refer(Node(number))
    }

    /// Counts a reference to a node that is known.
    pub(crate) fn refer(&mut self, node: Node) -> Node {
        if let Some(known) = self.known.get_mut(&node.0) {
            known.references += 1;
        }
        node
    }

    /// The number of a node of a tree, if the door refers to it.
    pub(crate) fn of_inside(&self, life: Life, inner: Node) -> Option<Node> {
        match inner {
            Node::ROOT => Some(Node(life.tree)),
            _ => self.inside.get(&(life, inner.0)).copied().map(Node),
        }
    }

    /// The door returns references. Answers what the node stood for.
    pub(crate) fn forget(&mut self, node: Node, count: u64) -> Option<Place> {
        let known = self.known.get_mut(&node.0)?;
        known.references = known.references.saturating_sub(count);
        let (place, left) = (known.place, known.references);
        if let (Place::Inside(life, inner), 0) = (place, left) {
            self.known.remove(&node.0);
            self.inside.remove(&(life, inner.0));
        }
        Some(place)
    }

    /// How many references the door has to a node.
    pub(crate) fn references(&self, node: Node) -> u64 {
        self.known.get(&node.0).map_or(0, |known| known.references)
    }

    /// Nodes of an opening that the door refers to, the latest first: what is in a directory comes before the directory.
    pub(crate) fn of_life(&self, life: Life) -> Vec<Node> {
        let mine = self.inside.iter().filter(|((of, _), _)| *of == life);
        let mut nodes: Vec<Node> = mine.map(|(_, &number)| Node(number)).collect();
        nodes.sort_unstable_by(|a, b| b.cmp(a));
        nodes
    }

    /// Forgets the root of a tree that is gone.
    pub(crate) fn drop_root(&mut self, node: Node) {
        self.known.remove(&node.0);
    }
}

/// Where the inode numbers of a tree begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u16);

/// The slot of the directories of this service.
const UPPER: Slot = Slot(u16::MAX);

impl Slot {
    /// The inode number above of one of the tree in this slot. Adding the same number to all keeps different ones different.
    pub(crate) fn ino(self, inner: u64) -> u64 {
        inner.wrapping_add(u64::from(self.0) << 48)
    }
}

/// Which slots trees have. Beyond 65,000 trees some share the first one.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// How many were given out at least once.
    used: u16,
    free: Vec<Slot>,
    /// Trees that have the first slot besides another one.
    sharing: usize,
}

impl Slots {
    const SHARED: Slot = Slot(1);

    /// A slot for one more tree.
    pub(crate) fn take(&mut self) -> Slot {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        if self.used + 1 < UPPER.0 {
            self.used += 1;
            return Slot(self.used);
        }
        self.sharing += 1;
        Slots::SHARED
    }

    /// A tree does not have this slot any more.
    pub(crate) fn give_back(&mut self, slot: Slot) {
        match self.sharing.checked_sub(1) {
            Some(left) if slot == Slots::SHARED => self.sharing = left,
            _ => self.free.push(slot),
        }
    }
}

/// The inode number of a directory of this service.
pub(crate) fn upper_ino(node: Node) -> u64 {
    if node == Node::ROOT { node.0 } else { UPPER.ino(node.0) }
}
