// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the other side of one connection calls the nodes of this tree.

use outrigger_core::{Node, Notice, lock};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Of so many nodes a notice is remembered that came before the reply which tells of them was read.
const DOUBTED: usize = 1 << 10;
/// With more of them all replies are doubted for so long: each that was on its way has been read then.
const ALL_DOUBTED: Duration = Duration::from_secs(600);

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
    /// There were more than are remembered: until when every reply is doubted.
    all_doubted: Option<Instant>,
}

impl State {
    /// What they call by this number.
    fn ours(&self, theirs: Node) -> Option<Node> {
        if theirs == Node::ROOT { Some(Node::ROOT) } else { self.ours.get(&theirs).copied() }
    }

    /// Remembers a notice about a node that is not known.
    fn doubt(&mut self, theirs: Node) {
        if self.doubted.len() >= DOUBTED {
            self.doubted.clear();
            self.all_doubted = Some(Instant::now() + ALL_DOUBTED);
        }
        self.doubted.insert(theirs);
    }
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
        lock(&self.0).ours(theirs)
    }

    /// They have told of a node, and counted a reference. Answers whether it has changed since the reply was made, and what they called it
    /// before, if that is another one.
    pub(crate) fn note(&self, ours: Node, theirs: Node) -> (bool, Option<Theirs>) {
        let mut state = lock(&self.0);
        let all_are = state.all_doubted.is_some_and(|until| Instant::now() < until);
        let is_doubted = state.doubted.remove(&theirs) || all_are;
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
            // Under one lock: a reply that is read meanwhile finds the doubt, or the notice finds what the reply told of.
            let mut state = lock(&self.0);
            let ours = state.ours(theirs);
            if ours.is_none() {
                state.doubt(theirs);
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

    #[test]
    fn more_notices_than_are_remembered_make_all_replies_doubtful_for_a_while() {
        let numbers = Numbers::default();
        for node in 0..3 * DOUBTED as u64 {
            numbers.notice(Notice::InvalidateNode { node: Node(node + 100), offset: 0, len: 0 });
        }
        assert!(lock(&numbers.0).doubted.len() <= DOUBTED);
        assert!(numbers.note(Node(5), Node(100)).0, "its notice is not remembered any more");
        lock(&numbers.0).all_doubted = Some(Instant::now());
        assert!(!numbers.note(Node(5), Node(100)).0);
    }
}
