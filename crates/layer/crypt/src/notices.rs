// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices from the tree below, in terms of the tree above.

use crate::names::{Means, means};
use crate::state::Inner;
use outrigger_core::{Name, Node, Notice, Notify};
use std::sync::Arc;

/// Where notices from below go.
pub(crate) struct Translated {
    pub(crate) inner: Arc<Inner>,
    pub(crate) above: Arc<dyn Notify>,
}

impl Translated {
    /// What `stored` in `dir` is called; `None` where that would have to be looked up.
    fn name(&self, dir: Node, stored: &Name) -> Option<Name> {
        self.inner.keys.name(&self.inner.dir(dir)?, stored)
    }
}

impl Notify for Translated {
    fn notify(&self, notice: Notice) {
        let notice = match notice {
            Notice::InvalidateEntry { name, .. } | Notice::Deleted { name, .. }
                if means(&name) == Means::Own =>
            {
                return;
            }
            Notice::InvalidateEntry { dir, name } => match self.name(dir, &name) {
                Some(name) => Notice::InvalidateEntry { dir, name },
                None => Notice::InvalidateAll,
            },
            Notice::Deleted { dir, node, name } => match self.name(dir, &name) {
                Some(name) => Notice::Deleted { dir, node, name },
                None => Notice::InvalidateAll,
            },
            // A part of a block tells nothing of the block.
            Notice::InvalidateNode { node, offset, .. } if offset >= 0 => {
                Notice::InvalidateNode { node, offset: 0, len: 0 }
            }
            Notice::Store { node, .. } => Notice::InvalidateNode { node, offset: 0, len: 0 },
            other => other,
        };
        self.above.notify(notice);
    }
}
