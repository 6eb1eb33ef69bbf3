// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making, moving and removing names.
//!
//! A call whose reply was lost is made again, and a server that does not remember it finds its own work done. Where the outcome
//! shows that, it is success: the name is gone, or leads to the file that was moved or linked.

use crate::convert;
use crate::inner::Inner;
use outrigger_core::ops::{Create, Link, MkDir, MkNod, Open, OpenFlags, Rename, RenameFlags, SymLink};
use outrigger_core::reply::{Created, Entry};
use outrigger_core::{Attr, Cx, Errno, Error, FileKind, Name, Node, Result};
use outrigger_proto_nfs3::nfs::{
    CreateArgs, CreateHow, LinkArgs, MkDirArgs, MkNodArgs, MkNodWhat, NewDevice, RenameArgs, SymLinkArgs,
    procedure as nfs,
};
use outrigger_proto_nfs3::results::{self, Outcome};
use outrigger_proto_nfs3::types::{self, DirName, Path};
use outrigger_proto_nfs3::xdr::Procedure;
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::SillyServer;

impl Inner {
    /// The entry of something that was made.
    async fn made(&self, auth: &Auth, (dir, name): (Node, &Name), made: results::Created) -> Result<Entry> {
        let found = match made.object {
            Some(object) => self.complete(auth, object, made.attrs).await?,
            None => self.step(auth, dir, name).await?,
        };
        self.entry(dir, name, found)
    }

    /// Makes a regular file; `None` where there is something already and `flags` allow that.
    async fn make_file(&self, auth: &Auth, op: &Create) -> Result<Option<Entry>> {
        let at = self.place(auth, op.dir, &op.name).await?;
        let initial = convert::initial(op.mode, op.initial.as_deref());
        let place = (op.dir, &op.name);
        if op.flags.contains(OpenFlags::EXCL) {
            // Made again after a loss, it succeeds once.
            let how = CreateHow::Exclusive(fastrand::u64(..).to_be_bytes());
            let args = CreateArgs { at: at.clone(), how };
            match self.ask::<nfs::Create>(auth, &args).await {
                Err(error) if error.errno == Errno::EOPNOTSUPP => {}
                Ok(made) => return self.made_exclusively(auth, place, (made, initial)).await.map(Some),
                Err(error) => return Err(error),
            }
        }
        let args = CreateArgs { at, how: CreateHow::Guarded(initial) };
        match self.ask::<nfs::Create>(auth, &args).await {
            Err(error) if error.errno == Errno::EEXIST && !op.flags.contains(OpenFlags::EXCL) => Ok(None),
            Err(error) => Err(error),
            Ok(made) => self.made(auth, place, made).await.map(Some),
        }
    }

    /// Gives a file that was made exclusively what it was to begin with: the server has used its times for the verifier.
    async fn made_exclusively(
        &self,
        auth: &Auth,
        (dir, name): (Node, &Name),
        (made, initial): (results::Created, types::SetAttrs),
    ) -> Result<Entry> {
        let now = |time| if time == types::SetTime::Keep { types::SetTime::Now } else { time };
        let attrs = types::SetAttrs { atime: now(initial.atime), mtime: now(initial.mtime), ..initial };
        let entry = self.made(auth, (dir, name), made).await?;
        let set = async {
            Ok::<_, Error>(match self.set(auth, entry.node, attrs).await? {
                Some(after) => self.attr(&after),
                None => self.attrs(auth, entry.node).await?.attr,
            })
        };
        match set.await {
            Ok(attr) => Ok(Entry { attr, ..entry }),
            Err(error) => {
                // One that is not as it was asked for would be in the way of the next attempt.
                let _ = self.remove::<nfs::Remove>(auth, (dir, name)).await;
                self.files.table().forget(entry.node, 1);
                Err(error)
            }
        }
    }

