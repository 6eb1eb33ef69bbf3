// SPDX-License-Identifier: MIT OR Apache-2.0
//! Procedures on names in directories.

use crate::export::{Export, Outcome, name};
use crate::files::Used;
use crate::handle::FileId;
use outrigger_core::attr::{MODE_PERMISSIONS, SET_ID};
use outrigger_core::ops::{
    Create, Link, Lookup, MkDir, MkNod, OpenFlags, Parent, Release, Rename, RenameFlags, RmDir, SetAttr,
    SymLink, TmpFile, Unlink,
};
use outrigger_core::reply::{Created as NewFile, Entry};
use outrigger_core::{Cx, FileKind, LockOwner, Name, Node, OpCode, SetAttrs, SetTime, Target, Time};
use outrigger_proto_nfs3::nfs::{CreateArgs, CreateHow, MkDirArgs, MkNodArgs, MkNodWhat, SymLinkArgs};
use outrigger_proto_nfs3::results::{
    AttrsFailed, Created, LinkFailed, Linked, LookedUp, RenameFailed, Renamed, WccFailed, WccOk,
};
use outrigger_proto_nfs3::types::{self as nfs, Status, Verifier};

/// Permissions of a new file whose client names none: only its owner can open it until the client sets others.
const FILE_MODE: u32 = 0o600;
/// The same for a directory.
const DIR_MODE: u32 = 0o700;

impl Export {
    pub(crate) async fn look_up(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        wanted: &nfs::Name,
    ) -> Result<LookedUp, AttrsFailed> {
        let found = self.found(cx, dir, wanted).await;
        let dir_attrs = self.after(cx, dir.node).await;
        found
            .map(|(id, attrs)| LookedUp { object: self.handle(id), attrs: Some(attrs), dir_attrs })
            .map_err(|status| AttrsFailed { status, attrs: dir_attrs })
    }

    /// What a name leads to.
    pub(crate) async fn found(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        wanted: &nfs::Name,
    ) -> Outcome<(FileId, nfs::Attrs)> {
        if ***wanted == *b"." || ***wanted == *b".." && dir.node == Node::ROOT {
            // What is above an export is not exported.
            return Ok((dir.id, self.attrs(&self.attr(cx, dir.node).await?)));
        }
        if ***wanted == *b".." {
            let entry = self.ask(cx, Parent { dir: dir.node }).await?;
            let id = self.files.parent(cx, dir.id, &entry).await;
            let id = id.map_err(|error| self.failed("parent", &error))?;
            return Ok((id, self.attrs(&entry.attr)));
        }
        let name = name(wanted)?;
        let entry = self.ask(cx, Lookup { dir: dir.node, name: name.clone() }).await?;
        self.named(cx, dir, &name, &entry).await
    }

    /// Number and attributes of what `name` leads to.
    async fn named(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        name: &Name,
        entry: &Entry,
    ) -> Outcome<(FileId, nfs::Attrs)> {
        let id = self.files.found(cx, dir.id, name, entry).await;
        let id = id.map_err(|error| self.failed("handle", &error))?;
        Ok((id, self.attrs(&entry.attr)))
    }

    /// What is answered for something new in `dir`.
    async fn made(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        made: Outcome<(Name, Entry)>,
    ) -> Result<Created, WccFailed> {
        let named = match &made {
            Ok((name, entry)) => self.named(cx, dir, name, entry).await,
            Err(status) => Err(*status),
        };
        let wcc = self.wcc(cx, dir.node).await;
        let (id, attrs) = named.map_err(|status| WccFailed { status, wcc })?;
        Ok(Created { object: Some(self.handle(id)), attrs: Some(attrs), dir: wcc })
    }

    pub(crate) async fn create(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        args: CreateArgs,
    ) -> Result<Created, WccFailed> {
        let made = async {
            let name = name(&args.at.name)?;
            let entry = match args.how {
                CreateHow::Unchecked(attrs) => self.create_or_take(cx, dir.node, &name, attrs).await?,
                CreateHow::Guarded(attrs) => {
                    self.new_file(cx, dir.node, &name, self.set_attrs(&attrs)?).await?
                }
                CreateHow::Exclusive(verifier) => self.create_once(cx, dir.node, &name, verifier).await?,
            };
            Ok((name, entry))
        };
        self.made(cx, dir, made.await).await
    }

