// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of files: fallocate(2) and copy_file_range(2).

use crate::content::{Content, Edit, PAGE};
use crate::file::{changed, content_words};
use crate::handle;
use crate::inode::Inode;
use crate::record::{CHANGE_WORDS, INODE_WORDS};
use crate::{FILE_MAX, MAX_IO, Mem};
use outrigger_core::ops::{CopyRange, Fallocate, FallocateMode, OpenFlags};
use outrigger_core::reply::Count;
use outrigger_core::survive::Room;
use outrigger_core::{Cx, Errno, Result};
use std::ops::Range;
use std::sync::Arc;

pub(crate) fn fallocate(mem: &Mem, cx: &Cx, op: &Fallocate) -> Result<()> {
    handle::check_write(op.handle)?;
    let inode = mem.table.get(op.node)?;
    if op.len == 0 {
        return Err(Errno::EINVAL.because("an empty range"));
    }
    let end = op.offset.checked_add(op.len).filter(|&end| end <= FILE_MAX).ok_or(Errno::EFBIG)?;
    let room = INODE_WORDS + CHANGES_MAX * CHANGE_WORDS;
    let frees = op.mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::COLLAPSE_RANGE);
    let mut group = mem.change(if frees { Room::Less(room) } else { Room::More(room) })?;
    let mut edit = mem.edit();
    let mut state = inode.state.write();
    let done = change_range(state.content_mut()?, op.offset..end, op.mode, &mut edit);
    if done.is_ok() {
        changed(cx, &mut state, mem.now());
    }
    group.content(&inode, edit);
    group.inode(&inode, &state);
    group.commit();
    done
}

/// The most changes one fallocate(2) makes: pages in the middle, one at each end, and the one with the end of the file.
const CHANGES_MAX: usize = 5;

fn change_range(
    content: &mut Content,
    range: Range<u64>,
    mode: FallocateMode,
    edit: &mut Edit<'_>,
) -> Result<()> {
    let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
    let what = mode.difference(FallocateMode::KEEP_SIZE);
    let pages = range.start / PAGE..range.end.div_ceil(PAGE);
    if what == FallocateMode::PUNCH_HOLE && keep_size {
        return content.punch(range, edit);
    } else if what.is_empty() || what == FallocateMode::UNSHARE_RANGE {
        content.reserve(pages, edit)?;
    } else if what == FallocateMode::ZERO_RANGE {
        content.reserve(pages, edit)?;
        content.zero(range.clone(), edit)?;
    } else if mode == FallocateMode::COLLAPSE_RANGE {
        check_aligned(&range)?;
        if range.end >= content.size {
            return Err(Errno::EINVAL.because("the range to collapse reaches the end of the file"));
        }
        content.collapse(pages, edit);
        return Ok(());
    } else if mode == FallocateMode::INSERT_RANGE {
        check_aligned(&range)?;
        if range.start >= content.size {
            return Err(Errno::EINVAL.because("the range to insert starts beyond the end of the file"));
        }
        if FILE_MAX - content.size < range.end - range.start {
            return Err(Errno::EFBIG.into());
        }
        content.open_gap(pages, edit);
        return Ok(());
    } else {
        return Err(Errno::EOPNOTSUPP.because(format!("fallocate mode {mode:?}")));
    }
    if keep_size { Ok(()) } else { content.extend(range.end, edit) }
}

fn check_aligned(range: &Range<u64>) -> Result<()> {
    if range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE) {
        Ok(())
    } else {
        Err(Errno::EINVAL.because(format!("the range is not made of whole blocks of {PAGE} bytes")))
    }
}

