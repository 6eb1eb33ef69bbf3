// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices of a tree on their way to the door, with the numbers above.

use crate::inner::Inner;
use crate::numbers::Life;
use outrigger_core::{Node, Notice, Notify};
use std::sync::Weak;

/// Where one opening of a tree sends its notices.
pub(crate) struct Heard {
    pub(crate) inner: Weak<Inner>,
    pub(crate) life: Life,
}

impl Heard {
    /// The notice above; `None` when it is about what the door does not refer to.
    fn above(&self, inner: &Inner, notice: Notice) -> Option<Notice> {
        let state = inner.lock();
        let known = |node: Node| state.numbers.of_inside(self.life, node);
        Some(match notice {
            Notice::InvalidateNode { node, offset, len } => {
                Notice::InvalidateNode { node: known(node)?, offset, len }
            }
            Notice::InvalidateEntry { dir, name } => Notice::InvalidateEntry { dir: known(dir)?, name },
            Notice::Deleted { dir, node, name } => match known(node) {
                Some(node) => Notice::Deleted { dir: known(dir)?, node, name },
                None => Notice::InvalidateEntry { dir: known(dir)?, name },
            },
            Notice::Store { node, offset, data } => Notice::Store { node: known(node)?, offset, data },
            Notice::Revalidate { node } => Notice::Revalidate { node: known(node)? },
            Notice::Prune { nodes } => {
                let nodes = nodes.into_iter().filter(|&node| node != Node::ROOT).filter_map(known);
                Notice::Prune { nodes: nodes.collect() }
            }
            Notice::InvalidateAll | Notice::Wake { .. } => notice,
        })
    }
}

impl Notify for Heard {
    fn notify(&self, notice: Notice) {
        let Some(inner) = self.inner.upgrade() else { return };
        if let (Some(notice), Some(above)) = (self.above(&inner, notice), inner.above.get()) {
            above.notify(notice);
        }
    }
}
