// SPDX-License-Identifier: MIT OR Apache-2.0
//! What changes of our own do to content that is known.

use crate::file::File;
use crate::inner::Inner;
use crate::record::lock;
use bytes::Bytes;
use outrigger_core::ops::{LockKind, OpenFlags, Write};
use outrigger_core::paths::Subject;
use outrigger_core::{Node, OpCode, Payload, Reply, Request};
use std::sync::Arc;

/// What a change does to the content of one file.
enum Does {
    /// Bytes are written at a place.
    Writes(u64, Bytes),
    /// Something else becomes of it.
    Replaces,
    /// It gets a time of modification.
    Stamps,
    /// Its names or attributes change.
    Touches,
    /// Nothing; but what others did before becomes visible.
    Meets,
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
    pub(crate) fn change_contents(&self, request: &Request, subjects: &[Subject]) -> Vec<Changed> {
        let mut all = self.content_changes(request, subjects);
        for changed in &mut all {
            let Some(file) = self.known_file(changed.node) else { continue };
            let mut content = lock(&file.content);
            match changed.does {
                Does::Writes(..) => content.is_ours(),
                Does::Replaces => content.changes += 1,
                Does::Stamps => content.has_our_time(),
                Does::Touches => content.is_touched(),
                Does::Meets => {}
            }
            changed.changes = content.changes;
        }
        all
    }

    fn content_changes(&self, request: &Request, subjects: &[Subject]) -> Vec<Changed> {
        let (node, does) = match request {
            Request::Write(op) => (op.node, self.writes(op)),
            Request::SetAttr(op) if op.attrs.size.is_some() => (op.node, Does::Replaces),
            Request::SetAttr(op) if op.attrs.mtime.is_some() => (op.node, Does::Stamps),
            Request::SetAttr(op) => (op.node, Does::Touches),
            Request::SetXattr(op) => (op.node, Does::Touches),
            Request::RemoveXattr(op) => (op.node, Does::Touches),
            Request::Link(op) => (op.node, Does::Touches),
            Request::CopyRange(op) => (op.to_node, Does::Replaces),
            Request::SetLock(op) if op.lock.kind != LockKind::Unlock => (op.node, Does::Meets),
            Request::Open(op) if !op.flags.contains(OpenFlags::TRUNC) => return Vec::new(),
            _ if alters_names_only(request.op()) => return Vec::new(),
            // Whatever it does, it may do to all that it mentions.
            _ => {
                let replaces =
                    |subject: &Subject| Changed { node: subject.node, does: Does::Replaces, changes: 0 };
                return subjects.iter().map(replaces).collect();
            }
        };
        vec![Changed { node, does, changes: 0 }]
    }

    /// A write to a place that is known in advance.
    fn writes(&self, op: &Write) -> Does {
        let flags = self.handles.file(op.node, op.handle).and_then(|open| open.flags);
        let appends = flags.is_none_or(|flags| flags.contains(OpenFlags::APPEND)) && !op.cached;
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
    pub(crate) fn contents_changed(&self, all: Vec<Changed>, reply: &Reply) {
        if let Reply::Created(created) = reply {
            // It may have been there before, and emptied.
            lock(&self.table).replace_content(created.entry.node);
        }
        for Changed { node, does, changes } in all {
            match (does, reply) {
                (Does::Writes(offset, bytes), Reply::Count(count)) => {
                    let Some(file) = self.known_file(node) else { continue };
                    let written = bytes.slice(..bytes.len().min(count.0 as usize));
                    self.overlay(&file, offset, written, changes);
                }
                (Does::Writes(..) | Does::Replaces, _) => lock(&self.table).replace_content(node),
                (Does::Meets, Reply::Done(())) => self.meet_others(node),
                (Does::Stamps | Does::Touches | Does::Meets, _) => {}
            }
        }
    }

    /// `bytes` were written at `offset`, by a change that set out after so many others.
    pub(crate) fn overlay(&self, file: &File, offset: u64, bytes: Bytes, changes: u64) {
        let mut content = lock(&file.content);
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

    /// A lock was taken: what others did while they had it must be seen.
    fn meet_others(&self, node: Node) {
        lock(&self.table).changed_elsewhere(node);
    }
}

/// Whether a change alters names, and nothing about the content of files: what one replaces has another node.
fn alters_names_only(op: OpCode) -> bool {
    use OpCode::{Create, MkDir, MkNod, Rename, RmDir, SetLock, SymLink, TmpFile, Unlink};
    matches!(op, MkNod | MkDir | SymLink | Unlink | RmDir | Rename | Create | TmpFile | SetLock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Class;

    #[test]
    fn a_change_that_is_not_known_replaces_content() {
        use OpCode::{CopyRange, Fallocate, Ioctl, Link, Open, RemoveXattr, SetAttr, SetXattr, Write};
        let known = [Write, SetAttr, SetXattr, RemoveXattr, Link, CopyRange, Open];
        let changes = OpCode::ALL.iter().filter(|op| op.class() == Class::Change);
        let rest: Vec<OpCode> =
            changes.copied().filter(|&op| !alters_names_only(op) && !known.contains(&op)).collect();
        assert_eq!(
            rest,
            [Fallocate, Ioctl],
            "what a new operation does to content is to be said here if it is less than all"
        );
    }
}
