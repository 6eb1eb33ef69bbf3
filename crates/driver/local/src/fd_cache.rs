// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bounded cache of `O_PATH` descriptors, so that hot nodes are opened once.
//!
//! Bounded in descriptors, not in time: a door's `Forget` drops a node at once, because a descriptor also keeps the
//! space of a removed file.

use outrigger_core::{Node, lock};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

const SHARDS: usize = 8;

/// Nodes and their descriptors; replaces by the CLOCK rule (an entry used since the hand last passed stays).
#[derive(Debug)]
pub(crate) struct FdCache {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug)]
struct Shard {
    places: HashMap<Node, usize>,
    slots: Vec<Slot>,
    capacity: usize,
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    node: Node,
    fd: Arc<OwnedFd>,
    used: bool,
}

impl FdCache {
    /// A cache of at most `capacity` descriptors (rounded up to a multiple of 8).
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.div_ceil(SHARDS).max(1);
        let shard = || Shard { places: HashMap::new(), slots: Vec::new(), capacity, hand: 0 };
        FdCache { shards: std::array::from_fn(|_| Mutex::new(shard())) }
    }

    /// How many descriptors it holds at most.
    pub(crate) fn capacity(&self) -> usize {
        SHARDS * self.shard(Node::ROOT).capacity
    }

    fn shard(&self, node: Node) -> MutexGuard<'_, Shard> {
        // Inode numbers of neighbours differ in their low bits.
        lock(&self.shards[node.0 as usize % SHARDS])
    }

    /// The descriptor of `node`, if it is here.
    pub(crate) fn get(&self, node: Node) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(node);
        let place = *shard.places.get(&node)?;
        let slot = &mut shard.slots[place];
        slot.used = true;
        Some(Arc::clone(&slot.fd))
    }

    /// Remembers the descriptor of `node`, dropping another if there are too many.
    pub(crate) fn put(&self, node: Node, fd: Arc<OwnedFd>) {
        // Closing happens after the lock is released.
        let _evicted = self.shard(node).put(node, fd);
    }

    /// Drops the descriptor of `node`.
    pub(crate) fn remove(&self, node: Node) {
        let _removed = self.shard(node).remove(node);
    }
}

impl Shard {
    fn put(&mut self, node: Node, fd: Arc<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let slot = Slot { node, fd, used: false };
        if let Some(&place) = self.places.get(&node) {
            return Some(std::mem::replace(&mut self.slots[place], slot).fd);
        }
        if self.slots.len() < self.capacity {
            self.places.insert(node, self.slots.len());
            self.slots.push(slot);
            return None;
        }
        let place = self.victim();
        self.places.insert(node, place);
        let old = std::mem::replace(&mut self.slots[place], slot);
        self.places.remove(&old.node);
        Some(old.fd)
    }

    fn victim(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[place].used) {
                return place;
            }
        }
    }

    fn remove(&mut self, node: Node) -> Option<Arc<OwnedFd>> {
        let place = self.places.remove(&node)?;
        let slot = self.slots.swap_remove(place);
        if let Some(moved) = self.slots.get(place) {
            self.places.insert(moved.node, place);
        }
        self.hand = if self.slots.is_empty() { 0 } else { self.hand % self.slots.len() };
        Some(slot.fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").expect("/dev/null").into())
    }

    #[test]
    fn a_used_entry_outlives_unused_ones_and_the_bound_holds() {
        let cache = FdCache::new(2 * SHARDS);
        let node = |i: usize| Node((i * SHARDS) as u64);
        let hot = fd();
        cache.put(node(0), Arc::clone(&hot));
        for i in 1..10 {
            assert!(cache.get(node(0)).is_some(), "before {i}");
            cache.put(node(i), fd());
        }
        let held = (0..10).filter(|&i| cache.get(node(i)).is_some()).count();
        assert_eq!(held, 2);
        cache.remove(node(0));
        assert!(cache.get(node(0)).is_none());
        assert_eq!(Arc::strong_count(&hot), 1, "nothing keeps a removed descriptor open");
        cache.put(node(20), fd());
        assert!(cache.get(node(20)).is_some());
    }
}
