// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening files, reading and writing.

use crate::convert::{self, SIZE_MAX};
use crate::exports::is_above;
use crate::inner::{Inner, sent};
use crate::unstable::{Kept, Writer};
use bytes::Bytes;
use futures_util::future::join_all;
use outrigger_core::attr::{R_OK, W_OK, X_OK};
use outrigger_core::ops::{Open, OpenFlags, Read, SetAttr, Write};
use outrigger_core::reply::{Attrs, OpenHow, Opened, Ttl};
use outrigger_core::{BoxFuture, Credentials, Cx, Errno, FileKind, Groups, Handle, Node, Payload, Result};
use outrigger_proto_nfs3::nfs::{AccessArgs, ReadArgs, SetAttrArgs, procedure as nfs};
use outrigger_proto_nfs3::types::{self, Access, FileHandle};
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::{OwnWords, WasOpen, auth_sys, pieces};
use std::sync::Arc;

/// So much content of one file that is not stored is committed by the write that makes it more, in bytes.
const FILE_MAX: usize = 16 << 20;
/// Supplementary groups that are noted of an open file.
const GROUPS: usize = 5;

/// An open file: its content is asked for as the user who opened it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) flags: OpenFlags,
    pub(crate) writer: Writer,
}

impl OpenFile {
    fn new(cx: &Cx, flags: OpenFlags, auth: Auth) -> Self {
        let stable = flags.contains(OpenFlags::DSYNC);
        OpenFile { flags, writer: Writer { cred: cx.cred.clone(), auth, stable } }
    }

    /// One that a former process has opened.
    pub(crate) fn of_former(was: &WasOpen) -> Self {
        let halves = was.own.iter().flat_map(|word| [(word >> 32) as u32, *word as u32]).collect::<Vec<_>>();
        let count = (halves[2] as usize).min(GROUPS);
        let groups = Groups::of(&halves[3..3 + count]);
        let cred = Credentials { groups, ..Credentials::new(halves[0], halves[1]) };
        let (auth, stable) = (auth_sys(&cred, 0), was.flags.contains(OpenFlags::DSYNC));
        OpenFile { flags: was.flags, writer: Writer { cred, auth, stable } }
    }

    fn own_words(&self) -> OwnWords {
        let groups = self.writer.auth.sys().map(|sys| sys.gids.to_vec()).unwrap_or_default();
        let count = groups.len().min(GROUPS);
        let Credentials { uid, gid, .. } = self.writer.cred;
        let mut halves = [uid, gid, count as u32, 0, 0, 0, 0, 0];
        halves[3..3 + count].copy_from_slice(&groups[..count]);
        let word = |at: usize| u64::from(halves[at]) << 32 | u64::from(halves[at + 1]);
        [word(0), word(2), word(4), word(6)]
    }
}

impl Inner {
    /// Who reads or writes by a handle: the one who opened the file, or without a handle the one who asks.
    pub(crate) fn user(&self, cx: &Cx, handle: Handle) -> Result<Arc<OpenFile>> {
        match handle {
            Handle::NONE => Ok(Arc::new(OpenFile::new(cx, OpenFlags::READ_WRITE, self.auth(cx)))),
            handle => self.open.get(handle),
        }
    }

    /// Those of `mask` that the server grants.
    pub(crate) async fn granted(&self, auth: &Auth, node: Node, mask: u32) -> Result<u32> {
        let known = self.known(auth, node).await?;
        if is_above(&known) {
            return Ok(mask & (R_OK | X_OK));
        }
        let meant = |mask| Access::of_mask(mask, known.kind == FileKind::Directory);
        let args = AccessArgs { object: sent(&known)?, access: meant(mask) };
        let has = self.ask::<nfs::Access>(auth, &args).await?.access;
        Ok([R_OK, W_OK, X_OK].into_iter().filter(|bit| mask & bit != 0 && has.contains(meant(*bit))).sum())
    }

