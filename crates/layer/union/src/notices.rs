// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices of the two trees, about nodes that the door knows by other numbers.

use crate::nodes::{Nodes, Side};
use outrigger_core::{Node, Notice, Notify};
use std::sync::Arc;

/// Passes notices of one tree on.
pub(crate) struct Renumbering {
    pub(crate) side: Side,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) above: Arc<dyn Notify>,
}

impl Renumbering {
    /// The node that is called `own` in the upper tree.
    fn known(&self, own: Node) -> Option<Node> {
        if own == Node::ROOT { Some(own) } else { self.nodes.table().keyed(own.0) }
    }
}

impl Notify for Renumbering {
    fn notify(&self, notice: Notice) {
        // Nodes of the lower tree are not found by their numbers: it is meant to stay as it is.
        let changed = matches!(
            notice,
            Notice::InvalidateNode { .. } | Notice::InvalidateEntry { .. } | Notice::Deleted { .. }
        );
        if self.side == Side::Lower && changed {
            return self.above.notify(Notice::InvalidateAll);
        }
        let notice = match notice {
            Notice::InvalidateNode { node, offset, len } => {
                self.known(node).map(|node| Notice::InvalidateNode { node, offset, len })
            }
            // What the name leads to now may be in the other tree.
            Notice::InvalidateEntry { dir, name } | Notice::Deleted { dir, name, .. } => {
                self.known(dir).map(|dir| Notice::InvalidateEntry { dir, name })
            }
            Notice::InvalidateAll | Notice::Wake { .. } => Some(notice),
            // References are the layer's own, and content goes by way of the tree that is shown.
            Notice::Store { .. } | Notice::Revalidate { .. } | Notice::Prune { .. } => None,
        };
        notice.into_iter().for_each(|notice| self.above.notify(notice));
    }
}
