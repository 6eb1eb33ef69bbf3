// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening files, reading and writing, attributes.

use crate::convert::{self, SIZE_MAX};
use crate::inner::Inner;
use crate::opened::OpenFid;
use crate::wire::{Fault, Fid, IO_MAX, Session, once};
use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use outrigger_core::ops::{Open, OpenFlags, Read, SetAttr, Write};
use outrigger_core::reply::{Attrs, Opened, Ttl};
use outrigger_core::{BoxFuture, Cx, Errno, FileKind, Handle, Node, Payload, Result, lock};
use outrigger_proto_ninep::Tread;
use outrigger_toolkit_remote::known::{Change, moment};
use outrigger_toolkit_remote::pieces;
use std::sync::{Arc, Mutex};

impl Inner {
    pub(crate) async fn open_file(&self, cx: &Cx, op: Open) -> Result<Opened> {
        match self.files.get(op.node).map(|known| known.kind) {
            Some(FileKind::Regular) | None => {}
            Some(FileKind::Directory) => return Err(Errno::EISDIR.into()),
            Some(_) => return Err(Errno::ENXIO.because("only regular files are opened at the server")),
        }
        let (uid, empties) = (self.uid(cx), op.flags.contains(OpenFlags::TRUNC));
        let opened = self.with(uid, |session| async move {
            let fid = self.reach(&session, uid, op.node).await?;
            let emptied = empties.then(|| self.begin(Some(op.node), Change::Size(0)));
            let opened = session.open(fid.number, op.flags).await?;
            emptied.into_iter().for_each(|emptied| emptied.done(0));
            let fid = OpenFid::new(fid, opened, op.flags);
            if fid.only_appends && is_written(op.flags) && !op.flags.contains(OpenFlags::APPEND) {
                return Err(Errno::EPERM
                    .because("the server only appends to this file: open it to append")
                    .into());
            }
            let asked = moment();
            // From here on no other file gets its number; and diod does not bear two requests by a fid that is being opened.
            let told = self.told_of(&session, op.node, fid.fid.number).await;
            let told = if empties { told.map_err(once)? } else { told? };
            Ok((fid, told, asked))
        });
        let (by, told, asked) = opened.await?;
        self.opened(cx, (op.node, op.flags), by, (&told, asked))
    }

    pub(crate) async fn read(&self, op: Read) -> Result<Payload> {
        if op.offset > SIZE_MAX {
            return Ok(Payload::EMPTY);
        }
        let (op, uid) = (&op, self.open.get(op.handle)?.uid);
        self.with(uid, |session| async move {
            let file = self.fid_of(&session, op.node, op.handle).await?;
            let read = |(at, len)| -> BoxFuture<'_, _> {
                Box::pin(read_piece(&session, &file.fid, op.offset + at as u64, len))
            };
            let mut chunks = Vec::new();
            let all = join_all(pieces(op.len as usize, file.each).map(read)).await;
            for ((_, wanted), read) in pieces(op.len as usize, file.each).zip(all) {
                let read: Bytes = read?;
                let is_short = read.len() < wanted;
                chunks.push(read);
                if is_short {
                    break;
                }
            }
            Ok(Payload::Chunks(chunks))
        })
        .await
    }

    pub(crate) async fn write(&self, cx: &Cx, op: Write) -> Result<u64> {
        if op.offset > SIZE_MAX - op.data.len() as u64 {
            return Err(Errno::EFBIG.into());
        }
        let (node, handle, data) = (op.node, op.handle, op.data.into_bytes()?);
        if cx.writes_at_end(self.open.get(handle)?.flags, op.cached) {
            // The protocol cannot append by a file that is written elsewhere, too: others of this client must not, meanwhile.
            let _alone = self.appends.lock(node).await;
            let end = self.attrs(cx, node, Some(handle)).await?.attr.size;
            return self.write_all((node, handle), end, &data).await;
        }
        self.write_all((node, handle), op.offset, &data).await
    }

    /// Writes all, or up to the first piece that fails. What was written by a lost connection is written again: it is the same.
    async fn write_all(&self, (node, handle): (Node, Handle), offset: u64, data: &Bytes) -> Result<u64> {
        let (changing, uid) = (&Mutex::new(None), self.open.get(handle)?.uid);
        let change = Change::Write { offset, len: data.len() as u64 };
        let written = self.with(uid, |session| async move {
            let file = self.fid_of(&session, node, handle).await?;
            // Only now: a change that is begun lets the file look otherwise when it is opened again.
            lock(changing).get_or_insert_with(|| self.begin(Some(node), change));
            let write = |(at, len)| -> BoxFuture<'_, _> {
                Box::pin(write_piece(&session, &file.fid, offset + at as u64, data.slice(at..at + len)))
            };
            let outcomes = match file.only_appends {
                true => in_turn(pieces(data.len(), file.each).map(write)).await,
                false => join_all(pieces(data.len(), file.each).map(write)).await,
            };
            let mut done = 0;
            for ((_, len), outcome) in pieces(data.len(), file.each).zip(outcomes) {
                match outcome {
                    Ok(()) => done += len as u64,
                    Err(Fault::Known(_)) if done > 0 => break,
                    Err(fault) => return Err(fault),
                }
            }
            if file.must_sync {
                session.sync(file.fid.number, true).await?;
            }
            Ok((done, session))
        });
        let (done, session) = written.await?;
        if let Some(changing) = lock(changing).take() {
            changing.done(done);
        }
        self.look_after(&session, node, handle);
        Ok(done)
    }

    pub(crate) async fn fsync(&self, node: Node, handle: Handle, data_only: bool) -> Result<()> {
        let uid = self.open.get(handle)?.uid;
        self.with(uid, |session| async move {
            let file = self.fid_of(&session, node, handle).await?;
            session.sync(file.fid.number, data_only).await
        })
        .await
    }

    pub(crate) async fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        let kind = self.files.get(op.node).map(|known| known.kind);
        match kind {
            Some(FileKind::Directory) if op.attrs.size.is_some() => return Err(Errno::EISDIR.into()),
            Some(FileKind::Regular) | None => {}
            _ if op.attrs.size.is_some() => return Err(Errno::EINVAL.into()),
            _ => {}
        }
        // ftruncate(2) needs no permission that opening has not found.
        let by = op.handle.filter(|handle| op.attrs.size.is_some() && self.open.get(*handle).is_ok());
        let by = by.or_else(|| self.nameless_handle(op.node));
        let uid = by.and_then(|handle| self.open.get(handle).ok()).map_or(self.uid(cx), |file| file.uid);
        let change = op.attrs.size.map_or(Change::Attrs, Change::Size);
        let time = if self.has_ctime() { None } else { convert::mtime(&op.attrs).map(Change::Time) };
        let attrs = &convert::set_attrs(&op.attrs);
        let told = self.with(uid, |session| async move {
            let fid = self.fid_with_attrs(&session, uid, (op.node, by)).await?;
            let changing =
                [Some(change), time].map(|change| change.map(|change| self.begin(Some(op.node), change)));
            session.set_attrs(fid.number(), attrs, self.runtime.coarse_wall()).await?;
            changing.into_iter().flatten().for_each(|change| change.done(0));
            let asked = moment();
            let told = self.told_of(&session, op.node, fid.number()).await.map_err(once)?;
            self.saw(&session, op.node, &convert::attr(&told), asked);
            Ok(told)
        });
        Ok(Attrs { attr: self.shown(op.node, &told.await?), ttl: Ttl::SECOND })
    }

    /// A fid by which the attributes of a node can be set: that of the handle by which it is open, if the server finds the file by that.
    async fn fid_with_attrs(
        &self,
        session: &Arc<Session>,
        uid: u32,
        (node, by): (Node, Option<Handle>),
    ) -> Result<AnyFid, Fault> {
        if let Some(handle) = by {
            let open = self.fid_of(session, node, handle).await?;
            match self.told_of(session, node, open.fid.number).await {
                Err(fault) if is_misled(&fault) && !self.is_nameless(node) => {}
                told => return told.map(|_| AnyFid::Open(open)),
            }
        }
        self.reach(session, uid, node).await.map(AnyFid::Reached)
    }
}

