// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of the lower tree's files in the upper one.
//!
//! A copy is made in a directory at the root of the upper tree, and gets its name when it is complete and stored: whatever dies
//! in between, the name leads to the file of the lower tree or to all of the copy. How much content is there is noted, so that a
//! process that takes over goes on from there; after anything else the copy begins anew. The directory that the copy comes into
//! keeps its times.

use crate::Both;
use crate::files::{Replace, put};
use crate::locks::What;
use crate::nodes::{Bound, Side, ino};
use bytes::Bytes;
use outrigger_core::hash::siphash13;
use outrigger_core::ops::{
    Create, FSync, Flush, GetAttr, GetXattr, ListXattr, MkDir, MkNod, Open, OpenFlags, Read, ReadLink,
    Rename, RenameFlags, RmDir, Seek, SetAttr, SetXattr, SymLink, Unlink, Whence, XattrFlags,
};
use outrigger_core::reply::Entry;
use outrigger_core::whiteout::WORK;
use outrigger_core::{
    Attr, Errno, Error, FileKind, Handle, LockOwner, Name, Node, OpCode, Reply, Request, Result, SetAttrs,
    SetTime, Traverse, XattrName, ask, lock,
};

/// How much content is in memory at once, in bytes.
const PIECE: u64 = 256 << 10;
/// All of the content.
const WHOLE: u64 = u64::MAX;

/// An open file of one of the trees.
#[derive(Clone, Copy)]
struct File {
    side: Side,
    node: Node,
    handle: Handle,
    flags: OpenFlags,
}

