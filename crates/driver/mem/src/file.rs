// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regular files: opening, reading, writing, attributes.

use crate::acl;
use crate::content::{Content, Edit, PAGE};
use crate::group::NAMES;
use crate::handle;
use crate::inode::{Inode, State, is_privileged};
use crate::record::{CHANGE_WORDS, INODE_WORDS};
use crate::tree::{Life, Seed, find, make, make_inode};
use crate::{FILE_MAX, Mem};
use bytes::Bytes;
use outrigger_core::attr::granted_to_superuser;
use outrigger_core::ops::{
    Access, Create, GetAttr, Open, OpenFlags, Read, ReadLink, Seek, SetAttr, TmpFile, Whence, Write,
};
use outrigger_core::reply::{Attrs, Count, Created, Granted, Offset, OpenHow, Opened};
use outrigger_core::survive::Room;
use outrigger_core::{Cx, Errno, FileKind, Node, Payload, Result, Target, Time};

fn opened(flags: OpenFlags) -> Opened {
    Opened {
        handle: handle::of(flags),
        how: OpenHow::KEEP_CACHE | OpenHow::PARALLEL_DIRECT_WRITES,
        ..Opened::default()
    }
}

/// Opens a file that exists; empties it when asked.
fn open_inode(mem: &Mem, cx: &Cx, inode: &Inode, flags: OpenFlags) -> Result<Opened> {
    match inode.kind {
        FileKind::Regular => {}
        FileKind::Directory if flags.writes() => return Err(Errno::EISDIR.into()),
        FileKind::Directory => return Ok(opened(flags)),
        FileKind::Symlink => return Err(Errno::ELOOP.into()),
        _ => {
            return Err(Errno::ENXIO.because("pipes, sockets and devices are opened by the kernel, not here"));
        }
    }
    if flags.contains(OpenFlags::TRUNC) {
        let mut group = mem.change(Room::Less(INODE_WORDS + CHANGE_WORDS))?;
        let mut edit = mem.edit();
        let mut state = inode.state.write();
        state.content_mut()?.truncate(0, &mut edit)?;
        changed(cx, &mut state, mem.now());
        group.content(inode, edit);
        group.inode(inode, &state);
        group.commit();
    }
    Ok(opened(flags))
}

pub(crate) fn open(mem: &Mem, cx: &Cx, op: &Open) -> Result<Opened> {
    open_inode(mem, cx, &*mem.table.get(op.node)?, op.flags)
}

pub(crate) fn create(mem: &Mem, cx: &Cx, op: &Create) -> Result<Created> {
    loop {
        let seed = Seed { initial: op.initial.clone(), ..Seed::file(op.mode, op.umask) };
        match make(mem, cx, op.dir, &op.name, seed) {
            Ok(inode) => return Ok(Created { entry: mem.entry(&inode), opened: opened(op.flags) }),
            Err(error) if error.errno == Errno::EEXIST && !op.flags.contains(OpenFlags::EXCL) => {}
            Err(error) => return Err(error),
        }
        // Removed between the two steps: make it after all.
        let inode = match find(mem, op.dir, &op.name) {
            Err(error) if error.errno == Errno::ENOENT => continue,
            found => found?,
        };
        // open(2): a directory that exists cannot be opened with O_CREAT, not even for reading.
        let opened = match inode.kind {
            FileKind::Directory => Err(Errno::EISDIR.into()),
            _ => open_inode(mem, cx, &inode, op.flags),
        };
        return match opened {
            Ok(opened) => Ok(Created { entry: mem.entry(&inode), opened }),
            Err(error) => {
                mem.forget_inode(&inode, 1);
                Err(error)
            }
        };
    }
}

pub(crate) fn tmpfile(mem: &Mem, cx: &Cx, op: &TmpFile) -> Result<Created> {
    let dir = mem.table.get(op.dir)?;
    loop {
        let lists = acl::inherited_words(&dir.state.read());
        let mut group = mem.change(Room::More(NAMES + lists))?;
        let state = dir.state.read();
        state.names()?;
        // A longer default list may have been set meanwhile.
        if acl::inherited_words(&state) > lists {
            continue;
        }
        // An O_EXCL temporary file is one that must never get a name (open(2)).
        let life = if op.flags.contains(OpenFlags::EXCL) { Life::Nameless } else { Life::Unnamed };
        let seed = Seed::file(op.mode, op.umask);
        let inode = make_inode(mem, cx, (dir.ino, &state), seed, life, &mut group)?;
        group.commit();
        return Ok(Created { entry: mem.entry(&inode), opened: opened(op.flags) });
    }
}

pub(crate) fn read(mem: &Mem, op: &Read) -> Result<Payload> {
    let updates_atime = handle::check_read(op.handle)?;
    mem.tend_log();
    let inode = mem.table.get(op.node)?;
    let state = inode.state.read();
    let data = state.content()?.read(op.offset, op.len.into(), &mem.store)?;
    if updates_atime {
        inode.mark_read(mem.now(), mem.log());
    }
    Ok(data)
}

/// Whether the request is a write of an unprivileged program. Write-back of the kernel's cache belongs to no program.
fn is_unprivileged(cx: &Cx, op: &Write) -> bool {
    op.kill_setid || (!is_privileged(cx) && !op.cached)
}

