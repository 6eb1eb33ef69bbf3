// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of names and attributes: they are made in the tree, and then on the copy.

use super::mirror::{open, os};
use super::names::Found;
use super::process::Process;
use super::server::Server;
use outrigger_client::Inode;
use outrigger_core::ops::{RenameFlags, SetAttr};
use outrigger_core::{Errno, FileKind, Name, Result, SetAttrs, SetTime, Target, lock};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, chmodat, ftruncate, linkat,
    renameat_with, statat, unlinkat, utimensat,
};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

impl Server {
    pub(crate) fn make_directory(&self, process: Process, found: &Found, mode: u32) -> Result<()> {
        self.make(found, |parent, name| parent.mkdir(name, mode & 0o1777 & !process.umask()?))
    }

    pub(crate) fn make_node(&self, process: Process, found: &Found, mode: u32, device: u32) -> Result<()> {
        must_not_need_directory(found)?;
        let kind = FileKind::of_mode(mode).unwrap_or(FileKind::Regular).bits();
        let mode = kind | mode & 0o7777 & !process.umask()?;
        self.make(found, |parent, name| parent.mknod(name, mode, device))
    }

    pub(crate) fn make_link(&self, found: &Found, target: &[u8]) -> Result<()> {
        must_not_need_directory(found)?;
        let target = Target::new(target.to_vec())?;
        self.make(found, |parent, name| parent.symlink(name, target))
    }

    /// Makes a name that is not there.
    fn make(&self, found: &Found, make: impl FnOnce(&Inode, &Name) -> Result<Inode>) -> Result<()> {
        if found.inode.is_some() || found.tree.is_none() {
            return Err(Errno::EEXIST.into());
        }
        let (parent, name) = found.place()?;
        self.mirror.changes();
        let inode = make(parent, &name)?;
        self.mirror.changes();
        self.mirror.copy(&found.path, &inode).map(drop)
    }

