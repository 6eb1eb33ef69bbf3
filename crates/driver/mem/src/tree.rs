// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names: finding, adding, removing and listing them.

use crate::Mem;
use crate::acl;
use crate::content::Content;
use crate::group::{Group, NAMES};
use crate::inode::{Body, Inode, NewInode, State};
use crate::names::Names;
use crate::record::words_of;
use crate::xattr::Xattrs;
use bytes::Bytes;
use outrigger_core::attr::SET_GID;
use outrigger_core::attr::{MODE_KIND, MODE_PERMISSIONS};
use outrigger_core::ops::{Link, MkDir, MkNod, ReadDir, ReadDirPlus, Resolve, RmDir, SymLink, Unlink, Walk};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Entry};
use outrigger_core::survive::Room;
use outrigger_core::{Cx, Errno, FileKind, Name, Node, Result, SetAttrs, Target, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What [`ReadDir`] counts for an entry beside its name, in bytes.
const DIRENT_SIZE: usize = 24;
/// What [`ReadDirPlus`] counts for an entry beside its name, in bytes.
const DIRENT_PLUS_SIZE: usize = 152;

/// The kind, permissions and body of a file to be made.
pub(crate) struct Seed {
    pub mode: u32,
    /// Applied where no default access list takes its place.
    pub umask: u32,
    pub rdev: u32,
    pub body: Body,
    /// What the caller wants it to have instead of what it gets by itself.
    pub initial: Option<Box<SetAttrs>>,
}

impl Seed {
    /// An empty regular file.
    pub fn file(mode: u32, umask: u32) -> Self {
        let mode = FileKind::Regular.bits() | mode & MODE_PERMISSIONS;
        Seed { mode, umask, rdev: 0, body: Body::File(Content::default()), initial: None }
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
    inode.reference(mem.log());
    Ok(Arc::clone(inode))
}

pub(crate) fn lookup(mem: &Mem, dir: Node, name: &Name) -> Result<Entry> {
    mem.tend_log();
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

/// How a new inode is found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// By its name and by who made it.
    Named,
    /// By its name alone.
    Unreferenced,
    /// By who made it, until it is given a name.
    Unnamed,
    /// By who made it, and never by a name.
    Nameless,
}

/// Makes an inode that belongs to the caller, as the directory it is made for rules (mkdir(2), open(2)). No request finds
/// it before the group is committed.
pub(crate) fn make_inode(
    mem: &Mem,
    cx: &Cx,
    parent: (u64, &State),
    seed: Seed,
    life: Life,
    group: &mut Group<'_>,
) -> Result<Arc<Inode>> {
    let kind = seed.kind();
    let inherits = parent.1.mode & SET_GID != 0;
    let mode = seed.mode & MODE_PERMISSIONS;
    // What a rename leaves at the old name is made by the file system, not by its user.
    let (mut mode, xattrs) = match life {
        Life::Unreferenced => (mode, Xattrs::default()),
        _ => acl::inherit(parent.1, kind, mode, seed.umask),
    };
    mem.space.take_inode()?;
    mem.space.take_bytes(xattrs.charge()).inspect_err(|_| mem.space.give_back_inode())?;
    if inherits && kind == FileKind::Directory {
        mode |= SET_GID;
    }
    let named = matches!(life, Life::Named | Life::Unreferenced);
    let birth = NewInode {
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
        unnamed: life == Life::Unnamed,
        references: u64::from(life != Life::Unreferenced),
        time: mem.now(),
        xattrs,
        body: seed.body,
    };
    let inode = Arc::new(Inode::new(mem.table.next_number(), birth));
    if let Some(initial) = &seed.initial {
        inode.apply(cx, &mut inode.state.write(), initial, mem.now());
    }
    group.born(&inode);
    Ok(inode)
}

/// Makes a file in a directory whose state the caller holds.
pub(crate) fn make_in(
    mem: &Mem,
    cx: &Cx,
    (dir, state): (&Inode, &mut State),
    name: &Name,
    (seed, life): (Seed, Life),
    group: &mut Group<'_>,
) -> Result<Arc<Inode>> {
    if state.names_mut()?.get(name).is_some() {
        return Err(Errno::EEXIST.into());
    }
    let is_dir = seed.kind() == FileKind::Directory;
    if is_dir && state.nlink >= mem.options.links {
        return Err(Errno::EMLINK.into());
    }
    let before = dir.before(cx, state);
    let inode = make_inode(mem, cx, (dir.ino, state), seed, life, group)?;
    let number = state.names_mut()?.insert(name, Arc::clone(&inode))?;
    group.name(dir, number, name, inode.ino);
    state.nlink += u32::from(is_dir);
    state.touch(mem.now());
    dir.note_change(cx, before, state);
    group.inode(dir, state);
    Ok(inode)
}

/// Makes a file and counts one reference to it.
pub(crate) fn make(mem: &Mem, cx: &Cx, dir: Node, name: &Name, seed: Seed) -> Result<Arc<Inode>> {
    let target = seed.body.target().map_or(0, |target| words_of(target.len()));
    let dir = mem.table.get(dir)?;
    loop {
        let lists = acl::inherited_words(&dir.state.read());
        let mut group = mem.change(Room::More(NAMES + target + lists))?;
        let mut state = dir.state.write();
        // A longer default list may have been set meanwhile.
        if acl::inherited_words(&state) > lists {
            continue;
        }
        let inode = make_in(mem, cx, (&dir, &mut state), name, (seed, Life::Named), &mut group)?;
        group.commit();
        return Ok(inode);
    }
}

fn made(mem: &Mem, cx: &Cx, dir: Node, name: &Name, seed: Seed) -> Result<Entry> {
    make(mem, cx, dir, name, seed).map(|inode| mem.entry(&inode))
}

pub(crate) fn mknod(mem: &Mem, cx: &Cx, op: &MkNod) -> Result<Entry> {
    let kind = if op.mode & MODE_KIND == 0 { Some(FileKind::Regular) } else { FileKind::of_mode(op.mode) };
    let (body, rdev) = match kind {
        Some(FileKind::Regular) => (Body::File(Content::default()), 0),
        Some(FileKind::Fifo | FileKind::Socket) => (Body::Special, 0),
        Some(FileKind::CharDevice | FileKind::BlockDevice) => (Body::Special, op.rdev),
        _ => return Err(Errno::EINVAL.because(format!("mknod cannot make mode {:o}", op.mode))),
    };
    let initial = op.initial.clone();
    made(mem, cx, op.dir, &op.name, Seed { mode: op.mode, umask: op.umask, rdev, body, initial })
}

pub(crate) fn mkdir(mem: &Mem, cx: &Cx, op: &MkDir) -> Result<Entry> {
    let mode = FileKind::Directory.bits() | op.mode & MODE_PERMISSIONS;
    let (body, initial) = (Body::Dir(Names::default()), op.initial.clone());
    made(mem, cx, op.dir, &op.name, Seed { mode, umask: op.umask, rdev: 0, body, initial })
}

pub(crate) fn symlink(mem: &Mem, cx: &Cx, op: &SymLink) -> Result<Entry> {
    let target = Target::new(Bytes::copy_from_slice(&op.target))?;
    let mode = FileKind::Symlink.bits() | 0o777;
    let (body, initial) = (Body::Link(target), op.initial.clone());
    made(mem, cx, op.dir, &op.name, Seed { mode, umask: 0, rdev: 0, body, initial })
}

pub(crate) fn link(mem: &Mem, cx: &Cx, op: &Link) -> Result<Entry> {
    let mut group = mem.change(Room::More(NAMES))?;
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
    let before = (dir.before(cx, &names), inode.before(cx, &state));
    let number = names.names_mut()?.insert(&op.name, Arc::clone(&inode))?;
    state.nlink += 1;
    state.unnamed = false;
    state.ctime = now;
    inode.reference(mem.log());
    names.touch(now);
    dir.note_change(cx, before.0, &names);
    inode.note_change(cx, before.1, &state);
    group.name(&dir, number, &op.name, inode.ino);
    group.inode(&inode, &state);
    group.inode(&dir, &names);
    group.commit();
    drop((state, names));
    Ok(mem.entry(&inode))
}

pub(crate) fn unlink(mem: &Mem, cx: &Cx, op: &Unlink) -> Result<()> {
    let mut group = mem.change(Room::Less(NAMES))?;
    let dir = mem.table.get(op.dir)?;
    let mut names = dir.state.write();
    let inode = Arc::clone(names.names_mut()?.get(&op.name).ok_or(Errno::ENOENT)?);
    if inode.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    let now = mem.now();
    let mut state = inode.state.write();
    let before = dir.before(cx, &names);
    state.lose_name(now);
    remove_name(&mut group, (&dir, &mut names), &op.name, now)?;
    dir.note_change(cx, before, &names);
    group.inode(&inode, &state);
    group.commit();
    drop((state, names, group));
    mem.reap(&inode);
    Ok(())
}

/// Takes a name out of a directory.
fn remove_name(
    group: &mut Group<'_>,
    (dir, state): (&Inode, &mut State),
    name: &Name,
    now: Time,
) -> Result<()> {
    if let Some(number) = state.names_mut()?.remove(name) {
        group.name_gone(dir, number);
    }
    state.touch(now);
    group.inode(dir, state);
    Ok(())
}

pub(crate) fn rmdir(mem: &Mem, cx: &Cx, op: &RmDir) -> Result<()> {
    let mut group = mem.change(Room::Less(NAMES))?;
    let dir = mem.table.get(op.dir)?;
    let topology = mem.topology.lock();
    let mut names = dir.state.write();
    let inode = Arc::clone(names.names_mut()?.get(&op.name).ok_or(Errno::ENOENT)?);
    let now = mem.now();
    let mut state = inode.state.write();
    let before = dir.before(cx, &names);
    state.bury(now)?;
    names.nlink -= 1;
    remove_name(&mut group, (&dir, &mut names), &op.name, now)?;
    dir.note_change(cx, before, &names);
    group.inode(&inode, &state);
    group.commit();
    drop((state, names, topology, group));
    mem.reap(&inode);
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
    for (cookie, name, inode) in names.listed(cookie) {
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
    mem.tend_log();
    let dir = mem.table.get(op.node)?;
    let state = dir.state.read();
    let dirent = |cookie, name: &Name, inode: &Arc<Inode>| Dirent {
        ino: inode.ino,
        cookie,
        kind: Some(inode.kind),
        name: name.clone(),
    };
    let (entries, eof) = collect(state.names()?, op.cookie, op.size, DIRENT_SIZE, dirent);
    dir.mark_read(mem.now(), mem.log());
    Ok(Dirents { entries, eof })
}

pub(crate) fn readdirplus(mem: &Mem, op: &ReadDirPlus) -> Result<DirentsPlus> {
    mem.tend_log();
    let dir = mem.table.get(op.node)?;
    let state = dir.state.read();
    let referenced = |cookie, name: &Name, inode: &Arc<Inode>| {
        inode.reference(mem.log());
        (cookie, name.clone(), Arc::clone(inode))
    };
    let (found, eof) = collect(state.names()?, op.cookie, op.size, DIRENT_PLUS_SIZE, referenced);
    dir.mark_read(mem.now(), mem.log());
    // The attributes of a directory need its lock, and only the holder of `topology` may hold two.
    drop(state);
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

/// The directory that holds the directory `dir`, with a reference.
pub(crate) fn parent(mem: &Mem, dir: Node) -> Result<Entry> {
    mem.tend_log();
    let inode = mem.table.get(dir)?;
    inode.state.read().names()?;
    let parent = mem.table.get(Node(inode.parent.load(Relaxed)))?;
    parent.reference(mem.log());
    Ok(mem.entry(&parent))
}

/// The file with this number, with a reference.
pub(crate) fn resolve(mem: &Mem, op: &Resolve) -> Result<Entry> {
    mem.tend_log();
    if op.generation.is_some_and(|generation| generation != mem.generation) {
        return Err(Errno::ESTALE.into());
    }
    let inode = mem.table.get(op.node)?;
    let state = inode.state.read();
    if state.dead {
        return Err(Errno::ESTALE.into());
    }
    inode.reference(mem.log());
    drop(state);
    Ok(mem.entry(&inode))
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