    /// A new file, or the regular file that has the name.
    async fn create_or_take(&self, cx: &Cx, dir: Node, name: &Name, attrs: nfs::SetAttrs) -> Outcome<Entry> {
        let attrs = self.set_attrs(&attrs)?;
        match self.new_file(cx, dir, name, attrs.clone()).await {
            Err(Status::EXIST) => {}
            made => return made,
        }
        let entry = self.ask(cx, Lookup { dir, name: name.clone() }).await?;
        match (entry.attr.kind(), attrs.size) {
            (FileKind::Regular, Some(size)) => {
                // Of a file that exists only the size is set, as open(2) with O_TRUNC does.
                let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
                self.complete(cx, entry, attrs).await
            }
            (FileKind::Regular, None) => Ok(entry),
            _ => {
                self.files.give_back(cx, &entry).await;
                Err(Status::EXIST)
            }
        }
    }

    /// A new file, or the one that an earlier call with this verifier has made (RFC 1813, 3.3.8).
    async fn create_once(&self, cx: &Cx, dir: Node, name: &Name, verifier: Verifier) -> Outcome<Entry> {
        if !self.abilities.ops.has(OpCode::SetAttr) {
            return Err(Status::NOTSUPP);
        }
        let (atime, mtime) = self.times_of(verifier);
        let (to_atime, to_mtime) = (Some(SetTime::To(atime)), Some(SetTime::To(mtime)));
        let attrs = SetAttrs { atime: to_atime, mtime: to_mtime, ..SetAttrs::default() };
        match self.new_file_with(cx, dir, name, attrs).await {
            Err(Status::EXIST) => {}
            made => return made,
        }
        let entry = self.ask(cx, Lookup { dir, name: name.clone() }).await?;
        let is_it =
            entry.attr.kind() == FileKind::Regular && (entry.attr.atime, entry.attr.mtime) == (atime, mtime);
        if !is_it {
            self.files.give_back(cx, &entry).await;
            return Err(Status::EXIST);
        }
        Ok(entry)
    }

    /// A new regular file that has `attrs` from the moment it has its name, where the tree can do that. A server that ends in the
    /// middle then leaves no file that its client, who repeats the call, would take for another's.
    async fn new_file_with(&self, cx: &Cx, dir: Node, name: &Name, attrs: SetAttrs) -> Outcome<Entry> {
        let ops = &self.abilities.ops;
        let can = ops.has(OpCode::TmpFile) && ops.has(OpCode::Link);
        if self.abilities.initial_attrs || !can {
            return self.new_file(cx, dir, name, attrs).await;
        }
        let flags = OpenFlags::READ_WRITE;
        let Ok(made) = self.ask(cx, TmpFile { dir, mode: FILE_MODE, umask: 0, flags }).await else {
            // The tree may have file systems that have no files without names.
            return self.new_file(cx, dir, name, attrs).await;
        };
        let node = made.entry.node;
        let named = async {
            self.ask(cx, SetAttr { node, handle: None, attrs }).await?;
            self.ask(cx, Link { node, dir, name: name.clone() }).await
        };
        let named = named.await;
        let made = self.closed(cx, made, flags).await;
        self.files.give_back(cx, &made?).await;
        named
    }

    /// Closes a file that was opened because it was made.
    async fn closed(&self, cx: &Cx, made: NewFile, flags: OpenFlags) -> Outcome<Entry> {
        let (node, handle, owner) = (made.entry.node, made.opened.handle, LockOwner::default());
        self.ask(&cx.aside(), Release { node, handle, flags, owner, flock_release: false }).await?;
        Ok(made.entry)
    }

    /// A verifier as times that any tree can store.
    fn times_of(&self, verifier: Verifier) -> (Time, Time) {
        let unit = u64::from(self.abilities.time_unit).div_ceil(1_000_000_000).max(1);
        let half = |bytes: &[u8]| bytes.iter().fold(0, |number: u64, &byte| number << 8 | u64::from(byte));
        let seconds = |number: u64| Time::new(((number & 0x7fff_ffff) / unit * unit) as i64, 0);
        (seconds(half(&verifier[..4])), seconds(half(&verifier[4..])))
    }

    /// A new regular file with these attributes; `EXIST` where the name is taken.
    async fn new_file(&self, cx: &Cx, dir: Node, name: &Name, attrs: SetAttrs) -> Outcome<Entry> {
        let (name, made_name) = (name.clone(), name.clone());
        let (mode, initial, rest) = self.beginning(attrs, FILE_MODE);
        let entry = match self.abilities.ops.has(OpCode::MkNod) {
            // It is not opened, so nothing has to be closed.
            true => {
                let mode = FileKind::Regular.bits() | mode;
                self.ask(cx, MkNod { dir, name, mode, umask: 0, rdev: 0, initial }).await?
            }
            false => {
                let flags = OpenFlags::READ_WRITE | OpenFlags::EXCL;
                let made = self.ask(cx, Create { dir, name, mode, umask: 0, flags, initial }).await?;
                self.closed(cx, made, flags).await?
            }
        };
        self.complete_new(cx, (dir, made_name), entry, rest).await
    }

