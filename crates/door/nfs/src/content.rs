// SPDX-License-Identifier: MIT OR Apache-2.0
//! Procedures on one file: attributes, permissions, content.

use crate::convert;
use crate::export::{Export, Outcome};
use crate::files::Used;
use outrigger_core::attr::W_OK;
use outrigger_core::ops::{self, FSync, ReadLink, SetAttr, Write};
use outrigger_core::{Cx, Handle, OpCode, Payload};
use outrigger_proto_nfs3::nfs::{AccessArgs, CommitArgs, ReadArgs, SetAttrArgs, WriteArgs};
use outrigger_proto_nfs3::results::{
    AccessOk, AttrsFailed, Committed, ReadLinkOk, ReadOk, WccFailed, WccOk, WriteOk,
};
use outrigger_proto_nfs3::types::{Access, Attrs, Content, Path, Stable, Status};

impl Export {
    pub(crate) async fn get_attr(&self, cx: &Cx, file: &Used<'_>) -> Outcome<Attrs> {
        self.attr(cx, file.node).await.map(|attr| self.attrs(&attr))
    }

    pub(crate) async fn set_attr(
        &self,
        cx: &Cx,
        file: &Used<'_>,
        args: SetAttrArgs,
    ) -> Result<WccOk, WccFailed> {
        let set = self.set(cx, file, &args).await;
        let wcc = self.wcc(cx, file.node).await;
        let set = self.lasting(cx, file.node, (set, &wcc)).await;
        set.map(|()| WccOk { wcc }).map_err(|status| WccFailed { status, wcc })
    }

    async fn set(&self, cx: &Cx, file: &Used<'_>, args: &SetAttrArgs) -> Outcome<()> {
        let (node, attrs) = (file.node, self.set_attrs(&args.attrs)?);
        if let Some(guard) = args.guard
            && convert::time(self.attr(cx, node).await?.ctime) != guard
        {
            return Err(Status::NOT_SYNC);
        }
        self.ask(cx, SetAttr { node, handle: None, attrs }).await.map(drop)
    }

    pub(crate) async fn access(
        &self,
        cx: &Cx,
        file: &Used<'_>,
        args: &AccessArgs,
    ) -> Result<AccessOk, AttrsFailed> {
        let attr = self.attr(cx, file.node).await.map_err(|status| AttrsFailed { status, attrs: None })?;
        let attrs = Some(self.attrs(&attr));
        let sensible = args.access & Access::sensible(attr.is_dir());
        let mask = sensible.needs();
        // Whoever asks whether anything may be written is answered no: an error would keep it from reading, too.
        let mask = if self.abilities.read_only { mask & !W_OK } else { mask };
        let granted = self.ask(cx, ops::Access { node: file.node, mask }).await;
        let granted = granted.map_err(|status| AttrsFailed { status, attrs })?;
        Ok(AccessOk { attrs, access: sensible & Access::of_mask(granted.0, attr.is_dir()) })
    }

    pub(crate) async fn read_link(&self, cx: &Cx, file: &Used<'_>) -> Result<ReadLinkOk, AttrsFailed> {
        let target = self.ask(cx, ReadLink { node: file.node }).await;
        let attrs = self.after(cx, file.node).await;
        let target =
            target.and_then(|target| Path::new(target.into_bytes()).map_err(|_| Status::NAMETOOLONG));
        target.map(|target| ReadLinkOk { attrs, target }).map_err(|status| AttrsFailed { status, attrs })
    }

    pub(crate) async fn read(
        &self,
        cx: &Cx,
        file: &Used<'_>,
        args: &ReadArgs,
    ) -> Result<ReadOk, AttrsFailed> {
        // There is nothing beyond the largest file.
        let len = match args.offset.checked_add(args.count.into()) {
            Some(end) if end <= i64::MAX as u64 => args.count.min(self.io_max()),
            _ => 0,
        };
        let content = self.content(cx, file, args.offset, len).await;
        let attrs = self.after(cx, file.node).await;
        let data = content.map_err(|status| AttrsFailed { status, attrs })?;
        let count = data.len() as u32;
        let end = args.offset.saturating_add(count.into());
        let eof = count < len || attrs.is_some_and(|attrs| end >= attrs.size);
        Ok(ReadOk { attrs, count, eof, data })
    }

    async fn content(&self, cx: &Cx, file: &Used<'_>, offset: u64, len: u32) -> Outcome<Content> {
        let data = self.ask(cx, ops::Read { node: file.node, handle: Handle::NONE, offset, len }).await?;
        let bytes = data.into_bytes().map_err(|error| self.failed("read", &error))?;
        let fits = bytes.len() <= len as usize;
        Content::new(bytes).ok().filter(|_| fits).ok_or(Status::SERVERFAULT)
    }

    pub(crate) async fn write(
        &self,
        cx: &Cx,
        file: &Used<'_>,
        args: WriteArgs,
    ) -> Result<WriteOk, WccFailed> {
        let verifier = self.verifier();
        let committed = args.stable;
        let written = self.put(cx, file, args).await;
        let wcc = self.wcc(cx, file.node).await;
        let written = self.lasting(cx, file.node, (written, &wcc)).await;
        written
            .map(|count| WriteOk { wcc, count, committed, verifier })
            .map_err(|status| WccFailed { status, wcc })
    }

    async fn put(&self, cx: &Cx, file: &Used<'_>, args: WriteArgs) -> Outcome<u32> {
        let (node, offset) = (file.node, args.offset);
        if args.offset.checked_add(args.count.into()).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Status::FBIG);
        }
        // The count is right where the two differ, as RFC 1813, 3.3.7 has it.
        let bytes = args.data.into_bytes();
        let len = bytes.len().min(args.count.min(self.io_max()) as usize);
        let data = Payload::Bytes(bytes.slice(..len));
        let write = Write { node, handle: Handle::NONE, offset, data, cached: false, kill_setid: false };
        let count = self.ask(cx, write).await?.0;
        match args.stable {
            Stable::Unstable => {}
            Stable::DataSync => self.sync(cx, file, true).await?,
            Stable::FileSync => self.sync(cx, file, false).await?,
        }
        Ok(u32::try_from(count).unwrap_or(u32::MAX).min(len as u32))
    }

    pub(crate) async fn commit(
        &self,
        cx: &Cx,
        file: &Used<'_>,
        _range: &CommitArgs,
    ) -> Result<Committed, WccFailed> {
        let synced = self.sync(cx, file, false).await;
        // Looked at last: writes that are lost meanwhile may be those that are committed.
        let verifier = self.verifier();
        let wcc = self.wcc(cx, file.node).await;
        let synced = self.lasting(cx, file.node, (synced, &wcc)).await;
        synced.map(|()| Committed { wcc, verifier }).map_err(|status| WccFailed { status, wcc })
    }

    /// Puts a file on stable storage. What cannot be put there is lost for every client.
    async fn sync(&self, cx: &Cx, file: &Used<'_>, data_only: bool) -> Outcome<()> {
        if !self.abilities.ops.has(OpCode::FSync) {
            // What a tree without it has accepted is where it can be.
            return Ok(());
        }
        let synced = self.ask(cx, FSync { node: file.node, handle: Handle::NONE, data_only }).await;
        let is_loss =
            |status: &Status| [Status::IO, Status::NOSPC, Status::DQUOT, Status::FBIG].contains(status);
        synced.inspect_err(|status| {
            if is_loss(status) {
                self.has_lost_writes()
            }
        })
    }

    fn io_max(&self) -> u32 {
        self.abilities.max_io.min(crate::IO_MAX)
    }
}
