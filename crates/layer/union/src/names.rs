// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names that come, go and move.
//!
//! A whiteout is made before the name in the upper tree is taken away: what dies in between leaves the name to what it led to
//! before.

use crate::Both;
use crate::locks::What;
use crate::look::{Seen, whiteout};
use crate::nodes::{Bound, Side};
use outrigger_core::ops::{
    Create, GetAttr, Link, MkNod, OpenFlags, ReadDir, Rename, RenameFlags, RmDir, TmpFile, Unlink,
};
use outrigger_core::reply::{Created, Entry};
use outrigger_core::whiteout::{OPAQUE, is_reserved};
use outrigger_core::{Added, Effect, Errno, FileKind, Name, Node, OpCode, Reply, Request, Result, ask};

fn reserved() -> outrigger_core::Error {
    Errno::EPERM.because("union: names that begin with .wh. say what is hidden, and cannot be used")
}

impl Both<'_> {
    /// The directory in the upper tree for a change of a name, which must not be one of ours.
    async fn directory(&self, dir: Node, name: &Name) -> Result<()> {
        match is_reserved(name) {
            true => Err(reserved()),
            false => self.copy_up(dir).await.map(drop),
        }
    }

    /// Hides a name of the lower directory, if it would be seen without the upper one.
    async fn hide(&self, dir: Node, bound: &Bound, name: &Name) -> Result<()> {
        let Some(lower) = self.uncovers(bound, name).await? else { return Ok(()) };
        self.tell_hidden(dir, name, &lower)?;
        self.white_out(bound, name).await
    }

    async fn white_out(&self, dir: &Bound, name: &Name) -> Result<()> {
        self.mark(dir.upper.ok_or(Errno::ESTALE)?, whiteout(name)?).await
    }

    /// Hides all names that a lower directory may have.
    async fn make_opaque(&self, dir: Node) -> Result<()> {
        self.mark(dir, Name::try_from(OPAQUE)?).await
    }

    /// Makes an empty file in the upper tree, if it is not there.
    async fn mark(&self, dir: Node, name: Name) -> Result<()> {
        let (mode, umask, rdev, initial) = (FileKind::Regular.bits() | 0o644, 0, 0, None);
        let flags = OpenFlags::WRITE_ONLY | OpenFlags::EXCL;
        let made = match self.upper_ops.has(OpCode::MkNod) {
            true => self.ask_upper(MkNod { dir, name, mode, umask, rdev, initial }).await,
            false => {
                let create = Create { dir, name, mode: 0o644, umask, flags, initial };
                let made = self.ask_upper(create).await;
                if let Ok(Created { entry, opened }) = &made {
                    self.close_in(Side::Upper, (entry.node, opened.handle), flags).await;
                }
                made.map(|made| made.entry)
            }
        };
        match made {
            Ok(entry) => {
                self.forget_all(vec![(Side::Upper, entry.node)]).await;
                Ok(())
            }
            Err(error) if error.errno == Errno::EEXIST => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes room in the upper directory for a new name; `EEXIST` when it is taken.
    async fn make_room(&self, dir: &Bound, name: &Name) -> Result<()> {
        let seen = match dir.lower {
            // The upper tree knows by itself.
            None => return Ok(()),
            Some(_) => self.see(dir, name).await?,
        };
        self.forget_all(seen.spare()).await;
        if seen.shown().is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.replace_device(dir, name, &seen).await
    }

    /// Puts a whiteout of ours in the place of one of overlayfs.
    async fn replace_device(&self, dir: &Bound, name: &Name, seen: &Seen) -> Result<()> {
        if seen.is_device {
            self.white_out(dir, name).await?;
            self.take_away(dir.upper.ok_or(Errno::ESTALE)?, name, false).await?;
        }
        Ok(())
    }

    /// A new name, for a file that `request` makes, or for one that is there.
    pub(crate) async fn add(&self, mut request: Request) -> Result<Reply> {
        let added = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Adds { dir, name, file } => Some((dir, name.clone(), file)),
            _ => None,
        });
        let (dir, name, file) = added.ok_or(Errno::ENOSYS)?;
        if let Added::Existing(node) = file {
            self.copy_up(node).await?;
        }
        self.directory(dir, &name).await?;
        let _names = self.locks().take(What::Names(dir)).await;
        let bound = self.nodes().bound(dir)?;
        self.make_room(&bound, &name).await?;
        let upper = bound.upper.ok_or(Errno::ESTALE)?;
        match &mut request {
            Request::MkNod(op) => op.dir = upper,
            Request::MkDir(op) => op.dir = upper,
            Request::SymLink(op) => op.dir = upper,
            Request::Link(Link { node, dir, .. }) => {
                (*node, *dir) = (self.nodes().bound(*node)?.upper.ok_or(Errno::ESTALE)?, upper);
            }
            _ => return Err(Errno::ENOSYS.into()),
        }
        let made = match self.tree(Side::Upper).call(self.cx, request).await {
            Reply::Entry(entry) => entry,
            other => return Ok(other),
        };
        if let Added::Existing(node) = file {
            self.forget_all(vec![(Side::Upper, made.node)]).await;
            self.nodes().linked(node, dir, &name)?;
            return Ok(Reply::Entry(self.renumbered(node, made)?));
        }
        Ok(Reply::Entry(self.added(dir, &name, made).await?))
    }

    async fn added(&self, dir: Node, name: &Name, made: Entry) -> Result<Entry> {
        // Whatever had the name is gone.
        self.nodes().removed(dir, name);
        self.entry(dir, name, Seen { upper: Some(made), ..Seen::default() }).await
    }

    /// Makes a file and opens it, or opens the one that is there.
    pub(crate) async fn create(&self, op: Create) -> Result<Created> {
        let (dir, name, flags) = (op.dir, op.name.clone(), op.flags);
        self.directory(dir, &name).await?;
        let names = self.locks().take(What::Names(dir)).await;
        let bound = self.nodes().bound(dir)?;
        let seen = self.see(&bound, &name).await?;
        if seen.shown().is_none() {
            self.replace_device(&bound, &name, &seen).await?;
            let upper = bound.upper.ok_or(Errno::ESTALE)?;
            let made = ask(self.tree(Side::Upper), self.cx, Create { dir: upper, ..op }).await?;
            let node = made.entry.node;
            let entry = self.added(dir, &name, made.entry).await?;
            let opened = self.opened(Side::Upper, (node, flags), made.opened).await?;
            return Ok(Created { entry, opened });
        }
        let is_dir = seen.is_dir();
        let entry = self.entry(dir, &name, seen).await?;
        drop(names);
        let opened = match (flags.contains(OpenFlags::EXCL), is_dir) {
            (true, _) => Err(Errno::EEXIST.into()),
            (_, true) => Err(Errno::EISDIR.into()),
            _ => self.open(entry.node, flags).await,
        };
        match opened {
            Ok(opened) => Ok(Created { entry: self.fresh(entry).await?, opened }),
            Err(error) => {
                self.forget(entry.node, 1).await;
                Err(error)
            }
        }
    }

    /// The entry with its attributes of now.
    async fn fresh(&self, entry: Entry) -> Result<Entry> {
        let now = self.getattr(GetAttr { node: entry.node, handle: None }).await?;
        Ok(Entry { attr: now.attr, attr_ttl: now.ttl, ..entry })
    }

    /// A file without a name, in the upper tree.
    pub(crate) async fn tmpfile(&self, op: TmpFile) -> Result<Created> {
        let (dir, flags) = (self.copy_up(op.dir).await?, op.flags);
        let made = ask(self.tree(Side::Upper), self.cx, TmpFile { dir, ..op }).await?;
        let (node, spare) = self.nodes().found_nameless(&made.entry)?;
        self.forget_all(spare).await;
        let opened = self.opened(Side::Upper, (made.entry.node, flags), made.opened).await?;
        Ok(Created { entry: self.renumbered(node, made.entry)?, opened })
    }

    /// Takes a name away.
    pub(crate) async fn remove(&self, dir: Node, name: &Name, directory: bool) -> Result<()> {
        if is_reserved(name) {
            return Err(Errno::ENOENT.into());
        }
        if self.nodes().bound(dir)?.upper.is_none() {
            // A name that is not there leaves no copy of the directory behind.
            let seen = self.see(&self.nodes().bound(dir)?, name).await?;
            self.forget_all(seen.spare()).await;
            check_kind(&seen, directory)?;
            self.copy_up(dir).await?;
        }
        let _names = self.locks().take(What::Names(dir)).await;
        let bound = self.nodes().bound(dir)?;
        let seen = self.see(&bound, name).await?;
        self.forget_all(seen.spare()).await;
        check_kind(&seen, directory)?;
        if directory {
            self.must_be_empty(&seen).await?;
        }
        self.hide(dir, &bound, name).await?;
        if let Some(entry) = &seen.upper {
            let (upper, name) = (bound.upper.ok_or(Errno::ESTALE)?, name.clone());
            match directory {
                true => {
                    self.part(dir, &name, entry.node).await?;
                    ask(self.tree(Side::Upper), self.cx, RmDir { dir: upper, name }).await?;
                }
                false => ask(self.tree(Side::Upper), self.cx, Unlink { dir: upper, name }).await?,
            }
        }
        self.nodes().removed(dir, name);
        Ok(())
    }

    /// `ENOTEMPTY` when a directory shows a name.
    async fn must_be_empty(&self, seen: &Seen) -> Result<()> {
        let [upper, lower] = [&seen.upper, &seen.lower].map(|entry| entry.as_ref().map(|entry| entry.node));
        let window = self.scan(&Bound { upper, lower, ino: 0, belongs: None }, 0).await?;
        if window.is_empty() { Ok(()) } else { Err(Errno::ENOTEMPTY.into()) }
    }

    /// Takes what is ours out of a directory that shows no names and has its own whiteout. From then on it has nothing of the lower
    /// tree, also if the step that follows fails.
    async fn part(&self, dir: Node, name: &Name, upper: Node) -> Result<()> {
        let spare = self.nodes().parted(dir, name);
        self.forget_all(spare).await;
        self.clear(upper).await
    }

    /// Takes what is ours out of a directory of the upper tree, of which nothing else is left.
    async fn clear(&self, dir: Node) -> Result<()> {
        let handle = self.open_dir(Side::Upper, dir).await?;
        let cleared = async {
            loop {
                let read = ReadDir { node: dir, handle, cookie: 0, size: 1 << 16 };
                let listed = self.ask_upper(read).await?;
                let mut left = listed.entries;
                left.retain(|entry| is_reserved(&entry.name) || entry.kind == Some(FileKind::CharDevice));
                if left.is_empty() {
                    return Ok(());
                }
                for entry in left {
                    self.take_away(dir, &entry.name, entry.kind == Some(FileKind::Directory)).await?;
                }
            }
        };
        let cleared = cleared.await;
        self.close_dir(Side::Upper, dir, handle).await;
        cleared
    }

    /// Moves a name, or lets two change places.
    pub(crate) async fn rename(&self, op: Rename) -> Result<()> {
        let Rename { dir, name, to_dir, to_name, flags } = &op;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if flags.contains(RenameFlags::WHITEOUT) || exchange && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Errno::EINVAL.into());
        }
        if is_reserved(name) || is_reserved(to_name) {
            return Err(reserved());
        }
        self.copy_named(*dir, name).await?;
        if exchange {
            self.copy_named(*to_dir, to_name).await?;
        }
        self.copy_up(*dir).await?;
        self.copy_up(*to_dir).await?;
        let _names = self.locks().names(*dir, *to_dir).await;
        let (from, to) = (self.nodes().bound(*dir)?, self.nodes().bound(*to_dir)?);
        let source = self.see(&from, name).await?;
        self.forget_all(source.spare()).await;
        let target = self.see(&to, to_name).await?;
        self.forget_all(target.spare()).await;
        self.check_rename(&op, &source, &target).await?;
        self.replace_device(&to, to_name, &target).await?;
        let replaced = target.upper.as_ref().filter(|entry| entry.attr.is_dir() && !exchange);
        // A directory must not be merged with one of the lower tree at its new place, nor the one it replaces once that is cleared.
        if let Some(lower) = self.uncovers(&to, to_name).await? {
            self.tell_hidden(*to_dir, to_name, &lower)?;
            if let Some(entry) = source.upper.as_ref().filter(|entry| entry.attr.is_dir()) {
                match replaced {
                    Some(_) => self.white_out(&to, to_name).await?,
                    None => self.make_opaque(entry.node).await?,
                }
            }
        }
        self.hide(*dir, &from, name).await?;
        if let Some(entry) = replaced {
            self.part(*to_dir, to_name, entry.node).await?;
        }
        let (Some(upper), Some(to_upper)) = (from.upper, to.upper) else { return Err(Errno::ESTALE.into()) };
        let (name, to_name) = (name.clone(), to_name.clone());
        // The lower tree's file that has the name is no obstacle in the upper one.
        let moved = Rename {
            dir: upper,
            name: name.clone(),
            to_dir: to_upper,
            to_name: to_name.clone(),
            flags: *flags,
        };
        ask(self.tree(Side::Upper), self.cx, moved).await?;
        self.nodes().moved((*dir, &name), (*to_dir, &to_name), exchange)
    }

    /// Copies the file that has a name, unless it is a directory.
    async fn copy_named(&self, dir: Node, name: &Name) -> Result<()> {
        let entry = self.lookup(dir, name).await?;
        let copied = match entry.attr.is_dir() {
            true => Ok(()),
            false => self.copy_up(entry.node).await.map(drop),
        };
        self.forget(entry.node, 1).await;
        copied
    }

    /// Whether a directory is the one that has a name, or is somewhere in it.
    fn is_inside(&self, dir: Node, above: Node, name: &Name) -> Result<bool> {
        let mut whole = self.nodes().table().path(above)?;
        whole.push(name.clone());
        Ok(self.nodes().table().path(dir)?.starts_with(&whole))
    }

    /// Whether names can move so, in the order in which the kernel asks (renameat2(2)).
    async fn check_rename(&self, op: &Rename, source: &Seen, target: &Seen) -> Result<()> {
        let exchange = op.flags.contains(RenameFlags::EXCHANGE);
        if target.shown().is_some() && op.flags.contains(RenameFlags::NOREPLACE) {
            return Err(Errno::EEXIST.into());
        }
        if source.is_dir() && self.is_inside(op.to_dir, op.dir, &op.name)? {
            return Err(Errno::EINVAL.into());
        }
        if target.is_dir() && self.is_inside(op.dir, op.to_dir, &op.to_name)? {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
        }
        let upper = |seen: &Seen| seen.upper.as_ref().map(|entry| entry.node);
        if upper(source).is_some() && upper(source) == upper(target) {
            return Ok(());
        }
        if exchange {
            return movable(source).and_then(|()| movable(target));
        }
        match (source.is_dir(), target.is_dir()) {
            _ if target.shown().is_none() => movable(source),
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (true, true) => {
                movable(source)?;
                self.must_be_empty(target).await
            }
            (false, false) => movable(source),
        }
    }
}

fn check_kind(seen: &Seen, directory: bool) -> Result<()> {
    match (seen.shown(), directory) {
        (None, _) => Err(Errno::ENOENT.into()),
        (Some(entry), true) if !entry.attr.is_dir() => Err(Errno::ENOTDIR.into()),
        (Some(entry), false) if entry.attr.is_dir() => Err(Errno::EISDIR.into()),
        _ => Ok(()),
    }
}

/// A directory with names of the lower tree stays where it is: moving it would copy all of it. Programs that get this error copy
/// by themselves, as mv(1).
fn movable(seen: &Seen) -> Result<()> {
    match &seen.lower {
        Some(_) if seen.is_dir() => {
            Err(Errno::EXDEV.because("union: a directory of the lower tree cannot be moved, only copied"))
        }
        Some(_) => Err(Errno::ESTALE.into()),
        None if seen.upper.is_none() => Err(Errno::ENOENT.into()),
        None => Ok(()),
    }
}
