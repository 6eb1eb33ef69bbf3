// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making, moving and removing names.

use crate::answer::Asking;
use crate::convert;
use crate::export::Held;
use crate::fids::{File, Found};
use crate::open::Open;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::{
    Create, Link, Lookup, MkDir, MkNod, OpenFlags, Rename, RenameFlags, RmDir, SymLink, Unlink,
};
use outrigger_core::reply::Entry;
use outrigger_core::{Cx, Errno, FileKind, Name, Result, Target};
use outrigger_proto_ninep::{
    Qid, Rlcreate, Rlink, Rmkdir, Rmknod, Rrename, Rrenameat, Rsymlink, Runlinkat, Tlcreate, Tlink, Tmkdir,
    Tmknod, Trename, Trenameat, Tsymlink, Tunlinkat, UNLINK_DIRECTORY,
};
use std::sync::Arc;

/// Returns the reference to a new file, of which no fid was made.
fn made(file: &File, entry: &Entry) -> Qid {
    drop(Held::of(&file.at.export, entry));
    convert::qid(&entry.attr)
}

impl Asking {
    /// On behalf of whom something new with the group `gid` is made in `dir`.
    fn making(&self, dir: &File, gid: u32) -> Cx {
        self.cx(&dir.at.who.with_group(gid, &dir.at.export.callers))
    }

    pub(crate) async fn lcreate(&self, call: &Tlcreate, file: &mut File) -> Result<Rlcreate> {
        let cx = self.making(file, call.gid);
        let qid = self.create(&cx, file, (&call.name, call.mode), call.flags).await?;
        Ok(Rlcreate { qid, iounit: self.iounit(&file.at) })
    }

    /// Makes a regular file in a directory, for which the fid stands then.
    pub(crate) async fn create(
        &self,
        cx: &Cx,
        file: &mut File,
        (name, mode): (&[u8], u32),
        flags: u32,
    ) -> Result<Qid> {
        if file.open.is_some() {
            return Err(Errno::EBADF.because("the fid is open already"));
        }
        let (name, place, dir) = (convert::name(name)?, self.place()?, file.at.node.node);
        let known = convert::open_flags(flags);
        let exclusive = OpenFlags::from_bits_retain(flags) & OpenFlags::EXCL;
        let (mode, new_name) = (mode & MODE_PERMISSIONS, name.clone());
        let create = Create { dir, name: new_name, mode, umask: 0, flags: known | exclusive, initial: None };
        let created = file.at.export.ask(cx, create).await?;
        let node = Held::of(&file.at.export, &created.entry);
        let at = Found {
            kind: created.entry.attr.kind(),
            dev: created.entry.attr.dev,
            place: Some((Arc::clone(&file.at.node), name)),
            node,
            ..file.at.clone()
        };
        let open = Some(Open::new(at.clone(), &created.opened, known, place));
        *file = File { at, open };
        Ok(convert::qid(&created.entry.attr))
    }

    pub(crate) async fn mkdir(&self, call: &Tmkdir, dir: &File) -> Result<Rmkdir> {
        let (cx, name) = (self.making(dir, call.gid), convert::name(&call.name)?);
        let (mode, dir_node) = (call.mode & MODE_PERMISSIONS, dir.at.node.node);
        let make = MkDir { dir: dir_node, name, mode, umask: 0, initial: None };
        let entry = dir.at.export.ask(&cx, make).await?;
        Ok(Rmkdir { qid: made(dir, &entry) })
    }

    pub(crate) async fn symlink(&self, call: &Tsymlink, dir: &File) -> Result<Rsymlink> {
        let (cx, name) = (self.making(dir, call.gid), convert::name(&call.name)?);
        let target = Target::new(bytes::Bytes::copy_from_slice(&call.target))?;
        let make = SymLink { dir: dir.at.node.node, name, target, initial: None };
        let entry = dir.at.export.ask(&cx, make).await?;
        Ok(Rsymlink { qid: made(dir, &entry) })
    }

