// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making, moving and removing names.

use super::FileServer;
use super::inner::Inner;
use super::write::Emptied;
use crate::diagnosis::Attempt;
use crate::fault::Fault;
use crate::silly_rename::SillyServer;
use outrigger_core::ops::{Create, MkDir, OpenFlags, Rename, RenameFlags, RmDir, Unlink};
use outrigger_core::reply::{Created, Entry};
use outrigger_core::{Attr, Cx, Errno, Error, FileKind, Name, Node, Result};
use std::sync::Arc;

impl<S: FileServer> SillyServer for &Inner<S> {
    type Fault = Error;

    async fn rename(&self, (dir, name): (Node, &Name), (to_dir, to_name): (Node, &Name)) -> Result<()> {
        self.rename_file(&self.inodes.child(dir, name)?, &self.inodes.child(to_dir, to_name)?).await
    }

    async fn remove(&self, dir: Node, name: &Name) -> Result<bool> {
        self.remove_file(&self.inodes.child(dir, name)?).await.map(|()| true)
    }

    async fn is_there(&self, dir: Node, name: &Name) -> Result<bool> {
        match self.look(&self.inodes.child(dir, name)?).await {
            Err(error) if error.errno == Errno::ENOENT => Ok(false),
            looked => looked.map(|_| true),
        }
    }
}