pub(crate) fn copy(mem: &Mem, cx: &Cx, op: &CopyRange) -> Result<Count> {
    let updates_atime = handle::check_read(op.handle)?;
    if handle::check_write(op.to_handle)?.contains(OpenFlags::APPEND) {
        return Err(Errno::EBADF.because("a range cannot be copied to a file opened for appending"));
    }
    let (source, target) = (mem.table.get(op.node)?, mem.table.get(op.to_node)?);
    let size = source.state.read().content()?.size;
    target.state.read().content()?;
    let len = op.len.min(size.saturating_sub(op.offset));
    let to_end = op.to_offset.checked_add(len).filter(|&end| end <= FILE_MAX).ok_or(Errno::EFBIG)?;
    if source.ino == target.ino && op.offset < to_end && op.to_offset < op.offset + len {
        return Err(Errno::EINVAL.because("the ranges overlap"));
    }
    let mut done = 0;
    while done < len && !(cx.cancel.is_raised() && done > 0) {
        let (at, to) = (op.offset + done, op.to_offset + done);
        let count = copy_some(mem, cx, (&source, at), (&target, to), len - done);
        match count {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    if done > 0 && updates_atime {
        let _state = source.state.read();
        source.mark_read(mem.now(), mem.log());
    }
    Ok(Count(done))
}

/// The most extents one step of a copy shares.
const EXTENTS_MAX: usize = 256;

/// Copies the next part: whole pages by sharing them where both files have page borders at the same places,
/// bytes otherwise.
fn copy_some(
    mem: &Mem,
    cx: &Cx,
    (source, at): (&Arc<Inode>, u64),
    (target, to): (&Arc<Inode>, u64),
    len: u64,
) -> Result<u64> {
    let aligned = at % PAGE == to % PAGE;
    let to_border = (PAGE - at % PAGE) % PAGE;
    if aligned && to_border == 0 && len >= PAGE {
        return share_pages(mem, cx, (source, at / PAGE), (target, to / PAGE), len / PAGE);
    }
    let part = match aligned {
        true if to_border > 0 => len.min(to_border),
        true => len,
        false => len.min(MAX_IO.into()),
    };
    let data = source.state.read().content()?.read(at, part.min(MAX_IO.into()), &mem.store)?.into_bytes()?;
    let mut group = mem.change(Room::More(INODE_WORDS + content_words(data.len(), 1)))?;
    let mut edit = mem.edit();
    let mut state = target.state.write();
    let done = state.content_mut()?.write(to, &data, &mut edit);
    if done.as_ref().is_ok_and(|&done| done > 0) {
        changed(cx, &mut state, mem.now());
    }
    group.content(target, edit);
    group.inode(target, &state);
    group.commit();
    match done? {
        0 if !data.is_empty() => Err(Errno::ENOSPC.into()),
        count => Ok(count as u64),
    }
}

/// Shares the first extents of a range of pages; answers how many bytes they are.
fn share_pages(
    mem: &Mem,
    cx: &Cx,
    (source, at): (&Inode, u64),
    (target, to): (&Inode, u64),
    pages: u64,
) -> Result<u64> {
    let mut group = mem.change(Room::More(INODE_WORDS + (EXTENTS_MAX + 2) * CHANGE_WORDS))?;
    let mut edit = mem.edit();
    let (extents, end) = {
        let state = source.state.read();
        let content = state.content()?;
        // Beyond the end of the file, which may have come nearer, the last page may hold anything.
        let end = (content.size / PAGE).min(at + pages);
        content.share(at..end.max(at), EXTENTS_MAX)
    };
    if end == at {
        return Ok(0);
    }
    let charge = extents.iter().map(|(_, extent)| extent.pages).sum();
    mem.space.take_pages(charge)?;
    let extents = extents.into_iter().map(|(first, extent)| (first - at + to, extent)).collect();
    let mut state = target.state.write();
    let taken =
        state.content_mut().and_then(|content| content.take_in(to..to + (end - at), extents, &mut edit));
    taken.inspect_err(|_| mem.space.give_back_pages(charge))?;
    changed(cx, &mut state, mem.now());
    group.content(target, edit);
    group.inode(target, &state);
    group.commit();
    Ok((end - at) * PAGE)
}
