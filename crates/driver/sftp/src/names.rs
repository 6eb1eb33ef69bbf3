// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names: finding, making, moving and removing them.

use crate::attr::{attr, kind};
use crate::fault::Fault;
use crate::files::server_flags;
use crate::inner::Inner;
use crate::link::Again;
use crate::pending_create::permissions;
use crate::session::Session;
use crate::slots::{Held, Slot};
use outrigger_core::ops::{
    Create, Link, Lookup, MkDir, MkNod, OpenFlags, Rename, RenameFlags, RmDir, SymLink, Unlink, Walk,
};
use outrigger_core::reply::{Created, Entries, Entry, Opened};
use outrigger_core::{Cx, Errno, FileKind, Name, Node, Result, lock};
use outrigger_proto_sftp::{Attrs, Extensions, OpenFlags as Flags, Request, StatusCode};
use outrigger_toolkit_remote::Attempt;
use outrigger_toolkit_remote::known::moment;

impl Inner {
    pub(crate) async fn find(&self, op: Lookup) -> Result<Entry> {
        let path = self.inodes.child(op.dir, &op.name)?;
        if self.is_hidden_name(op.dir, &op.name) {
            return Err(Errno::ENOENT.into());
        }
        let asked = moment();
        let attrs = self.look(&path).await?;
        let entry = self.entry(op.dir, &op.name, &attrs)?;
        self.saw_by_path(entry.node, &attrs, asked);
        Ok(entry)
    }

    /// All steps are asked for at once; those after what is no directory do not count.
    pub(crate) async fn walk_down(&self, op: Walk) -> Result<Entries> {
        let mut path = self.inodes.path(op.dir)?;
        let mut paths = Vec::with_capacity(op.names.len());
        for name in &op.names {
            path = outrigger_toolkit_remote::join(path, name)?;
            paths.push(path.clone());
        }
        let asked = moment();
        let found = self.link.run(Again::Always, |session| {
            let paths = &paths;
            async move {
                let mut asked = Vec::with_capacity(paths.len());
                for path in paths {
                    asked.push(self.link.look(&session, path).await);
                }
                let mut found = Vec::with_capacity(asked.len());
                for look in asked {
                    match look.attrs().await {
                        Ok(attrs) => found.push(attrs),
                        Err(fault @ Fault::Refused(_)) if found.is_empty() => return Err(fault),
                        Err(Fault::Refused(_)) => break,
                        Err(fault) => return Err(fault),
                    }
                }
                Ok(found)
            }
        });
        let mut entries = Entries::new();
        let mut dir = op.dir;
        for (name, attrs) in op.names.iter().zip(found.await?) {
            if self.is_hidden_name(dir, name) {
                break;
            }
            let entry = match self.entry(dir, name, &attrs) {
                Err(error) if entries.is_empty() => return Err(error),
                // A request for the rest fails with the reason; what was found so far has been counted.
                Err(_) => break,
                Ok(entry) => entry,
            };
            self.saw_by_path(entry.node, &attrs, asked);
            dir = entry.node;
            entries.push(entry);
            if kind(&attrs) != FileKind::Directory {
                break;
            }
        }
        if entries.is_empty() && !op.names.is_empty() { Err(Errno::ENOENT.into()) } else { Ok(entries) }
    }

    pub(crate) async fn make_dir(&self, op: MkDir) -> Result<Entry> {
        self.people.can_own()?;
        let path = self.inodes.child(op.dir, &op.name)?;
        let attrs = Attrs { permissions: Some(op.mode & 0o7777), ..Attrs::NONE };
        let made = self.change_and_look(&Request::MkDir { path: &path, attrs }, &path).await;
        let attrs = self.explained(made, Attempt::Make { path: &path }).await?;
        let attrs = self.complete_mode(&path, attrs, op.mode).await;
        self.entry(op.dir, &op.name, &attrs)
    }

    pub(crate) async fn make_link(&self, op: SymLink) -> Result<Entry> {
        self.people.can_own()?;
        let path = self.inodes.child(op.dir, &op.name)?;
        let made = self.change_and_look(&Request::SymLink { target: &op.target, path: &path }, &path).await;
        let mut attrs = self.explained(made, Attempt::Make { path: &path }).await?;
        if kind(&attrs) != FileKind::Symlink {
            // mod_sftp of proftpd has made the link, and tells of what it leads to: for kernels that is a failure.
            attrs.permissions = Some(FileKind::Symlink.bits() | 0o777);
            attrs.size = Some(op.target.len() as u64);
        }
        self.entry(op.dir, &op.name, &attrs)
    }

