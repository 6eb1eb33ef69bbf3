// SPDX-License-Identifier: MIT OR Apache-2.0
//! What content was before each change that is not on stable storage yet, so that a power cut can be played.
//!
//! Names, owners, permissions and times are not among it: like a file system with a journal, a power cut keeps their order.
//! The most recent 256 MiB of former content are remembered; what was changed before counts as synchronised.

use bytes::Bytes;
use outrigger_core::ops::{FSync, FallocateMode, GetAttr, Open, OpenFlags, Read, Release, SetAttr, Write};
use outrigger_core::{Cx, Handle, LockOwner, Node, Payload, Request, Result, Service, SetAttrs, ask};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much former content is remembered, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// How much is read and written at once, in bytes.
const PIECE: u32 = 128 << 10;

/// Former content.
#[derive(Default)]
pub(crate) struct Undo(Mutex<Log>);

#[derive(Default)]
struct Log {
    changes: VecDeque<Former>,
    bytes: usize,
    /// The number of the next change.
    next: u64,
}

/// What a change replaced.
struct Former {
    number: u64,
    node: Node,
    size: u64,
    offset: u64,
    content: Vec<Bytes>,
}

/// The file and the range of it that a request changes; no length for all that follows.
fn change(request: &Request) -> Option<(Node, u64, Option<u64>)> {
    match request {
        Request::Write(write) => Some((write.node, write.offset, Some(write.data.len() as u64))),
        Request::CopyRange(copy) => Some((copy.to_node, copy.to_offset, Some(copy.len))),
        Request::SetAttr(set) => Some((set.node, set.attrs.size?, None)),
        Request::Open(open) if open.flags.contains(OpenFlags::TRUNC) => Some((open.node, 0, None)),
        Request::Fallocate(allocate) if allocate.mode == FallocateMode::empty() => {
            Some((allocate.node, allocate.offset, Some(0)))
        }
        Request::Fallocate(allocate) => Some((allocate.node, allocate.offset, None)),
        _ => None,
    }
}

/// Whether `request` changes content.
pub(crate) fn changes(request: &Request) -> bool {
    change(request).is_some()
}

impl Undo {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what `request` is about to replace. What cannot be read is not remembered.
    pub(crate) async fn note(&self, next: &Arc<dyn Service>, cx: &Cx, request: &Request) {
        let Some((node, offset, len)) = change(request) else { return };
        let Ok((size, content)) = former(next, cx, node, offset, len).await else { return };
        let mut log = self.lock();
        log.bytes += content.iter().map(Bytes::len).sum::<usize>();
        let number = log.next;
        log.next += 1;
        log.changes.push_back(Former { number, node, size, offset, content });
        while log.bytes > BYTES_MAX
            && let Some(oldest) = log.changes.pop_front()
        {
            log.bytes -= oldest.content.iter().map(Bytes::len).sum::<usize>();
        }
    }

    /// The number of the next change.
    pub(crate) fn mark(&self) -> u64 {
        self.lock().next
    }

    /// The changes before `mark` are on stable storage: those of `node`, or all.
    pub(crate) fn synced(&self, node: Option<Node>, mark: u64) {
        let mut log = self.lock();
        log.changes.retain(|former| former.number >= mark || node.is_some_and(|node| node != former.node));
        log.bytes = log.changes.iter().flat_map(|former| &former.content).map(Bytes::len).sum();
    }

    /// Puts back what was there before the changes that are remembered. Files that are gone stay so.
    pub(crate) async fn undo(&self, next: &Arc<dyn Service>, cx: &Cx) {
        let changes = std::mem::take(&mut *self.lock()).changes;
        for former in changes.into_iter().rev() {
            let node = former.node;
            if let Err(error) = put_back(next, cx, former).await {
                tracing::warn!(%error, node = node.0, "a file keeps what a power cut would have taken");
            }
        }
    }
}

/// The size of a file, and its content in a range.
async fn former(
    next: &Arc<dyn Service>,
    cx: &Cx,
    node: Node,
    offset: u64,
    len: Option<u64>,
) -> Result<(u64, Vec<Bytes>)> {
    let size = ask(&**next, cx, GetAttr { node, handle: None }).await?.attr.size;
    let end = len.map_or(size, |len| size.min(offset.saturating_add(len)));
    let mut content = Vec::new();
    if offset >= end {
        return Ok((size, content));
    }
    let flags = OpenFlags::empty();
    let handle = ask(&**next, cx, Open { node, flags }).await?.handle;
    let mut at = offset;
    while at < end && at - offset < BYTES_MAX as u64 {
        let len = (end - at).min(PIECE.into()) as u32;
        let read =
            ask(&**next, cx, Read { node, handle, offset: at, len }).await.and_then(Payload::into_bytes);
        let Some(bytes) = read.ok().filter(|bytes| !bytes.is_empty()) else { break };
        at += bytes.len() as u64;
        content.push(bytes);
    }
    close(next, cx, node, handle, flags).await;
    Ok((size, content))
}

async fn put_back(next: &Arc<dyn Service>, cx: &Cx, former: Former) -> Result<()> {
    let Former { node, size, offset, content, .. } = former;
    let flags = OpenFlags::WRITE_ONLY;
    let handle = ask(&**next, cx, Open { node, flags }).await?.handle;
    let done = async {
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        ask(&**next, cx, SetAttr { node, handle: Some(handle), attrs }).await?;
        let mut at = offset;
        for piece in content {
            let (len, data) = (piece.len() as u64, Payload::Bytes(piece));
            ask(&**next, cx, Write { node, handle, offset: at, data, cached: false, kill_setid: false })
                .await?;
            at += len;
        }
        ask(&**next, cx, FSync { node, handle, data_only: false }).await
    };
    let done = done.await;
    close(next, cx, node, handle, flags).await;
    done
}

async fn close(next: &Arc<dyn Service>, cx: &Cx, node: Node, handle: Handle, flags: OpenFlags) {
    let release = Release { node, handle, flags, owner: LockOwner(0), flock_release: false };
    // A file that was only looked at has nothing left to say.
    let _ = ask(&**next, cx, release).await;
}
