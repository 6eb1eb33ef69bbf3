// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names: finding, making, moving, removing and listing them.

use crate::below::Below;
use crate::files::flags_below;
use crate::format::{Record, Sizes, header};
use crate::keys::new_id;
use crate::names::Stored;
use crate::state::Turn;
use bytes::Bytes;
use outrigger_core::ops::{
    Create, Link, Lookup, MkDir, MkNod, OpenFlags, ReadDir, ReadDirPlus, ReadLink, Rename, RenameFlags,
    RmDir, SymLink, TmpFile, Unlink, Walk, Write,
};
use outrigger_core::reply::{Created, Dirents, DirentsPlus, Entry};
use outrigger_core::{Errno, Error, FileKind, Name, Node, Op, OpCode, Payload, Result, Target, Traverse};

/// Shows the sizes of files in an answer.
fn sized<T: Traverse>(mut answer: T) -> T {
    answer.traverse(&mut Sizes);
    answer
}

impl Below<'_> {
    /// How a name is stored that is to be found.
    async fn place(&self, dir: Node, name: &Name) -> Result<Stored> {
        let id = self.dir(dir).await?.ok_or(Errno::ENOENT)?;
        Ok(self.inner.keys.stored(&id, name))
    }

    /// How a name is stored that is to be made, with a turn for making it. A long one is written down first: without it the other file
    /// means nothing. Nobody drops that during the turn.
    async fn new_place(&self, dir: Node, name: &Name) -> Result<(Stored, Turn<'_>)> {
        let id = self.dir_for_names(dir).await?;
        let stored = self.inner.keys.stored(&id, name);
        let turn = self.inner.names.look().await;
        if let Some((side, full)) = &stored.side {
            let there = self.read_own(dir, side.clone()).await?;
            if there.as_deref() != Some(full.as_bytes()) {
                self.write_own(dir, side.clone(), full.clone().into_bytes()).await?;
            }
        }
        Ok((stored, turn))
    }

    /// Removes what a long name was written down in, if the name is gone. It may not be: somebody may have made it again, and a name that
    /// is moved onto another one of the same file stays (rename(2)).
    async fn drop_side(&self, dir: Node, stored: Stored) {
        let Some((side, _)) = stored.side else { return };
        let _turn = self.inner.names.change().await;
        match self.ask(Lookup { dir, name: stored.name }).await {
            Ok(entry) => self.forget(entry.node).await,
            Err(error) if error.errno == Errno::ENOENT => {
                // What stays is not shown, and goes with the directory.
                let _ = self.ask(Unlink { dir, name: side }).await;
            }
            Err(_) => {}
        }
    }

    pub(crate) async fn lookup(&self, op: Lookup) -> Result<Entry> {
        let name = self.place(op.dir, &op.name).await?.name;
        Ok(sized(self.ask(Lookup { dir: op.dir, name }).await?))
    }

    pub(crate) async fn walk(&self, op: Walk) -> Result<Vec<Entry>> {
        let mut found: Vec<Entry> = Vec::with_capacity(op.names.len());
        for name in op.names {
            let dir = found.last().map_or(op.dir, |entry| entry.node);
            match self.lookup(Lookup { dir, name }).await {
                Ok(entry) => found.push(entry),
                Err(error) if found.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(found)
    }

    /// Makes a name by `op`, which is given how it is stored.
    async fn make<O: Op<Out = Entry>>(
        &self,
        dir: Node,
        name: &Name,
        op: impl FnOnce(Name) -> O,
    ) -> Result<Entry> {
        let (stored, _turn) = self.new_place(dir, name).await?;
        Ok(sized(self.ask(op(stored.name)).await?))
    }

    pub(crate) async fn mkdir(&self, op: MkDir) -> Result<Entry> {
        let (dir, name) = (op.dir, op.name.clone());
        let entry = self.make(dir, &name, |name| MkDir { name, ..op }).await?;
        // The number may be one that was used before.
        self.inner.set_dir(entry.node, None);
        Ok(entry)
    }

    pub(crate) async fn symlink(&self, op: SymLink) -> Result<Entry> {
        let target = self.inner.keys.stored_target(&op.target)?;
        let (dir, name) = (op.dir, op.name.clone());
        self.make(dir, &name, |name| SymLink { name, target, ..op }).await
    }

    pub(crate) async fn readlink(&self, op: ReadLink) -> Result<Target> {
        let stored = self.ask(ReadLink { node: op.node }).await?;
        match self.inner.keys.target(&stored) {
            Some(target) => Ok(target),
            None => Err(self.damaged(op.node, "the target of the link is damaged").await),
        }
    }

    pub(crate) async fn link(&self, op: Link) -> Result<Entry> {
        let (dir, name) = (op.dir, op.name.clone());
        self.make(dir, &name, |name| Link { name, ..op }).await
    }

    pub(crate) async fn mknod(&self, op: MkNod) -> Result<Entry> {
        let (dir, name) = (op.dir, op.name.clone());
        let regular = FileKind::of_mode(op.mode).is_none_or(|kind| kind == FileKind::Regular);
        if !regular || !self.has(OpCode::Create) {
            return self.make(dir, &name, |name| MkNod { name, ..op }).await;
        }
        // A file has a header, which only who has it open can write.
        let flags = OpenFlags::READ_WRITE | OpenFlags::EXCL;
        let MkNod { mode, umask, initial, .. } = op;
        let (stored, _turn) = self.new_place(dir, &name).await?;
        let made = self.ask(Create { dir, name: stored.name, mode, umask, flags, initial }).await?;
        let Created { mut entry, opened } = made;
        let (node, handle) = (entry.node, opened.handle);
        let key = self.inner.keys.file(new_id()?);
        let bytes = Bytes::copy_from_slice(&header(&key, Record::default())?);
        let write = Write { node, handle, offset: 0, data: Payload::EMPTY, cached: false, kill_setid: false };
        let (_, written) = self.write_all(write, bytes).await;
        self.close(node, handle, flags).await;
        if let Err(error) = written {
            self.forget(node).await;
            return Err(error);
        }
        entry.attr.size = 0;
        Ok(entry)
    }

    pub(crate) async fn create(&self, op: Create) -> Result<Created> {
        let flags = op.flags;
        let (stored, turn) = self.new_place(op.dir, &op.name).await?;
        let below = flags_below(flags).difference(OpenFlags::TRUNC);
        let asked = |flags| self.ask(Create { name: stored.name.clone(), flags, ..op.clone() });
        // Who makes a file for reading leaves one with a header all the same.
        let makes =
            below | if flags.writes() { OpenFlags::EXCL } else { OpenFlags::READ_WRITE | OpenFlags::EXCL };
        match asked(makes).await {
            // Until it is known as a new one, the turn keeps those waiting who find it empty.
            Ok(made) => return self.created(made, flags, true).await,
            Err(error) if flags.contains(OpenFlags::EXCL) => return Err(error),
            // Some trees look first whether a name may be made.
            Err(error) if matches!(error.errno, Errno::EEXIST | Errno::EACCES | Errno::EROFS) => {}
            Err(error) => return Err(error),
        }
        let found = asked(below).await?;
        drop(turn);
        if found.entry.attr.size == 0 {
            drop(self.inner.names.change().await);
        }
        self.created(found, flags, false).await
    }

    pub(crate) async fn tmpfile(&self, op: TmpFile) -> Result<Created> {
        let flags = op.flags;
        let created = self.ask(TmpFile { flags: flags_below(flags), ..op }).await?;
        self.created(created, flags, true).await
    }

    pub(crate) async fn unlink(&self, op: Unlink) -> Result<()> {
        let stored = self.place(op.dir, &op.name).await?;
        self.ask(Unlink { dir: op.dir, name: stored.name.clone() }).await?;
        self.drop_side(op.dir, stored).await;
        Ok(())
    }

    pub(crate) async fn rmdir(&self, op: RmDir) -> Result<()> {
        let (dir, stored) = (op.dir, self.place(op.dir, &op.name).await?);
        let remove = RmDir { dir, name: stored.name.clone() };
        self.emptied(dir, stored.name.clone(), || self.ask(remove)).await?;
        self.drop_side(dir, stored).await;
        Ok(())
    }

    /// Does what needs the directory called `name` below to be empty, after taking the layer's own files out of it.
    async fn emptied<F>(&self, dir: Node, name: Name, change: impl FnOnce() -> F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let _turn = self.inner.names.change().await;
        let entry = self.ask(Lookup { dir, name }).await?;
        let (node, kind) = (entry.node, entry.attr.kind());
        let done = if kind == FileKind::Directory {
            let id = self.dir(node).await.ok().flatten();
            match self.clear(node).await {
                Ok(()) => {
                    let done = change().await;
                    match &done {
                        Ok(()) => self.inner.set_dir(node, None),
                        Err(_) => self.restore(node, id).await,
                    }
                    done
                }
                Err(error) => Err(error),
            }
        } else {
            change().await
        };
        self.forget(node).await;
        done
    }

    pub(crate) async fn rename(&self, op: Rename) -> Result<()> {
        let Rename { dir, name, to_dir, to_name, flags } = op;
        let from = self.place(dir, &name).await?;
        let (to, turn) = self.new_place(to_dir, &to_name).await?;
        let moved = || {
            let (name, to_name) = (from.name.clone(), to.name.clone());
            self.ask(Rename { dir, name, to_dir, to_name, flags })
        };
        let first = moved().await;
        drop(turn);
        match first {
            // A directory that is empty above has its number below.
            Err(error) if is_not_empty(&error) && flags.is_empty() => {
                self.emptied(to_dir, to.name.clone(), moved).await?;
            }
            done => done?,
        }
        let stays = flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT);
        if !stays && (dir, &from.name) != (to_dir, &to.name) {
            self.drop_side(dir, from).await;
        }
        Ok(())
    }

    pub(crate) async fn readdir(&self, mut op: ReadDir) -> Result<Dirents> {
        let Some(id) = self.dir(op.node).await? else {
            return Ok(Dirents { entries: Vec::new(), eof: true });
        };
        loop {
            let mut listed = self.ask(op.clone()).await?;
            let last = listed.entries.last().map(|entry| entry.cookie);
            let mut shown = Vec::with_capacity(listed.entries.len());
            for mut entry in listed.entries {
                if let Some(name) = self.shown(op.node, &id, &entry.name).await {
                    entry.name = name;
                    shown.push(entry);
                }
            }
            listed.entries = shown;
            // A piece without entries means the end to many a caller.
            match last {
                Some(cookie) if listed.entries.is_empty() && !listed.eof => op.cookie = cookie,
                _ => return Ok(listed),
            }
        }
    }

    pub(crate) async fn readdirplus(&self, mut op: ReadDirPlus) -> Result<DirentsPlus> {
        let Some(id) = self.dir(op.node).await? else {
            return Ok(DirentsPlus { entries: Vec::new(), eof: true });
        };
        loop {
            let mut listed = self.ask(op.clone()).await?;
            let last = listed.entries.last().map(|entry| entry.cookie);
            let mut shown = Vec::with_capacity(listed.entries.len());
            for mut entry in listed.entries {
                match self.shown(op.node, &id, &entry.name).await {
                    Some(name) => {
                        entry.name = name;
                        shown.push(entry);
                    }
                    None if entry.entry.node != Node::default() => self.forget(entry.entry.node).await,
                    None => {}
                }
            }
            listed.entries = shown;
            match last {
                Some(cookie) if listed.entries.is_empty() && !listed.eof => op.cookie = cookie,
                _ => return Ok(sized(listed)),
            }
        }
    }
}

/// What a tree says of a directory that cannot be replaced because of what is in it.
fn is_not_empty(error: &Error) -> bool {
    matches!(error.errno, Errno::ENOTEMPTY | Errno::EEXIST)
}
