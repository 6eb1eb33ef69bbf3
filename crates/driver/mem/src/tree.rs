// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names: finding, adding, removing and listing them.

use crate::Mem;
use crate::content::Content;
use crate::inode::{Birth, Body, Inode, SET_GID, State};
use crate::names::Names;
use bytes::Bytes;
use outrigger_core::attr::{MODE_KIND, MODE_PERMISSIONS};
use outrigger_core::ops::{Link, MkDir, MkNod, ReadDir, ReadDirPlus, RmDir, SymLink, Unlink, Walk};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Entry};
use outrigger_core::{Cx, Errno, FileKind, Name, Node, Result, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What [`ReadDir`] counts for an entry beside its name, in bytes.
const DIRENT_SIZE: usize = 24;
/// What [`ReadDirPlus`] counts for an entry beside its name, in bytes.
const DIRENT_PLUS_SIZE: usize = 152;

/// The kind, permissions and body of a file to be made.
pub(crate) struct Seed {
    pub mode: u32,
    pub rdev: u32,
    pub body: Body,
}

impl Seed {
    /// An empty regular file.
    pub fn file(mode: u32) -> Self {
        let mode = FileKind::Regular.bits() | mode & MODE_PERMISSIONS;
        Seed { mode, rdev: 0, body: Body::File(Content::default()) }
    }

    fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode).unwrap_or(FileKind::Regular)
    }
}

/// Finds a name and counts one reference to where it leads.
pub(crate) fn find(mem: &Mem, dir: Node, name: &Name) -> Result<Arc<Inode>> {
    let dir = mem.table.get(dir)?;
    let state = dir.state.read();
    let inode = state.names()?.get(name).ok_or(Errno::ENOENT)?;
    inode.reference();
    Ok(Arc::clone(inode))
}

pub(crate) fn lookup(mem: &Mem, dir: Node, name: &Name) -> Result<Entry> {
    find(mem, dir, name).map(|inode| mem.entry(&inode))
}

