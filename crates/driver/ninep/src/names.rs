// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making, moving and removing names. A change whose reply was lost is not made again: `EIO` says that it may have been made.

use crate::convert;
use crate::dialect::New;
use crate::inner::Inner;
use crate::late::Asked;
use crate::opened::OpenFid;
use crate::wire::{Fault, Session, once};
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::{Create, Link, MkDir, MkNod, Open, OpenFlags, Rename, RenameFlags, SymLink};
use outrigger_core::reply::{Created, Entry};
use outrigger_core::{Attr, Cx, Errno, FileKind, Name, Node, Result};
use outrigger_proto_ninep::{AttrMask, Attrs, Qid, QidKind, Text, UNLINK_DIRECTORY};
use outrigger_toolkit_remote::KnownFile;
use outrigger_toolkit_remote::known::{Change, moment};
use std::sync::Arc;

impl Inner {
    /// Makes something in a directory: its entry.
    async fn make(&self, cx: &Cx, (dir, name): (Node, &Name), new: New) -> Result<Entry> {
        let (uid, new, _doing) = (self.uid(cx), &new, self.doings.begin());
        let made = self.with(uid, |session| async move {
            let (fid, sent) = self.place(&session, uid, dir, name).await?;
            session.make(fid.number, sent.clone(), new.clone(), cx.cred.gid).await?;
            self.now_found(&session, (fid.number, sent), (dir, name)).await
        });
        self.new_entry(cx, (dir, name), made.await?).await
    }

    /// The entry of a new name; looked up once more if the name was changed meanwhile.
    async fn new_entry(
        &self,
        cx: &Cx,
        (dir, name): (Node, &Name),
        (found, question): ((KnownFile, Attr), Asked<'_>),
    ) -> Result<Entry> {
        match question.unless_changed(dir, name, || self.entry(dir, name, found)) {
            Some(entry) => entry,
            None => self.lookup(cx, dir, name).await,
        }
    }

    /// What a new name leads to, with the question for that.
    async fn now_found(
        &self,
        session: &Arc<Session>,
        (fid, sent): (u32, Text),
        (dir, name): (Node, &Name),
    ) -> Result<((KnownFile, Attr), Asked<'_>), Fault> {
        self.changes.changed(dir, name);
        let question = self.changes.ask();
        // It was made: it is not made again.
        let (_, attrs, _) = session.look(fid, &[sent]).await.map_err(once)?;
        Ok(((convert::known(&attrs)?, convert::attr(&attrs)), question))
    }

    pub(crate) async fn mkdir(&self, cx: &Cx, op: MkDir) -> Result<Entry> {
        let new = New::Directory { mode: op.mode & MODE_PERMISSIONS };
        self.make(cx, (op.dir, &op.name), new).await
    }

    pub(crate) async fn symlink(&self, cx: &Cx, op: SymLink) -> Result<Entry> {
        let target = Text::new(op.target.as_bytes().to_vec()).ok_or(Errno::ENAMETOOLONG)?;
        self.make(cx, (op.dir, &op.name), New::Symlink { target }).await
    }

    pub(crate) async fn mknod(&self, cx: &Cx, op: MkNod) -> Result<Entry> {
        let kind = FileKind::of_mode(op.mode).ok_or(Errno::EINVAL)?;
        let device = (rustix::fs::major(op.rdev.into()), rustix::fs::minor(op.rdev.into()));
        let new = New::Node { kind, mode: op.mode & MODE_PERMISSIONS, device };
        self.make(cx, (op.dir, &op.name), new).await
    }

    pub(crate) async fn link(&self, cx: &Cx, op: Link) -> Result<Entry> {
        if self.open.is_removed(op.node) {
            return Err(Errno::ENOENT.into());
        }
        let (uid, op) = (self.uid(cx), &op);
        let changing = self.begin(Some(op.node), Change::Attrs);
        let linked = self.with(uid, |session| async move {
            let file = self.reach(&session, uid, op.node).await?;
            let (dir, name) = self.place(&session, uid, op.dir, &op.name).await?;
            session.link(dir.number, name.clone(), &file).await?;
            self.now_found(&session, (dir.number, name), (op.dir, &op.name)).await
        });
        self.new_entry(cx, (op.dir, &op.name), changing.settled(linked.await)?).await
    }

    /// Makes a regular file and opens it; one that is there already only where the flags allow that.
    pub(crate) async fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        match self.create_new(cx, &op).await {
            Err(error) if error.errno == Errno::EEXIST && !op.flags.contains(OpenFlags::EXCL) => {}
            created => return created,
        }
        let entry = self.lookup(cx, op.dir, &op.name).await?;
        let opened = self.open_file(cx, Open { node: entry.node, flags: op.flags }).await;
        let opened = opened.inspect_err(|_| self.files.table().forget(entry.node, 1))?;
        let size = if op.flags.contains(OpenFlags::TRUNC) { 0 } else { entry.attr.size };
        Ok(Created { entry: Entry { attr: Attr { size, ..entry.attr }, ..entry }, opened })
    }

    /// Makes a regular file and opens it: `EEXIST` where there was one.
    async fn create_new(&self, cx: &Cx, op: &Create) -> Result<Created> {
        let (uid, gid, mode) = (self.uid(cx), cx.cred.gid, op.mode & MODE_PERMISSIONS);
        let _doing = self.doings.begin();
        let made = self.with(uid, |session| async move {
            let (fid, name) = self.place(&session, uid, op.dir, &op.name).await?;
            let made = session.create(&fid, name, (op.flags, mode, gid)).await?;
            self.changes.changed(op.dir, &op.name);
            let asked = moment();
            let told = session.attrs(fid.number).await.map_err(once)?;
            is_new(&made.0, &told)?;
            Ok((OpenFid::new(fid, made, op.flags), told, asked))
        });
        let (by, told, asked) = made.await?;
        let found = (convert::known(&told)?, convert::attr(&told));
        let entry = self.entry(op.dir, &op.name, found)?;
        let opened = self.opened(cx, (entry.node, op.flags), by, (&told, asked));
        let opened = opened.inspect_err(|_| self.files.table().forget(entry.node, 1))?;
        Ok(Created { entry, opened })
    }

