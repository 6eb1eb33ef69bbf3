// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving names (renameat2(2)).

use crate::Mem;
use crate::group::{Group, NAMES};
use crate::inode::{Body, Inode, State};
use crate::tree::{Life, Seed, is_within, make_in};
use outrigger_core::ops::{Rename, RenameFlags};
use outrigger_core::survive::Room;
use outrigger_core::{Before, Cx, Errno, FileKind, Result, Time};
use parking_lot::RwLockWriteGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

type Written<'a> = RwLockWriteGuard<'a, State>;

/// The states of the one or two directories a rename works on.
struct Dirs<'a> {
    from: Written<'a>,
    to: Option<Written<'a>>,
}

impl Dirs<'_> {
    fn to(&mut self) -> &mut State {
        self.to.as_deref_mut().unwrap_or(&mut self.from)
    }

    fn touch(&mut self, now: Time) {
        self.from.touch(now);
        self.to().touch(now);
    }

    fn before(&self, cx: &Cx, (from, to): (&Inode, &Inode)) -> [Option<Before>; 2] {
        [from.before(cx, &self.from), self.to.as_deref().and_then(|state| to.before(cx, state))]
    }

    fn note_change(&self, cx: &Cx, (from, to): (&Inode, &Inode), [first, second]: [Option<Before>; 2]) {
        from.note_change(cx, first, &self.from);
        if let Some(state) = &self.to {
            to.note_change(cx, second, state);
        }
    }

    fn log(&self, (from, to): (&Inode, &Inode), group: &mut Group<'_>) {
        group.inode(from, &self.from);
        if let Some(state) = &self.to {
            group.inode(to, state);
        }
    }
}

pub(crate) fn rename(mem: &Mem, cx: &Cx, op: &Rename) -> Result<()> {
    let flags = op.flags;
    if flags.contains(RenameFlags::EXCHANGE) && flags != RenameFlags::EXCHANGE {
        return Err(Errno::EINVAL.because("an exchange goes with no other flag"));
    }
    let mut group = mem.change(Room::More(NAMES))?;
    let (from, to) = (mem.table.get(op.dir)?, mem.table.get(op.to_dir)?);
    // Before any lock: that of a file comes after those of directories.
    if !from.is_dir() || !to.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    let mut replaced = None;
    if from.ino != to.ino || !within_one_directory(mem, cx, op, &from, (&mut group, &mut replaced))? {
        replaced = between_directories(mem, cx, op, (&from, &to), &mut group)?;
    }
    drop(group);
    if let Some(target) = replaced {
        mem.reap(&target);
    }
    Ok(())
}

/// Renames whatever it is; answers what lost a name by it.
fn between_directories(
    mem: &Mem,
    cx: &Cx,
    op: &Rename,
    (from, to): (&Arc<Inode>, &Arc<Inode>),
    group: &mut Group<'_>,
) -> Result<Option<Arc<Inode>>> {
    let flags = op.flags;
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
    if source.is_dir() && is_within(mem, to, &source) {
        return Err(Errno::EINVAL.because("a directory cannot move into itself"));
    }
    if let Some(target) = target.as_ref().filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
        exchange(mem, cx, op, (from, to), &mut dirs, (&source, target), group)?;
        return Ok(None);
    }
    if let Some(target) = &target {
        if target.ino == source.ino {
            return Ok(None);
        }
        // An ancestor of the source is not empty, and its lock may be held already.
        if target.is_dir() && is_within(mem, from, target) {
            return Err(Errno::ENOTEMPTY.into());
        }
    }
    replace(mem, cx, op, (from, to), &mut dirs, (&source, target.as_deref()), group)?;
    Ok(target)
}

