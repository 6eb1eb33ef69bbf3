// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which order nodes were last used, to know which ones the worker need not hold.

use outrigger_core::wire::{Input, Malformed};
use outrigger_core::{Node, Wire};
use std::collections::BTreeMap;

/// A moment, in uses; none has the number 0.
pub(crate) type Sequence = u64;

/// Each node at the moment of its last use.
#[derive(Default)]
pub(crate) struct Recent {
    nodes: BTreeMap<Sequence, Node>,
    now: Sequence,
}

impl Recent {
    /// `node` was used last at that moment, which is over.
    pub(crate) fn was_used(&mut self, node: Node, used: Sequence) {
        self.nodes.insert(used, node);
    }

    /// `node` is used now, and was before at the moment `used`, which changes.
    pub(crate) fn touch(&mut self, node: Node, used: &mut Sequence) {
        self.nodes.remove(used);
        self.now += 1;
        *used = self.now;
        self.nodes.insert(self.now, node);
    }

    /// What was used at that moment is not counted any more.
    pub(crate) fn remove(&mut self, used: Sequence) {
        self.nodes.remove(&used);
    }

    /// No node is counted any more. Moments of before stay different from those of later.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
    }

    /// How many nodes are counted.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// All of them, those first that were not used for longest.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = Node> + '_ {
        self.nodes.values().copied()
    }
}

/// The moment of the last use of all; the process that has the others restores them with [`Recent::was_used`].
impl Wire for Recent {
    fn put(&self, out: &mut Vec<u8>) {
        self.now.put(out);
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Ok(Recent { nodes: BTreeMap::new(), now: Sequence::get(input)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_is_first() {
        let (mut recent, mut used) = (Recent::default(), [0; 4]);
        for number in [1, 2, 3, 1] {
            recent.touch(Node(number), &mut used[number as usize]);
        }
        assert_eq!(recent.oldest().collect::<Vec<_>>(), [2, 3, 1].map(Node));
        recent.remove(used[3]);
        assert_eq!((recent.oldest().collect::<Vec<_>>(), recent.len()), ([2, 1].map(Node).to_vec(), 2));
        recent.clear();
        recent.touch(Node(2), &mut used[2]);
        assert_eq!((recent.oldest().collect::<Vec<_>>(), recent.len()), (vec![Node(2)], 1));
    }
}
