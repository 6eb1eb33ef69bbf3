// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of files: fallocate(2) and copy_file_range(2).

use crate::content::{Content, PAGE};
use crate::file::changed;
use crate::handle;
use crate::inode::Inode;
use crate::{FILE_MAX, MAX_IO, Mem};
use outrigger_core::ops::{CopyRange, Fallocate, FallocateMode};
use outrigger_core::reply::Count;
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
    let mut state = inode.state.write();
    change_range(mem, state.content_mut()?, op.offset..end, op.mode)?;
    changed(cx, &mut state, mem.now());
    Ok(())
}

fn change_range(mem: &Mem, content: &mut Content, range: Range<u64>, mode: FallocateMode) -> Result<()> {
    let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
    let what = mode.difference(FallocateMode::KEEP_SIZE);
    let pages = range.start / PAGE..range.end.div_ceil(PAGE);
    if what == FallocateMode::PUNCH_HOLE && keep_size {
        content.punch(range, &mem.space);
        return Ok(());
    } else if what.is_empty() || what == FallocateMode::UNSHARE_RANGE {
        content.reserve(pages, &mem.space)?;
    } else if what == FallocateMode::ZERO_RANGE {
        content.reserve(pages, &mem.space)?;
        content.zero(range.clone(), &mem.space);
    } else if mode == FallocateMode::COLLAPSE_RANGE {
        check_aligned(&range)?;
        if range.end >= content.size {
            return Err(Errno::EINVAL.because("the range to collapse reaches the end of the file"));
        }
        content.collapse(pages, &mem.space);
        return Ok(());
    } else if mode == FallocateMode::INSERT_RANGE {
        check_aligned(&range)?;
        if range.start >= content.size {
            return Err(Errno::EINVAL.because("the range to insert starts beyond the end of the file"));
        }
        if FILE_MAX - content.size < range.end - range.start {
            return Err(Errno::EFBIG.into());
        }
        content.open_gap(pages);
        return Ok(());
    } else {
        return Err(Errno::EOPNOTSUPP.because(format!("fallocate mode {mode:?}")));
    }
    if !keep_size {
        content.size = content.size.max(range.end);
    }
    Ok(())
}

fn check_aligned(range: &Range<u64>) -> Result<()> {
    if range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE) {
        Ok(())
    } else {
        Err(Errno::EINVAL.because(format!("the range is not made of whole blocks of {PAGE} bytes")))
    }
}

pub(crate) fn copy(mem: &Mem, cx: &Cx, op: &CopyRange) -> Result<Count> {
    handle::check_read(op.handle)?;
    if handle::check_write(op.to_handle)? {
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
        let count = copy_some(mem, (&source, at), (&target, to), len - done);
        match count {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    if done > 0 {
        source.mark_read(mem.now());
        changed(cx, &mut target.state.write(), mem.now());
    }
    Ok(Count(done))
}

/// Copies the next part: whole pages by sharing them where both files have page borders at the same places,
/// bytes otherwise.
fn copy_some(
    mem: &Mem,
    (source, at): (&Arc<Inode>, u64),
    (target, to): (&Arc<Inode>, u64),
    len: u64,
) -> Result<u64> {
    let aligned = at % PAGE == to % PAGE;
    let to_border = (PAGE - at % PAGE) % PAGE;
    if aligned && to_border == 0 && len >= PAGE {
        return share_pages(mem, (source, at / PAGE), (target, to / PAGE), len / PAGE);
    }
    let part = match aligned {
        true if to_border > 0 => len.min(to_border),
        true => len,
        false => len.min(MAX_IO.into()),
    };
    let chunks = source.state.read().content()?.read(at, part);
    let mut state = target.state.write();
    let content = state.content_mut()?;
    let mut done = 0;
    for chunk in &chunks {
        let count = content.write(to + done, chunk, &mem.space);
        done += count as u64;
        if count < chunk.len() {
            break;
        }
    }
    if done == 0 && !chunks.is_empty() { Err(Errno::ENOSPC.into()) } else { Ok(done) }
}

fn share_pages(
    mem: &Mem,
    (source, at): (&Inode, u64),
    (target, to): (&Inode, u64),
    pages: u64,
) -> Result<u64> {
    let extents = source.state.read().content()?.share(at..at + pages);
    mem.space.take_pages(extents.iter().map(|(_, extent)| extent.pages).sum())?;
    let mut state = target.state.write();
    let content = state.content_mut()?;
    mem.space.give_back_pages(content.remove(to..to + pages));
    for (first, extent) in extents {
        content.insert(first - at + to, extent);
    }
    content.size = content.size.max((to + pages) * PAGE);
    Ok(pages * PAGE)
}