    pub(crate) async fn mknod(&self, call: &Tmknod, dir: &File) -> Result<Rmknod> {
        let (cx, name) = (self.making(dir, call.gid), convert::name(&call.name)?);
        let rdev = match FileKind::of_mode(call.mode) {
            Some(FileKind::BlockDevice | FileKind::CharDevice) => convert::device(call.major, call.minor)?,
            Some(FileKind::Directory | FileKind::Symlink) | None => return Err(Errno::EINVAL.into()),
            Some(_) => 0,
        };
        let make = MkNod { dir: dir.at.node.node, name, mode: call.mode, umask: 0, rdev, initial: None };
        let entry = dir.at.export.ask(&cx, make).await?;
        Ok(Rmknod { qid: made(dir, &entry) })
    }

    pub(crate) async fn link(&self, call: &Tlink, dir: &File, file: &File) -> Result<Rlink> {
        same_tree(&dir.at, &file.at)?;
        let (name, cx) = (convert::name(&call.name)?, self.cx(&dir.at.who.cred));
        let link = Link { node: file.at.node.node, dir: dir.at.node.node, name };
        let entry = dir.at.export.ask(&cx, link).await?;
        made(dir, &entry);
        Ok(Rlink {})
    }

    pub(crate) async fn renameat(&self, call: &Trenameat, from: &File, to: &File) -> Result<Rrenameat> {
        same_tree(&from.at, &to.at)?;
        let (name, to_name) = (convert::name(&call.old_name)?, convert::name(&call.new_name)?);
        self.moved(&from.at, (&from.at.node, name), (&to.at.node, to_name)).await?;
        Ok(Rrenameat {})
    }

    pub(crate) async fn rename(&self, call: &Trename, file: &mut File, dir: &File) -> Result<Rrename> {
        same_tree(&file.at, &dir.at)?;
        self.move_to(file, &dir.at.node, convert::name(&call.name)?).await?;
        Ok(Rrename {})
    }

    /// Gives the file of a fid another name.
    pub(crate) async fn move_to(&self, file: &mut File, dir: &Arc<Held>, name: Name) -> Result<()> {
        let (from_dir, from) = self.place_of(&file.at).await?;
        self.moved(&file.at, (&from_dir, from), (dir, name.clone())).await?;
        file.at.place = Some((Arc::clone(dir), name));
        Ok(())
    }

    async fn moved(
        &self,
        at: &Found,
        (dir, name): (&Arc<Held>, Name),
        (to_dir, to_name): (&Arc<Held>, Name),
    ) -> Result<()> {
        let (dir, to_dir, flags) = (dir.node, to_dir.node, RenameFlags::empty());
        let rename = Rename { dir, name, to_dir, to_name, flags };
        at.export.ask(&self.cx(&at.who.cred), rename).await.map(drop)
    }

    /// The name of a file, if it still has that which has led to it.
    async fn place_of(&self, at: &Found) -> Result<(Arc<Held>, Name)> {
        let Some((dir, name)) = at.place.clone() else {
            return Err(Errno::EBUSY.because("it is the root of what was attached, or was found as '..'"));
        };
        let look = Lookup { dir: dir.node, name: name.clone() };
        let entry = at.export.ask(&self.cx(&at.who.cred), look).await?;
        let found = Held::of(&at.export, &entry);
        match (found.node, found.generation) == (at.node.node, at.node.generation) {
            true => Ok((dir, name)),
            false => Err(Errno::ESTALE.because("another file has its name")),
        }
    }

    pub(crate) async fn unlinkat(&self, call: &Tunlinkat, dir: &File) -> Result<Runlinkat> {
        let (name, is_dir) = (convert::name(&call.name)?, call.flags & UNLINK_DIRECTORY != 0);
        self.unlink(&dir.at, &dir.at.node, name, is_dir).await?;
        Ok(Runlinkat {})
    }

    async fn unlink(&self, at: &Found, dir: &Arc<Held>, name: Name, is_dir: bool) -> Result<()> {
        let (cx, dir) = (self.cx(&at.who.cred), dir.node);
        match is_dir {
            true => at.export.ask(&cx, RmDir { dir, name }).await.map(drop),
            false => at.export.ask(&cx, Unlink { dir, name }).await.map(drop),
        }
    }

    /// Removes the file of a fid.
    pub(crate) async fn remove(&self, at: &Found) -> Result<()> {
        let (dir, name) = self.place_of(at).await?;
        self.unlink(at, &dir, name, at.kind == FileKind::Directory).await
    }
}

fn same_tree(one: &Found, other: &Found) -> Result<()> {
    if Arc::ptr_eq(&one.export, &other.export) { Ok(()) } else { Err(Errno::EXDEV.into()) }
}