impl Both<'_> {
    /// What a file is called in the upper tree, where it is copied to with as much of its content, and the directories above it
    /// as well.
    pub(crate) async fn copy_up(&self, node: Node) -> Result<Node> {
        self.copy_all(node, WHOLE, None).await?;
        self.nodes().bound(node)?.upper.ok_or_else(|| Errno::ESTALE.into())
    }

    /// Copies a file that `cut` shortens to `most` bytes. The copy is cut before it gets its name, so that a failure leaves the
    /// file as it was; the answer of the upper tree is returned. There is none if the file has been copied before.
    pub(crate) async fn copy_cut(&self, node: Node, most: u64, cut: Request) -> Result<Option<Reply>> {
        self.copy_all(node, most, Some(cut)).await
    }

    async fn copy_all(&self, node: Node, most: u64, mut cut: Option<Request>) -> Result<Option<Reply>> {
        let (mut missing, mut answer) = (Vec::new(), None);
        let mut next = node;
        while self.nodes().bound(next)?.upper.is_none() {
            missing.push(next);
            next = self.nodes().place(next)?.0;
        }
        while let Some(next) = missing.pop() {
            answer = match next == node {
                true => self.copy(next, most, cut.take()).await?,
                false => self.copy(next, WHOLE, None).await?,
            };
        }
        Ok(answer)
    }

    /// Copies one file or directory into a directory that is there.
    async fn copy(&self, node: Node, most: u64, cut: Option<Request>) -> Result<Option<Reply>> {
        let _copying = self.locks().take(What::Copy(node)).await;
        let Bound { upper: None, lower: Some(lower), .. } = self.nodes().bound(node)? else {
            return Ok(None);
        };
        let (dir, name) = self.nodes().place(node)?;
        let into = self.nodes().bound(dir)?.upper.ok_or(Errno::ESTALE)?;
        let from = ask(self.tree(Side::Lower), &self.own, GetAttr { node: lower, handle: None }).await?.attr;
        let mut answer = None;
        let made = match self.find(Side::Upper, Some(into), &name).await? {
            // A process died after it had given the copy its name.
            Some(entry) if entry.attr.kind() == from.kind() => entry,
            other => {
                self.forget_all(other.iter().map(|entry| (Side::Upper, entry.node)).collect()).await;
                self.tell_copy(node, &from)?;
                let key = self.key(node)?;
                let work = (self.work().await?, Name::new(format!("{key:016x}"))?);
                let made = self.make((key, lower), &from, &work, most).await?;
                self.nodes().note(key, 0, None);
                let settled = async {
                    if let Some(cut) = cut {
                        answer = Some(self.cut(made.node, cut, &work).await?);
                    }
                    let (work, temporary) = work;
                    self.settle((node, made.node), &from, (work, temporary), (dir, into, name)).await
                };
                if let Err(error) = settled.await {
                    if let Some(Reply::Opened(opened)) = answer {
                        self.close_in(Side::Upper, (made.node, opened.handle), OpenFlags::WRITE_ONLY).await;
                    }
                    self.forget_all(vec![(Side::Upper, made.node)]).await;
                    return Err(error);
                }
                made
            }
        };
        // Other names of the file in the lower tree go on with its number.
        let alone = from.is_dir() || from.nlink <= 1;
        let number = (!alone).then(|| ino(Side::Upper, made.attr.ino, made.attr.dev));
        self.nodes().copied(node, made.node, number)?;
        Ok(answer)
    }

    /// Asks for what cuts a copy, which has its temporary name. What cannot be cut is not kept.
    async fn cut(&self, made: Node, mut cut: Request, (work, name): &(Node, Name)) -> Result<Reply> {
        cut.traverse(&mut Replace(made, Handle::NONE));
        match self.tree(Side::Upper).call(self.cx, cut).await {
            Reply::Error(error) => {
                // The next copy removes what is left.
                let _ = self.take_away(*work, name, false).await;
                Err(error)
            }
            reply => Ok(reply),
        }
    }

    /// The directory where copies are made.
    async fn work(&self) -> Result<Node> {
        let _making = self.locks().take(What::Names(Node(0))).await;
        if let Some(work) = *lock(&self.union.work) {
            return Ok(work);
        }
        let (dir, name) = (Node::ROOT, Name::try_from(WORK)?);
        let entry = match self.find(Side::Upper, Some(dir), &name).await? {
            Some(entry) => entry,
            None => self.ask_upper(MkDir { dir, name, mode: 0o700, umask: 0, initial: None }).await?,
        };
        *lock(&self.union.work) = Some(entry.node);
        Ok(entry.node)
    }

    /// What a copy is known by while it is made: the same in each process.
    fn key(&self, node: Node) -> Result<u64> {
        let path = self.nodes().table().path(node)?;
        let path: Vec<u8> = path.iter().flat_map(|name| [b"/", &name[..]].concat()).collect();
        Ok(siphash13(&path))
    }

    /// Makes a complete copy under its temporary name.
    async fn make(
        &self,
        (key, lower): (u64, Node),
        from: &Attr,
        (work, name): &(Node, Name),
        most: u64,
    ) -> Result<Entry> {
        let is_file = from.kind() == FileKind::Regular;
        let version = from.version();
        let done = if is_file { self.nodes().progress(key, version) } else { 0 };
        let made = match self.find(Side::Upper, Some(*work), name).await? {
            Some(entry) if done > 0 && entry.attr.kind() == FileKind::Regular => entry,
            other => {
                if let Some(entry) = other {
                    // The upper tree may hold what is removed until it is forgotten.
                    let taken = self.take_away(*work, name, entry.attr.is_dir()).await;
                    self.forget_all(vec![(Side::Upper, entry.node)]).await;
                    taken?;
                }
                self.nodes().note(key, version, None);
                self.make_empty(lower, from, *work, name).await?
            }
        };
        let done = self.nodes().progress(key, version);
        let filled = async {
            if is_file && (most > 0 || done > 0) {
                self.fill((key, version, done), lower, made.node, from.size.min(most)).await?;
            }
            self.adorn(lower, from, &made).await?;
            match is_file && most > 0 {
                true => self.check_version(lower, version).await,
                false => Ok(()),
            }
        };
        let Err(error) = filled.await else { return Ok(made) };
        if matches!(error.errno, Errno::ESTALE | Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) {
            // What is copied is of no version of the file, or takes the room that other changes need.
            self.nodes().note(key, version, None);
            let _ = self.take_away(*work, name, false).await;
        }
        // Last: the upper tree may hold what is removed until it is forgotten.
        self.forget_all(vec![(Side::Upper, made.node)]).await;
        Err(error)
    }

    /// `ESTALE` when a file of the lower tree has changed while it was copied.
    async fn check_version(&self, lower: Node, version: u64) -> Result<()> {
        let now = ask(self.tree(Side::Lower), &self.own, GetAttr { node: lower, handle: None }).await?;
        match now.attr.version() == version {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// Gives a copy its name.
    async fn settle(
        &self,
        (node, made): (Node, Node),
        from: &Attr,
        (work, temporary): (Node, Name),
        (dir, into, name): (Node, Node, Name),
    ) -> Result<()> {
        let _names = self.locks().take(What::Names(dir)).await;
        if self.nodes().place(node).ok().as_ref() != Some(&(dir, name.clone())) {
            self.take_away(work, &temporary, from.is_dir()).await?;
            return Err(Errno::ESTALE.because("the file was removed while it was copied"));
        }
        let before = self.ask_upper(GetAttr { node: into, handle: None }).await?.attr;
        let rename =
            Rename { dir: work, name: temporary, to_dir: into, to_name: name, flags: RenameFlags::empty() };
        match self.ask_upper(rename.clone()).await {
            // Only who may write to a directory may move it to another one: its `..` changes.
            Err(error) if error.errno == Errno::EACCES && from.is_dir() => {
                let set = |mode| {
                    let attrs = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
                    self.ask_upper(SetAttr { node: made, handle: None, attrs })
                };
                set(from.permissions() | 0o700).await?;
                self.ask_upper(rename).await?;
                set(from.permissions()).await?;
            }
            renamed => renamed?,
        }
        let [atime, mtime] = [before.atime, before.mtime].map(|time| Some(SetTime::To(time)));
        let attrs = SetAttrs { atime, mtime, ..SetAttrs::default() };
        // Trees that cannot set times show that something has happened.
        let _ = self.ask_upper(SetAttr { node: into, handle: None, attrs }).await;
        Ok(())
    }

    /// Removes something of ours in the upper tree.
    pub(crate) async fn take_away(&self, dir: Node, name: &Name, is_dir: bool) -> Result<()> {
        let name = name.clone();
        match is_dir {
            true => self.ask_upper(RmDir { dir, name }).await,
            false => self.ask_upper(Unlink { dir, name }).await,
        }
    }

    /// A file of the kind of another one, which only its owner can use.
    async fn make_empty(&self, lower: Node, from: &Attr, dir: Node, name: &Name) -> Result<Entry> {
        let (name, umask, initial) = (name.clone(), 0, None);
        match from.kind() {
            FileKind::Directory => self.ask_upper(MkDir { dir, name, mode: 0o700, umask, initial }).await,
            FileKind::Symlink => {
                let target = ask(self.tree(Side::Lower), &self.own, ReadLink { node: lower }).await?;
                self.ask_upper(SymLink { dir, name, target, initial }).await
            }
            FileKind::Regular if self.upper_ops.has(OpCode::Create) => {
                let flags = OpenFlags::READ_WRITE | OpenFlags::EXCL;
                let create = Create { dir, name, mode: 0o600, umask, flags, initial };
                let made = self.ask_upper(create).await?;
                let (node, handle) = (made.entry.node, made.opened.handle);
                self.close(File { side: Side::Upper, node, handle, flags }).await;
                Ok(made.entry)
            }
            kind => {
                let (mode, rdev) = (kind.bits() | 0o600, from.rdev);
                self.ask_upper(MkNod { dir, name, mode, umask, rdev, initial }).await
            }
        }
    }

    async fn open_file(&self, side: Side, node: Node, flags: OpenFlags) -> Result<File> {
        let handle = match self.ops(side).has(OpCode::Open) {
            true => ask(self.tree(side), &self.own, Open { node, flags }).await?.handle,
            false => Handle::NONE,
        };
        Ok(File { side, node, handle, flags })
    }

    async fn close(&self, File { side, node, handle, flags }: File) {
        self.close_in(side, (node, handle), flags).await;
    }

    /// Copies content up to `end`; what is noted as done is there already.
    async fn fill(&self, noted: (u64, u64, u64), lower: Node, upper: Node, end: u64) -> Result<()> {
        let from = self.open_file(Side::Lower, lower, OpenFlags::empty()).await?;
        let filled = match self.open_file(Side::Upper, upper, OpenFlags::WRITE_ONLY).await {
            Ok(to) => {
                let filled = self.pour(noted, from, to, end).await;
                self.close(to).await;
                filled
            }
            Err(error) => Err(error),
        };
        self.close(from).await;
        filled
    }

    async fn pour(
        &self,
        (key, version, done): (u64, u64, u64),
        from: File,
        to: File,
        end: u64,
    ) -> Result<()> {
        let (mut at, mut extent) = (done, done);
        let most = PIECE.min(self.union.max_io.into());
        while at < end {
            if self.cx.cancel.is_raised() {
                return Err(Errno::EINTR.into());
            }
            if at >= extent {
                (at, extent) = self.extent(from, at, end).await?;
                continue;
            }
            let len = most.min(extent - at) as u32;
            let read = Read { node: from.node, handle: from.handle, offset: at, len };
            let data = ask(self.tree(Side::Lower), &self.own, read).await?.into_bytes()?;
            if data.is_empty() {
                return Err(changed());
            }
            let next = at + data.len() as u64;
            if data.iter().any(|&byte| byte != 0) {
                put(self.tree(Side::Upper), &self.own, (to.node, to.handle), at, data).await?;
            }
            at = next;
            self.nodes().note(key, version, Some(at));
        }
        if at > end {
            // What is cut off now is not there for a later attempt that needs more.
            self.nodes().note(key, version, Some(end));
        }
        let attrs = SetAttrs { size: Some(end), ..SetAttrs::default() };
        self.ask_upper(SetAttr { node: to.node, handle: Some(to.handle), attrs }).await?;
        let (node, handle, owner) = (to.node, to.handle, LockOwner::default());
        if self.upper_ops.has(OpCode::Flush) {
            self.ask_upper(Flush { node, handle, owner }).await?;
        }
        if self.upper_ops.has(OpCode::FSync) {
            self.ask_upper(FSync { node, handle, data_only: true }).await?;
        }
        Ok(())
    }

    /// Where the next data at or after `at` begins and ends: holes stay holes.
    async fn extent(&self, from: File, at: u64, end: u64) -> Result<(u64, u64)> {
        if !self.ops(Side::Lower).has(OpCode::Seek) {
            return Ok((at, end));
        }
        let seek = |offset, whence| {
            let seek = Seek { node: from.node, handle: from.handle, offset, whence };
            ask(self.tree(Side::Lower), &self.own, seek)
        };
        let start = match seek(at, Whence::Data).await {
            Ok(data) => data.0.clamp(at, end),
            Err(error) if error.errno == Errno::ENXIO => return Ok((end, end)),
            Err(_) => return Ok((at, end)),
        };
        let hole = seek(start, Whence::Hole).await.map_or(end, |hole| hole.0.min(end));
        // A tree whose hole is where its data is does not know its holes.
        Ok((start, if hole > start { hole } else { end }))
    }

    /// Gives a copy the owner, the extended attributes, the permissions and the times of its original.
    async fn adorn(&self, lower: Node, from: &Attr, made: &Entry) -> Result<()> {
        let node = made.node;
        let set = |attrs| self.ask_upper(SetAttr { node, handle: None, attrs });
        let differs = (from.uid, from.gid) != (made.attr.uid, made.attr.gid);
        if differs && !self.union.options.own_copies {
            let attrs = SetAttrs { uid: Some(from.uid), gid: Some(from.gid), ..SetAttrs::default() };
            set(attrs).await.map_err(|error| cannot_own(from, &error))?;
        }
        if self.union.options.own_copies && from.uid == made.attr.uid && from.gid != made.attr.gid {
            // Users can give their files to groups they are in.
            let _ = set(SetAttrs { gid: Some(from.gid), ..SetAttrs::default() }).await;
        }
        self.copy_xattrs(lower, node).await?;
        let is_link = from.kind() == FileKind::Symlink;
        let [atime, mtime] = [from.atime, from.mtime].map(|time| Some(SetTime::To(time)));
        let mut mode = (!is_link).then(|| from.permissions());
        if from.is_dir() && self.union.options.own_copies && from.uid != made.attr.uid {
            // The permissions of its owner are none of ours: names come into the copy all the same.
            mode = mode.map(|mode| mode | 0o700);
        }
        match set(SetAttrs { mode, atime, mtime, ..SetAttrs::default() }).await {
            // Few trees can do that for symbolic links, whose times nobody misses.
            Err(error) if !is_link => Err(error),
            _ => Ok(()),
        }
    }

    async fn copy_xattrs(&self, lower: Node, upper: Node) -> Result<()> {
        if !self.ops(Side::Lower).has(OpCode::ListXattr) {
            return Ok(());
        }
        let names = match ask(self.tree(Side::Lower), &self.own, ListXattr { node: lower }).await {
            Ok(names) => names,
            Err(error) if error.errno == Errno::EOPNOTSUPP => return Ok(()),
            Err(error) => return Err(error),
        };
        for name in names.into_iter().filter(|name| !is_overlays(name)) {
            let value = ask(self.tree(Side::Lower), &self.own, GetXattr { node: lower, name: name.clone() });
            let value: Bytes = match value.await {
                Ok(value) => value,
                Err(error) if matches!(error.errno, Errno::ENODATA | Errno::EOPNOTSUPP) => continue,
                Err(error) => return Err(error),
            };
            let flags = XattrFlags::empty();
            let set = self.ask_upper(SetXattr { node: upper, name: name.clone(), value, flags });
            match set.await {
                Err(error) if is_the_systems(&name) && !is_full(&error) => {}
                Err(error) => return Err(cannot_keep(&name, &error)),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Asks the upper tree for something of the layer's own.
    pub(crate) async fn ask_upper<O: outrigger_core::Op>(&self, op: O) -> Result<O::Out> {
        let request: Request = op.into();
        O::result(self.tree(Side::Upper).call(&self.own, request).await)
    }
}

fn changed() -> Error {
    Errno::ESTALE.because("union: the file of the lower tree changed while it was copied")
}

/// Attributes that tell overlayfs about a directory of its own.
fn is_overlays(name: &XattrName) -> bool {
    name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.")
}

/// Labels of the system a tree was made on, which mean nothing where they cannot be set.
fn is_the_systems(name: &XattrName) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

fn is_full(error: &Error) -> bool {
    matches!(error.errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EIO)
}

fn cannot_own(from: &Attr, error: &Error) -> Error {
    let (uid, gid) = (from.uid, from.gid);
    error.errno.because(format!(
        "union: the copy in the upper tree cannot belong to {uid}:{gid}, as the file does ({error}); owner=mine lets copies \
         belong to whoever makes them"
    ))
}

fn cannot_keep(name: &XattrName, error: &Error) -> Error {
    let errno = if error.errno == Errno::ENOSYS { Errno::EOPNOTSUPP } else { error.errno };
    errno.because(format!(
        "union: the upper tree does not keep the extended attribute {name} of the file: {error}"
    ))
}
