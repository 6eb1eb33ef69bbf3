// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening and closing files, their sizes and attributes, holes, and copies.

use crate::below::Below;
use crate::content::At;
use crate::format::{BLOCK, HEADER, SLOT, Sizes, slot_at};
use crate::names::is_users;
use crate::state::File;
use bytes::Bytes;
use outrigger_core::ops::{
    CopyRange, FSync, Fallocate, FallocateMode, Flush, GetAttr, GetXattr, ListXattr, Open, OpenFlags,
    Release, RemoveXattr, Seek, SetAttr, SetXattr, StatFs, SyncFs, Whence,
};
use outrigger_core::reply::{Attrs, Count, Created, Entry, FsStat, Offset, Opened};
use outrigger_core::{Backing, Errno, Handle, Node, OpCode, Result, SetAttrs, Traverse, XattrName};
use std::sync::Arc;

const BLOCK_BYTES: u64 = BLOCK as u64;
const SLOT_BYTES: u64 = SLOT as u64;
/// The most bytes that one request copies; the caller asks again for the rest (see copy_file_range(2)).
const COPIED: u64 = 64 << 20;

/// How a file is opened below: what is to be written may have to be read first, and places of writes are found here.
///
/// A tree that knows no open files may tell handles apart by their flags alone: for it `O_APPEND` stays. Each write says that it has its
/// place.
pub(crate) fn flags_below(flags: OpenFlags) -> OpenFlags {
    let mut below = flags.difference(OpenFlags::DIRECT | OpenFlags::ASYNC_CREATE);
    if below.writes() {
        below = below.difference(OpenFlags::WRITE_ONLY) | OpenFlags::READ_WRITE;
    }
    below
}

/// What is said of an open file above: its content is not read past this layer.
fn opened_above(mut opened: Opened) -> Opened {
    opened.backing = Backing::NONE;
    opened
}

