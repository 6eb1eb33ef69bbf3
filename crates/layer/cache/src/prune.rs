// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes that the door refers to and of which nothing is known here any more. The tree below has to know them as long as the
//! door refers to them, which may be for ever; so the door is asked to let go of them.

use outrigger_core::Node;
use std::collections::HashSet;

/// The door is asked when there are so many more than it kept the last time, and half as many again.
const MORE: usize = 4096;
/// The most that are remembered: a door that keeps them all was asked once for each.
const MAX: usize = 1 << 16;

/// Such nodes.
#[derive(Default)]
pub(crate) struct PruneList {
    nodes: HashSet<Node>,
    /// How many of them the door kept when it was last asked.
    kept: usize,
}

impl PruneList {
    /// There is one more; gives those that the door is to be asked for now.
    pub(crate) fn add(&mut self, node: Node) -> Option<Vec<Node>> {
        self.nodes.insert(node);
        if self.nodes.len() < self.kept + (self.kept / 2).max(MORE) {
            return None;
        }
        let nodes = self.nodes.iter().copied().collect();
        if self.nodes.len() >= MAX {
            self.nodes.clear();
        }
        self.kept = self.nodes.len();
        Some(nodes)
    }

    /// The door has let go of it, or something is known of it again.
    pub(crate) fn remove(&mut self, node: Node) {
        self.nodes.remove(&node);
        self.kept = self.kept.min(self.nodes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_asked_again_for_what_it_kept_and_for_little_at_a_time() {
        let mut unneeded = PruneList::default();
        let mut asked = Vec::new();
        for number in 0..20 * MORE as u64 {
            let Some(nodes) = unneeded.add(Node(number)) else { continue };
            assert!(nodes.contains(&Node(0)), "one that is in use is asked for each time");
            // The door keeps one of a hundred.
            nodes.iter().filter(|node| node.0 % 100 != 0).for_each(|&node| unneeded.remove(node));
            asked.push(nodes.len());
        }
        assert!(asked.len() >= 19 && asked.iter().all(|&nodes| nodes < 2 * MORE), "{asked:?}");
    }

    #[test]
    fn a_door_that_keeps_everything_costs_little() {
        let mut unneeded = PruneList::default();
        let nodes = 40 * MAX;
        let asked: usize =
            (0..nodes as u64).filter_map(|node| unneeded.add(Node(node))).map(|nodes| nodes.len()).sum();
        assert!(asked < 4 * nodes && unneeded.nodes.len() <= MAX, "{asked}");
    }
}
