// SPDX-License-Identifier: MIT OR Apache-2.0
//! One regular file: opening, content, attributes, and removal when it stays incomplete, unless the source is damaged: then what
//! could be read stays, as with GNU cp.

use super::attrs;
use super::content::{Content, Fault, knows_holes};
use super::directory::Directory;
use super::options::{Preserve, Sparse};
use super::shared::Shared;
use crate::say::quoted;
use bytes::Bytes;
use outrigger_client::{File, Inode};
use outrigger_core::ops::{Forget, Lookup, OpCode, OpenFlags, Unlink};
use outrigger_core::{Attr, DriverClass, Error, FileKind, Name};
use std::sync::Arc;

/// Flags for new files. Exclusive: what another process put there meanwhile is neither opened nor followed.
const NEW: OpenFlags = OpenFlags::WRITE_ONLY.union(OpenFlags::EXCL);
/// Files up to this size, in bytes, are copied together with others.
const SMALL: u64 = 64 << 10;

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
    /// It has content, which is written over: it may be the source.
    full: bool,
}

impl FileCopy {
    /// What the trees on both ends cost.
    pub(super) fn trees(&self) -> [DriverClass; 2] {
        [self.source.client().abilities().class, self.dir.inode.client().abilities().class]
    }

    /// Copies the file and gives back source and copy; `None` when that failed, which is reported.
    pub(super) fn run(mut self, shared: &Shared) -> Option<(Inode, Inode)> {
        let copied = self.copy(shared);
        if copied.is_some() {
            shared.progress.file();
        }
        let FileCopy { source, dir, .. } = self;
        Directory::release(dir, shared);
        copied.map(|copy| (source, copy))
    }

    /// Whether both go into the same tree.
    pub(super) fn has_target_tree_of(&self, other: &FileCopy) -> bool {
        self.dir.inode.client().tree() == other.dir.inode.client().tree()
    }

    /// Whether it can be copied together with others: a small file that gets a new name in another tree.
    pub(super) fn is_small(&self, shared: &Shared) -> bool {
        let (attr, options) = (self.source.attr(), &shared.options);
        self.existing.is_none()
            && attr.size <= SMALL
            && attr.blocks.saturating_mul(512) >= attr.size
            && options.sparse != Sparse::Always
            && !options.attributes_only
            && self.source.kind() == FileKind::Regular
            && !self.source.client().abilities().opens_streams
            && self.source.client().tree() != self.dir.inode.client().tree()
    }

    /// Copies several files into one tree, each of which [is small](FileCopy::is_small): a tree that is asked through a
    /// connection is asked for many of them at once. What turns out to be otherwise is copied by itself.
    pub(super) fn run_together(files: Vec<FileCopy>, shared: &Shared) {
        let mut ready = Vec::with_capacity(files.len());
        for file in files {
            match file.content() {
                Some(content) if !shared.cancel.is_raised() => ready.push((file, content)),
                _ => drop(file.run(shared)),
            }
        }
        let wanted = ready.iter().map(|(file, _)| (&file.dir.inode, file.name.clone(), file.modes(shared).1));
        let made = Inode::create_all(wanted, NEW);
        let mut open = Vec::with_capacity(made.len());
        for ((file, content), made) in ready.into_iter().zip(made) {
            match made {
                Ok((inode, target)) => {
                    let made = Some(file.modes(shared).0);
                    open.push((file, content, Target { inode, file: target, made, full: false }));
                }
                Err(error) => {
                    shared.cannot("cannot create regular file", &file.to, &error);
                    Directory::release(file.dir, shared);
                }
            }
        }
        let mut written =
            File::fill_all(open.iter().map(|(_, content, target)| (&target.file, content.clone())));
        if open.first().is_some_and(|(file, ..)| file.is_synced(shared)) {
            let synced = File::sync_all(open.iter().map(|(_, _, target)| &target.file));
            written.iter_mut().zip(synced).for_each(|(written, synced)| {
                *written = std::mem::replace(written, Ok(())).and(synced);
            });
        }
        for ((file, content, target), written) in open.into_iter().zip(written) {
            if let Err(error) = &written {
                shared.cannot("error writing", &file.to, error);
            }
            shared.progress.bytes(content.len() as u64);
            if file.finish(shared, target, written.is_ok()).is_some() {
                shared.progress.file();
            }
            Directory::release(file.dir, shared);
        }
    }

