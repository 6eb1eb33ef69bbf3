// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files that have lost a name. Each keeps one that programs do not see, in a directory of the server, so that it is found again when
//! the server dies.

use crate::place::{FIRST_CHANGE, KEEPS, REMOVED_NAME};
use outrigger_core::{Name, Node, Wire};
use std::collections::HashMap;

/// Which they are, and how many open files each node has.
#[derive(Default, Wire)]
#[wire(internal)]
pub(crate) struct Nameless {
    open: HashMap<Node, u64>,
    kept: HashMap<Node, Kept>,
    nodes: HashMap<Name, Node>,
}

#[derive(Wire)]
#[wire(internal)]
struct Kept {
    name: Name,
    /// Whether it may get another one: what was made without a name may, what has lost it may not.
    may_be_linked: bool,
    /// Whether a request to remove it was made.
    goes: bool,
}

/// The name that a file keeps by the change in the frame with this number, if it is to keep one.
pub fn silly_name(frame: u64) -> Option<Name> {
    let keeps = frame & FIRST_CHANGE != 0 && frame & KEEPS != 0;
    keeps.then(|| name(&(frame & !(FIRST_CHANGE | KEEPS)).to_string()))
}

/// `text`, which is a name.
fn name(text: &str) -> Name {
    Name::try_from(text).unwrap_or_else(|_| unreachable!("neither empty nor long, and without a slash"))
}

impl Nameless {
    /// A file is opened.
    pub(crate) fn opened(&mut self, node: Node) {
        *self.open.entry(node).or_default() += 1;
    }

    /// It is not any more.
    pub(crate) fn closed(&mut self, node: Node) {
        if let Some(count) = self.open.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&node);
            }
        }
    }

    /// Whether a file has no such name.
    pub(crate) fn lacks(&self, node: Node) -> bool {
        !self.kept.contains_key(&node)
    }

    /// Whether a file is open.
    pub(crate) fn is_open(&self, node: Node) -> bool {
        self.open.contains_key(&node)
    }

    /// A file has such a name now, and may get another one or not.
    pub(crate) fn keep(&mut self, node: Node, name: Name, may_be_linked: bool) {
        self.nodes.insert(name.clone(), node);
        self.kept.insert(node, Kept { name, may_be_linked, goes: false });
    }

    /// Whether a file may get a name.
    pub(crate) fn may_be_linked(&self, node: Node) -> bool {
        self.kept.get(&node).is_none_or(|kept| kept.may_be_linked)
    }

    /// Where a file is that has such a name.
    pub(crate) fn path(&self, node: Node) -> Option<Vec<Name>> {
        self.kept.get(&node).map(|kept| vec![name(REMOVED_NAME), kept.name.clone()])
    }

    /// Of the links to a file, those that programs see.
    pub(crate) fn visible_links(&self, node: Node, links: u32) -> u32 {
        links.saturating_sub(u32::from(self.kept.contains_key(&node)))
    }

    /// The name of a file that is not open any more, if no request to remove it was made.
    pub(crate) fn superfluous(&self, node: Node) -> Option<Name> {
        let kept = self.kept.get(&node).filter(|kept| !kept.goes && !self.open.contains_key(&node))?;
        Some(kept.name.clone())
    }

    /// A request to remove the name of a file was made.
    pub(crate) fn goes(&mut self, node: Node) {
        self.kept.get_mut(&node).into_iter().for_each(|kept| kept.goes = true);
    }

    /// The name is removed.
    pub(crate) fn gone(&mut self, name: &Name) {
        if let Some(node) = self.nodes.remove(name) {
            self.kept.remove(&node);
        }
    }
}