    /// Removes a name.
    pub(crate) fn remove(&self, found: &Found, directory: bool) -> Result<()> {
        match found.dots {
            1 if directory => return Err(Errno::EINVAL.into()),
            2 if directory => return Err(Errno::ENOTEMPTY.into()),
            0 => {}
            _ => return Err(Errno::EISDIR.into()),
        }
        let (parent, name) = found.place()?;
        let inode = found.there()?;
        if self.names.is_above(&found.path) {
            return Err(Errno::EBUSY.into());
        }
        if directory {
            parent.rmdir(&name)?;
        } else {
            if inode.attr().nlink > 1 {
                // It has other names, and so content that others read.
                self.store(&found.path)?;
            }
            self.unlink(parent, &name, found)?;
        }
        let real = self.mirror.real(&found.path);
        self.mirror.change(|| match statat(CWD, &real, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) if directory => self.mirror.forget(&real).map(drop),
            Ok(copy) => {
                os(unlinkat(CWD, &real, AtFlags::empty()))?;
                if !self.mirror.contents.is_written(&copy) && copy.st_nlink == 1 {
                    self.mirror.contents.forget(&copy);
                }
                Ok(())
            }
            Err(_) => Ok(()),
        })
    }

    /// Removes a name that is not a directory. Nothing is stored meanwhile: the file would be missing.
    fn unlink(&self, parent: &Inode, name: &Name, found: &Found) -> Result<()> {
        let content = self.mirror.content(&self.mirror.real(&found.path)).ok();
        let mut content = content.as_ref().map(|content| lock(content));
        parent.unlink(name)?;
        let is_last = found.inode.as_ref().is_some_and(|inode| inode.attr().nlink <= 1);
        content.iter_mut().for_each(|content| content.is_removed = is_last);
        Ok(())
    }

    /// Gives a file another name, and takes the old one from it.
    pub(crate) fn rename(&self, from: &Found, to: &Found, flags: u32) -> Result<()> {
        let inode = from.there()?;
        let ((parent, name), (to_parent, to_name)) = (from.place()?, to.place()?);
        if from.tree != to.tree {
            return Err(Errno::EXDEV.into());
        }
        if [from, to].iter().any(|found| found.dots > 0 || self.names.is_above(&found.path)) {
            return Err(Errno::EBUSY.into());
        }
        if to.slash && !inode.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        // The new name is one of all the content.
        self.store(&from.path)?;
        let flags = RenameFlags::from_bits_retain(flags);
        let (real, to_real) =
            (self.mirror.copy(&from.path, &*self.settled(from)?)?, self.mirror.real(&to.path));
        if let Some(inode) = &to.inode {
            self.mirror.copy(&to.path, inode)?;
        } else {
            self.mirror.copy(super::names::above(&to.path), to_parent)?;
        }
        self.mirror.changes();
        parent.rename(&name, to_parent, &to_name, flags)?;
        self.mirror.change(|| {
            if flags.contains(RenameFlags::EXCHANGE) {
                return os(renameat_with(CWD, &real, CWD, &to_real, rustix::fs::RenameFlags::EXCHANGE));
            }
            let is_same = from.inode.as_ref().zip(to.inode.as_ref()).is_some_and(|(a, b)| a.is_same(b));
            if to.inode.is_some() && !is_same {
                self.mirror.forget(&to_real)?;
            }
            os(renameat_with(CWD, &real, CWD, &to_real, rustix::fs::RenameFlags::empty()))
        })?;
        self.mirror.contents.moved(&real, &to_real, flags.contains(RenameFlags::EXCHANGE))?;
        if let Ok(content) = self.mirror.content(&to_real) {
            let mut content = lock(&content);
            content.path = to.path.clone();
            content.renamed();
        }
        Ok(())
    }

    /// Gives a file one more name.
    pub(crate) fn link(&self, from: &Found, to: &Found) -> Result<()> {
        let inode = from.there()?;
        if inode.is_dir() {
            return Err(Errno::EPERM.into());
        }
        if from.tree != to.tree {
            return Err(Errno::EXDEV.into());
        }
        if to.inode.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let (parent, name) = to.place()?;
        self.store(&from.path)?;
        let (real, to_real) =
            (self.mirror.copy(&from.path, &*self.settled(from)?)?, self.mirror.real(&to.path));
        self.mirror.copy(super::names::above(&to.path), parent)?;
        self.mirror.changes();
        parent.link(inode, &name)?;
        if let Ok(content) = self.mirror.content(&real) {
            lock(&content).renamed();
        }
        self.mirror.change(|| match linkat(CWD, &real, CWD, &to_real, AtFlags::empty()) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            linked => os(linked),
        })
    }

    /// Changes attributes of a file.
    pub(crate) fn set(&self, found: &Found, attrs: SetAttrs) -> Result<()> {
        let inode = self.settled(found)?;
        let real = self.mirror.copy(&found.path, &inode)?;
        if let Ok(content) = self.mirror.content(&real) {
            let mut content = lock(&content);
            if content.is_written() {
                let file = SetAttrs { size: None, ..attrs.clone() };
                if file != SetAttrs::default() {
                    content.set_through(file).transpose()?;
                }
                self.mirror.give(&real, attrs.uid, attrs.gid);
                return apply(&real, &attrs);
            }
        }
        let sized = attrs.size.is_some();
        let attr = inode.client().call(SetAttr { node: inode.node(), handle: None, attrs })?.attr;
        if sized {
            // The content is fetched again.
            return self.mirror.copy(&found.path, &self.names.inode(&found.path)?).map(drop);
        }
        self.mirror.agree(&real, &attr)
    }

    /// Stores what was written to a file that is closed. If it cannot be, the user was told, and the copy stays as it is.
    fn settle(&self, path: &[u8]) {
        if let Ok(content) = self.mirror.content(&self.mirror.real(path)) {
            let _ = self.mirror.contents.settle(&mut lock(&content), false);
        }
    }

    /// The same for all files in a directory that is about to be listed: while one is being stored, a server may have it under another name.
    pub(crate) fn settle_in(&self, dir: &[u8]) {
        let copies = std::fs::read_dir(self.mirror.real(dir)).into_iter().flatten().flatten();
        copies.for_each(|copy| self.settle(&[dir, b"/", copy.file_name().as_bytes()].concat()));
    }

    /// The file that was found, as it is now that what was written to it is stored.
    ///
    /// # Errors
    /// Those of looking at it again.
    pub(crate) fn settled(&self, found: &Found) -> Result<Arc<Inode>> {
        found.there()?;
        self.settle(&found.path);
        match &found.inode {
            Some(inode) if found.seen == self.mirror.contents.stored() => Ok(Arc::clone(inode)),
            _ => self.names.inode(&found.path).map(Arc::new),
        }
    }

    /// Stores what was written to a file, be it closed or not.
    ///
    /// # Errors
    /// Those of the tree.
    pub(crate) fn store(&self, path: &[u8]) -> Result<()> {
        let Ok(content) = self.mirror.content(&self.mirror.real(path)) else { return Ok(()) };
        let mut content = lock(&content);
        self.mirror
            .contents
            .store(&mut content)
            .and_then(|()| self.mirror.contents.settle(&mut content, true))
    }
}

/// Whether a name may become that of something else than a directory: one with a slash behind it may not.
fn must_not_need_directory(found: &Found) -> Result<()> {
    if found.slash && found.inode.is_none() { Err(Errno::ENOENT.into()) } else { Ok(()) }
}

/// Changes attributes of a copy that programs write to: it is what is stored.
fn apply(real: &Path, attrs: &SetAttrs) -> Result<()> {
    if let Some(mode) = attrs.mode {
        os(chmodat(CWD, real, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty()))?;
    }
    if let Some(size) = attrs.size {
        os(ftruncate(open(real, OFlags::WRONLY)?, size))?;
    }
    if attrs.atime.is_some() || attrs.mtime.is_some() {
        let times = Timestamps { last_access: time(attrs.atime), last_modification: time(attrs.mtime) };
        os(utimensat(CWD, real, &times, AtFlags::SYMLINK_NOFOLLOW))?;
    }
    Ok(())
}

fn time(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
    }
}
