// SPDX-License-Identifier: MIT OR Apache-2.0
//! What changes of our own do to content that is known.

use crate::file::{Content, File};
use crate::inner::Inner;
use bytes::Bytes;
use outrigger_core::ops::{OpenFlags, Write};
use outrigger_core::{Cx, Effect, Node, Payload, Reply, Request, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a change does to the content of one file.
enum Does {
    /// Bytes are written at a place.
    Writes(u64, Bytes),
    /// It becomes empty.
    Empties,
    /// Something else becomes of it.
    Replaces,
    /// It gets a time of modification.
    Stamps,
    /// Its names or attributes change.
    Touches,
    /// Nothing; but what others did before becomes visible.
    Locks,
}

/// What a change does to content, and which.
pub(crate) struct Changed {
    node: Node,
    does: Does,
    /// How often the content had been changed when it set out.
    changes: u64,
}

impl Inner {
    /// What `request` does to content, which is marked before it sets out: what is read meanwhile may be old or new.
    pub(crate) fn change_contents(&self, cx: &Cx, request: &Request) -> Option<Changed> {
        let mut changed = self.content_changes(cx, request)?;
        if let Some(file) = self.known_file(changed.node) {
            let mut content = lock(&file.content);
            match changed.does {
                Does::Writes(..) => content.is_ours(),
                Does::Empties | Does::Replaces => content.is_changed(),
                Does::Stamps => content.has_our_time(),
                Does::Touches => content.is_touched(),
                Does::Locks => file.may_be_locked.store(true, Ordering::Release),
            }
            changed.changes = content.changes;
        }
        Some(changed)
    }

    fn content_changes(&self, cx: &Cx, request: &Request) -> Option<Changed> {
        let effects = || request.effects().into_iter();
        let content = effects().find_map(|effect| match (effect, request) {
            (Effect::Writes { node, .. }, Request::Write(op)) => Some((node, self.writes(cx, op))),
            (Effect::Writes { node, .. }, Request::SetAttr(op))
                if op.attrs.size == Some(0) && op.handle.is_none() =>
            {
                Some((node, Does::Empties))
            }
            (Effect::Writes { node, .. } | Effect::Anything { node }, _) => Some((node, Does::Replaces)),
            _ => None,
        });
        let others = || {
            effects().find_map(|effect| match effect {
                Effect::Attributes { node, attrs: Some(attrs) } if attrs.mtime.is_some() => {
                    Some((node, Does::Stamps))
                }
                Effect::Attributes { node, .. }
                | Effect::SetsXattr { node, .. }
                | Effect::RemovesXattr { node, .. } => Some((node, Does::Touches)),
                Effect::Locks { node, takes: true } => Some((node, Does::Locks)),
                _ => None,
            })
        };
        content.or_else(others).map(|(node, does)| Changed { node, does, changes: 0 })
    }

    /// A write to a place that is known in advance.
    fn writes(&self, cx: &Cx, op: &Write) -> Does {
        let flags = self.handles.file(op.node, op.handle).and_then(|open| open.flags);
        // A former process knew how it was opened.
        let appends = cx.writes_at_end(flags.unwrap_or(OpenFlags::APPEND), op.cached);
        match &op.data {
            _ if appends => Does::Replaces,
            Payload::File(_) => Does::Replaces,
            data => data.clone().into_bytes().map_or(Does::Replaces, |bytes| Does::Writes(op.offset, bytes)),
        }
    }

    fn known_file(&self, node: Node) -> Option<Arc<File>> {
        lock(&self.table).known_file(node)
    }

    /// It was done, or not.
    pub(crate) fn contents_changed(&self, changed: Option<Changed>, reply: &Reply) {
        if let Reply::Created(created) = reply {
            // It may have been there before, and emptied.
            lock(&self.table).replace_content(created.entry.node);
        }
        let Some(Changed { node, does, changes }) = changed else { return };
        match (does, reply) {
            (Does::Writes(offset, bytes), Reply::Count(count)) => {
                let Some(file) = self.known_file(node) else { return };
                let written = bytes.slice(..bytes.len().min(count.0 as usize));
                self.overlay(&mut lock(&file.content), offset, written, changes);
            }
            (Does::Empties, Reply::Attrs(_)) => {
                lock(&self.table).replace_content(node);
                self.writeback.losses.emptied(node);
                let Some(file) = self.known_file(node) else { return };
                let mut content = lock(&file.content);
                // Another change may have come by meanwhile.
                content.emptied = content.changes == changes + 1;
            }
            (Does::Writes(..) | Does::Empties | Does::Replaces, _) => lock(&self.table).replace_content(node),
            // What others did while they had the lock must be seen.
            (Does::Locks, Reply::Done(())) => lock(&self.table).changed_elsewhere(node),
            (Does::Stamps | Does::Touches | Does::Locks, _) => {}
        }
    }

    /// `bytes` were written at `offset`, by a change that set out after so many others.
    pub(crate) fn overlay(&self, content: &mut Content, offset: u64, bytes: Bytes, changes: u64) {
        let end = offset + bytes.len() as u64;
        content.size = content.size.map(|size| size.max(end));
        content.any = true;
        let mut pool = lock(&self.pool);
        match content.changes == changes {
            true => pool.insert(content.id, offset, bytes),
            // Which of two writes at the same time came last is not known here.
            false => pool.discard(content.id, offset, end),
        }
        content.changes += 1;
    }
}