pub(crate) fn write(mem: &Mem, cx: &Cx, op: Write) -> Result<Count> {
    let appends = cx.writes_at_end(handle::check_write(op.handle)?, op.cached);
    let inode = mem.table.get(op.node)?;
    let unprivileged = is_unprivileged(cx, &op);
    let chunks = match op.data {
        Payload::Chunks(chunks) => chunks,
        other => vec![other.into_bytes()?],
    };
    let len: usize = chunks.iter().map(Bytes::len).sum();
    let mut group = mem.change(Room::More(INODE_WORDS + content_words(len, chunks.len())))?;
    let mut edit = mem.edit();
    let mut state = inode.state.write();
    let before = inode.before(cx, &state);
    let content = state.content_mut()?;
    let offset = if appends { content.size } else { op.offset };
    let left = FILE_MAX.checked_sub(offset).ok_or(Errno::EFBIG)?;
    let done = write_chunks(content, offset, left, &chunks, &mut edit);
    if done.as_ref().is_ok_and(|&done| done > 0) {
        state.touch(mem.now());
        if unprivileged {
            state.kill_setid();
        }
    }
    inode.note_change(cx, before, &state);
    group.content(&inode, edit);
    group.inode(&inode, &state);
    group.commit();
    done.map(Count)
}

/// The most words that writing `len` bytes in so many pieces adds to a group: each page may become an extent, and so
/// may the one with the end of the file.
pub(crate) fn content_words(len: usize, pieces: usize) -> usize {
    CHANGE_WORDS * (len / PAGE as usize + 2 * pieces + 1)
}

/// Writes as much as there is space for, at most `left` bytes; fails only when nothing was written.
fn write_chunks(
    content: &mut Content,
    offset: u64,
    left: u64,
    chunks: &[Bytes],
    edit: &mut Edit<'_>,
) -> Result<u64> {
    let mut done = 0;
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        let part = &chunk[..chunk.len().min((left - done) as usize)];
        let count = match content.write(offset + done, part, edit) {
            Ok(_) if left == 0 => return Err(Errno::EFBIG.into()),
            Ok(0) if done == 0 => {
                return Err(Errno::ENOSPC.because("the tree in memory has reached its size limit"));
            }
            Err(error) if done == 0 => return Err(error),
            written => written.unwrap_or(0),
        };
        done += count as u64;
        if count < chunk.len() {
            break;
        }
    }
    Ok(done)
}

pub(crate) fn seek(mem: &Mem, op: &Seek) -> Result<Offset> {
    let inode = mem.table.get(op.node)?;
    let state = inode.state.read();
    let content = state.content()?;
    let found = match op.whence {
        Whence::Data => content.next_data(op.offset),
        Whence::Hole => content.next_hole(op.offset),
    };
    found.map(Offset).ok_or(Errno::ENXIO.into())
}

pub(crate) fn readlink(mem: &Mem, node: &ReadLink) -> Result<Target> {
    mem.tend_log();
    let inode = mem.table.get(node.node)?;
    let state = inode.state.read();
    let target = state.body.target().ok_or_else(|| Errno::EINVAL.because("not a symbolic link"))?;
    inode.mark_read(mem.now(), mem.log());
    Ok(target.clone())
}

pub(crate) fn getattr(mem: &Mem, op: &GetAttr) -> Result<Attrs> {
    let inode = mem.table.get(op.node)?;
    let attr = inode.attr(&inode.state.read());
    Ok(Attrs { attr, ttl: mem.options.ttl })
}

pub(crate) fn setattr(mem: &Mem, cx: &Cx, op: &SetAttr) -> Result<Attrs> {
    let inode = mem.table.get(op.node)?;
    if let (Some(handle), Some(_)) = (op.handle, op.attrs.size) {
        handle::check_write(handle)?;
    }
    let mut group = mem.change(Room::Less(INODE_WORDS + 2 * CHANGE_WORDS))?;
    let mut edit = mem.edit();
    let now = mem.now();
    let mut state = inode.state.write();
    let before = inode.before(cx, &state);
    // Everything that can fail comes before anything that changes.
    if let Some(size) = op.attrs.size {
        let content = state.content_mut()?;
        if size > FILE_MAX {
            return Err(Errno::EFBIG.into());
        }
        content.truncate(size, &mut edit)?;
        state.mtime = now;
    }
    inode.apply(cx, &mut state, &op.attrs, now);
    inode.note_change(cx, before, &state);
    group.content(&inode, edit);
    group.inode(&inode, &state);
    group.commit();
    Ok(Attrs { attr: inode.attr(&state), ttl: mem.options.ttl })
}

/// Decides as access(2) does from owner, groups, permissions and access list.
pub(crate) fn access(mem: &Mem, cx: &Cx, op: &Access) -> Result<Granted> {
    let inode = mem.table.get(op.node)?;
    let state = inode.state.read();
    let granted = match is_privileged(cx) {
        true => granted_to_superuser(state.mode, inode.is_dir()),
        false => acl::granted(&state, &cx.cred, op.mask),
    };
    Ok(Granted::of(op.mask, granted))
}

pub(crate) fn statfs(mem: &Mem, node: Node) -> Result<outrigger_core::reply::FsStat> {
    mem.table.get(node)?;
    let ((size, free), (files, ffree)) = (mem.space.bytes(), mem.space.inodes());
    Ok(outrigger_core::reply::FsStat {
        blocks: size / PAGE,
        bfree: free / PAGE,
        bavail: free / PAGE,
        files,
        ffree,
        bsize: PAGE as u32,
        frsize: PAGE as u32,
        namelen: outrigger_core::name::NAME_MAX as u32,
    })
}

/// The times of a file whose content was changed by `cx`, and its set-id bits.
pub(crate) fn changed(cx: &Cx, state: &mut State, now: Time) {
    state.touch(now);
    if !is_privileged(cx) {
        state.kill_setid();
    }
}