/// What comes of writes that are made one after the other, each at most once, up to the first that fails: of a file that is only appended to.
async fn in_turn<T>(writes: impl Iterator<Item = BoxFuture<'_, Result<T, Fault>>>) -> Vec<Result<T, Fault>> {
    let mut outcomes = Vec::new();
    for write in writes {
        outcomes.push(write.await.map_err(once));
        if outcomes.last().is_some_and(Result::is_err) {
            break;
        }
    }
    outcomes
}

/// Whether a file is opened for writing.
pub(crate) fn is_written(flags: OpenFlags) -> bool {
    flags.intersects(OpenFlags::WRITE_ONLY | OpenFlags::READ_WRITE)
}

/// A fid of a file.
enum AnyFid {
    Open(Arc<OpenFid>),
    Reached(Fid),
}

impl AnyFid {
    fn number(&self) -> u32 {
        match self {
            AnyFid::Open(open) => open.fid.number,
            AnyFid::Reached(fid) => fid.number,
        }
    }
}

/// Whether the server has found no file, or another one, by a path that was right before.
pub(crate) fn is_misled(fault: &Fault) -> bool {
    matches!(fault, Fault::Known(error) if matches!(error.errno, Errno::ENOENT | Errno::ESTALE))
}

/// Content, less than `len` only at its end.
pub(crate) async fn read_piece(
    session: &Session,
    fid: &Fid,
    offset: u64,
    len: usize,
) -> Result<Bytes, Fault> {
    let most = session.io_size(0) as usize;
    let mut whole = BytesMut::new();
    while whole.len() < len {
        let count = (len - whole.len()).min(most).min(IO_MAX as usize) as u32;
        let call = Tread { fid: fid.number, offset: offset + whole.len() as u64, count };
        let data = session.ask_bulk(call, count).await?.data;
        match data.len() {
            0 => break,
            more if more > count as usize => {
                let why = format!("the server was asked for {count} bytes, and sends {more}");
                return Err(Errno::EIO.because(why).into());
            }
            all if all == len => return Ok(data),
            _ => whole.extend_from_slice(&data),
        }
    }
    Ok(whole.freeze())
}

/// Writes one piece to its end.
pub(crate) async fn write_piece(
    session: &Session,
    fid: &Fid,
    mut offset: u64,
    mut data: Bytes,
) -> Result<(), Fault> {
    while !data.is_empty() {
        let piece = data.slice(..data.len().min(session.io_size(0) as usize));
        let written = session.write(fid.number, offset, piece).await?;
        offset += written as u64;
        data = data.split_off(written);
    }
    Ok(())
}
