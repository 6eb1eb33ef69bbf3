// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files, and whatever is done to one file.
//!
//! A handle says which tree it is of. One of the lower tree whose file was copied meanwhile reads the copy, by a handle that is
//! opened when it is needed first.

use crate::Both;
use crate::nodes::Side;
use bytes::Bytes;
use outrigger_core::ops::{CopyRange, GetAttr, Open, OpenFlags, Read, Release, Seek, SetAttr, Whence, Write};
use outrigger_core::reply::{Attrs, Count, Offset, Opened};
use outrigger_core::{
    Backing, Cx, Errno, Handle, Node, Op, OpCode, Payload, Reply, Request, Result, Service, SetAttrs,
    Traverse, Visit, ask, lock,
};

/// A handle as the caller knows it.
///
/// # Errors
/// `EOVERFLOW` when the tree's own is too large.
pub(crate) fn encode(side: Side, handle: Handle) -> Result<Handle> {
    if handle.0 >> 62 != 0 {
        return Err(Errno::EOVERFLOW.because("union: a tree has handles that are too large"));
    }
    Ok(Handle(handle.0 << 2 | u64::from(side == Side::Lower) << 1 | 1))
}

/// The tree of a handle, and the handle there; none where the caller has none.
pub(crate) fn decode(handle: Handle) -> Option<(Side, Handle)> {
    let side = if handle.0 & 2 == 0 { Side::Upper } else { Side::Lower };
    (handle != Handle::NONE).then_some((side, Handle(handle.0 >> 2)))
}

/// The first node and the first handle of a request.
#[derive(Default)]
pub(crate) struct Subject {
    pub(crate) node: Option<Node>,
    pub(crate) handle: Option<Handle>,
}

impl Visit for Subject {
    fn node(&mut self, node: &mut Node) {
        self.node.get_or_insert(*node);
    }
    fn handle(&mut self, handle: &mut Handle) {
        self.handle.get_or_insert(*handle);
    }
}

/// Puts a node and a handle in the place of all.
pub(crate) struct Replace(pub(crate) Node, pub(crate) Handle);

impl Visit for Replace {
    fn node(&mut self, node: &mut Node) {
        *node = self.0;
    }
    fn handle(&mut self, handle: &mut Handle) {
        *handle = self.1;
    }
}

/// Writes all of `data`.
///
/// # Errors
/// Those of the tree; `ENOSPC` when it takes no more.
pub(crate) async fn put(
    tree: &dyn Service,
    cx: &Cx,
    (node, handle): (Node, Handle),
    mut offset: u64,
    mut data: Bytes,
) -> Result<()> {
    while !data.is_empty() {
        let (payload, cached, kill_setid) = (Payload::Bytes(data.clone()), true, false);
        let write = Write { node, handle, offset, data: payload, cached, kill_setid };
        let count = ask(tree, cx, write).await?.0;
        if count == 0 {
            return Err(Errno::ENOSPC.into());
        }
        offset += count;
        data = data.slice((count as usize).min(data.len())..);
    }
    Ok(())
}

