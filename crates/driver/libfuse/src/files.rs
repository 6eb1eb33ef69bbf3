// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files: reading, writing, flushing, ranges.

use crate::decode;
use crate::handles::{Open, lasting};
use crate::message::{Fault, Message};
use crate::ops::tolerate;
use crate::shared::Shared;
use crate::turn::Turn;
use crate::writes::Kept;
use outrigger_core::attr::without_set_id;
use outrigger_core::ops::{
    self, CopyRange, FSync, Fallocate, FallocateMode, Flush, OpenFlags, Read, Release, Seek, Whence, Write,
};
use outrigger_core::payload::Backing;
use outrigger_core::reply::{Count, Offset, OpenHow, Opened};
use outrigger_core::{Errno, FileKind, LockOwner, Node, Payload, lock};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{InitFlags, Opcode, WriteFlags};

impl Turn<'_> {
    pub(crate) async fn open_file(&mut self, op: &ops::Open) -> Result<Opened, Fault> {
        let node = self.theirs(op.node).await?;
        let empties = op.flags.contains(OpenFlags::TRUNC);
        let mut flags = lasting(op.flags);
        if empties && self.life.has(InitFlags::ATOMIC_O_TRUNC) {
            flags |= OpenFlags::TRUNC;
        }
        let args = fuse::OpenIn { flags: flags.bits(), open_flags: 0 };
        let body = self.change(Message::new(Opcode::Open, node).with(&args.encode())).await;
        let out = match body {
            // The program needs no opening (`NO_OPEN_SUPPORT`).
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => fuse::OpenOut::default(),
            body => fuse::OpenOut::decode(&body?)?.0,
        };
        let open = self.opened(op.node, op.flags, out.fh);
        if empties {
            if !flags.contains(OpenFlags::TRUNC) {
                self.empty(op.node, node).await?;
            }
            self.was_cut(op.node, 0);
        }
        Ok(opened(&open, decode::how(out.open_flags)))
    }

    /// A new handle of ours.
    pub(crate) fn opened(&self, node: Node, flags: OpenFlags, fh: u64) -> std::sync::Arc<Open> {
        let version = self.shared.nodes.opened(node);
        self.shared.handles.add((node, version), flags, self.caller, (self.life.epoch, fh))
    }

    pub(crate) async fn empty(&mut self, node: Node, theirs: u64) -> Result<(), Fault> {
        let valid = fuse::SetattrValid::SIZE.bits();
        let args = fuse::SetattrIn { valid, ..fuse::SetattrIn::default() };
        self.change(Message::new(Opcode::Setattr, theirs).with(&args.encode())).await?;
        self.was_cut(node, 0);
        Ok(())
    }

    /// The program has cut `node` to `size`.
    pub(crate) fn was_cut(&self, node: Node, size: u64) {
        self.shared.writes.cut(node, size);
        self.shared.nodes.cut(node, size);
    }

    pub(crate) async fn read(&mut self, op: &Read) -> Result<Payload, Fault> {
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        let size = op.len.min(self.life.max_io);
        let args =
            fuse::ReadIn { fh, offset: op.offset, size, flags: open.flags.bits(), ..fuse::ReadIn::default() };
        let body = self.ask(Message::new(Opcode::Read, node).with(&args.encode())).await?;
        if body.len() > size as usize {
            return Err(decode::wrong("more content than was asked for").into());
        }
        Ok(Payload::Bytes(body))
    }

    pub(crate) async fn write(&mut self, op: &Write) -> Result<Count, Fault> {
        let open = self.open(op.handle)?;
        let data = op.data.clone().into_bytes()?;
        if op.cached || !self.trial.appends.unwrap_or(open.appends) {
            return self.write_at(&open, op.offset, data, op).await;
        }
        // The end of the file must not move between asking for it and writing there.
        let shared = self.shared;
        let _one = shared.appends.enter().await;
        let offset = match self.trial.append_at {
            Some(offset) => offset,
            None => {
                let (node, fh) = self.their_handle(&open).await?;
                self.attrs(op.node, node, Some((&open, fh))).await?.attr.size
            }
        };
        self.trial.append_at = Some(offset);
        self.write_at(&open, offset, data, op).await
    }

    async fn write_at(
        &mut self,
        open: &Open,
        offset: u64,
        mut data: bytes::Bytes,
        op: &Write,
    ) -> Result<Count, Fault> {
        let (node, fh) = self.their_handle(open).await?;
        self.failure(open)?;
        if op.kill_setid || !op.cached {
            self.clear_set_id(op.node, node, op.kill_setid).await?;
        }
        let mut flags = WriteFlags::empty();
        flags.set(WriteFlags::CACHE, op.cached);
        flags.set(WriteFlags::KILL_SUIDGID, op.kill_setid);
        let end = offset.saturating_add(data.len() as u64);
        self.shared.nodes.identity(open.node, |file| file.may_resize(u64::MAX, end));
        let (size, written) = self.shared.nodes.ends(open.node);
        let ended = *self.trial.size_before.get_or_insert(size.max(written));
        let mut done = 0;
        // Programs may want small pieces: a page at a time before `BIG_WRITES`.
        while done < data.len() || done == 0 {
            let piece = data.slice(done..data.len().min(done + self.life.agreed.max_write as usize));
            let whole = piece.len();
            let args = fuse::WriteIn {
                fh,
                offset: offset.saturating_add(done as u64),
                size: u32::try_from(whole).unwrap_or(u32::MAX),
                write_flags: flags.bits(),
                lock_owner: 0,
                flags: open.flags.bits(),
            };
            let message = Message::new(Opcode::Write, node).with(&args.encode()).data(piece);
            let size = match self.change(message).await {
                Ok(body) => fuse::WriteOut::decode(&body)?.0.size as usize,
                Err(fault) if fault.errno() == Some(Errno::EIO) && self.again() => {
                    let kept = if done > 0 { offset.saturating_add(done as u64) } else { ended.max(written) };
                    if self.cut_back(open.node, kept, end).await? {
                        continue;
                    }
                    return Err(fault);
                }
                Err(Fault::Failed(_)) if done > 0 => break,
                Err(fault) => return Err(fault),
            };
            if size > whole {
                return Err(decode::wrong("that it wrote more than it was given").into());
            }
            done += size;
            if size < whole || whole == 0 {
                break;
            }
        }
        data.truncate(done);
        self.shared.nodes.written(open.node, offset.saturating_add(done as u64));
        let full = self.shared.writes.keep(open.node, Kept { handle: open.handle, offset, data });
        if let Some(node) = full {
            self.commit(node).await?;
        }
        Ok(Count(done as u64))
    }

    /// A program may die when it has noted the new end of a file and not yet where its content is (ntfs-3g): what is
    /// there cannot be read then, nor written. A file that ends within the write that was lost, which ends at `end`, is
    /// cut to where it ended before, `kept`; false for any other.
    async fn cut_back(&mut self, node: Node, kept: u64, end: u64) -> Result<bool, Fault> {
        let theirs = self.theirs(node).await?;
        let size = self.attrs(node, theirs, None).await?.attr.size;
        if size <= kept || size > end {
            return Ok(false);
        }
        self.shared.nodes.identity(node, |file| file.may_resize(kept, kept));
        let valid = fuse::SetattrValid::SIZE.bits();
        let args = fuse::SetattrIn { valid, size: kept, ..fuse::SetattrIn::default() };
        self.ask(Message::new(Opcode::Setattr, theirs).with(&args.encode())).await?;
        Ok(true)
    }

    /// Clears the set-id bits that changes of content clear unless root makes them, and `even_for_root` when a door
    /// demands it, for a program that leaves it to the kernel (`file_remove_privs`).
    pub(crate) async fn clear_set_id(
        &mut self,
        node: Node,
        theirs: u64,
        even_for_root: bool,
    ) -> Result<(), Fault> {
        if self.caller.uid == 0 && !even_for_root {
            return Ok(());
        }
        if self.life.has(InitFlags::HANDLE_KILLPRIV_V2) || !self.shared.nodes.has_set_id(node) {
            return Ok(());
        }
        let mode = self.attrs(node, theirs, None).await?.attr.mode;
        let cleared = without_set_id(mode);
        if mode & 0o170_000 != FileKind::Regular.bits() || cleared == mode {
            return Ok(());
        }
        let mode = cleared;
        let valid = fuse::SetattrValid::MODE.bits();
        let args = fuse::SetattrIn { valid, mode, ..fuse::SetattrIn::default() };
        let body = self.change(Message::new(Opcode::Setattr, theirs).with(&args.encode())).await?;
        let (attr, _, _) = decode::attr_out(&body)?;
        self.shared.nodes.show(node, attr);
        Ok(())
    }

    /// Has the program pass on what it acknowledged for `node`.
    pub(crate) async fn commit(&self, node: Node) -> Result<(), Fault> {
        for handle in self.shared.writes.handles(node) {
            let Ok(open) = self.shared.handles.get(handle) else {
                self.shared.writes.committed(node, handle, usize::MAX);
                continue;
            };
            // No lock has the owner 0.
            match self.flush_handle(&open, LockOwner(0)).await {
                Err(Fault::Lost(lost)) => return Err(lost.into()),
                Ok(()) => {}
                Err(Fault::Failed(error)) => *lock(&open.failed) = Some(error),
            }
        }
        Ok(())
    }

    async fn flush_handle(&self, open: &Open, owner: LockOwner) -> Result<(), Fault> {
        let (node, fh) = self.their_handle(open).await?;
        let count = self.shared.writes.count(open.node);
        let args = fuse::FlushIn { fh, lock_owner: owner.0 };
        let flushed = self.ask(Message::new(Opcode::Flush, node).with(&args.encode())).await;
        let flushed = match flushed {
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) && count > 0 => {
                let args = fuse::FsyncIn { fh, fsync_flags: 0 };
                tolerate(self.ask(Message::new(Opcode::Fsync, node).with(&args.encode())).await)
            }
            flushed => tolerate(flushed),
        };
        if !matches!(flushed, Err(Fault::Lost(_))) {
            self.shared.writes.committed(open.node, open.handle, count);
        }
        if flushed.is_ok() {
            self.saved(open);
        }
        flushed
    }

    pub(crate) async fn flush(&mut self, op: &Flush) -> Result<(), Fault> {
        let open = self.open(op.handle)?;
        // Opening it again to flush nothing would be idle.
        let unused = lock(&open.theirs).0 != self.life.epoch && lock(&open.locks).is_empty();
        if !unused {
            self.flush_handle(&open, op.owner).await?;
        }
        self.unlock_all(&open, op.owner);
        // Perhaps of a copy that a process just started closes (fork(2), execve(2)): fsync(2) says it again.
        lock(&open.failed).clone().map_or(Ok(()), |error| Err(error.into()))
    }

    pub(crate) async fn fsync(&mut self, op: &FSync) -> Result<(), Fault> {
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        let count = self.shared.writes.count(open.node);
        let fsync_flags = if op.data_only { fuse::FSYNC_FDATASYNC } else { 0 };
        let args = fuse::FsyncIn { fh, fsync_flags };
        tolerate(self.ask(Message::new(Opcode::Fsync, node).with(&args.encode())).await)?;
        if self.lacks(Opcode::Fsync) {
            self.flush_handle(&open, LockOwner(0)).await?;
        }
        self.shared.writes.committed(open.node, open.handle, count);
        self.saved(&open);
        self.failure(&open)
    }

    /// The program has passed on what it acknowledged for `open`.
    fn saved(&self, open: &Open) {
        let Shared { nodes, writes, .. } = self.shared;
        // What has lost its path to another file is not stored there.
        if open.version == nodes.version(open.node) {
            nodes.saved(open.node, writes.count(open.node) == 0);
        }
    }

    pub(crate) async fn release_file(&mut self, op: &Release) -> Result<(), Fault> {
        let mut flushed = Ok(());
        if let Ok(open) = self.open(op.handle) {
            if self.shared.writes.handles(open.node).contains(&open.handle) {
                // Of no use to a program, whose close has its own answer; a layer that delays writes reports it.
                flushed = self.flush_handle(&open, op.owner).await;
                if let Err(Fault::Lost(lost)) = flushed {
                    return Err(lost.into());
                }
            }
            let (epoch, fh) = *lock(&open.theirs);
            if epoch == self.life.epoch {
                let node = self.theirs(open.node).await?;
                let release_flags = if op.flock_release { fuse::RELEASE_FLOCK_UNLOCK } else { 0 };
                let args =
                    fuse::ReleaseIn { fh, flags: open.flags.bits(), release_flags, lock_owner: op.owner.0 };
                let released = self.ask(Message::new(Opcode::Release, node).with(&args.encode())).await;
                if let Err(Fault::Lost(lost)) = released {
                    return Err(lost.into());
                }
            }
            if self.shared.handles.remove(op.handle) && self.shared.nodes.closed(open.node) {
                self.trial.hidden = self.hidden_name(open.node);
            }
        }
        self.remove_hidden().await?;
        flushed
    }

    pub(crate) async fn fallocate(&mut self, op: &Fallocate) -> Result<(), Fault> {
        let open = self.open(op.handle)?;
        self.commit(op.node).await?;
        let (node, fh) = self.their_handle(&open).await?;
        let shifts = op.mode.intersects(FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE);
        if shifts {
            let size = self.attrs(op.node, node, Some((&open, fh))).await?.attr.size;
            let before = *self.trial.size_before.get_or_insert(size);
            if self.again() && size != before {
                return Ok(());
            }
        }
        self.clear_set_id(op.node, node, false).await?;
        let args = fuse::FallocateIn { fh, offset: op.offset, length: op.len, mode: op.mode.bits() };
        match self.change(Message::new(Opcode::Fallocate, node).with(&args.encode())).await {
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => Err(Errno::EOPNOTSUPP.into()),
            result => result.map(drop),
        }
    }

    pub(crate) async fn seek(&mut self, op: &Seek) -> Result<Offset, Fault> {
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        let whence = match op.whence {
            Whence::Data => libc::SEEK_DATA,
            Whence::Hole => libc::SEEK_HOLE,
        };
        let args = fuse::LseekIn { fh, offset: op.offset, whence: whence.cast_unsigned() };
        match self.ask(Message::new(Opcode::Lseek, node).with(&args.encode())).await {
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => {
                let size = self.attrs(op.node, node, Some((&open, fh))).await?.attr.size;
                // A file without holes: all is data, and its end counts as a hole (lseek(2)).
                match op.whence {
                    _ if op.offset >= size => Err(Errno::ENXIO.into()),
                    Whence::Data => Ok(Offset(op.offset)),
                    Whence::Hole => Ok(Offset(size)),
                }
            }
            body => Ok(Offset(fuse::LseekOut::decode(&body?)?.0.offset)),
        }
    }

    pub(crate) async fn copy_range(&mut self, op: &CopyRange) -> Result<Count, Fault> {
        let (from, to) = (self.open(op.handle)?, self.open(op.to_handle)?);
        self.commit(op.to_node).await?;
        let (node, fh_in) = self.their_handle(&from).await?;
        let (nodeid_out, fh_out) = self.their_handle(&to).await?;
        self.clear_set_id(op.to_node, nodeid_out, false).await?;
        let args = fuse::CopyFileRangeIn {
            fh_in,
            off_in: op.offset,
            nodeid_out,
            fh_out,
            off_out: op.to_offset,
            // The reply has 32 bits.
            len: op.len.min(u64::from(u32::MAX) & !4095),
            flags: 0,
        };
        let body = self.change(Message::new(Opcode::CopyFileRange, node).with(&args.encode())).await?;
        let copied = u64::from(fuse::WriteOut::decode(&body)?.0.size);
        if copied > op.len {
            return Err(decode::wrong("that it copied more than was asked for").into());
        }
        Ok(Count(copied))
    }

    /// Repeats writes that only the former program knew of.
    pub(crate) async fn repeat(&self, node: Node, writes: &[Kept]) -> Result<(), Fault> {
        for kept in writes {
            let open = self.open(kept.handle)?;
            let mut data = kept.data.clone();
            let mut offset = kept.offset;
            while !data.is_empty() {
                let (theirs, fh) = self.their_handle(&open).await?;
                let part = data.split_to(data.len().min(self.life.agreed.max_write as usize));
                let args = fuse::WriteIn {
                    fh,
                    offset,
                    size: u32::try_from(part.len()).unwrap_or(u32::MAX),
                    flags: open.flags.bits(),
                    ..fuse::WriteIn::default()
                };
                let whole = part.len();
                let message = Message::new(Opcode::Write, theirs).with(&args.encode()).data(part);
                let size = fuse::WriteOut::decode(&self.ask(message).await?)?.0.size as usize;
                if size != whole {
                    let path = self.shared.nodes.path(node);
                    return Err(Errno::EIO.because(format!("{path:?}: a short write")).into());
                }
                offset = offset.saturating_add(size as u64);
            }
        }
        Ok(())
    }
}

/// A handle as the door gets it.
pub(crate) fn opened(open: &Open, how: OpenHow) -> Opened {
    Opened { handle: open.handle, how, backing: Backing::NONE }
}