    pub(crate) async fn open_file(&self, cx: &Cx, op: Open) -> Result<Opened> {
        let auth = self.auth(cx);
        match self.known(&auth, op.node).await?.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::ENXIO.because("only regular files are opened at the server")),
        }
        let reads = if op.flags.contains(OpenFlags::WRITE_ONLY) { 0 } else { R_OK };
        let mask = reads | if op.flags.writes() { W_OK } else { 0 };
        if self.granted(&auth, op.node, mask).await? != mask {
            return Err(Errno::EACCES.into());
        }
        if op.flags.contains(OpenFlags::TRUNC) {
            let attrs = types::SetAttrs { size: Some(0), ..types::SetAttrs::NONE };
            self.set(&auth, op.node, attrs).await?;
        }
        self.opened(cx, op.node, op.flags, auth)
    }

    /// A handle of a file, for the one who asks.
    pub(crate) fn opened(&self, cx: &Cx, node: Node, flags: OpenFlags, auth: Auth) -> Result<Opened> {
        let file = OpenFile::new(cx, flags, auth);
        let own = file.own_words();
        let handle = self.open.add(node, flags, (cx.slot == Cx::NO_SLOT, own), |_, ()| Arc::new(file))?;
        let how = if flags.writes() { OpenHow::empty() } else { OpenHow::NO_FLUSH };
        Ok(Opened { handle, how, ..Opened::default() })
    }

    pub(crate) async fn close(&self, node: Node, handle: Handle) -> Result<()> {
        let closed = self.open.close(handle)?;
        if closed.last.is_some() && closed.was_removed {
            return self.silly_rename(&closed.file.writer.auth).remove(node).await;
        }
        // What close(2) could not tell is logged: the server may have it all the same.
        let stored = if closed.last.is_some() { self.unstable.commit(self, node).await } else { Ok(()) };
        stored.inspect_err(|error| tracing::warn!(%error, "what was written to a file may be lost"))
    }

    pub(crate) async fn read(&self, cx: &Cx, op: Read) -> Result<Payload> {
        let user = self.user(cx, op.handle)?;
        if op.offset > SIZE_MAX {
            return Ok(Payload::EMPTY);
        }
        let (auth, len) = (&user.writer.auth, op.len as usize);
        let file = self.handle(auth, op.node).await?;
        let each = self.limits(auth, file).await?.read;
        if op.len <= each {
            return Ok(self.read_piece(auth, file, op.offset, len).await?.into());
        }
        let read = |(at, len)| -> BoxFuture<'_, _> {
            Box::pin(self.read_piece(auth, file, op.offset + at as u64, len))
        };
        let mut chunks = Vec::new();
        for ((_, wanted), read) in pieces(len, each).zip(join_all(pieces(len, each).map(read)).await) {
            let read = read?;
            let is_short = read.len() < wanted;
            chunks.push(read);
            if is_short {
                break;
            }
        }
        Ok(Payload::Chunks(chunks))
    }

    /// Content, less than `len` only at the end of the file.
    async fn read_piece(&self, auth: &Auth, file: FileHandle, offset: u64, len: usize) -> Result<Bytes> {
        let mut whole = Vec::new();
        loop {
            let (offset, count) = (offset + whole.len() as u64, (len - whole.len()) as u32);
            let args = ReadArgs { file, offset, count };
            let read = self.ask_via::<nfs::Read>(None, auth, &args, count).await.0?;
            let data = read.data.into_bytes();
            if data.len() > count as usize
                || data.len() != read.count as usize
                || data.is_empty() && !read.eof && count > 0
            {
                return Err(Errno::EIO.because(format!(
                    "the server was asked for {count} bytes, says to send {}, and sends {}",
                    read.count,
                    data.len()
                )));
            }
            if read.eof || data.len() == count as usize {
                if whole.is_empty() {
                    return Ok(data);
                }
                whole.extend_from_slice(&data);
                return Ok(whole.into());
            }
            whole.extend_from_slice(&data);
        }
    }

    pub(crate) async fn write(&self, cx: &Cx, op: Write) -> Result<u64> {
        let user = self.user(cx, op.handle)?;
        if op.offset > SIZE_MAX - op.data.len() as u64 {
            return Err(Errno::EFBIG.into());
        }
        let (node, auth) = (op.node, &user.writer.auth);
        let file = self.handle(auth, node).await?;
        let each = self.limits(auth, file).await?.write;
        let data = op.data.into_bytes()?;
        let kept = self.unstable.of(node);
        let written = if cx.writes_at_end(user.flags, op.cached) {
            // The protocol cannot append: others of this client must not, meanwhile.
            let _alone = kept.order.write().await;
            let end = self.attrs(auth, node).await?.attr.size;
            self.write_all((node, file), &kept, &user.writer, (end, each), &data).await
        } else {
            let _order = kept.order.read().await;
            self.write_all((node, file), &kept, &user.writer, (op.offset, each), &data).await
        };
        let is_much = kept.bytes() >= FILE_MAX;
        drop(kept);
        if is_much {
            self.unstable.commit(self, node).await?;
        }
        written
    }

    /// Writes all, or up to the first piece that fails.
    async fn write_all(
        &self,
        file: (Node, FileHandle),
        kept: &Kept,
        writer: &Writer,
        (offset, each): (u64, u32),
        data: &Bytes,
    ) -> Result<u64> {
        let write = |(at, len)| -> BoxFuture<'_, _> {
            let piece = (offset + at as u64, data.slice(at..at + len));
            Box::pin(self.write_piece(file, kept, writer, piece))
        };
        let outcomes = join_all(pieces(data.len(), each).map(write)).await;
        let mut done = 0;
        for ((_, len), outcome) in pieces(data.len(), each).zip(outcomes) {
            match outcome {
                Ok(()) => done += len as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Sets attributes; those that the file has then, where the server tells them.
    pub(crate) async fn set(
        &self,
        auth: &Auth,
        node: Node,
        attrs: types::SetAttrs,
    ) -> Result<Option<types::Attrs>> {
        let object = self.handle(auth, node).await?;
        let kept = attrs.size.map(|_| self.unstable.of(node));
        let alone = match &kept {
            Some(kept) => {
                let alone = kept.order.write().await;
                // What is cut off must not be written again later.
                self.unstable.store(self, node, kept, true).await?;
                Some(alone)
            }
            None => None,
        };
        let args = SetAttrArgs { object, attrs, guard: None };
        let done = self.ask::<nfs::SetAttr>(auth, &args).await;
        drop(alone);
        if kept.is_some() {
            drop(kept);
            self.unstable.tidy(node);
        }
        Ok(done?.wcc.after)
    }

    pub(crate) async fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        let auth = match op.handle.filter(|_| op.attrs.size.is_some()) {
            // ftruncate(2) needs no permission that opening has not found.
            Some(handle) => self.user(cx, handle)?.writer.auth.clone(),
            None => self.auth(cx),
        };
        match self.known(&auth, op.node).await?.kind {
            FileKind::Directory if op.attrs.size.is_some() => return Err(Errno::EISDIR.into()),
            FileKind::Regular => {}
            _ if op.attrs.size.is_some() => return Err(Errno::EINVAL.into()),
            _ => {}
        }
        match self.set(&auth, op.node, convert::set_attrs(&op.attrs)).await? {
            Some(after) if !self.open.is_removed(op.node) => {
                Ok(Attrs { attr: self.attr(&after), ttl: Ttl::SECOND })
            }
            _ => self.attrs(&auth, op.node).await,
        }
    }
}