impl Both<'_> {
    /// The handle of a tree for a request about a file that is shown from there.
    pub(crate) async fn handle_in(&self, side: Side, node: Node, handle: Handle) -> Result<Handle> {
        match decode(handle) {
            None => Ok(Handle::NONE),
            Some((of, own)) if of == side => Ok(own),
            // The file was copied since.
            Some(_) if side == Side::Upper => self.switched(handle, node).await,
            Some(_) => Err(Errno::EBADF.into()),
        }
    }

    /// A handle of the copy for readers of the original.
    async fn switched(&self, handle: Handle, upper: Node) -> Result<Handle> {
        if let Some(&own) = lock(&self.union.switched).get(&handle) {
            return Ok(own);
        }
        if !self.upper_ops.has(OpCode::Open) {
            return Ok(Handle::NONE);
        }
        let opened = self.ask_upper(Open { node: upper, flags: OpenFlags::empty() }).await?.handle;
        let first = *lock(&self.union.switched).entry(handle).or_insert(opened);
        if first != opened {
            self.close_in(Side::Upper, (upper, opened), OpenFlags::empty()).await;
        }
        Ok(first)
    }

    /// Closes a file of one of the trees.
    pub(crate) async fn close_in(&self, side: Side, (node, handle): (Node, Handle), flags: OpenFlags) {
        if self.ops(side).has(OpCode::Release) {
            let release = Release { node, handle, flags, owner: Default::default(), flock_release: false };
            self.tree(side).call(&self.own, release.into()).await;
        }
    }

    /// Opens a file; one that may be written is copied first.
    pub(crate) async fn open(&self, node: Node, flags: OpenFlags) -> Result<Opened> {
        let empties = flags.contains(OpenFlags::TRUNC);
        if empties {
            return self.open_empty(node, flags).await;
        }
        if flags.writes() {
            self.copy_up(node).await?;
        }
        let (side, own) = self.nodes().bound(node)?.shown()?;
        if !self.ops(side).has(OpCode::Open) {
            return Ok(Opened { handle: encode(side, Handle::NONE)?, ..Opened::default() });
        }
        let opened = ask(self.tree(side), self.cx, Open { node: own, flags }).await?;
        self.opened(side, (own, flags), opened).await
    }

    /// Opens a file of which nothing stays.
    async fn open_empty(&self, node: Node, flags: OpenFlags) -> Result<Opened> {
        let request = |node| -> Request {
            let attrs = SetAttrs { size: Some(0), ..SetAttrs::default() };
            match self.upper_ops.has(OpCode::Open) {
                true => Open { node, flags }.into(),
                false => SetAttr { node, handle: None, attrs }.into(),
            }
        };
        let copied = self.copy_cut(node, 0, request(node)).await?;
        let own = self.nodes().bound(node)?.upper.ok_or(Errno::ESTALE)?;
        let reply = match copied {
            Some(reply) => reply,
            None => self.tree(Side::Upper).call(self.cx, request(own)).await,
        };
        match reply {
            Reply::Error(error) => Err(error),
            Reply::Opened(opened) => self.opened(Side::Upper, (own, flags), opened).await,
            _ => Ok(Opened { handle: encode(Side::Upper, Handle::NONE)?, ..Opened::default() }),
        }
    }

    /// What a tree has opened, as the caller knows it. The kernel is not given the file itself: another one takes its place when it is
    /// copied.
    pub(crate) async fn opened(
        &self,
        side: Side,
        (node, flags): (Node, OpenFlags),
        opened: Opened,
    ) -> Result<Opened> {
        match encode(side, opened.handle) {
            Ok(handle) => Ok(Opened { handle, backing: Backing::NONE, ..opened }),
            Err(error) => {
                self.close_in(side, (node, opened.handle), flags).await;
                Err(error)
            }
        }
    }

    /// Closes a file in the tree that it was opened in, and what was opened in its place.
    pub(crate) async fn release(&self, op: Release) -> Result<()> {
        let bound = self.nodes().bound(op.node)?;
        let Some((side, handle)) = decode(op.handle) else { return Ok(()) };
        let node = if side == Side::Upper { bound.upper } else { bound.lower };
        let also = lock(&self.union.switched).remove(&op.handle);
        if let (Some(own), Some(upper)) = (also, bound.upper) {
            self.close_in(Side::Upper, (upper, own), OpenFlags::empty()).await;
        }
        match node {
            Some(node) if self.ops(side).has(OpCode::Release) => {
                ask(self.tree(side), self.cx, Release { node, handle, ..op }).await
            }
            _ => Ok(()),
        }
    }

    /// Attributes, by the handle where that is of the file shown now.
    pub(crate) async fn getattr(&self, op: GetAttr) -> Result<Attrs> {
        let bound = self.nodes().bound(op.node)?;
        let (side, node) = bound.shown()?;
        let handle = op.handle.and_then(decode).filter(|(of, _)| *of == side).map(|(_, handle)| handle);
        let found = ask(self.tree(side), self.cx, GetAttr { node, handle }).await?;
        Ok(Attrs { attr: self.attr(&bound, found.attr), ..found })
    }

    /// Changes attributes of the copy. No more is copied than is not cut off.
    pub(crate) async fn setattr(&self, op: SetAttr) -> Result<Attrs> {
        if let Some(size) = op.attrs.size {
            let cut = SetAttr { handle: None, ..op.clone() };
            if let Some(reply) = self.copy_cut(op.node, size, cut.into()).await? {
                let found = SetAttr::result(reply)?;
                return Ok(Attrs { attr: self.attr(&self.nodes().bound(op.node)?, found.attr), ..found });
            }
        }
        let node = self.copy_up(op.node).await?;
        let handle =
            op.handle.and_then(decode).filter(|(of, _)| *of == Side::Upper).map(|(_, handle)| handle);
        let found = ask(self.tree(Side::Upper), self.cx, SetAttr { node, handle, ..op }).await?;
        Ok(Attrs { attr: self.attr(&self.nodes().bound(op.node)?, found.attr), ..found })
    }

    /// Copies a range, in the upper tree by itself.
    pub(crate) async fn copy_range(&self, op: CopyRange) -> Result<Count> {
        let to_node = self.copy_up(op.to_node).await?;
        let to_handle = self.handle_in(Side::Upper, to_node, op.to_handle).await?;
        let (side, node) = self.nodes().bound(op.node)?.shown()?;
        let handle = self.handle_in(side, node, op.handle).await?;
        if side == Side::Upper && self.upper_ops.has(OpCode::CopyRange) {
            let range = CopyRange { node, handle, to_node, to_handle, ..op };
            return ask(self.tree(Side::Upper), self.cx, range).await;
        }
        let len = op.len.min(self.union.max_io.into()) as u32;
        let data = ask(self.tree(side), self.cx, Read { node, handle, offset: op.offset, len }).await?;
        if data.is_empty() {
            return Ok(Count(0));
        }
        let (offset, cached, kill_setid) = (op.to_offset, false, false);
        let write = Write { node: to_node, handle: to_handle, offset, data, cached, kill_setid };
        ask(self.tree(Side::Upper), self.cx, write).await
    }

    /// What is about one file, and changes no names: in the upper tree where it changes something.
    pub(crate) async fn plain(&self, mut request: Request) -> Result<Reply> {
        let mut subject = Subject::default();
        request.traverse(&mut subject);
        let node = subject.node.ok_or(Errno::ENOSYS)?;
        let (side, own) = match request.needs_changeable() {
            true => (Side::Upper, self.copy_up(node).await?),
            false => self.nodes().bound(node)?.shown()?,
        };
        if !self.ops(side).has(request.op()) {
            if let Request::Seek(seek) = request {
                return self.seek(seek).await;
            }
            let is_stored = side == Side::Lower && request.syncs().is_some() || request.op() == OpCode::Flush;
            return if is_stored { Ok(Reply::Done(())) } else { Err(Errno::EOPNOTSUPP.into()) };
        }
        let handle = self.handle_in(side, own, subject.handle.unwrap_or(Handle::NONE)).await?;
        request.traverse(&mut Replace(own, handle));
        Ok(self.tree(side).call(self.cx, request).await)
    }

    /// Finds data and holes of a file whose tree does not know them: all of it is data.
    async fn seek(&self, seek: Seek) -> Result<Reply> {
        let size = self.getattr(GetAttr { node: seek.node, handle: None }).await?.attr.size;
        if seek.offset >= size {
            return Err(Errno::ENXIO.into());
        }
        Ok(Reply::Offset(Offset(if seek.whence == Whence::Data { seek.offset } else { size })))
    }
}
