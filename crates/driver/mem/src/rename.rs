// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving names (renameat2(2)).

use crate::Mem;
use crate::inode::{Body, Inode, State};
use crate::tree::{Seed, bury, drop_name, is_within, make_in};
use outrigger_core::ops::{Rename, RenameFlags};
use outrigger_core::{Cx, Errno, FileKind, Result, Time};
use parking_lot::RwLockWriteGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The states of the one or two directories a rename works on.
struct Dirs<'a> {
    from: RwLockWriteGuard<'a, State>,
    to: Option<RwLockWriteGuard<'a, State>>,
}

impl Dirs<'_> {
    fn to(&mut self) -> &mut State {
        self.to.as_deref_mut().unwrap_or(&mut self.from)
    }

    fn touch(&mut self, now: Time) {
        self.from.touch(now);
        self.to().touch(now);
    }
}

pub(crate) fn rename(mem: &Mem, cx: &Cx, op: &Rename) -> Result<()> {
    let flags = op.flags;
    if flags.contains(RenameFlags::EXCHANGE) && flags != RenameFlags::EXCHANGE {
        return Err(Errno::EINVAL.because("an exchange goes with no other flag"));
    }
    let (from, to) = (mem.table.get(op.dir)?, mem.table.get(op.to_dir)?);
    if from.ino == to.ino && within_one_directory(mem, cx, op, &from)? {
        return Ok(());
    }
    let _topology = mem.topology.lock();
    let mut dirs = Dirs { from: from.state.write(), to: (from.ino != to.ino).then(|| to.state.write()) };
    let source = Arc::clone(dirs.from.names_mut()?.get(&op.name).ok_or(Errno::ENOENT)?);
    let target = dirs.to().names_mut()?.get(&op.to_name).cloned();
    if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if flags.contains(RenameFlags::EXCHANGE) && target.is_none() {
        return Err(Errno::ENOENT.into());
    }
    if source.is_dir() && is_within(mem, &to, &source) {
        return Err(Errno::EINVAL.because("a directory cannot move into itself"));
    }
    if let Some(target) = target.as_ref().filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
        return exchange(mem, op, (&from, &to), &mut dirs, (&source, target));
    }
    if let Some(target) = &target {
        if target.ino == source.ino {
            return Ok(());
        }
        // An ancestor of the source is not empty, and its lock may be held already.
        if target.is_dir() && is_within(mem, &from, target) {
            return Err(Errno::ENOTEMPTY.into());
        }
    }
    replace(mem, cx, op, (&from, &to), &mut dirs, &source, target.as_ref())?;
    drop(dirs);
    if let Some(target) = target {
        mem.reap(&target);
    }
    Ok(())
}

/// Renames within one directory when no directory is moved or replaced, which needs no other lock;
/// `false` when one is.
fn within_one_directory(mem: &Mem, cx: &Cx, op: &Rename, dir: &Inode) -> Result<bool> {
    let mut state = dir.state.write();
    let source = Arc::clone(state.names_mut()?.get(&op.name).ok_or(Errno::ENOENT)?);
    let target = state.names_mut()?.get(&op.to_name).cloned();
    let moves_directory = source.is_dir() || target.as_ref().is_some_and(|target| target.is_dir());
    if moves_directory || op.flags.contains(RenameFlags::EXCHANGE) {
        return Ok(false);
    }
    if op.flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if target.as_ref().is_some_and(|target| target.ino == source.ino) {
        return Ok(true);
    }
    let mut dirs = Dirs { from: state, to: None };
    replace(mem, cx, op, (dir, dir), &mut dirs, &source, target.as_ref())?;
    drop(dirs);
    if let Some(target) = target {
        mem.reap(&target);
    }
    Ok(true)
}

fn replace(
    mem: &Mem,
    cx: &Cx,
    op: &Rename,
    (from, to): (&Inode, &Inode),
    dirs: &mut Dirs<'_>,
    source: &Arc<Inode>,
    target: Option<&Arc<Inode>>,
) -> Result<()> {
    let now = mem.now();
    let moves_in = source.is_dir() && from.ino != to.ino;
    match target {
        Some(target) if target.is_dir() && !source.is_dir() => return Err(Errno::EISDIR.into()),
        Some(target) if !target.is_dir() && source.is_dir() => return Err(Errno::ENOTDIR.into()),
        None if moves_in && dirs.to().nlink >= mem.options.links => return Err(Errno::EMLINK.into()),
        _ => {}
    }
    let whiteout = op.flags.contains(RenameFlags::WHITEOUT);
    if whiteout {
        mem.space.take_inode()?;
        mem.space.give_back_inode();
    }
    match target {
        Some(target) if target.is_dir() => {
            bury(target, now)?;
            dirs.to().nlink -= 1;
        }
        Some(target) => drop_name(target, now),
        None => {}
    }
    dirs.from.names_mut()?.remove(&op.name);
    let names = dirs.to().names_mut()?;
    if names.replace(&op.to_name, Arc::clone(source)).is_none() {
        names.insert(&op.to_name, Arc::clone(source))?;
    }
    if moves_in {
        dirs.from.nlink -= 1;
        dirs.to().nlink += 1;
    }
    source.parent.store(to.ino, Relaxed);
    source.state.write().ctime = now;
    dirs.touch(now);
    if whiteout {
        let seed = Seed { mode: FileKind::CharDevice.bits(), rdev: 0, body: Body::Special };
        make_in(mem, cx, from, &mut dirs.from, &op.name, seed)?.unreference(1);
    }
    Ok(())
}

fn exchange(
    mem: &Mem,
    op: &Rename,
    (from, to): (&Inode, &Inode),
    dirs: &mut Dirs<'_>,
    (source, target): (&Arc<Inode>, &Arc<Inode>),
) -> Result<()> {
    if target.is_dir() && is_within(mem, from, target) {
        return Err(Errno::EINVAL.because("a directory cannot move into itself"));
    }
    let now = mem.now();
    dirs.from.names_mut()?.replace(&op.name, Arc::clone(target));
    dirs.to().names_mut()?.replace(&op.to_name, Arc::clone(source));
    if from.ino != to.ino {
        let (gone, come) = (u32::from(source.is_dir()), u32::from(target.is_dir()));
        dirs.from.nlink = dirs.from.nlink - gone + come;
        dirs.to().nlink = dirs.to().nlink - come + gone;
        source.parent.store(to.ino, Relaxed);
        target.parent.store(from.ino, Relaxed);
    }
    source.state.write().ctime = now;
    target.state.write().ctime = now;
    dirs.touch(now);
    Ok(())
}