    /// Only regular files can be made.
    pub(crate) async fn make_node(&self, op: MkNod) -> Result<Entry> {
        let path = self.inodes.child(op.dir, &op.name)?;
        match FileKind::of_mode(op.mode) {
            None | Some(FileKind::Regular) => {}
            Some(FileKind::Directory | FileKind::Symlink) => return Err(Errno::EINVAL.into()),
            Some(_) if self.look(&path).await.is_ok() => return Err(Errno::EEXIST.into()),
            // What mknod(2) says for file systems that have no such thing.
            Some(_) => return Err(Errno::EPERM.because("the protocol makes neither devices nor pipes")),
        }
        self.people.can_own()?;
        let made = self.make_file(&path, Flags::WRITE, op.mode).await.map(|(_, attrs)| attrs);
        let attrs = self.explained(made, Attempt::Make { path: &path }).await?;
        let attrs = self.complete_mode(&path, attrs, op.mode).await;
        self.entry(op.dir, &op.name, &attrs)
    }

    /// Makes a file that does not exist yet, and looks at it.
    pub(crate) async fn make_file(
        &self,
        path: &[u8],
        flags: Flags,
        mode: u32,
    ) -> Result<(Held, Attrs), Fault> {
        let (flags, attrs) = (flags | Flags::CREAT | Flags::EXCL, permissions(mode));
        self.link
            .run(Again::Never, |session| async move {
                let open = session.begin(&Request::Open { path, flags, attrs }).await;
                let look = self.link.look(&session, path).await;
                let handle = open.handle().await?;
                let held = Held::new(session, handle);
                let attrs = match look.attrs().await {
                    // The server does not keep the order.
                    Err(Fault::Refused(_)) => {
                        held.session.begin(&Request::FStat { handle: &held.handle }).await.attrs().await
                    }
                    looked => looked,
                };
                attrs.map(|attrs| (held, attrs)).map_err(Fault::after_others)
            })
            .await
    }

    pub(crate) async fn create_file(&self, cx: &Cx, op: Create) -> Result<Created> {
        self.people.can_own()?;
        let path = self.inodes.child(op.dir, &op.name)?;
        if op.flags.contains(OpenFlags::ASYNC_CREATE)
            && let Some(created) = self.create_async(cx, &op, &path).await?
        {
            return Ok(created);
        }
        let (theirs, asked) = (server_flags(op.flags), self.seen.last());
        let fault = match self.make_file(&path, theirs, op.mode).await {
            Ok((held, attrs)) => {
                self.usual.learn(op.dir, op.mode, &attrs);
                let attrs = self.complete_mode(&path, attrs, op.mode).await;
                let entry = self.entry(op.dir, &op.name, &attrs)?;
                let slot = (Slot::open(theirs, held), asked, self.seen.known(entry.node));
                let opened = self.files.add(cx, entry.node, op.flags, slot)?;
                self.files.get(opened.handle)?.saw(&attrs);
                return Ok(Created { entry, opened });
            }
            Err(fault) => fault,
        };
        let error = self.why(fault, Attempt::Make { path: &path }).await;
        if error.errno != Errno::EEXIST || op.flags.contains(OpenFlags::EXCL) {
            return Err(error);
        }
        self.open_existing(cx, op, &path).await
    }