pub(crate) fn walk(mem: &Mem, op: &Walk) -> Result<Vec<Entry>> {
    let mut dir = op.dir;
    let mut entries = Vec::with_capacity(op.names.len());
    for name in &op.names {
        match lookup(mem, dir, name) {
            Ok(entry) => {
                dir = entry.node;
                entries.push(entry);
            }
            Err(error) if entries.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(entries)
}

/// Makes an inode that belongs to whoever asks, as the directory it is made for rules (mkdir(2), open(2)).
pub(crate) fn make_inode(
    mem: &Mem,
    cx: &Cx,
    parent: (u64, &State),
    seed: Seed,
    named: bool,
) -> Result<Arc<Inode>> {
    mem.space.take_inode()?;
    let kind = seed.kind();
    let inherits = parent.1.mode & SET_GID != 0;
    let mut mode = seed.mode & MODE_PERMISSIONS;
    if inherits && kind == FileKind::Directory {
        mode |= SET_GID;
    }
    Ok(mem.table.add(Birth {
        kind,
        mode,
        uid: cx.cred.uid,
        gid: if inherits { parent.1.gid } else { cx.cred.gid },
        nlink: if !named {
            0
        } else if kind == FileKind::Directory {
            2
        } else {
            1
        },
        rdev: seed.rdev,
        parent: parent.0,
        time: mem.now(),
        body: seed.body,
    }))
}

/// Makes a file in a directory whose state the caller holds, and counts one reference to it.
pub(crate) fn make_in(
    mem: &Mem,
    cx: &Cx,
    dir: &Inode,
    state: &mut State,
    name: &Name,
    seed: Seed,
) -> Result<Arc<Inode>> {
    if state.names_mut()?.get(name).is_some() {
        return Err(Errno::EEXIST.into());
    }
    let is_dir = seed.kind() == FileKind::Directory;
    if is_dir && state.nlink >= mem.options.links {
        return Err(Errno::EMLINK.into());
    }
    let inode = make_inode(mem, cx, (dir.ino, state), seed, true)?;
    state.names_mut()?.insert(name, Arc::clone(&inode))?;
    state.nlink += u32::from(is_dir);
    state.touch(mem.now());
    Ok(inode)
}

fn make(mem: &Mem, cx: &Cx, dir: Node, name: &Name, seed: Seed) -> Result<Entry> {
    let dir = mem.table.get(dir)?;
    let inode = make_in(mem, cx, &dir, &mut dir.state.write(), name, seed)?;
    Ok(mem.entry(&inode))
}

pub(crate) fn mknod(mem: &Mem, cx: &Cx, op: &MkNod) -> Result<Entry> {
    let kind = if op.mode & MODE_KIND == 0 { Some(FileKind::Regular) } else { FileKind::of_mode(op.mode) };
    let (body, rdev) = match kind {
        Some(FileKind::Regular) => (Body::File(Content::default()), 0),
        Some(FileKind::Fifo | FileKind::Socket) => (Body::Special, 0),
        Some(FileKind::CharDevice | FileKind::BlockDevice) => (Body::Special, op.rdev),
        _ => return Err(Errno::EINVAL.because(format!("mknod cannot make mode {:o}", op.mode))),
    };
    make(mem, cx, op.dir, &op.name, Seed { mode: op.mode, rdev, body })
}

pub(crate) fn mkdir(mem: &Mem, cx: &Cx, op: &MkDir) -> Result<Entry> {
    let mode = FileKind::Directory.bits() | op.mode & MODE_PERMISSIONS;
    make(mem, cx, op.dir, &op.name, Seed { mode, rdev: 0, body: Body::Dir(Names::default()) })
}

pub(crate) fn symlink(mem: &Mem, cx: &Cx, op: &SymLink) -> Result<Entry> {
    let target = Target::new(Bytes::copy_from_slice(&op.target))?;
    let mode = FileKind::Symlink.bits() | 0o777;
    make(mem, cx, op.dir, &op.name, Seed { mode, rdev: 0, body: Body::Link(target) })
}

pub(crate) fn link(mem: &Mem, op: &Link) -> Result<Entry> {
    let (inode, dir) = (mem.table.get(op.node)?, mem.table.get(op.dir)?);
    let mut names = dir.state.write();
    if names.names_mut()?.get(&op.name).is_some() {
        return Err(Errno::EEXIST.into());
    }
    if inode.is_dir() {
        return Err(Errno::EPERM.because("a directory has one name only"));
    }
    let now = mem.now();
    let mut state = inode.state.write();
    if state.dead || (state.nlink == 0 && !state.unnamed) {
        return Err(Errno::ENOENT.because("the file has lost its last name"));
    }
    if state.nlink >= mem.options.links {
        return Err(Errno::EMLINK.into());
    }
    names.names_mut()?.insert(&op.name, Arc::clone(&inode))?;
    state.nlink += 1;
    state.unnamed = false;
    state.ctime = now;
    inode.reference();
    drop(state);
    names.touch(now);
    drop(names);
    Ok(mem.entry(&inode))
}

pub(crate) fn unlink(mem: &Mem, op: &Unlink) -> Result<()> {
    let dir = mem.table.get(op.dir)?;
    let mut names = dir.state.write();
    let inode = Arc::clone(names.names_mut()?.get(&op.name).ok_or(Errno::ENOENT)?);
    if inode.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    let now = mem.now();
    names.names_mut()?.remove(&op.name);
    names.touch(now);
    drop_name(&inode, now);
    drop(names);
    mem.reap(&inode);
    Ok(())
}

/// Counts one name less of a file that is no directory.
pub(crate) fn drop_name(inode: &Inode, now: outrigger_core::Time) {
    let mut state = inode.state.write();
    state.nlink = state.nlink.saturating_sub(1);
    state.ctime = now;
}

pub(crate) fn rmdir(mem: &Mem, op: &RmDir) -> Result<()> {
    let dir = mem.table.get(op.dir)?;
    let _topology = mem.topology.lock();
    let mut names = dir.state.write();
    let inode = Arc::clone(names.names_mut()?.get(&op.name).ok_or(Errno::ENOENT)?);
    let now = mem.now();
    bury(&inode, now)?;
    names.names_mut()?.remove(&op.name);
    names.nlink -= 1;
    names.touch(now);
    drop(names);
    mem.reap(&inode);
    Ok(())
}

/// Takes an empty directory out of use. The caller holds `Mem::topology` and removes its name.
pub(crate) fn bury(inode: &Inode, now: outrigger_core::Time) -> Result<()> {
    let mut state = inode.state.write();
    if !state.names()?.is_empty() {
        return Err(Errno::ENOTEMPTY.into());
    }
    state.nlink = 0;
    state.ctime = now;
    Ok(())
}

/// Collects the names after `cookie` that fit into `size` bytes, at least one; `true` when no name is left.
fn collect<T>(
    names: &Names,
    cookie: u64,
    size: u32,
    each: usize,
    mut take: impl FnMut(u64, &Name, &Arc<Inode>) -> T,
) -> (Vec<T>, bool) {
    let mut room = size as usize;
    let mut taken = Vec::new();
    for (cookie, name, inode) in names.after(cookie) {
        let wanted = each + name.len();
        if wanted > room && !taken.is_empty() {
            return (taken, false);
        }
        room = room.saturating_sub(wanted);
        taken.push(take(cookie, name, inode));
    }
    (taken, true)
}

pub(crate) fn readdir(mem: &Mem, op: &ReadDir) -> Result<Dirents> {
    let dir = mem.table.get(op.node)?;
    let state = dir.state.read();
    let dirent = |cookie, name: &Name, inode: &Arc<Inode>| Dirent {
        ino: inode.ino,
        cookie,
        kind: Some(inode.kind),
        name: name.clone(),
    };
    let (entries, eof) = collect(state.names()?, op.cookie, op.size, DIRENT_SIZE, dirent);
    dir.mark_read(mem.now());
    Ok(Dirents { entries, eof })
}

pub(crate) fn readdirplus(mem: &Mem, op: &ReadDirPlus) -> Result<DirentsPlus> {
    let dir = mem.table.get(op.node)?;
    let state = dir.state.read();
    let referenced = |cookie, name: &Name, inode: &Arc<Inode>| {
        inode.reference();
        (cookie, name.clone(), Arc::clone(inode))
    };
    let (found, eof) = collect(state.names()?, op.cookie, op.size, DIRENT_PLUS_SIZE, referenced);
    // The attributes of a directory need its lock, and only the holder of `topology` may hold two.
    drop(state);
    dir.mark_read(mem.now());
    let plus = |(cookie, name, inode): (u64, Name, Arc<Inode>)| DirentPlus {
        cookie,
        name,
        entry: mem.entry(&inode),
    };
    Ok(DirentsPlus { entries: found.into_iter().map(plus).collect(), eof })
}

/// Whether `ancestor` is `dir` or above it. The caller holds `Mem::topology`.
pub(crate) fn is_within(mem: &Mem, dir: &Inode, ancestor: &Inode) -> bool {
    let mut at = dir.ino;
    loop {
        if at == ancestor.ino {
            return true;
        }
        if at == Node::ROOT.0 {
            return false;
        }
        match mem.table.get(Node(at)) {
            Ok(inode) => at = inode.parent.load(Relaxed),
            Err(_) => return false,
        }
    }
}

/// The path of a file: for one with several names, the one in the directory it was made in or last moved to.
pub(crate) fn locate(mem: &Mem, node: Node) -> Result<Target> {
    let mut path = Vec::new();
    let mut at = mem.table.get(node)?;
    // Directories may move meanwhile, so that the way up need not end.
    while at.ino != Node::ROOT.0 {
        let parent = mem.table.get(Node(at.parent.load(Relaxed)))?;
        let state = parent.state.read();
        let is_it =
            |(_, name, inode): (u64, &Name, &Arc<Inode>)| (inode.ino == at.ino).then(|| name.to_vec());
        let name = state.names()?.after(0).find_map(is_it);
        let name =
            name.ok_or_else(|| Errno::ENOENT.because("the file has no name where it was last seen"))?;
        drop(state);
        path.splice(0..0, [b"/", &name[..]].concat());
        if path.len() > outrigger_core::name::TARGET_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        at = parent;
    }
    Target::new(if path.is_empty() { b"/".to_vec() } else { path })
}
