// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations. Each runs as a task of its own: it ends properly also when the one who asked does not wait for it.

use super::inner::{Dir, Inner};
use super::{FileServer, FileTree, Found, Listing};
use crate::diagnosis::Attempt;
use crate::inode_table::join;
use crate::listing::{DIRENT, DIRENT_PLUS, Named, Ordered, name_only};
use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::{
    Attrs, Count, Created, Dirent, DirentPlus, Dirents, DirentsPlus, Entries, Entry, FsStat, Opened, Ttl,
};
use outrigger_core::{
    Abilities, Cx, Driver, Errno, FileKind, Handle, Identity, Name, Node, Notify, OpCode, OpSet, Payload,
    Recalled, Request, Result, Target, lock,
};
use std::sync::Arc;

const OPS: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::Walk,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::ReadLink,
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::Unlink,
    OpCode::RmDir,
    OpCode::Rename,
    OpCode::Open,
    OpCode::Create,
    OpCode::Read,
    OpCode::Write,
    OpCode::Flush,
    OpCode::FSync,
    OpCode::FSyncDir,
    OpCode::SyncFs,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReadDirPlus,
    OpCode::ReleaseDir,
    OpCode::StatFs,
    OpCode::Forget,
    OpCode::Locate,
]);

impl Named for (Name, Found) {
    fn name(&self) -> &Name {
        &self.0
    }
}

/// What a server that does not tell its space is said to have free, as sshfs has it: programs that look first refuse to write where
/// there seems to be none.
const UNKNOWN_SPACE: u64 = 1000 << 30;
const UNKNOWN_FILES: u64 = 1_000_000_000;
/// In such units.
const BLOCK: u32 = 4096;

impl<S: FileServer> FileTree<S> {
    /// Refuses what changes a tree that is only read, whatever else might be wrong with it.
    fn may_change() -> Result<()> {
        if S::READ_ONLY { Err(Errno::EROFS.because("the server is only read")) } else { Ok(()) }
    }

    async fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Inner<S>>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = work(Arc::clone(&self.0));
        self.0.runtime.spawn(Box::pin(async move {
            let _ = sender.send(work.await);
        }));
        receiver.await.unwrap_or_else(|_| Err(Errno::EIO.because("the program is ending")))
    }
}

impl<S: FileServer> Driver for FileTree<S> {
    fn abilities(&self) -> Abilities {
        Abilities {
            identity: Identity::ByPath,
            cookies_by_name: true,
            attrs_may_fail: true,
            root_at: Some(Bytes::copy_from_slice(self.0.inodes.base())),
            parallel: S::PARALLEL,
            time_unit: 1_000_000_000,
            negative_ttl: Ttl::SECOND,
            whole_files: true,
            async_create: true,
            close_to_open: self.0.server.is_asked_at_open(),
            hides_names: S::HIDES_NAMES,
            read_only: S::READ_ONLY,
            recalls: true,
            ..Abilities::new(self.0.server.driver(), self.0.server.shown(), OPS)
        }
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        // Called once.
        let _ = self.0.notify.set(notify);
    }

    fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        self.0.inodes.recall(dir, name, kind)
    }

    async fn lookup(&self, _: &Cx, op: Lookup) -> Result<Entry> {
        self.run(async move |inner| inner.lookup(op.dir, &op.name).await).await
    }

    async fn walk(&self, _: &Cx, op: Walk) -> Result<Entries> {
        self.run(async move |inner| {
            if let Some(walked) = inner.walk_hidden(&op).await {
                return walked;
            }
            let (mut dir, mut entries) = (op.dir, Vec::new());
            for name in &op.names {
                match inner.lookup(dir, name).await {
                    Ok(entry) => entries.push(entry),
                    Err(error) if entries.is_empty() => return Err(error),
                    Err(_) => break,
                }
                dir = entries[entries.len() - 1].node;
            }
            Ok(entries)
        })
        .await
    }

    async fn forget(&self, _: &Cx, op: Forget) -> Result<()> {
        self.0.inodes.table().forget(op.node, op.count);
        if S::TELLS_VERSIONS && self.0.inodes.path(op.node).is_err() {
            lock(&self.0.versions).forget(op.node);
        }
        Ok(())
    }

    async fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        self.run(async move |inner| inner.attrs(op.node).await).await
    }

    async fn setattr(&self, _: &Cx, op: SetAttr) -> Result<Attrs> {
        Self::may_change()?;
        self.run(async move |inner| {
            let _lock = inner.locks.lock(op.node).await;
            inner.set_attrs(op.node, &op.attrs, op.handle.is_some()).await?;
            inner.attrs(op.node).await
        })
        .await
    }

    async fn readlink(&self, _: &Cx, op: ReadLink) -> Result<Target> {
        self.run(async move |inner| inner.read_link(op.node).await).await
    }

    async fn mknod(&self, cx: &Cx, op: MkNod) -> Result<Entry> {
        Self::may_change()?;
        if FileKind::of_mode(op.mode).unwrap_or(FileKind::Regular) != FileKind::Regular {
            return Err(Errno::EPERM.because("the server makes no devices, pipes and sockets"));
        }
        let cx = cx.clone();
        self.run(async move |inner| inner.make_file(&cx, op.dir, &op.name, op.mode).await).await
    }

    async fn mkdir(&self, _: &Cx, op: MkDir) -> Result<Entry> {
        Self::may_change()?;
        self.run(async move |inner| inner.mkdir(op).await).await
    }

    async fn symlink(&self, _: &Cx, _: SymLink) -> Result<Entry> {
        Self::may_change()?;
        Err(Errno::EPERM.because("the server makes no symbolic links"))
    }

    async fn link(&self, _: &Cx, _: Link) -> Result<Entry> {
        Self::may_change()?;
        Err(Errno::EPERM.because("the server makes no links"))
    }

    async fn unlink(&self, _: &Cx, op: Unlink) -> Result<()> {
        Self::may_change()?;
        self.run(async move |inner| inner.unlink(op).await).await
    }

    async fn rmdir(&self, _: &Cx, op: RmDir) -> Result<()> {
        Self::may_change()?;
        self.run(async move |inner| inner.rmdir(op).await).await
    }

    async fn rename(&self, _: &Cx, op: Rename) -> Result<()> {
        Self::may_change()?;
        self.run(async move |inner| inner.rename(op).await).await
    }

    async fn open(&self, cx: &Cx, op: Open) -> Result<Opened> {
        if Request::from(op.clone()).needs_changeable() {
            Self::may_change()?;
        }
        let cx = cx.clone();
        self.run(async move |inner| {
            let _lock = inner.locks.lock(op.node).await;
            match inner.inodes.kind(op.node)? {
                FileKind::Directory => return Err(Errno::EISDIR.into()),
                FileKind::Regular => {}
                _ => return Err(Errno::ENXIO.because("the server has regular files only")),
            }
            if let (true, Ok(path)) = (op.flags.writes(), inner.inodes.path(op.node)) {
                inner.server.keeps_name(&path)?;
            }
            if op.flags.contains(OpenFlags::TRUNC) {
                inner.resize(op.node, 0).await?;
            } else if inner.staged(op.node).is_none() {
                // Who opens a file reads what the server has now.
                inner.server.readings().take(op.node);
                inner.staging.end(op.node);
            }
            inner.opened(&cx, op.node, op.flags)
        })
        .await
    }

    async fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        Self::may_change()?;
        let cx = cx.clone();
        self.run(async move |inner| inner.create(&cx, op).await).await
    }

    async fn read(&self, cx: &Cx, op: Read) -> Result<Payload> {
        let cancel = cx.cancel.clone();
        self.run(async move |inner| {
            let Read { node, handle, offset, len } = op;
            let _lock = inner.locks.lock(node).await;
            // One that is not waited for any more must not keep who closes the file waiting for a server that hangs.
            let read = async {
                let read =
                    cancel.unless_raised(inner.read_at((node, Some(handle)), offset, len as usize)).await;
                let read = read.unwrap_or_else(|| Err(Errno::EINTR.into()));
                read.inspect_err(|error| {
                    if S::TELLS_VERSIONS && error.errno == Errno::ESTALE {
                        inner.has_changed(node);
                    }
                })
            };
            if inner.goes_back(node, offset) {
                // Without room for all of it, the file is sent once more up to there.
                let _ = inner.stage_for((node, Some(handle)), 0).await;
            }
            match inner.staging.get(node) {
                Some(staged) if staged.state().base <= offset => {
                    inner.may_read_staged(node, handle)?;
                    Ok(staged.read(offset, len as usize)?.into())
                }
                Some(_) => {
                    inner.upload(node).await?;
                    Ok(read.await?.into())
                }
                None => Ok(read.await?.into()),
            }
        })
        .await
    }

    async fn write(&self, cx: &Cx, op: Write) -> Result<Count> {
        Self::may_change()?;
        let appends = cx.writes_at_end(self.0.open.get(op.handle)?, op.cached);
        self.run(async move |inner| {
            let _lock = inner.locks.lock(op.node).await;
            let at = if appends { u64::MAX } else { op.offset };
            let staged = inner.stage_for((op.node, Some(op.handle)), at).await?;
            let at = if appends { staged.state().size } else { op.offset };
            let data = op.data.into_bytes()?;
            staged.write(at, &data)?;
            inner.touch(op.node);
            Ok(Count(data.len() as u64))
        })
        .await
    }

    async fn flush(&self, _: &Cx, op: Flush) -> Result<()> {
        self.run(async move |inner| {
            let _lock = inner.locks.lock(op.node).await;
            inner.upload(op.node).await
        })
        .await
    }

    async fn fsync(&self, _: &Cx, op: FSync) -> Result<()> {
        self.run(async move |inner| {
            let _lock = inner.locks.lock(op.node).await;
            inner.upload(op.node).await
        })
        .await
    }

    async fn fsyncdir(&self, _: &Cx, _: FSyncDir) -> Result<()> {
        Ok(())
    }

    async fn syncfs(&self, _: &Cx, _: SyncFs) -> Result<()> {
        self.run(Inner::upload_all).await
    }

    async fn release(&self, _: &Cx, op: Release) -> Result<()> {
        self.run(async move |inner| inner.close(op.node, op.handle).await).await
    }

    async fn opendir(&self, _: &Cx, op: OpenDir) -> Result<Opened> {
        self.run(async move |inner| {
            if inner.inodes.kind(op.node)? != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            Ok(inner.dirs.add(inner.names(op.node).await?))
        })
        .await
    }

    async fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        self.run(async move |inner| {
            let (piece, eof) = inner.piece((op.node, op.handle), op.cookie, op.size as usize, DIRENT).await?;
            let entries = piece.into_iter().map(|(cookie, (name, listed))| {
                let kind = listed.kind;
                let ino = inner.inodes.listed(op.node, &name, kind)?;
                Ok(Dirent { ino, cookie, kind: Some(kind), name })
            });
            Ok(Dirents { entries: entries.collect::<Result<_>>()?, eof })
        })
        .await
    }

    async fn readdirplus(&self, _: &Cx, op: ReadDirPlus) -> Result<DirentsPlus> {
        self.run(async move |inner| {
            let (piece, eof) =
                inner.piece((op.node, op.handle), op.cookie, op.size as usize, DIRENT_PLUS).await?;
            let entries = piece.into_iter().map(|(cookie, (name, listed))| {
                let entry = match (listed.kind, listed.size) {
                    // A size of 0 would be taken for what it is.
                    (FileKind::Regular, None) => {
                        name_only(inner.inodes.listed(op.node, &name, listed.kind)?, Some(listed.kind))
                    }
                    _ => inner.entry(op.node, &name, Some(&listed))?,
                };
                Ok(DirentPlus { cookie, name, entry })
            });
            Ok(DirentsPlus { entries: entries.collect::<Result<_>>()?, eof })
        })
        .await
    }

    async fn releasedir(&self, _: &Cx, op: ReleaseDir) -> Result<()> {
        self.0.dirs.close(op.handle);
        Ok(())
    }

    async fn statfs(&self, _: &Cx, op: StatFs) -> Result<FsStat> {
        self.run(async move |inner| {
            let path = inner.inodes.path(op.node)?;
            let free = inner.server.free_space(&path).await.unwrap_or_default().unwrap_or(UNKNOWN_SPACE);
            let (blocks, files) = (free / u64::from(BLOCK), UNKNOWN_FILES);
            let (bfree, bavail, ffree) = (blocks, blocks, files);
            Ok(FsStat { blocks, bfree, bavail, files, ffree, bsize: BLOCK, frsize: BLOCK, namelen: 255 })
        })
        .await
    }

    async fn locate(&self, _: &Cx, op: Locate) -> Result<Target> {
        self.0.inodes.locate(op.node)
    }
}