impl<S: FileServer> Inner<S> {
    /// What `name` in `dir` leads to, if anything.
    async fn existing(&self, dir: Node, name: &Name) -> Result<Option<Entry>> {
        match self.find(dir, name).await {
            Ok(listed) => self.entry(dir, name, listed.as_ref()).map(Some),
            Err(error) if error.errno == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        let Create { dir, name, mode, flags, .. } = op;
        // That no other client has made it meanwhile is looked at when it is uploaded.
        let is_new = flags.contains(OpenFlags::ASYNC_CREATE);
        let existing = if is_new { None } else { self.existing(dir, &name).await? };
        let entry = match existing {
            Some(entry) => {
                let refused = match entry.attr.kind() {
                    _ if flags.contains(OpenFlags::EXCL) => Some(Errno::EEXIST),
                    FileKind::Directory => Some(Errno::EISDIR),
                    _ => None,
                };
                if let Some(errno) = refused {
                    self.inodes.table().forget(entry.node, 1);
                    return Err(errno.into());
                }
                if flags.contains(OpenFlags::TRUNC) {
                    let _lock = self.locks.lock(entry.node).await;
                    let emptied = self.resize(entry.node, 0).await;
                    emptied.inspect_err(|_| self.inodes.table().forget(entry.node, 1))?;
                    return self.opened_new(
                        cx,
                        Entry { attr: Attr { size: 0, ..entry.attr }, ..entry },
                        flags,
                    );
                }
                entry
            }
            None => {
                self.server.keeps_name(&self.inodes.child(dir, &name)?)?;
                let (node, _) = self.inodes.found(dir, &name, FileKind::Regular)?;
                let exclusive = is_new || flags.contains(OpenFlags::EXCL);
                let how = Emptied { is_new: true, exclusive, seen: None };
                self.stage_empty(node, mode & 0o7777, how)
                    .inspect_err(|_| self.inodes.table().forget(node, 1))?;
                let entry = self.entry(dir, &name, None)?;
                self.inodes.table().forget(node, 1);
                entry
            }
        };
        self.opened_new(cx, entry, flags)
    }

    fn opened_new(&self, cx: &Cx, entry: Entry, flags: OpenFlags) -> Result<Created> {
        let opened = self.opened(cx, entry.node, flags);
        let opened = opened.inspect_err(|_| self.inodes.table().forget(entry.node, 1))?;
        Ok(Created { entry, opened })
    }

    /// Makes an empty file.
    pub(super) async fn make_file(
        self: &Arc<Self>,
        cx: &Cx,
        dir: Node,
        name: &Name,
        mode: u32,
    ) -> Result<Entry> {
        let flags = OpenFlags::WRITE_ONLY | OpenFlags::EXCL;
        let op = Create { dir, name: name.clone(), mode, umask: 0, flags, initial: None };
        let Created { entry, opened } = self.create(cx, op).await?;
        self.close(entry.node, opened.handle).await?;
        Ok(entry)
    }

    pub(super) async fn mkdir(&self, op: MkDir) -> Result<Entry> {
        let path = self.inodes.child(op.dir, &op.name)?;
        self.server.keeps_name(&path)?;
        let made = self.server.make_dir(&path, op.mode & 0o7777).await;
        self.explained(made, Attempt::Make { path: &path }).await?;
        let listed = self.look(&path).await?;
        self.entry(op.dir, &op.name, Some(&listed))
    }

    pub(super) async fn rmdir(&self, op: RmDir) -> Result<()> {
        let path = self.inodes.child(op.dir, &op.name)?;
        let dir = self.inodes.table().get(op.dir, &op.name);
        let is_new = |node| self.staged(node).is_some_and(|state| state.is_new && !state.nameless);
        let below = |node| {
            self.inodes.table().names(node).is_ok_and(|names| names.iter().any(|(at, _)| Some(*at) == dir))
        };
        if self.staging.all().into_iter().any(|(node, _)| is_new(node) && below(node)) {
            return Err(Errno::ENOTEMPTY.into());
        }
        let mut removed = self.server.remove_dir(&path).await;
        let may_be_silly = |fault: &Fault<_>| match fault {
            Fault::Refused(_) => true,
            Fault::Known(error) => error.errno == Errno::ENOTEMPTY,
            Fault::Lost(_) => false,
        };
        if let Some(node) = dir.filter(|_| removed.as_ref().is_err_and(may_be_silly)) {
            // Nobody reads a file while it gets another name.
            let silly = self.open.removed().into_iter().filter(|&node| below(node));
            let _locks = self.locks.lock_all(silly).await;
            if self.silly_rename().clear(node, op.dir).await {
                removed = self.server.remove_dir(&path).await;
            }
        }
        self.explained(removed, Attempt::RmDir { path: &path }).await?;
        self.inodes.table().removed(op.dir, &op.name);
        Ok(())
    }

    pub(super) async fn unlink(&self, op: Unlink) -> Result<()> {
        let path = self.inodes.child(op.dir, &op.name)?;
        self.server.check(&path)?;
        let known = self.inodes.table().get(op.dir, &op.name);
        // Nothing is uploaded to a name that is being removed.
        let _locks = self.locks.lock_all(known).await;
        if let Some(node) = known
            && self.detach(op.dir, &op.name, node).await?
        {
            return Ok(());
        }
        self.remove_file(&path).await?;
        if let Some(node) = known {
            self.staging.update(node, |state| state.nameless = true);
        }
        self.inodes.table().removed(op.dir, &op.name);
        Ok(())
    }

    pub(super) async fn remove_file(&self, path: &[u8]) -> Result<()> {
        self.explained(self.server.remove(path).await, Attempt::Remove { path }).await
    }

    async fn rename_new_file(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let renamed = self.server.rename_new(from, to).await;
        self.explained(renamed, Attempt::Rename { from, to, replaces: false }).await
    }

    async fn rename_file(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let renamed = self.replace(from, to, None).await;
        self.explained(renamed, Attempt::Rename { from, to, replaces: true }).await.map(drop)
    }

    /// Prepares a file for losing its name; whether that is all. One that is open goes on under a silly name, unless all of it is
    /// staged here.
    async fn detach(&self, dir: Node, name: &Name, node: Node) -> Result<bool> {
        let table = self.inodes.table();
        let staged = self.staging.get(node).map(|staged| staged.state());
        if staged.is_some_and(|state| state.is_new) {
            self.staging.update(node, |state| state.nameless = true);
            table.removed(dir, name);
            return Ok(true);
        }
        let is_here = staged.is_some_and(|state| state.base == 0);
        if is_here || !self.open.is_open(node) || self.inodes.kind(node)? != FileKind::Regular {
            return Ok(false);
        }
        self.silly_rename().hide((dir, name), node).await?;
        Ok(true)
    }

    pub(super) async fn rename(&self, op: Rename) -> Result<()> {
        let Rename { dir, name, to_dir, to_name, flags } = op;
        if flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL.because("the server cannot exchange names"));
        }
        let (from, to) = (self.inodes.child(dir, &name)?, self.inodes.child(to_dir, &to_name)?);
        self.server.keeps_name(&to)?;
        let table = self.inodes.table();
        if flags.contains(RenameFlags::NOREPLACE) {
            match self.find(to_dir, &to_name).await {
                Ok(_) => return Err(Errno::EEXIST.into()),
                Err(error) if error.errno == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        let unknown = match table.get(dir, &name) {
            Some(_) => None,
            None => Some(self.inodes.found(dir, &name, self.look(&from).await?.kind)?.0),
        };
        let (node, target) = (table.get(dir, &name), table.get(to_dir, &to_name));
        let target = target.filter(|&target| self.inodes.kind(target) == Ok(FileKind::Regular));
        // What is uploaded goes to the name that the file has: neither changes until it has another one.
        let _locks = self.locks.lock_all(node.into_iter().chain(target)).await;
        if let Some(node) = node {
            self.upload(node).await?;
        }
        if node.is_some() && node == target || from == to {
            return self.find(dir, &name).await.map(drop);
        }
        if let Some(target) = target {
            if self.look(&from).await?.kind == FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            if !self.detach(to_dir, &to_name, target).await? {
                self.staging.update(target, |state| state.nameless = true);
            }
        }
        let renamed = match flags.contains(RenameFlags::NOREPLACE) {
            true => self.rename_new_file(&from, &to).await,
            false => self.rename_file(&from, &to).await,
        };
        if let (Err(_), Some(target)) = (&renamed, target.filter(|&target| self.open.is_removed(target))) {
            self.silly_rename().put_back((to_dir, &to_name), target).await;
        }
        renamed?;
        table.renamed((dir, &name), (to_dir, &to_name))?;
        // Its inode number is no longer that of its name.
        if let Some(oldest) = self.inodes.pin(to_dir, &to_name) {
            table.forget(oldest, 1);
        }
        unknown.into_iter().for_each(|node| table.forget(node, 1));
        Ok(())
    }
}