/// Renames within one directory when no directory is moved or replaced, which needs no other lock;
/// `false` when one is.
fn within_one_directory(
    mem: &Mem,
    cx: &Cx,
    op: &Rename,
    dir: &Inode,
    (group, replaced): (&mut Group<'_>, &mut Option<Arc<Inode>>),
) -> Result<bool> {
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
    replace(mem, cx, op, (dir, dir), &mut dirs, (&source, target.as_deref()), group)?;
    *replaced = target;
    Ok(true)
}

/// The states of the file that moves and of the one in its way, which is another.
fn states<'a>(source: &'a Inode, target: Option<&'a Inode>) -> (Written<'a>, Option<Written<'a>>) {
    // Directories first, files by their numbers: see the order of locks.
    let key = |inode: &Inode| (!inode.is_dir(), inode.ino);
    match target {
        Some(target) if key(target) < key(source) => {
            let target = target.state.write();
            (source.state.write(), Some(target))
        }
        _ => (source.state.write(), target.map(|target| target.state.write())),
    }
}

fn replace(
    mem: &Mem,
    cx: &Cx,
    op: &Rename,
    (from, to): (&Inode, &Inode),
    dirs: &mut Dirs<'_>,
    (source, target): (&Arc<Inode>, Option<&Inode>),
    group: &mut Group<'_>,
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
    let before = dirs.before(cx, (from, to));
    let (mut source_state, mut target_state) = states(source, target);
    if let (Some(target), Some(state)) = (target, &mut target_state) {
        if target.is_dir() {
            state.bury(now)?;
            dirs.to().nlink -= 1;
        } else {
            state.lose_name(now);
        }
        group.inode(target, state);
    }
    if let Some(number) = dirs.from.names_mut()?.remove(&op.name) {
        group.name_gone(from, number);
    }
    let names = dirs.to().names_mut()?;
    let number = match names.replace(&op.to_name, Arc::clone(source)) {
        Some(number) => number,
        None => names.insert(&op.to_name, Arc::clone(source))?,
    };
    group.name(to, number, &op.to_name, source.ino);
    if moves_in {
        dirs.from.nlink -= 1;
        dirs.to().nlink += 1;
    }
    source.parent.store(to.ino, Relaxed);
    source_state.ctime = now;
    group.inode(source, &source_state);
    dirs.touch(now);
    if whiteout {
        let seed =
            Seed { mode: FileKind::CharDevice.bits(), umask: 0, rdev: 0, body: Body::Special, initial: None };
        // What the directory was before the rename is noted below.
        let cx = &Cx { wcc: None, ..cx.clone() };
        make_in(mem, cx, (from, &mut dirs.from), &op.name, (seed, Life::Unreferenced), group)?;
    }
    dirs.note_change(cx, (from, to), before);
    dirs.log((from, to), group);
    group.commit();
    Ok(())
}

fn exchange(
    mem: &Mem,
    cx: &Cx,
    op: &Rename,
    (from, to): (&Inode, &Inode),
    dirs: &mut Dirs<'_>,
    (source, target): (&Arc<Inode>, &Arc<Inode>),
    group: &mut Group<'_>,
) -> Result<()> {
    if target.is_dir() && is_within(mem, from, target) {
        return Err(Errno::EINVAL.because("a directory cannot move into itself"));
    }
    if source.ino == target.ino {
        return Ok(());
    }
    let now = mem.now();
    let before = dirs.before(cx, (from, to));
    let (mut source_state, mut target_state) = states(source, Some(target));
    if let Some(number) = dirs.from.names_mut()?.replace(&op.name, Arc::clone(target)) {
        group.name(from, number, &op.name, target.ino);
    }
    if let Some(number) = dirs.to().names_mut()?.replace(&op.to_name, Arc::clone(source)) {
        group.name(to, number, &op.to_name, source.ino);
    }
    if from.ino != to.ino {
        let (gone, come) = (u32::from(source.is_dir()), u32::from(target.is_dir()));
        dirs.from.nlink = dirs.from.nlink - gone + come;
        dirs.to().nlink = dirs.to().nlink - come + gone;
        source.parent.store(to.ino, Relaxed);
        target.parent.store(from.ino, Relaxed);
    }
    source_state.ctime = now;
    group.inode(source, &source_state);
    if let Some(state) = &mut target_state {
        state.ctime = now;
        group.inode(target, state);
    }
    dirs.touch(now);
    dirs.note_change(cx, (from, to), before);
    dirs.log((from, to), group);
    group.commit();
    Ok(())
}