    async fn open_existing(&self, cx: &Cx, op: Create, path: &[u8]) -> Result<Created> {
        let attrs = self.look(path).await?;
        let entry = self.entry(op.dir, &op.name, &attrs)?;
        let opened: Result<Opened> = self.open_file(cx, entry.node, op.flags).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.forget(entry.node, 1);
                return Err(error);
            }
        };
        let attrs =
            if op.flags.contains(OpenFlags::TRUNC) { Attrs { size: Some(0), ..attrs } } else { attrs };
        let ino = entry.attr.ino;
        Ok(Created { entry: self.entry_of(entry.node, ino, &attrs)?, opened })
    }

    pub(crate) async fn link_file(&self, op: Link) -> Result<Entry> {
        if self.inodes.kind(op.node)? == FileKind::Directory {
            return Err(Errno::EPERM.because("directories have one name only"));
        }
        if !self.options().hard_links || !self.extensions.contains(Extensions::HARDLINK) {
            return Err(Errno::EPERM.because("hard links are not made here"));
        }
        if self.files.is_removed(op.node) {
            return Err(Errno::ENOENT.because("the file was removed"));
        }
        let from = self.inodes.path(op.node).map_err(|_| Errno::ENOENT.because("the file was removed"))?;
        let to = self.inodes.child(op.dir, &op.name)?;
        let made = self.change_and_look(&Request::HardLink { from: &from, to: &to }, &to).await;
        let made = match made {
            Err(fault @ Fault::Refused(_)) => self.was_linked(&from, &to).await.ok_or(fault),
            made => made,
        };
        let attrs = self.explained(made, Attempt::Link { from: &from, to: &to }).await?;
        self.inodes.table().linked(op.node, op.dir, &op.name)?;
        self.keep(op.dir, &op.name);
        let entry = self.entry_of(op.node, self.inodes.ino(op.node)?, &attrs);
        entry.inspect_err(|_| self.forget(op.node, 1))
    }

    pub(crate) async fn remove_name(&self, op: Unlink) -> Result<()> {
        let path = self.inodes.child(op.dir, &op.name)?;
        if self.is_hidden_name(op.dir, &op.name) {
            return Err(Errno::ENOENT.into());
        }
        if let Some(node) = self.must_hide(op.dir, &op.name) {
            match self.silly_rename().hide((op.dir, &op.name), node).await {
                // The server may permit to remove what it does not permit to rename.
                Err(Fault::Refused(_)) => {}
                hidden => return Ok(hidden?),
            }
        }
        let is_known = self.inodes.table().get(op.dir, &op.name).is_some();
        let remove = Request::Remove { path: &path };
        let removed = self.look_and_change(is_known.then_some(&path[..]), &remove).await;
        let attrs = self.explained(removed, Attempt::Remove { path: &path }).await?;
        self.is_gone(op.dir, &op.name, attrs);
        Ok(())
    }

    /// Notes that a name was removed or is another file's now. What there are references to keeps its last attributes.
    fn is_gone(&self, dir: Node, name: &Name, attrs: Option<Attrs>) {
        let table = self.inodes.table();
        let Some(node) = table.get(dir, name) else { return };
        let ino = self.inodes.ino(node);
        table.removed(dir, name);
        let nameless = table.names(node).is_ok_and(|names| names.is_empty());
        if let (Some(attrs), Ok(ino), true) = (attrs, ino, nameless)
            && let Ok(mut attr) = attr(&attrs, ino, &self.people)
        {
            attr.nlink = 0;
            lock(&self.removed).insert(node, attr);
        }
    }

    pub(crate) async fn remove_dir(&self, op: RmDir) -> Result<()> {
        let path = self.inodes.child(op.dir, &op.name)?;
        let request = Request::RmDir { path: &path };
        let known = self.inodes.table().get(op.dir, &op.name);
        if let Some(node) = known {
            self.removing.none_in(node).await;
        }
        let mut removed = self.change(&request).await;
        if removed.as_ref().is_err_and(Fault::is_vague)
            && let Some(node) = known
            && self.silly_rename().clear(node, op.dir).await
        {
            removed = self.change(&request).await;
        }
        self.explained(removed, Attempt::RmDir { path: &path }).await?;
        self.is_gone(op.dir, &op.name, None);
        Ok(())
    }

    pub(crate) async fn rename_to(&self, op: Rename) -> Result<()> {
        if !(op.flags - RenameFlags::NOREPLACE).is_empty() {
            return Err(Errno::EINVAL.because("the protocol cannot exchange names"));
        }
        let from = self.inodes.child(op.dir, &op.name)?;
        let to = self.inodes.child(op.to_dir, &op.to_name)?;
        if self.is_hidden_name(op.dir, &op.name) {
            return Err(Errno::ENOENT.into());
        }
        let replaces = !op.flags.contains(RenameFlags::NOREPLACE);
        self.know(op.dir, &op.name, &from).await?;
        let renamed = match replaces {
            true => self.replace(&op, &from, &to).await,
            false => self.change(&Request::Rename { from: &from, to: &to }).await.map(|()| None),
        };
        let renamed = match renamed {
            Err(Fault::Refused(_)) if self.was_renamed(&op, (&from, &to)).await => Ok(None),
            renamed => renamed,
        };
        let attempt = Attempt::Rename { from: &from, to: &to, replaces };
        let replaced = self.explained(renamed, attempt).await?;
        let table = self.inodes.table();
        let moved = table.get(op.dir, &op.name);
        if replaced.is_some() && moved != table.get(op.to_dir, &op.to_name) {
            self.is_gone(op.to_dir, &op.to_name, replaced);
        }
        table.renamed((op.dir, &op.name), (op.to_dir, &op.to_name))?;
        self.keep(op.to_dir, &op.to_name);
        Ok(())
    }

    /// Whether what cannot be renamed is at its new name because a former process has done that, and died before it could say
    /// so: what is known here is still the state before.
    async fn was_renamed(&self, op: &Rename, (from, to): (&[u8], &[u8])) -> bool {
        if !self.repeats() || self.inodes.table().get(op.dir, &op.name).is_none() {
            return false;
        }
        let gone = self.look(from).await.is_err_and(|fault| fault.code() == Some(StatusCode::NoSuchFile));
        gone && self.look(to).await.is_ok()
    }

    /// The file at `to`, if that is what a former process made a second name of the one at `from`.
    async fn was_linked(&self, from: &[u8], to: &[u8]) -> Option<Attrs> {
        if !self.repeats() {
            return None;
        }
        let (from, to) = (self.look(from).await.ok()?, self.look(to).await.ok()?);
        (from == to).then_some(to)
    }

    /// Enters what `name` in `dir` leads to, so that its node follows it to another name.
    async fn know(&self, dir: Node, name: &Name, path: &[u8]) -> Result<()> {
        if self.inodes.table().get(dir, name).is_some() {
            return Ok(());
        }
        // What is not there the server refuses to rename, in its own words.
        if let Ok(attrs) = self.look(path).await {
            let (node, _) = self.inodes.found(dir, name, kind(&attrs))?;
            self.keep(dir, name);
            self.forget(node, 1);
        }
        Ok(())
    }

    /// Whether what is to be renamed and what has the new name are directories.
    ///
    /// # Errors
    /// `EISDIR` or `ENOTDIR` when one of them is: rename(2) does not replace the one by the other.
    async fn is_between_directories(&self, from: &[u8], there: &Attrs) -> Result<bool, Fault> {
        let is_dir = |attrs: &Attrs| kind(attrs) == FileKind::Directory;
        match (is_dir(&self.look(from).await?), is_dir(there)) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (both, _) => Ok(both),
        }
    }

    /// Renames a directory over another one where the server's rename replaces nothing: an empty one is removed first, and one that
    /// is not empty stays, as with rename(2).
    async fn replace_directory(&self, op: &Rename, from: &[u8], to: &[u8]) -> Result<Option<Attrs>, Fault> {
        match self.change(&Request::RmDir { path: to }).await {
            // Version 3 has no status for a directory that is not empty.
            Err(fault) if fault.code() == Some(StatusCode::Failure) => return Err(Errno::ENOTEMPTY.into()),
            removed => removed?,
        }
        self.is_gone(op.to_dir, &op.to_name, None);
        self.change(&self.renaming(from, to)).await.map(|()| None)
    }

    /// Renames over what has the new name, and gives its attributes if it is known.
    async fn replace(&self, op: &Rename, from: &[u8], to: &[u8]) -> Result<Option<Attrs>, Fault> {
        let table = self.inodes.table();
        let (moved, there) = (table.get(op.dir, &op.name), table.get(op.to_dir, &op.to_name));
        let open = self.must_hide(op.to_dir, &op.to_name).filter(|&node| Some(node) != moved);
        let is_atomic = self.extensions.contains(Extensions::POSIX_RENAME);
        // Without an atomic rename whatever is there has to go out of the way.
        let in_the_way = match !is_atomic && from != to {
            true => self.look(to).await.ok(),
            false => None,
        };
        if let Some(attrs) = &in_the_way
            && self.is_between_directories(from, attrs).await?
        {
            return self.replace_directory(op, from, to).await;
        }
        let in_the_way = in_the_way.is_some() || !is_atomic && there.is_some() && from != to;
        if open.is_none() && !in_the_way {
            let look_first = there.is_some() && there != moved;
            return self.look_and_change(look_first.then_some(to), &self.renaming(from, to)).await;
        }
        let aside = self.keep_aside(op.to_dir, &op.to_name, open).await?;
        if !is_atomic {
            // A second name may have been made, and the first one is still there.
            let _ = self.change(&Request::Remove { path: to }).await;
        }
        if let Err(fault) = self.change(&self.renaming(from, to)).await {
            self.put_back(op.to_dir, &op.to_name, &aside).await;
            return Err(fault);
        }
        match open {
            Some(node) => self.silly_rename().hidden((op.to_dir, &op.to_name), &aside, node).await?,
            None => {
                let aside = self.inodes.child(op.to_dir, &aside)?;
                self.change(&Request::Remove { path: &aside }).await?;
                self.is_gone(op.to_dir, &op.to_name, None);
            }
        }
        Ok(None)
    }

    /// Asks for a change, and what is at a path before it, if it is to be known.
    async fn look_and_change(
        &self,
        path: Option<&[u8]>,
        request: &Request<'_>,
    ) -> Result<Option<Attrs>, Fault> {
        let change = async |session: Session| {
            let look = match path {
                Some(path) => Some(self.link.look(&session, path).await),
                None => None,
            };
            session.begin(request).await.done().await?;
            Ok(match look {
                Some(look) => look.attrs().await.ok(),
                None => None,
            })
        };
        self.link.run(Again::Never, change).await
    }
}