    pub(crate) async fn unlink(&self, cx: &Cx, dir: Node, name: &Name) -> Result<()> {
        let uid = self.uid(cx);
        let silly = self.silly_rename(uid);
        if silly.has(dir, name) {
            return Err(Errno::ENOENT.into());
        }
        match self.has_only(uid, (dir, name)).await? {
            Some(node) => silly.hide((dir, name), node).await,
            None => self.remove(uid, (dir, name), 0).await,
        }
    }

    pub(crate) async fn rmdir(&self, cx: &Cx, dir: Node, name: &Name) -> Result<()> {
        let uid = self.uid(cx);
        match self.remove(uid, (dir, name), UNLINK_DIRECTORY).await {
            Err(error) if error.errno == Errno::ENOTEMPTY => match self.files.table().get(dir, name) {
                Some(node) if self.silly_rename(uid).clear(node, dir).await => {
                    self.remove(uid, (dir, name), UNLINK_DIRECTORY).await
                }
                _ => Err(error),
            },
            removed => removed,
        }
    }

    /// Removes a name; `flags` as [`Tunlinkat`] has them.
    async fn remove(&self, uid: u32, (dir, name): (Node, &Name), flags: u32) -> Result<()> {
        let node = self.files.table().get(dir, name);
        let changing = self.begin(node, Change::Attrs);
        changing.settled(self.remove_at_server(uid, (dir, name), flags).await)?;
        self.files.table().removed(dir, name);
        self.lost_name(node);
        Ok(())
    }

    pub(crate) async fn remove_at_server(
        &self,
        uid: u32,
        (dir, name): (Node, &Name),
        flags: u32,
    ) -> Result<()> {
        let removed = self.with(uid, |session| async move {
            let (fid, name) = self.place(&session, uid, dir, name).await?;
            session.remove(fid.number, name, flags).await
        });
        let removed = removed.await;
        self.changes.changed(dir, name);
        removed
    }

    pub(crate) async fn move_at_server(
        &self,
        uid: u32,
        (dir, name): (Node, &Name),
        (to_dir, to_name): (Node, &Name),
    ) -> Result<()> {
        let changing = self.begin(self.files.table().get(dir, name), Change::Attrs);
        let moved = self.with(uid, |session| async move {
            let (old, old_name) = self.place(&session, uid, dir, name).await?;
            let (new, new_name) = self.place(&session, uid, to_dir, to_name).await?;
            session.rename((&old, old_name), (&new, new_name), dir == to_dir).await
        });
        let moved = changing.settled(moved.await);
        [(dir, name), (to_dir, to_name)].into_iter().for_each(|(dir, name)| self.changes.changed(dir, name));
        moved
    }

    pub(crate) async fn rename(&self, cx: &Cx, op: Rename) -> Result<()> {
        let Rename { dir, name, to_dir, to_name, flags } = op;
        if flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL.because("the protocol cannot exchange names"));
        }
        let uid = self.uid(cx);
        let silly = self.silly_rename(uid);
        if silly.has(dir, &name) {
            return Err(Errno::ENOENT.into());
        }
        if flags.contains(RenameFlags::NOREPLACE) {
            match self.look_up(uid, to_dir, &to_name).await {
                Ok(_) => return Err(Errno::EEXIST.into()),
                Err(error) if error.errno == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        let table = self.files.table();
        let (moved, target) = (table.get(dir, &name), table.get(to_dir, &to_name));
        let is_another = moved.is_none() || moved != target;
        let kept = if is_another { self.keep(uid, (to_dir, &to_name)).await? } else { None };
        let replaced = self.begin(target.filter(|_| is_another), Change::Attrs);
        let outcome = self.move_at_server(uid, (dir, &name), (to_dir, &to_name)).await;
        match (&outcome, &kept) {
            (Err(_), Some((_, Some(aside)))) => _ = silly.remove_name(to_dir, aside).await,
            (Err(_), Some((node, None))) => silly.put_back((to_dir, &to_name), *node).await,
            (Ok(()), Some((node, Some(aside)))) => silly.hidden((to_dir, &to_name), aside, *node).await?,
            _ => {}
        }
        replaced.settled(outcome)?;
        if !is_another {
            // Two names of one file: rename(2) leaves both.
            return Ok(());
        }
        table.renamed((dir, &name), (to_dir, &to_name))?;
        self.lost_name(target.filter(|_| kept.is_none()));
        Ok(())
    }
}

/// Whether a server can have made what it answers to a creation, and tells these attributes of: what is written must not go to another file.
///
/// # Errors
/// `EIO` for what is no regular file, or not the same one; `EEXIST` for one that was there before.
fn is_new(made: &Qid, told: &Attrs) -> Result<()> {
    let is_other_kind = made.kind.intersects(QidKind::DIRECTORY | QidKind::SYMLINK)
        || convert::kind(told.mode)? != FileKind::Regular;
    if is_other_kind || convert::handle(made) != convert::handle(&told.qid) {
        return Err(Errno::EIO.because("the server was asked for a new file, and opens something else"));
    }
    let has_names = told.valid.contains(AttrMask::NLINK) && told.nlink > 1;
    match told.size > 0 || has_names {
        true => {
            Err(Errno::EEXIST.because("the server was asked for a new file, and opens one that was there"))
        }
        false => Ok(()),
    }
}
