// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tree below says unasked.

use crate::inner::Inner;
use crate::names::What;
use crate::table::Table;
use outrigger_core::{Name, Node, Notice, Notify, lock};
use std::sync::Arc;

/// Stands between the tree below and the door.
pub(crate) struct NoticeForwarder {
    pub(crate) inner: Arc<Inner>,
    pub(crate) above: Arc<dyn Notify>,
}

impl Notify for NoticeForwarder {
    fn notify(&self, notice: Notice) {
        // First here: a caller that asks because of the notice must not get the old state.
        self.inner.apply(&notice);
        self.above.notify(notice);
    }
}

impl Inner {
    fn apply(&self, notice: &Notice) {
        let mut table = lock(&self.table);
        match notice {
            Notice::InvalidateNode { node, offset, .. } => {
                table.changed_elsewhere(*node);
                table.invalidate_names(*node);
                if *offset >= 0 {
                    table.replace_content(*node);
                }
            }
            Notice::Store { node, .. } => {
                table.changed_elsewhere(*node);
                table.replace_content(*node);
            }
            Notice::InvalidateEntry { dir, name } => doubt(&mut table, *dir, name),
            Notice::Deleted { dir, node, name } => {
                doubt(&mut table, *dir, name);
                table.changed_elsewhere(*node);
            }
            Notice::InvalidateAll => table.clear(),
            // What a former process knew was lost with it, and the door answers for itself.
            Notice::Revalidate { .. } | Notice::Prune { .. } | Notice::Wake { .. } => {}
        }
    }
}

fn doubt(table: &mut Table, dir: Node, name: &Name) {
    table.changed_elsewhere(dir);
    table.change_names(dir, |names| names.learn(name, What::Unknown, (0, 0)));
}