    /// Sets what a new file has to have besides. One that is not as it was asked for is removed: it would be in the way of the next
    /// attempt.
    async fn complete_new(
        &self,
        cx: &Cx,
        (dir, name): (Node, Name),
        entry: Entry,
        rest: SetAttrs,
    ) -> Outcome<Entry> {
        let is_dir = entry.attr.is_dir();
        let made = self.complete(cx, entry, rest).await;
        if made.is_err() {
            let cx = cx.aside();
            let _ = match is_dir {
                true => self.ask(&cx, RmDir { dir, name }).await,
                false => self.ask(&cx, Unlink { dir, name }).await,
            };
        }
        made
    }

    /// What a new file begins with: its mode, what is set together with its name, and what is set after that.
    fn beginning(&self, attrs: SetAttrs, mode: u32) -> (u32, Option<Box<SetAttrs>>, SetAttrs) {
        let mode = attrs.mode.unwrap_or(mode) & MODE_PERMISSIONS;
        let SetAttrs { size, uid, gid, .. } = attrs;
        let together = SetAttrs { mode: None, size: None, ..attrs };
        // The change of the owner takes set-id bits away.
        let again = (uid.is_some() || gid.is_some()) && mode & SET_ID != 0;
        let size = size.filter(|&size| size > 0);
        let rest = SetAttrs { size, mode: again.then_some(mode), ..SetAttrs::default() };
        match self.abilities.initial_attrs {
            _ if together == SetAttrs::default() => (mode, None, rest),
            true => (mode, Some(Box::new(together)), rest),
            false => (mode, None, SetAttrs { size, mode: rest.mode, ..together }),
        }
    }

    /// Sets what a new file has to have besides.
    async fn complete(&self, cx: &Cx, mut entry: Entry, attrs: SetAttrs) -> Outcome<Entry> {
        if attrs == SetAttrs::default() {
            return Ok(entry);
        }
        match self.ask(cx, SetAttr { node: entry.node, handle: None, attrs }).await {
            Ok(set) => {
                entry.attr = set.attr;
                Ok(entry)
            }
            Err(status) => {
                self.files.give_back(cx, &entry).await;
                Err(status)
            }
        }
    }

    pub(crate) async fn make_dir(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        args: MkDirArgs,
    ) -> Result<Created, WccFailed> {
        let made = async {
            let name = name(&args.at.name)?;
            let (mode, initial, rest) = self.beginning(self.set_attrs(&args.attrs)?, DIR_MODE);
            let make = MkDir { dir: dir.node, name: name.clone(), mode, umask: 0, initial };
            let entry = self.ask(cx, make).await?;
            let (at, rest) = ((dir.node, name.clone()), SetAttrs { size: None, ..rest });
            Ok((name, self.complete_new(cx, at, entry, rest).await?))
        };
        self.made(cx, dir, made.await).await
    }

    pub(crate) async fn make_symlink(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        args: SymLinkArgs,
    ) -> Result<Created, WccFailed> {
        let made = async {
            let name = name(&args.at.name)?;
            let target = Target::new(bytes::Bytes::copy_from_slice(&args.target));
            let target = target.map_err(|error| self.failed("symlink", &error))?;
            // A link has no permissions of its own.
            let attrs = SetAttrs { mode: None, size: None, ..self.set_attrs(&args.attrs)? };
            let (_, initial, rest) = self.beginning(attrs, 0);
            let entry = self.ask(cx, SymLink { dir: dir.node, name: name.clone(), target, initial }).await?;
            let at = (dir.node, name.clone());
            Ok((name, self.complete_new(cx, at, entry, rest).await?))
        };
        self.made(cx, dir, made.await).await
    }

