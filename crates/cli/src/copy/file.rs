// SPDX-License-Identifier: MIT OR Apache-2.0
//! One regular file: opening, content, attributes, and removal when it stays incomplete.

use super::attrs;
use super::content::{Content, Fault, knows_holes};
use super::directory::Directory;
use super::options::Preserve;
use super::shared::Shared;
use crate::say::quoted;
use outrigger_client::{File, Inode};
use outrigger_core::ops::{Forget, Lookup, OpCode, OpenFlags, Unlink};
use outrigger_core::{Attr, DriverClass, Error, FileKind, Name};
use std::sync::Arc;

/// A regular file to copy.
pub(super) struct FileCopy {
    pub(super) source: Inode,
    pub(super) dir: Arc<Directory>,
    pub(super) name: Name,
    /// The file to write into; none to make a new one.
    pub(super) existing: Option<Inode>,
    /// How messages name the source.
    pub(super) from: Vec<u8>,
    /// How messages name the copy.
    pub(super) to: Vec<u8>,
}

/// The file written to.
struct Target {
    inode: Inode,
    file: File,
    /// The mode it was meant to get, if it is new.
    made: Option<u32>,
}

impl FileCopy {
    /// What the trees on both ends cost.
    pub(super) fn trees(&self) -> [DriverClass; 2] {
        [self.source.client().abilities().class, self.dir.inode.client().abilities().class]
    }

    /// Copies the file and gives back source and copy; `None` when that failed, which the user will be told.
    pub(super) fn run(mut self, shared: &Shared) -> Option<(Inode, Inode)> {
        let copied = self.copy(shared);
        if copied.is_some() {
            shared.progress.file();
        }
        let FileCopy { source, dir, .. } = self;
        Directory::release(dir, shared);
        copied.map(|copy| (source, copy))
    }

    fn copy(&mut self, shared: &Shared) -> Option<Inode> {
        let source = match self.source.open(OpenFlags::empty()) {
            Ok(file) => file,
            Err(error) => {
                let name = quoted(&self.from);
                if shared.interrupted(&error) {
                    shared.cannot("cannot open", &self.from, &error);
                } else {
                    shared.complain(format_args!("cannot open {name} for reading: {error}"));
                }
                return None;
            }
        };
        let Target { mut inode, file, made } = self.open_target(shared)?;
        let complete = self.fill(shared, &source, &inode, &file);
        drop(source);
        if !complete {
            drop(file);
            if made.is_some() {
                self.remove_incomplete(shared, &inode);
            }
            return None;
        }
        if self.dir.default_acl && made.is_some() {
            attrs::drop_inherited_acl(shared, &self.source, &inode, &self.to);
        }
        let copied = attrs::Copied { inode: &mut inode, file: Some(&file) };
        attrs::preserve(shared, &self.source, copied, made, &self.to);
        if let Err(error) = file.close() {
            shared.cannot("failed to close", &self.to, &error);
            return None;
        }
        Some(inode)
    }

    /// Copies the content; whether all of it arrived.
    fn fill(&self, shared: &Shared, source: &File, inode: &Inode, target: &File) -> bool {
        if shared.options.attributes_only {
            return true;
        }
        let (from, to) = (self.source.client(), inode.client());
        let content = Content {
            shared,
            source,
            attr: self.source.attr(),
            target,
            same_tree: from.tree() == to.tree(),
            knows_holes: knows_holes(from),
            copies_inside: to.has(OpCode::CopyRange),
        };
        match content.copy() {
            Ok(()) => true,
            Err(Fault::Read(error)) => {
                shared.cannot("error reading", &self.from, &error);
                false
            }
            Err(Fault::Write(error)) => {
                shared.cannot("error writing", &self.to, &error);
                false
            }
        }
    }

    fn open_target(&mut self, shared: &Shared) -> Option<Target> {
        if let Some(inode) = self.existing.take() {
            let mut flags = OpenFlags::WRITE_ONLY;
            if !shared.options.attributes_only {
                flags |= OpenFlags::TRUNC;
            }
            match inode.open(flags) {
                Ok(file) => return Some(Target { inode, file, made: None }),
                Err(error) if !shared.options.force || shared.interrupted(&error) => {
                    shared.cannot("cannot create regular file", &self.to, &error);
                    return None;
                }
                Err(_) => {}
            }
            if let Err(error) = self.dir.inode.unlink(&self.name) {
                shared.cannot("cannot remove", &self.to, &error);
                return None;
            }
        }
        self.create(shared)
            .map_err(|error| shared.cannot("cannot create regular file", &self.to, &error))
            .ok()
    }

    fn create(&self, shared: &Shared) -> Result<Target, Error> {
        let made = new_mode(&shared.options.preserve, self.source.attr());
        let mode = made & !shared.umask & !attrs::withheld(shared, FileKind::Regular);
        // Exclusively: what somebody else put there meanwhile is neither opened nor followed.
        let flags = OpenFlags::WRITE_ONLY | OpenFlags::EXCL;
        let (inode, file) = self.dir.inode.create(&self.name, mode, flags)?;
        Ok(Target { inode, file, made: Some(made) })
    }

    /// Removes what we made and could not complete, provided that the name still leads to it.
    fn remove_incomplete(&self, shared: &Shared, inode: &Inode) {
        // The clean-up of an interruption must not be interrupted by it.
        let client = inode.client().uninterrupted();
        let (dir, name) = (self.dir.inode.node(), self.name.clone());
        let Ok(entry) = client.call(Lookup { dir, name: name.clone() }) else { return };
        drop(client.call(Forget { node: entry.node, count: 1 }));
        if entry.node == inode.node() && client.call(Unlink { dir, name }).is_ok() {
            shared.remark(format!("removed incomplete {}", quoted(&self.to)));
        }
    }
}

/// The mode a new file is meant to get before the umask.
pub(super) fn new_mode(preserve: &Preserve, source: &Attr) -> u32 {
    if preserve.default_mode && !preserve.mode { 0o666 } else { source.permissions() & 0o777 }
}
