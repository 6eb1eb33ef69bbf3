// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening files, reading and writing, attributes, extended attributes.

use crate::convert::{self, SIZE_MAX};
use crate::inner::Inner;
use crate::wire::{Fault, Fid, IO_MAX, Session};
use bytes::{Bytes, BytesMut};
use outrigger_core::ops::{Open, OpenFlags, Read, SetAttr, SetXattr, Write};
use outrigger_core::reply::{Attrs, OpenHow, Opened, Ttl};
use outrigger_core::{BoxFuture, Cx, Errno, FileKind, Handle, Node, Payload, Result, lock};
use outrigger_proto_ninep::{
    AttrMask, Tclunk, Text, Tfsync, Tgetattr, Tlopen, Tread, Tsetattr, Txattrcreate, Txattrwalk,
};
use outrigger_toolkit_remote::{WasOpen, pieces, together};
use std::sync::{Arc, Mutex};

/// How a file is opened at the server: what is beside these flags is done here, or not at all.
const SENT: OpenFlags = OpenFlags::WRITE_ONLY
    .union(OpenFlags::READ_WRITE)
    .union(OpenFlags::TRUNC)
    .union(OpenFlags::DSYNC)
    .union(OpenFlags::NOATIME);
/// `O_NOFOLLOW`: symbolic links of the server are followed here, where it can be seen where they lead.
const NO_FOLLOW: u32 = 0o400_000;
/// The longest extended attribute, and the longest list of their names (xattr(7)).
const XATTR_MAX: u64 = 64 << 10;

/// An open file, and what it is by the last connection that it was used by.
pub(crate) struct OpenFile {
    pub(crate) flags: OpenFlags,
    uid: u32,
    by: Mutex<Option<Arc<OpenFid>>>,
}

/// An open file at the server.
pub(crate) struct OpenFid {
    pub(crate) fid: Fid,
    /// How much content one message moves, in bytes.
    each: u32,
}

impl OpenFid {
    pub(crate) fn new(fid: Fid, iounit: u32) -> Self {
        let each = fid.session.io_size(iounit);
        OpenFid { fid, each }
    }
}

impl OpenFile {
    /// One that a former process has opened.
    pub(crate) fn of_former(was: &WasOpen) -> Self {
        OpenFile { flags: was.flags, uid: was.own[0] as u32, by: Mutex::default() }
    }
}

/// The flags of open(2) as the server gets them.
pub(crate) fn sent(flags: OpenFlags) -> u32 {
    (flags & SENT).bits() | NO_FOLLOW
}

impl Inner {
    pub(crate) async fn open_file(&self, cx: &Cx, op: Open) -> Result<Opened> {
        match self.files.get(op.node).map(|known| known.kind) {
            Some(FileKind::Regular) | None => {}
            Some(FileKind::Directory) => return Err(Errno::EISDIR.into()),
            Some(_) => return Err(Errno::ENXIO.because("only regular files are opened at the server")),
        }
        let uid = self.uid(cx);
        let opened = self.with(|session| async move {
            let fid = self.reach(&session, uid, op.node).await?;
            let call = Tlopen { fid: fid.number, flags: sent(op.flags) };
            let opened = match op.flags.contains(OpenFlags::TRUNC) {
                true => session.change(call).await?,
                false => session.ask(call).await?,
            };
            Ok(OpenFid::new(fid, opened.iounit))
        });
        self.opened(cx, op.node, op.flags, opened.await?)
    }

    /// A handle of an open file, for the one who asks.
    pub(crate) fn opened(&self, cx: &Cx, node: Node, flags: OpenFlags, by: OpenFid) -> Result<Opened> {
        let uid = self.uid(cx);
        let file = OpenFile { flags, uid, by: Mutex::new(Some(Arc::new(by))) };
        let own = (cx.slot == Cx::NO_SLOT, [uid.into(), 0, 0, 0]);
        let handle = self.open.add(node, flags, own, |_, ()| Arc::new(file))?;
        Ok(Opened { handle, how: OpenHow::NO_FLUSH, ..Opened::default() })
    }

    /// The file of a handle, opened again where that was by another connection.
    pub(crate) async fn fid_of(
        &self,
        session: &Arc<Session>,
        node: Node,
        handle: Handle,
    ) -> Result<Arc<OpenFid>, Fault> {
        let file = self.open.get(handle)?;
        let present = lock(&file.by).clone();
        if let Some(open) = present.filter(|open| Arc::ptr_eq(&open.fid.session, session)) {
            return Ok(open);
        }
        if self.open.is_removed(node) {
            let why = "the file has lost its name while it was open, and the connection by which it was open";
            return Err(Errno::EIO.because(why).into());
        }
        let fid = self.reach(session, file.uid, node).await?;
        let flags = sent(file.flags - OpenFlags::TRUNC);
        let opened = session.ask(Tlopen { fid: fid.number, flags }).await?;
        let open = Arc::new(OpenFid::new(fid, opened.iounit));
        // Another request may have opened it meanwhile: either will do.
        *lock(&file.by) = Some(Arc::clone(&open));
        Ok(open)
    }