    pub(crate) async fn make_node(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        args: MkNodArgs,
    ) -> Result<Created, WccFailed> {
        let made = async {
            let name = name(&args.at.name)?;
            let (kind, device, attrs) = match args.what {
                MkNodWhat::Block(new) => (FileKind::BlockDevice, Some(new.device), new.attrs),
                MkNodWhat::Char(new) => (FileKind::CharDevice, Some(new.device), new.attrs),
                MkNodWhat::Socket(attrs) => (FileKind::Socket, None, attrs),
                MkNodWhat::Fifo(attrs) => (FileKind::Fifo, None, attrs),
                MkNodWhat::Regular | MkNodWhat::Directory | MkNodWhat::Symlink => {
                    return Err(Status::BADTYPE);
                }
            };
            let rdev = device.map_or(Some(0), nfs::Device::rdev).ok_or(Status::INVAL)?;
            let (mode, initial, rest) = self.beginning(self.set_attrs(&attrs)?, FILE_MODE);
            let mode = kind.bits() | mode;
            let make = MkNod { dir: dir.node, name: name.clone(), mode, umask: 0, rdev, initial };
            let entry = self.ask(cx, make).await?;
            let (at, rest) = ((dir.node, name.clone()), SetAttrs { size: None, ..rest });
            Ok((name, self.complete_new(cx, at, entry, rest).await?))
        };
        self.made(cx, dir, made.await).await
    }

    pub(crate) async fn remove(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        gone: &nfs::Name,
        directory: bool,
    ) -> Result<WccOk, WccFailed> {
        let removed = async {
            let name = name(gone)?;
            let victim = self.victim(cx, dir, &name).await;
            let done = match directory {
                true => self.ask(cx, RmDir { dir: dir.node, name: name.clone() }).await,
                false => self.ask(cx, Unlink { dir: dir.node, name: name.clone() }).await,
            };
            if done.is_ok() {
                self.files.removed(dir.id, &name);
            }
            self.lost_name(cx, victim, done.is_ok()).await;
            done
        };
        let removed = removed.await;
        let wcc = self.wcc(cx, dir.node).await;
        removed.map(|()| WccOk { wcc }).map_err(|status| WccFailed { status, wcc })
    }

    /// What `name` leads to before it is removed or replaced, with one more reference, and its number in handles.
    async fn victim(&self, cx: &Cx, dir: &Used<'_>, name: &Name) -> Option<(Entry, Option<Node>)> {
        let entry = self.ask(cx, Lookup { dir: dir.node, name: name.clone() }).await.ok()?;
        let number = self.files.known(dir.id, name, &entry);
        Some((entry, number))
    }

    /// Gives back what is held of a file that has lost its last name, and the reference of [`Export::victim`].
    async fn lost_name(&self, cx: &Cx, victim: Option<(Entry, Option<Node>)>, is_done: bool) {
        let Some((entry, number)) = victim else { return };
        if let Some(number) = number.filter(|_| is_done && (entry.attr.nlink <= 1 || entry.attr.is_dir())) {
            self.files.ended(cx, number, &entry).await;
        }
        self.files.give_back(cx, &entry).await;
    }

    pub(crate) async fn rename(
        &self,
        cx: &Cx,
        (from_dir, from): (&Used<'_>, &nfs::Name),
        (to_dir, to): (&Used<'_>, &nfs::Name),
    ) -> Result<Renamed, RenameFailed> {
        let renamed = async {
            let (from, to) = (name(from)?, name(to)?);
            let victim = self.victim(cx, to_dir, &to).await;
            let (name, to_name) = (from.clone(), to.clone());
            let flags = RenameFlags::empty();
            let rename = Rename { dir: from_dir.node, name, to_dir: to_dir.node, to_name, flags };
            let done = self.ask(cx, rename).await;
            if done.is_ok() {
                self.files.renamed((from_dir.id, &from), (to_dir.id, &to));
            }
            self.lost_name(cx, victim, done.is_ok()).await;
            done
        };
        let renamed = renamed.await;
        let (one, two) = (self.wcc(cx, from_dir.node).await, self.wcc(cx, to_dir.node).await);
        renamed.map(|()| Renamed { from_dir: one, to_dir: two }).map_err(|status| RenameFailed {
            status,
            from_dir: one,
            to_dir: two,
        })
    }

    pub(crate) async fn link(
        &self,
        cx: &Cx,
        file: &Used<'_>,
        dir: &Used<'_>,
        new: &nfs::Name,
    ) -> Result<Linked, LinkFailed> {
        let linked = async {
            let name = name(new)?;
            let entry = self.ask(cx, Link { node: file.node, dir: dir.node, name: name.clone() }).await?;
            let attrs = self.attrs(&entry.attr);
            let known = self.files.found(cx, dir.id, &name, &entry).await;
            known.map_err(|error| self.failed("link", &error))?;
            Ok(attrs)
        };
        let linked = linked.await;
        let wcc = self.wcc(cx, dir.node).await;
        match linked {
            Ok(attrs) => Ok(Linked { attrs: Some(attrs), dir: wcc }),
            Err(status) => Err(LinkFailed { status, attrs: self.after(cx, file.node).await, dir: wcc }),
        }
    }
}