impl<S: FileServer> Inner<S> {
    async fn lookup(&self, dir: Node, name: &Name) -> Result<Entry> {
        if self.inodes.kind(dir)? != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let listed = self.find(dir, name).await?;
        self.entry(dir, name, listed.as_ref())
    }

    /// What a walk leads to where the server may hide directories: the last name is asked for, and those before it are directories if
    /// it is there. `None` when it is not.
    async fn walk_hidden(&self, op: &Walk) -> Option<Result<Entries>> {
        let (last, above) =
            op.names.split_last().filter(|(_, above)| S::HIDES_DIRECTORIES && !above.is_empty())?;
        let mut path = self.inodes.path(op.dir).ok()?;
        for name in &op.names {
            path = join(path, name).ok()?;
        }
        let found = match self.look(&path).await {
            Ok(found) => found,
            // Some servers do not even understand what is below a file.
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::EINVAL) => return None,
            Err(error) => return Some(Err(error)),
        };
        let (mut dir, mut entries) = (op.dir, Vec::new());
        let all = above.iter().map(|name| (name, Found::new(FileKind::Directory))).chain([(last, found)]);
        for (name, found) in all {
            entries.push(self.entry(dir, name, Some(&found)).ok()?);
            dir = entries[entries.len() - 1].node;
        }
        Some(Ok(entries))
    }

    async fn read_link(&self, node: Node) -> Result<Target> {
        if self.inodes.kind(node)? != FileKind::Symlink {
            return Err(Errno::EINVAL.because("only symbolic links have a target"));
        }
        let path = self.inodes.path(node)?;
        let target = match self.look(&path).await?.target {
            Some(target) => target,
            None => self.server.target(&path).await?,
        };
        Target::new(target)
    }

    /// The names in a directory in the order of their cookies, with files that the server does not have yet.
    async fn names(&self, node: Node) -> Result<Dir> {
        let path = self.inodes.path(node)?;
        // What is stored while the server lists may be in neither.
        let before = self.new_files(node);
        let listing = self.explained(self.server.list(&path).await, Attempt::List { path: &path }).await?;
        let Listing { names: listed, mut odd } = listing;
        // Of several with one name, the first one counts.
        let mut names = self.new_files(node);
        for listed in listed {
            let Ok(name) = Name::new(listed.name.clone()) else {
                odd.get_or_insert_with(|| listed.name.escape_ascii().to_string());
                continue;
            };
            if !self.silly_rename().has(node, &name) {
                names.push((name, listed));
            }
        }
        for (name, _) in before {
            if names.iter().all(|(listed, _)| *listed != name) {
                match self.look(&self.inodes.child(node, &name)?).await {
                    Ok(found) => names.push((name, found)),
                    Err(error) if error.errno == Errno::ENOENT => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let odd = odd.map(|line| {
            let why =
                format!("the server lists what is no name of a file here, as '{line}': not all may be shown");
            Errno::EIO.because(why)
        });
        Ok(Arc::new(Ordered::new(names, odd)))
    }

    /// The files in a directory that the server does not have yet.
    fn new_files(&self, dir: Node) -> Vec<(Name, Found)> {
        let mut files = Vec::new();
        for (staged, state) in self.staging.all().into_iter().filter(|(_, state)| state.is_new) {
            let places = self.inodes.table().names(staged).unwrap_or_default();
            files.extend(places.into_iter().filter(|(at, _)| *at == dir).map(|(_, name)| {
                let file = Found {
                    name: name.as_bytes().to_vec().into(),
                    size: Some(state.size),
                    modified: Some(state.mtime.secs),
                    mode: Some(state.mode),
                    ..Found::new(FileKind::Regular)
                };
                (name, file)
            }));
        }
        files
    }

    /// Names of an open directory, as [`Ordered::after`] has them.
    async fn piece(
        &self,
        (node, handle): (Node, Handle),
        cookie: u64,
        size: usize,
        each: usize,
    ) -> Result<(Vec<(u64, (Name, Found))>, bool)> {
        let dir = self.dirs.listing(handle, cookie, async || self.names(node).await).await?;
        dir.after(cookie, (size, each), |_| true)
    }
}