    pub(crate) async fn read(&self, op: Read) -> Result<Payload> {
        if op.offset > SIZE_MAX {
            return Ok(Payload::EMPTY);
        }
        let op = &op;
        self.with(|session| async move {
            let file = self.fid_of(&session, op.node, op.handle).await?;
            let read = |(at, len)| -> BoxFuture<'_, _> {
                Box::pin(read_piece(&session, &file.fid, op.offset + at as u64, len))
            };
            let mut chunks = Vec::new();
            let all = together(pieces(op.len as usize, file.each).map(read).collect()).await;
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
        self.with(|session| async move {
            let file = self.fid_of(&session, node, handle).await?;
            let write = |(at, len)| -> BoxFuture<'_, _> {
                Box::pin(write_piece(&session, &file.fid, offset + at as u64, data.slice(at..at + len)))
            };
            let outcomes = together(pieces(data.len(), file.each).map(write).collect()).await;
            let mut done = 0;
            for ((_, len), outcome) in pieces(data.len(), file.each).zip(outcomes) {
                match outcome {
                    Ok(()) => done += len as u64,
                    Err(Fault::Known(_)) if done > 0 => break,
                    Err(fault) => return Err(fault),
                }
            }
            Ok(done)
        })
        .await
    }

    pub(crate) async fn fsync(&self, node: Node, handle: Handle, data_only: bool) -> Result<()> {
        self.with(|session| async move {
            let file = self.fid_of(&session, node, handle).await?;
            session.ask(Tfsync { fid: file.fid.number, data_only: data_only.into() }).await.map(drop)
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
        let (uid, op, attrs) = (self.uid(cx), &op, &convert::set_attrs(&op.attrs));
        // ftruncate(2) needs no permission that opening has not found.
        let by = op.handle.filter(|handle| op.attrs.size.is_some() && self.open.get(*handle).is_ok());
        let by = by.or_else(|| self.nameless_handle(op.node));
        let told = self.with(|session| async move {
            let (open, reached);
            let fid = match by {
                Some(handle) => {
                    open = self.fid_of(&session, op.node, handle).await?;
                    self.told_of(&session, op.node, open.fid.number).await?;
                    open.fid.number
                }
                None => {
                    reached = self.reach(&session, uid, op.node).await?;
                    reached.number
                }
            };
            session.change(Tsetattr { fid, attrs: attrs.clone() }).await?;
            session.ask(Tgetattr { fid, mask: AttrMask::BASIC }).await
        });
        Ok(Attrs { attr: convert::attr(&told.await?.attrs), ttl: Ttl::SECOND })
    }

    /// The value of an extended attribute; without a name the names of all, each with a zero byte behind it.
    pub(crate) async fn xattr(&self, cx: &Cx, node: Node, name: &[u8]) -> Result<Bytes> {
        let (uid, name) = (self.uid(cx), &Text::new(name.to_vec()).ok_or(Errno::ERANGE)?);
        self.with(|session| async move {
            let fid = self.reach(&session, uid, node).await?;
            let value = session.fid().await?;
            let call = Txattrwalk { fid: fid.number, newfid: value.number, name: name.clone() };
            let size = value.made(session.ask(call)).await?.size;
            if size > XATTR_MAX {
                let why = format!("the server has {size} bytes of extended attributes, which Linux does not");
                return Err(Errno::E2BIG.because(why).into());
            }
            read_piece(&session, &value, 0, size as usize).await
        })
        .await
    }

    pub(crate) async fn set_xattr(&self, cx: &Cx, op: SetXattr) -> Result<()> {
        if op.value.is_empty() {
            let why =
                "the protocol cannot tell an empty extended attribute from none: servers would remove it";
            return Err(Errno::EOPNOTSUPP.because(why));
        }
        self.put_xattr(cx, op.node, (&op.name, op.flags.bits()), op.value).await
    }

    /// Sets an extended attribute; without a value removes it.
    pub(crate) async fn put_xattr(
        &self,
        cx: &Cx,
        node: Node,
        (name, flags): (&[u8], u32),
        value: Bytes,
    ) -> Result<()> {
        let (uid, value, name) = (self.uid(cx), &value, &Text::new(name.to_vec()).ok_or(Errno::ERANGE)?);
        self.with(|session| async move {
            let fid = self.reach(&session, uid, node).await?;
            let size = value.len() as u64;
            session.ask(Txattrcreate { fid: fid.number, name: name.clone(), size, flags }).await?;
            write_piece(&session, &fid, 0, value.clone()).await?;
            // That is when it is set. Whatever is answered, the fid is gone.
            fid.forget();
            session.change(Tclunk { fid: fid.number }).await.map(drop)
        })
        .await
    }
}

/// Content, less than `len` only at its end.
async fn read_piece(session: &Session, fid: &Fid, offset: u64, len: usize) -> Result<Bytes, Fault> {
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
async fn write_piece(session: &Session, fid: &Fid, mut offset: u64, mut data: Bytes) -> Result<(), Fault> {
    while !data.is_empty() {
        let piece = data.slice(..data.len().min(session.io_size(0) as usize));
        let written = session.write(fid.number, offset, piece).await?;
        offset += written as u64;
        data = data.split_off(written);
    }
    Ok(())
}
