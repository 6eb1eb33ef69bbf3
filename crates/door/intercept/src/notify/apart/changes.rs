// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of names and attributes that are kept apart: the tree makes them.

use super::numbers::Before;
use super::{Overlay, Spot};
use crate::notify::answers::without;
use crate::notify::decode::Asked;
use crate::notify::names::{Found, Where};
use crate::notify::open::Opening;
use crate::notify::process::Process;
use crate::notify::server::{Reply, Server};
use crate::notify::source::Call;
use outrigger_client::Inode;
use outrigger_core::ops::{RenameFlags, SetAttr, XattrFlags};
use outrigger_core::{Errno, FileKind, Name, Result, SetAttrs, SetTime, Target, XattrName};
use std::sync::Arc;

impl Server {
    /// Changes one file.
    pub(super) fn change(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: Asked,
        (overlay, spot): (&Overlay, &Spot),
    ) -> Result<Reply> {
        overlay.keeps(spot)?;
        let before = overlay.before(spot);
        let changed = self.change_kept(call, process, request, (overlay, spot));
        overlay.after(before, &spot.path);
        changed
    }

    fn change_kept(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: Asked,
        (overlay, spot): (&Overlay, &Spot),
    ) -> Result<Reply> {
        match request {
            Asked::Open { at, flags, mode, .. } => {
                return self.open_apart(call, process, (overlay, spot), (&at, Opening { flags, mode }));
            }
            Asked::Bind { .. } => return self.bind_apart(call, process, (overlay, spot)),
            _ => {}
        }
        let found = overlay.found(spot)?;
        let set = |attrs| set(&found, attrs);
        match request {
            Asked::MakeDir { mode, .. } => {
                let mode = (mode & 0o1777, process.umask()?);
                make(&found, true, |parent, name| parent.mkdir_masked(name, mode))
            }
            Asked::MakeNode { mode, device, .. } => {
                let kind = FileKind::of_mode(mode).unwrap_or(FileKind::Regular).bits();
                let mode = (kind | mode & 0o7777, process.umask()?);
                make(&found, false, |parent, name| parent.mknod_masked(name, mode, device))
            }
            Asked::SymLink { target, .. } => {
                let target = Target::new(target)?;
                make(&found, false, |parent, name| parent.symlink(name, target))
            }
            Asked::Remove { directory, .. } => remove(&found, directory),
            Asked::SetMode { mode, .. } => set(SetAttrs { mode: Some(mode & 0o7777), ..SetAttrs::default() }),
            Asked::SetOwner { uid, gid, .. } => set(SetAttrs { uid, gid, ..SetAttrs::default() }),
            Asked::SetTimes { atime, mtime, .. } => set(SetAttrs { atime, mtime, ..SetAttrs::default() }),
            Asked::SetSize { size, .. } => match found.there()?.kind() {
                FileKind::Directory => Err(Errno::EISDIR.into()),
                FileKind::Regular if i64::try_from(size).is_ok() => {
                    set(SetAttrs { size: Some(size), ..SetAttrs::default() })
                }
                _ => Err(Errno::EINVAL.into()),
            },
            Asked::SetXattr { name, value, flags, .. } => {
                let (name, flags) = (XattrName::new(name)?, XattrFlags::from_bits_retain(flags));
                found.there()?.set_xattr(&name, value.into(), flags).map_err(without)
            }
            Asked::RemoveXattr { name, .. } => {
                found.there()?.remove_xattr(&XattrName::new(name)?).map_err(without)
            }
            _ => Err(Errno::EROFS.into()),
        }
        .map(|()| Reply::Value(0))
    }

    /// Moves or links a name, if both are kept apart.
    pub(super) fn move_apart(
        &self,
        overlay: &Overlay,
        request: &Asked,
        (from, to): (&Where, &Where),
    ) -> Result<Reply> {
        let (Where::Apart(from), Where::Apart(to)) = (from, to) else {
            return Err(Errno::EXDEV.into());
        };
        overlay.keeps(from).and_then(|()| overlay.keeps(to))?;
        let before = (overlay.before(from), overlay.before(to));
        let found = (overlay.found(from)?, overlay.found(to)?);
        let (changed, moves) = match request {
            Asked::Rename { flags, .. } => {
                (rename(&found.0, &found.1, RenameFlags::from_bits_retain(*flags)), true)
            }
            _ => (link(&found.0, &found.1), false),
        };
        let (to, from) =
            if moves && changed.is_ok() { (&from.path, &to.path) } else { (&to.path, &from.path) };
        overlay.after(before.0, from);
        if !matches!(before.1, Before::Nothing) {
            overlay.after(before.1, to);
        }
        changed.map(|()| Reply::Value(0))
    }
}

/// Makes a name that is not there.
fn make(found: &Found, is_dir: bool, make: impl FnOnce(&Inode, &Name) -> Result<Inode>) -> Result<()> {
    if found.inode.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if found.slash && !is_dir {
        return Err(Errno::ENOENT.into());
    }
    let (parent, name) = found.place()?;
    make(parent, &name).map(drop)
}

fn remove(found: &Found, directory: bool) -> Result<()> {
    match found.dots {
        1 if directory => return Err(Errno::EINVAL.into()),
        2 if directory => return Err(Errno::ENOTEMPTY.into()),
        0 => {}
        _ => return Err(Errno::EISDIR.into()),
    }
    let (parent, name) = found.place()?;
    found.there()?;
    if directory { parent.rmdir(&name) } else { parent.unlink(&name) }
}

fn rename(from: &Found, to: &Found, flags: RenameFlags) -> Result<()> {
    let inode = from.there()?;
    let ((parent, name), (to_parent, to_name)) = (from.place()?, to.place()?);
    if from.dots > 0 || to.dots > 0 {
        return Err(Errno::EBUSY.into());
    }
    if to.slash && !inode.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    parent.rename(&name, to_parent, &to_name, flags)
}

fn link(from: &Found, to: &Found) -> Result<()> {
    let inode = from.there()?;
    if inode.is_dir() {
        return Err(Errno::EPERM.into());
    }
    if to.inode.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let (parent, name) = to.place()?;
    parent.link(inode, &name).map(drop)
}

fn set(found: &Found, attrs: SetAttrs) -> Result<()> {
    let inode = found.there()?;
    inode.client().call(SetAttr { node: inode.node(), handle: None, attrs }).map(drop)
}

impl Overlay {
    /// Has a file copied that is not opened for writing.
    pub(super) fn copy(&self, found: &Found) -> Result<()> {
        // A user who may write to the file may set its time of access, which has no other effect.
        set(found, SetAttrs { atime: Some(SetTime::Now), ..SetAttrs::default() })
    }
}