    pub(crate) async fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        let auth = self.auth(cx);
        if let Some(entry) = self.make_file(&auth, &op).await? {
            let opened = self.opened(cx, entry.node, op.flags, auth);
            let opened = opened.inspect_err(|_| self.files.table().forget(entry.node, 1))?;
            return Ok(Created { entry, opened });
        }
        let entry = self.lookup(cx, op.dir, &op.name).await?;
        let opened = self.open_file(cx, Open { node: entry.node, flags: op.flags }).await;
        let opened = opened.inspect_err(|_| self.files.table().forget(entry.node, 1))?;
        let size = if op.flags.contains(OpenFlags::TRUNC) { 0 } else { entry.attr.size };
        Ok(Created { entry: Entry { attr: Attr { size, ..entry.attr }, ..entry }, opened })
    }

    pub(crate) async fn mkdir(&self, cx: &Cx, op: MkDir) -> Result<Entry> {
        let auth = self.auth(cx);
        let at = self.place(&auth, op.dir, &op.name).await?;
        let args = MkDirArgs { at, attrs: convert::initial(op.mode, op.initial.as_deref()) };
        let made = self.ask::<nfs::MkDir>(&auth, &args).await?;
        self.made(&auth, (op.dir, &op.name), made).await
    }

    pub(crate) async fn symlink(&self, cx: &Cx, op: SymLink) -> Result<Entry> {
        let auth = self.auth(cx);
        let at = self.place(&auth, op.dir, &op.name).await?;
        let target = Path::new(op.target.as_bytes().to_vec()).map_err(|_| Errno::ENAMETOOLONG)?;
        let attrs = convert::initial(0o777, op.initial.as_deref());
        let made = self.ask::<nfs::SymLink>(&auth, &SymLinkArgs { at, attrs, target }).await?;
        self.made(&auth, (op.dir, &op.name), made).await
    }

    pub(crate) async fn mknod(&self, cx: &Cx, op: MkNod) -> Result<Entry> {
        let auth = self.auth(cx);
        let attrs = convert::initial(op.mode, op.initial.as_deref());
        let device = NewDevice { attrs, device: types::Device::of_rdev(op.rdev) };
        let what = match FileKind::of_mode(op.mode).unwrap_or(FileKind::Regular) {
            FileKind::Fifo => MkNodWhat::Fifo(attrs),
            FileKind::Socket => MkNodWhat::Socket(attrs),
            FileKind::CharDevice => MkNodWhat::Char(device),
            FileKind::BlockDevice => MkNodWhat::Block(device),
            FileKind::Regular => {
                let MkNod { dir, name, mode, umask, initial, .. } = op;
                let op = Create { dir, name, mode, umask, flags: OpenFlags::EXCL, initial };
                return self.make_file(&auth, &op).await?.ok_or_else(|| Errno::EEXIST.into());
            }
            FileKind::Directory | FileKind::Symlink => return Err(Errno::EINVAL.into()),
        };
        let at = self.place(&auth, op.dir, &op.name).await?;
        let made = self.ask::<nfs::MkNod>(&auth, &MkNodArgs { at, what }).await?;
        self.made(&auth, (op.dir, &op.name), made).await
    }

    pub(crate) async fn link(&self, cx: &Cx, op: Link) -> Result<Entry> {
        let auth = self.auth(cx);
        if self.open.is_removed(op.node) {
            return Err(Errno::ENOENT.into());
        }
        let file = self.handle(&auth, op.node).await?;
        let args = LinkArgs { file, link: self.place(&auth, op.dir, &op.name).await? };
        let (linked, again) = self.ask_via::<nfs::Link>(None, &auth, &args, 0).await;
        let attrs = match linked {
            Ok(linked) => linked.attrs,
            Err(error) if again && error.errno == Errno::EEXIST => {
                match self.step(&auth, op.dir, &op.name).await {
                    Ok((found, _)) if found.handle() == &file[..] => None,
                    _ => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        let found = self.complete(&auth, file, attrs).await?;
        self.entry(op.dir, &op.name, found)
    }

    /// Removes a name, by REMOVE or RMDIR.
    pub(crate) async fn remove<P: Procedure<Args = DirName, Results: Outcome>>(
        &self,
        auth: &Auth,
        (dir, name): (Node, &Name),
    ) -> Result<()> {
        let at = self.place(auth, dir, name).await?;
        match self.ask_via::<P>(None, auth, &at, 0).await {
            (Ok(_), _) => {}
            (Err(error), true) if error.errno == Errno::ENOENT => {}
            (Err(error), _) => return Err(error),
        }
        self.files.table().removed(dir, name);
        Ok(())
    }

    pub(crate) async fn unlink(&self, cx: &Cx, dir: Node, name: &Name) -> Result<()> {
        let auth = self.auth(cx);
        let silly = self.silly_rename(&auth);
        if silly.has(dir, name) {
            return Err(Errno::ENOENT.into());
        }
        match self.has_only(&auth, (dir, name)).await? {
            Some(node) => silly.hide((dir, name), node).await,
            None => self.remove::<nfs::Remove>(&auth, (dir, name)).await,
        }
    }

    pub(crate) async fn rmdir(&self, cx: &Cx, dir: Node, name: &Name) -> Result<()> {
        let auth = self.auth(cx);
        match self.remove::<nfs::RmDir>(&auth, (dir, name)).await {
            Err(error) if error.errno == Errno::ENOTEMPTY => match self.files.table().get(dir, name) {
                Some(node) if self.silly_rename(&auth).clear(node, dir).await => {
                    self.remove::<nfs::RmDir>(&auth, (dir, name)).await
                }
                _ => Err(error),
            },
            removed => removed,
        }
    }

    /// The file called `name`, if it is open and that is its only name at the server.
    async fn has_only(&self, auth: &Auth, (dir, name): (Node, &Name)) -> Result<Option<Node>> {
        let Some(node) = self.silly_rename(auth).loses(dir, name) else { return Ok(None) };
        let (found, attr) = self.step(auth, dir, name).await?;
        let is_it = self.files.get(node).is_some_and(|known| known.handle() == found.handle());
        Ok((is_it && found.kind == FileKind::Regular && attr.nlink <= 1).then_some(node))
    }

    async fn move_at_server(
        &self,
        auth: &Auth,
        (dir, name): (Node, &Name),
        (to_dir, to_name): (Node, &Name),
    ) -> Result<()> {
        let moved = self.files.table().get(dir, name).and_then(|node| self.files.get(node));
        let args = RenameArgs {
            from: self.place(auth, dir, name).await?,
            to: self.place(auth, to_dir, to_name).await?,
        };
        match self.ask_via::<nfs::Rename>(None, auth, &args, 0).await {
            (Ok(_), _) => Ok(()),
            (Err(error), true) if error.errno == Errno::ENOENT && moved.is_some() => {
                let found = self.step(auth, to_dir, to_name).await.ok();
                let is_it = found.map(|(known, _)| known) == moved;
                if is_it { Ok(()) } else { Err(error) }
            }
            (Err(error), _) => Err(error),
        }
    }

    pub(crate) async fn rename(&self, cx: &Cx, op: Rename) -> Result<()> {
        let Rename { dir, name, to_dir, to_name, flags } = op;
        let auth = self.auth(cx);
        if flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL.because("the protocol cannot exchange names"));
        }
        let silly = self.silly_rename(&auth);
        if silly.has(dir, &name) {
            return Err(Errno::ENOENT.into());
        }
        if flags.contains(RenameFlags::NOREPLACE) {
            self.known(&auth, to_dir).await?;
            match self.step(&auth, to_dir, &to_name).await {
                Ok(_) => return Err(Errno::EEXIST.into()),
                Err(error) if error.errno == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        let table = self.files.table();
        let is_another = table.get(dir, &name) != table.get(to_dir, &to_name);
        let kept = if is_another { self.keep(&auth, (to_dir, &to_name)).await? } else { None };
        let moved = self.move_at_server(&auth, (dir, &name), (to_dir, &to_name)).await;
        match (&moved, kept) {
            (Err(_), Some((_, Some(aside)))) => _ = silly.remove_name(to_dir, &aside).await,
            (Err(_), Some((target, None))) => silly.put_back((to_dir, &to_name), target).await,
            (Ok(()), Some((target, Some(aside)))) => {
                silly.hidden((to_dir, &to_name), &aside, target).await?;
            }
            _ => {}
        }
        moved?;
        table.renamed((dir, &name), (to_dir, &to_name))
    }

    /// Gives an open file whose only name is about to become another file's a second one, if it needs that. Where the server has no
    /// links it is hidden at once: then there is no second name.
    async fn keep(&self, auth: &Auth, (dir, name): (Node, &Name)) -> Result<Option<(Node, Option<Name>)>> {
        let Ok(Some(node)) = self.has_only(auth, (dir, name)).await else { return Ok(None) };
        let link = async |aside: &Name| {
            let args = LinkArgs { file: self.sent_handle(node)?, link: self.place(auth, dir, aside).await? };
            self.ask::<nfs::Link>(auth, &args).await.map(drop)
        };
        match self.silly.give(dir, Some(node), link).await {
            Ok(aside) => Ok(Some((node, Some(aside)))),
            Err(_) => self.silly_rename(auth).hide((dir, name), node).await.map(|()| Some((node, None))),
        }
    }
}

/// The server, as a user who removes and renames.
pub(crate) struct As<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) auth: &'a Auth,
}

impl SillyServer for As<'_> {
    type Fault = Error;

    async fn rename(&self, from: (Node, &Name), to: (Node, &Name)) -> Result<()> {
        self.inner.move_at_server(self.auth, from, to).await
    }

    async fn remove(&self, dir: Node, name: &Name) -> Result<bool> {
        self.inner.remove::<nfs::Remove>(self.auth, (dir, name)).await.map(|()| true)
    }

    async fn is_there(&self, dir: Node, name: &Name) -> Result<bool> {
        match self.inner.step(self.auth, dir, name).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