impl Below<'_> {
    pub(crate) async fn open(&self, op: Open) -> Result<Opened> {
        let Open { node, flags } = op;
        let file = self.inner.file(node);
        let empties = flags.contains(OpenFlags::TRUNC);
        let turn = if empties { Some(file.turns.change().await) } else { None };
        let opened = opened_above(self.ask(Open { node, flags: flags_below(flags) }).await?);
        if opened.handle != Handle::NONE {
            self.inner.opened(node, opened.handle, flags);
        }
        let ready = if empties {
            file.with(|state| (state.known, state.size, state.fresh) = (None, Some(0), true));
            let at = At::new(&file, node, opened.handle);
            if self.inner.has_successor { self.settle(&at).await } else { Ok(()) }
        } else {
            self.check(&file, node, opened.handle, flags).await
        };
        drop(turn);
        match ready {
            Ok(()) => Ok(opened),
            Err(error) => {
                self.inner.closed(node, opened.handle);
                self.close(node, opened.handle, flags_below(flags)).await;
                Err(error)
            }
        }
    }

    /// Looks whether the file that was opened is one.
    async fn check(&self, file: &Arc<File>, node: Node, handle: Handle, flags: OpenFlags) -> Result<()> {
        let _turn = file.turns.look().await;
        let at = At::new(file, node, handle);
        match self.known(&at).await {
            // Who writes from the beginning to the end takes no harm from what is missing.
            Err(error)
                if !flags.reads() && self.raw(node, handle, 0, 1).await.is_ok_and(|it| it.is_empty()) =>
            {
                tracing::warn!(%error, "a file without a header is written");
                file.with(|state| (state.size, state.fresh) = (Some(0), true));
                Ok(())
            }
            known => known.map(drop),
        }
    }

    /// Notes a file that was made, or unless `is_new` was found instead. One that is found empty has lost its header.
    pub(crate) async fn created(
        &self,
        mut created: Created,
        flags: OpenFlags,
        is_new: bool,
    ) -> Result<Created> {
        let Created { entry, opened } = &created;
        let (node, handle, sealed) = (entry.node, opened.handle, entry.attr.size);
        let file = match handle {
            Handle::NONE => self.inner.file(node),
            handle => self.inner.opened(node, handle, flags),
        };
        let empties = flags.contains(OpenFlags::TRUNC);
        let ready = if is_new || sealed == 0 && empties {
            let _turn = file.turns.change().await;
            file.with(|state| {
                if state.known.is_none() {
                    (state.size, state.fresh) = (Some(0), true);
                }
            });
            let at = At::new(&file, node, handle);
            // Without a handle, or with one for reading, no write will follow.
            let is_last = handle == Handle::NONE || !flags.writes();
            if is_last || self.inner.has_successor {
                self.settled(&at, &mut created.entry).await
            } else {
                Ok(())
            }
        } else if empties {
            let _turn = file.turns.change().await;
            created.entry.attr.size = HEADER as u64;
            self.resize(&At::new(&file, node, handle), 0, SetAttrs::default()).await
        } else {
            self.check(&file, node, handle, flags).await
        };
        if let Err(error) = ready {
            self.inner.closed(node, handle);
            self.close(node, handle, flags_below(flags)).await;
            self.forget(node).await;
            return Err(error);
        }
        created.opened = opened_above(created.opened);
        created.traverse(&mut Sizes);
        Ok(created)
    }

    /// Writes the header of a file that was made, which changes the room that it takes and its times.
    async fn settled(&self, at: &At<'_>, entry: &mut Entry) -> Result<()> {
        self.settle(at).await?;
        let handle = Some(at.handle).filter(|&handle| handle != Handle::NONE);
        entry.attr = self.ask(GetAttr { node: at.node, handle }).await?.attr;
        Ok(())
    }

    pub(crate) async fn flush(&self, op: Flush) -> Result<()> {
        self.settle_through(op.node, op.handle).await?;
        self.ask(op).await
    }

    pub(crate) async fn fsync(&self, op: FSync) -> Result<()> {
        self.settle_through(op.node, op.handle).await?;
        self.ask(op).await
    }

    pub(crate) async fn syncfs(&self, op: SyncFs) -> Result<()> {
        for (node, handle) in self.inner.behind() {
            self.settle_through(node, handle).await?;
        }
        self.ask(op).await
    }

    pub(crate) async fn release(&self, op: Release) -> Result<()> {
        let (node, handle) = (op.node, op.handle);
        // A process that took over knows only what is asked now.
        if self.inner.flags(node, handle).unwrap_or(op.flags).writes()
            && let Err(error) = self.settle_through(node, handle).await
        {
            tracing::warn!(?node, %error, "a file was closed, and its header does not say how long it is");
        }
        let done = self.ask(op).await;
        self.inner.closed(node, handle);
        done
    }

    pub(crate) async fn setattr(&self, op: SetAttr) -> Result<Attrs> {
        let SetAttr { node, handle, mut attrs } = op;
        let Some(size) = attrs.size.take() else {
            let file = self.inner.file(node);
            let state = file.state();
            // A header that is written later would change the times again.
            if state.is_behind()
                && let Some(handle) = state.writer.or(handle)
            {
                self.settle_through(node, handle).await?;
            }
            return self.set(SetAttr { node, handle, attrs }).await;
        };
        let own = handle.is_none_or(|handle| handle == Handle::NONE);
        let flags = OpenFlags::READ_WRITE;
        let used = match handle {
            Some(handle) if !own => handle,
            _ => self.open_for(node, flags).await?,
        };
        let (kill_setid, lock_owner) = (attrs.kill_setid, attrs.lock_owner.take());
        let others = SetAttrs { kill_setid, lock_owner, ..SetAttrs::default() };
        let file = self.inner.file(node);
        let resized = {
            let _turn = file.turns.change().await;
            let at = At::new(&file, node, used);
            let resized = self.resize(&at, size, others).await;
            if own {
                file.with(|state| state.size = state.size.filter(|_| state.opens > 0));
            }
            resized
        };
        if own {
            self.close(node, used, flags).await;
        }
        resized?;
        attrs.kill_setid = false;
        if attrs == SetAttrs::default() {
            let mut found = self.ask(GetAttr { node, handle }).await?;
            found.traverse(&mut Sizes);
            return Ok(found);
        }
        self.set(SetAttr { node, handle, attrs }).await
    }

    async fn set(&self, op: SetAttr) -> Result<Attrs> {
        let mut found = self.ask(op).await?;
        found.traverse(&mut Sizes);
        Ok(found)
    }

    pub(crate) async fn fallocate(&self, op: Fallocate) -> Result<()> {
        const KEEP: FallocateMode = FallocateMode::KEEP_SIZE;
        let Fallocate { node, handle, offset, len, mode } = op;
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        if mode == FallocateMode::PUNCH_HOLE {
            return Err(Errno::EOPNOTSUPP.because("a hole keeps the size (fallocate(2))"));
        }
        self.must_write(node, handle, true)?;
        let file = self.inner.file(node);
        let _turn = file.turns.change().await;
        let at = At::new(&file, node, handle);
        let size = self.size(&at).await?;
        self.known(&at).await?;
        let below = |first: u64, last: u64, mode| {
            let len = (last - first) * SLOT_BYTES;
            self.ask(Fallocate { node, handle, offset: slot_at(first), len, mode })
        };
        match mode.difference(KEEP) {
            kind if kind.is_empty() => {
                below(offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES), KEEP).await?;
            }
            FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE => {
                if let Some((first, last)) = self.erase(&at, offset, end).await? {
                    below(first, last, FallocateMode::PUNCH_HOLE | KEEP).await?;
                }
            }
            _ => return Err(Errno::EOPNOTSUPP.because("blocks of an encrypted file have their places")),
        }
        if !mode.contains(KEEP) && end > size {
            self.resize(&at, end, SetAttrs::default()).await?;
        }
        Ok(())
    }

    /// That a handle was opened for writing, and unless `appends` suffices at any place: the one below may do more.
    pub(crate) fn must_write(&self, node: Node, handle: Handle, appends: bool) -> Result<()> {
        let refused = |flags: OpenFlags| !flags.writes() || !appends && flags.contains(OpenFlags::APPEND);
        match self.inner.flags(node, handle) {
            Some(flags) if refused(flags) => Err(Errno::EBADF.into()),
            _ => Ok(()),
        }
    }

    pub(crate) async fn lseek(&self, op: Seek) -> Result<Offset> {
        let Seek { node, handle, offset, whence } = op;
        let file = self.inner.file(node);
        let _turn = file.turns.look().await;
        let at = At::new(&file, node, handle);
        let size = self.size(&at).await?;
        let known = self.known(&at).await?;
        if let Some(known) = known.as_ref().filter(|known| known.record.size > size) {
            // Who passes over holes may never read the end, which would tell.
            return Err(self.cut(node, known, size).await);
        }
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        let sparse = known.is_some_and(|known| known.record.sparse);
        if !sparse || !self.has(OpCode::Seek) {
            return Ok(Offset(if whence == Whence::Data { offset } else { size }));
        }
        let seek = |block, whence| self.ask(Seek { node, handle, offset: slot_at(block), whence });
        let first = offset / BLOCK_BYTES;
        if whence == Whence::Data {
            let found = seek(first, Whence::Data).await?.0.saturating_sub(HEADER as u64) / SLOT_BYTES;
            let place = offset.max(found * BLOCK_BYTES);
            return if place < size { Ok(Offset(place)) } else { Err(Errno::ENXIO.into()) };
        }
        let mut block = first;
        loop {
            let hole = seek(block, Whence::Hole).await?.0.saturating_sub(HEADER as u64);
            let whole = hole.div_ceil(SLOT_BYTES).max(block);
            if whole * BLOCK_BYTES >= size {
                return Ok(Offset(size));
            }
            match seek(whole, Whence::Data).await {
                Ok(data) if data.0 < slot_at(whole + 1) => block = whole + 1,
                Err(error) if error.errno != Errno::ENXIO => return Err(error),
                _ => return Ok(Offset(offset.max(whole * BLOCK_BYTES))),
            }
            if block * BLOCK_BYTES >= size {
                return Ok(Offset(size));
            }
        }
    }

    pub(crate) async fn copy_range(&self, op: CopyRange, kill_setid: bool) -> Result<Count> {
        let CopyRange { node, handle, offset, to_node, to_handle, to_offset, len } = op;
        self.must_write(to_node, to_handle, false)?;
        let (from, to) = (self.inner.file(node), self.inner.file(to_node));
        let source = At::new(&from, node, handle);
        let target = At { kill_setid, ..At::new(&to, to_node, to_handle) };
        let mut len = len.min(COPIED);
        if offset.checked_add(len).is_none() || to_offset.checked_add(len).is_none() {
            return Err(Errno::EOVERFLOW.into());
        }
        if node == to_node {
            let size = {
                let _turn = from.turns.look().await;
                self.size(&source).await?
            };
            len = len.min(size.saturating_sub(offset));
            if offset < to_offset + len && to_offset < offset + len {
                return Err(Errno::EINVAL.because("the ranges to copy between overlap"));
            }
        }
        let mut done = 0;
        while done < len {
            let step = self.copy_some((&source, offset + done), (&target, to_offset + done), len - done);
            match step.await {
                Ok(0) => break,
                Ok(count) => done += count,
                // What was copied cannot be reported together with an error, and the next call meets the error again.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            if self.is_cancelled() {
                break;
            }
        }
        Ok(Count(done))
    }

    pub(crate) async fn statfs(&self, op: StatFs) -> Result<FsStat> {
        let found = self.ask(op).await?;
        let less = |units: u64| (u128::from(units) * BLOCK as u128 / SLOT as u128) as u64;
        let [blocks, bfree, bavail] = [found.blocks, found.bfree, found.bavail].map(less);
        Ok(FsStat { blocks, bfree, bavail, ..found })
    }

    pub(crate) async fn getxattr(&self, op: GetXattr) -> Result<Bytes> {
        let GetXattr { node, name } = op;
        let value = self.ask(GetXattr { node, name: self.inner.keys.stored_xattr(&name)? }).await?;
        if !is_users(&name) {
            return Ok(value);
        }
        match self.inner.keys.value(&name, &value) {
            Some(value) => Ok(value.into()),
            None => Err(self.damaged(node, &format!("the attribute {name} is damaged")).await),
        }
    }

    pub(crate) async fn setxattr(&self, mut op: SetXattr) -> Result<()> {
        if is_users(&op.name) {
            op.value = self.inner.keys.stored_value(&op.name, &op.value)?.into();
            op.name = self.inner.keys.stored_xattr(&op.name)?;
        }
        self.ask(op).await
    }

    pub(crate) async fn listxattr(&self, op: ListXattr) -> Result<Vec<XattrName>> {
        let names = self.ask(op).await?;
        Ok(names.iter().filter_map(|name| self.inner.keys.xattr(name)).collect())
    }

    pub(crate) async fn removexattr(&self, mut op: RemoveXattr) -> Result<()> {
        op.name = self.inner.keys.stored_xattr(&op.name)?;
        self.ask(op).await
    }
}
