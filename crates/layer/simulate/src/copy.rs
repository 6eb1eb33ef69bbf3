// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copying a range through reads and writes.

use crate::Below;
use outrigger_core::ops::{CopyRange, GetAttr, Read, Write};
use outrigger_core::reply::Count;
use outrigger_core::{Errno, Payload, Result, ask};

/// The most bytes one request copies; the caller asks again for the rest (see copy_file_range(2)).
const MOST: u64 = 64 << 20;
/// The most bytes one step copies.
const STEP: u64 = 1 << 20;

impl Below<'_> {
    pub(crate) async fn copy_range(&self, op: CopyRange) -> Result<Count> {
        let mut len = op.len.min(MOST);
        if op.offset.checked_add(len).is_none() || op.to_offset.checked_add(len).is_none() {
            return Err(Errno::EOVERFLOW.into());
        }
        if op.node == op.to_node {
            len = len.min(self.rest(&op).await);
            if op.offset < op.to_offset + len && op.to_offset < op.offset + len {
                return Err(Errno::EINVAL.because("the ranges to copy between overlap"));
            }
        }
        let step = u64::from(self.next.abilities().max_io.max(1)).min(STEP);
        let mut done = 0;
        while done < len {
            match self.copy_step(&op, done, step.min(len - done)).await {
                Ok(0) => break,
                Ok(count) => done += count,
                // What was copied cannot be reported together with an error, and the next call meets the error again.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Count(done))
    }

    /// How much of the source there is: Linux looks for an overlap within the file only. All when its size is unknown.
    async fn rest(&self, op: &CopyRange) -> u64 {
        let get = GetAttr { node: op.node, handle: Some(op.handle) };
        let known = ask(self.next, self.cx, get).await;
        known.map_or(u64::MAX, |known| known.attr.size.saturating_sub(op.offset))
    }

    /// Copies up to `len` bytes, `done` bytes into the ranges; 0 at the end of the source.
    async fn copy_step(&self, op: &CopyRange, done: u64, len: u64) -> Result<u64> {
        if self.cx.cancel.is_raised() {
            return Err(Errno::EINTR.into());
        }
        let (node, handle, offset) = (op.node, op.handle, op.offset + done);
        let read = Read { node, handle, offset, len: len as u32 };
        // A slice of the very file that is written would be read while it changes.
        let data = ask(self.next, self.cx, read).await?.into_bytes()?;
        if data.is_empty() {
            return Ok(0);
        }
        let (node, handle, offset) = (op.to_node, op.to_handle, op.to_offset + done);
        // As Linux does for callers without CAP_FSETID.
        let kill_setid = self.cx.cred.uid != 0;
        let write = Write { node, handle, offset, data: Payload::Bytes(data), cached: false, kill_setid };
        Ok(ask(self.next, self.cx, write).await?.0)
    }
}