    /// All of it; none when that is not as much as was expected, or cannot be had.
    fn content(&self) -> Option<Bytes> {
        let source = self.source.open(OpenFlags::empty()).ok().filter(|file| !file.is_stream())?;
        let size = self.source.attr().size as usize;
        // One more byte shows whether it has grown.
        source.read_at(0, size + 1).ok().filter(|content| content.len() == size)
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
        let target = self.open_target(shared)?;
        let complete = match self.fill(shared, &source, &target) {
            Ok(()) => self.sync(shared, &target.file),
            Err(Fault::Read(error)) => {
                shared.cannot("error reading", &self.from, &error);
                let kept = target.file.attr().map_or(0, |attr| attr.size);
                if kept > 0 && !shared.options.moving && !shared.interrupted(&error) {
                    self.keep_part(shared, target.file, (kept, source.is_stream()));
                    return None;
                }
                false
            }
            Err(Fault::Write(error)) => {
                shared.cannot("error writing", &self.to, &error);
                false
            }
        };
        drop(source);
        self.finish(shared, target, complete)
    }

    /// Gives the copy its attributes, or removes it when it is not complete.
    fn finish(&self, shared: &Shared, target: Target, complete: bool) -> Option<Inode> {
        let Target { mut inode, file, made, full: _ } = target;
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

    /// Whether the copy itself has to reach stable storage: in a tree on another host, for which nothing else says that it
    /// has (other trees are synchronised as a whole), and on the host when the source goes afterwards. As with GNU's, copies
    /// from the host to the host are left to its kernel.
    fn is_synced(&self, shared: &Shared) -> bool {
        match self.trees() {
            [_, DriverClass::Network] => true,
            [from, DriverClass::PassThrough] => shared.options.moving && from != DriverClass::PassThrough,
            _ => false,
        }
    }

    /// Puts the content on stable storage where that is wanted; whether it is there.
    fn sync(&self, shared: &Shared, target: &File) -> bool {
        let synced = if self.is_synced(shared) { target.sync_if_able() } else { Ok(()) };
        synced.map_err(|error| shared.cannot("error writing", &self.to, &error)).is_ok()
    }

    /// Leaves the `kept` bytes before those that could not be read in the copy, without the source's attributes.
    fn keep_part(&self, shared: &Shared, target: File, (kept, is_stream): (u64, bool)) {
        if !self.sync(shared, &target) {
            return;
        }
        match target.close() {
            Ok(()) => {
                let (to, size) = (quoted(&self.to), self.source.attr().size);
                let of = if is_stream { String::new() } else { format!(" of {size}") };
                shared.remark(format!("{to} has the first {kept}{of} bytes"));
            }
            Err(error) => shared.cannot("failed to close", &self.to, &error),
        }
    }

    /// Copies the content.
    fn fill(&self, shared: &Shared, source: &File, target: &Target) -> Result<(), Fault> {
        if shared.options.attributes_only {
            return Ok(());
        }
        let Target { inode, file: target, full, .. } = target;
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
        if *full && !source.is_stream() { content.copy_over() } else { content.copy() }
    }

    fn open_target(&mut self, shared: &Shared) -> Option<Target> {
        if let Some(inode) = self.existing.take() {
            let full = self.source.may_be_same(&inode);
            let mut flags = OpenFlags::WRITE_ONLY;
            if !shared.options.attributes_only && !full {
                flags |= OpenFlags::TRUNC;
            }
            match inode.open(flags) {
                Ok(file) => return Some(Target { inode, file, made: None, full }),
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
        let (made, mode) = self.modes(shared);
        let (inode, file) = self.dir.inode.create(&self.name, mode, NEW)?;
        Ok(Target { inode, file, made: Some(made), full: false })
    }

    /// The mode a new file is meant to get before the umask, and the one it is made with.
    fn modes(&self, shared: &Shared) -> (u32, u32) {
        let made = new_mode(&shared.options.preserve, self.source.attr());
        (made, made & !shared.umask & !attrs::withheld(shared, FileKind::Regular))
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
