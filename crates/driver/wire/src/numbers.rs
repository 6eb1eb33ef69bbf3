// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the other side of one connection calls the nodes of this tree.

use outrigger_core::{Node, Notice, lock};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// Of so many nodes a notice is remembered that came before the reply which tells of them was read.
const DOUBTED: usize = 1 << 10;

/// A node of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Theirs {
    pub(crate) node: Node,
    /// How many references it has counted for us.
    pub(crate) references: u64,
}

/// Of one connection.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    theirs: HashMap<Node, Theirs>,
    ours: HashMap<Node, Node>,
    /// Nodes of theirs that were not known when a notice about them came.
    doubted: HashSet<Node>,
    /// There were more than are remembered.
    all_doubted: bool,
}

impl Numbers {
    /// What they call a node.
    pub(crate) fn theirs(&self, ours: Node) -> Option<Node> {
        if ours == Node::ROOT {
            return Some(Node::ROOT);
        }
        lock(&self.0).theirs.get(&ours).map(|theirs| theirs.node)
    }

    /// What they call by this number.
    pub(crate) fn ours(&self, theirs: Node) -> Option<Node> {
        if theirs == Node::ROOT {
            return Some(Node::ROOT);
        }
        lock(&self.0).ours.get(&theirs).copied()
    }

    /// They have told of a node, and counted a reference. Answers whether it has changed since the reply was made, and what they called it
    /// before, if that is another one.
    pub(crate) fn note(&self, ours: Node, theirs: Node) -> (bool, Option<Theirs>) {
        let mut state = lock(&self.0);
        let is_doubted = state.all_doubted || state.doubted.remove(&theirs);
        state.ours.insert(theirs, ours);
        let known = state.theirs.entry(ours).or_insert(Theirs { node: theirs, references: 0 });
        let before = (known.node != theirs).then_some(*known);
        if before.is_some() {
            *known = Theirs { node: theirs, references: 0 };
        }
        known.references += 1;
        (is_doubted, before)
    }

    /// A node is not referred to any more.
    pub(crate) fn forget(&self, ours: Node) -> Option<Theirs> {
        let mut state = lock(&self.0);
        let theirs = state.theirs.remove(&ours)?;
        if state.ours.get(&theirs.node) == Some(&ours) {
            state.ours.remove(&theirs.node);
        }
        Some(theirs)
    }

    /// A notice with our numbers; nothing for one about what is not known here.
    pub(crate) fn notice(&self, notice: Notice) -> Option<Notice> {
        let known = |theirs: Node| {
            let ours = self.ours(theirs);
            if ours.is_none() {
                let mut state = lock(&self.0);
                state.all_doubted |= state.doubted.len() >= DOUBTED;
                state.doubted.insert(theirs);
            }
            ours
        };
        Some(match notice {
            Notice::InvalidateNode { node, offset, len } => {
                Notice::InvalidateNode { node: known(node)?, offset, len }
            }
            Notice::InvalidateEntry { dir, name } => Notice::InvalidateEntry { dir: known(dir)?, name },
            Notice::Deleted { dir, node, name } => match (known(dir), known(node)) {
                (Some(dir), Some(node)) => Notice::Deleted { dir, node, name },
                (Some(dir), None) => Notice::InvalidateEntry { dir, name },
                (None, Some(node)) => Notice::InvalidateNode { node, offset: -1, len: 0 },
                (None, None) => return None,
            },
            Notice::InvalidateAll => Notice::InvalidateAll,
            // The others are between a tree and a door on one machine.
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_have_our_numbers_and_make_what_is_on_its_way_doubtful() {
        let numbers = Numbers::default();
        assert_eq!(numbers.note(Node(5), Node(50)), (false, None));
        let notice = |node| Notice::InvalidateNode { node: Node(node), offset: 0, len: 0 };
        assert_eq!(numbers.notice(notice(50)), Some(notice(5)));
        assert_eq!(numbers.notice(notice(60)), None);
        assert_eq!(numbers.note(Node(6), Node(60)), (true, None), "the reply was made before the change");
        assert_eq!(numbers.note(Node(6), Node(60)), (false, None));
        assert_eq!(numbers.note(Node(6), Node(61)), (false, Some(Theirs { node: Node(60), references: 2 })));
        assert_eq!(numbers.forget(Node(6)), Some(Theirs { node: Node(61), references: 1 }));
        assert_eq!((numbers.theirs(Node(6)), numbers.forget(Node(6))), (None, None));
        assert_eq!(numbers.notice(Notice::InvalidateAll), Some(Notice::InvalidateAll));
    }
}
