// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies from one open file to another one.

use crate::fault::Fault;
use crate::files::{After, For, OpenFile, write_range};
use crate::inner::Inner;
use crate::link::Again;
use crate::read::read_range;
use crate::slots::Held;
use outrigger_core::ops::{CopyRange, OpenFlags};
use outrigger_core::reply::Count;
use outrigger_core::{Errno, Payload, Result};
use outrigger_proto_sftp::{Request, StatusCode};
use outrigger_toolkit_remote::Attempt;
use outrigger_toolkit_remote::known::Change;
use std::sync::Arc;

/// The longest piece of a copy that a server is asked for at once, in bytes: it does nothing else meanwhile.
const COPY_MAX: u64 = 16 << 20;
/// The longest piece of a copy that passes through this side, in bytes.
const THROUGH_MAX: u64 = 1 << 20;

impl Inner {
    /// Copies within the server, as much at once as it can do in short time; through this side where it refuses.
    pub(crate) async fn copy(&self, op: CopyRange) -> Result<Count> {
        let (from, to) = (self.files.get(op.handle)?, self.files.get(op.to_handle)?);
        if !to.flags.writes() || to.flags.contains(OpenFlags::APPEND) {
            return Err(Errno::EBADF.because("the file is not open for writing at a place"));
        }
        self.until_made(&from).await?;
        let within = from.node == to.node;
        if within && op.offset.abs_diff(op.to_offset) < op.len {
            return Err(Errno::EINVAL.because("the ranges overlap"));
        }
        let copied = match within {
            true => self.copy_through(&from, &to, &op).await,
            false => match self.copy_there(&from, &to, &op).await {
                // OpenSSH's does not copy between files that it opened by one name, though they may be two by now.
                Err(fault) if fault.code() == Some(StatusCode::Failure) => {
                    self.copy_through(&from, &to, &op).await
                }
                copied => copied,
            },
        };
        self.explained_by(copied, to.node, |path| Attempt::Write { path }).await.map(Count)
    }

    /// Has the server copy from one file to another one.
    async fn copy_there(&self, from: &OpenFile, to: &OpenFile, op: &CopyRange) -> Result<u64, Fault> {
        let change = Change::Write { offset: op.to_offset, len: op.len.min(COPY_MAX) };
        let change = self.begin_by(to, For::Writing, change).await?;
        let copied = self.with_handle(to, For::Writing, Again::IfServerExited, |target| async move {
            let source = self.handle_for(from, For::Reading).await?;
            let len = op.len.min(COPY_MAX);
            let copied = copy_range(&source, op.offset, &target, op.to_offset, len).await?;
            self.note_unsynced(to.node, &target.session);
            Ok(copied)
        });
        copied.await.inspect(|&count| change.done(count))
    }

    /// Reads what is to be copied, and writes it.
    async fn copy_through(&self, from: &OpenFile, to: &OpenFile, op: &CopyRange) -> Result<u64, Fault> {
        let len = op.len.min(THROUGH_MAX) as usize;
        let read = |held: Arc<Held>| async move { read_range(&held, op.offset, len).await };
        let content = self.with_handle(from, For::Reading, Again::Always, read).await?;
        let content = Payload::Chunks(content).into_bytes()?;
        if content.is_empty() {
            return Ok(0);
        }
        let write = |target: Arc<Held>| {
            let content = content.clone();
            async move {
                let nothing = After { sync: false, clear: false };
                let written = write_range(Arc::clone(&target), op.to_offset, content, nothing, || ()).await?;
                self.note_unsynced(to.node, &target.session);
                Ok(written)
            }
        };
        let change = Change::Write { offset: op.to_offset, len: content.len() as u64 };
        let change = self.begin_by(to, For::Writing, change).await?;
        self.with_handle(to, For::Writing, Again::IfServerExited, write)
            .await
            .inspect(|&count| change.done(count))
    }
}

async fn copy_range(
    source: &Held,
    offset: u64,
    target: &Held,
    to_offset: u64,
    len: u64,
) -> Result<u64, Fault> {
    let session = &target.session;
    if session.epoch != source.session.epoch {
        // The source was opened on a connection that is gone.
        return Err(Fault::Lost(outrigger_mux::Error::Lost { why: "it was made anew".into(), sent: false }));
    }
    // The server does not say how much it has copied, so it must not reach the end.
    let size = session.begin(&Request::FStat { handle: &source.handle }).await.attrs().await?.size;
    let len = len.min(size.unwrap_or(0).saturating_sub(offset));
    if len == 0 {
        return Ok(0);
    }
    let (from, to) = (&source.handle[..], &target.handle[..]);
    session.begin(&Request::CopyData { from, offset, len, to, to_offset }).await.done().await?;
    Ok(len)
}
