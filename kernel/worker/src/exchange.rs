// SPDX-License-Identifier: GPL-2.0-only
//! Content that moves between files of the tree and of the host, whose descriptor comes with the request.

use crate::task::{Fd, Task};
use crate::tree::{Tree, checked};
use outrigger_core::reply::Count;
use outrigger_core::{Credentials, Exchange, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// How much is moved at once between files of the tree and of the host, in bytes: it stays in the processor's cache.
const MOVED: usize = 256 << 10;

impl Tree {
    /// Moves content between an open file and one of the host. It does not stay in memory: of much content nothing is asked
    /// for again, and what is written may go to the disk at once.
    pub fn exchange(&self, task: &Task, cred: &Credentials, op: &Exchange, host: &File) -> Result<Count> {
        let fd = self.file(op.handle, Ok)?;
        let (start, _) = (checked(op.offset)?, checked(op.host_offset.saturating_add(op.len))?);
        let cred = if op.inward { cred } else { &Credentials::ROOT };
        let done = task.change_as(cred, false, || {
            let (mut buffer, mut done) = (vec![0; MOVED], 0);
            while done < op.len {
                let piece = buffer.len().min(usize::try_from(op.len - done).unwrap_or(MOVED));
                let place = (start + done, op.host_offset + done);
                match exchange_piece(task, (fd, host), place, &mut buffer[..piece], op.inward) {
                    Ok(0) => break,
                    Ok(count) => done += count as u64,
                    Err(error) if done == 0 => return Err(error),
                    // What was moved counts; the error comes back with the next piece.
                    Err(_) => break,
                }
            }
            Ok(done)
        })?;
        if done > 0 {
            task.drop_content(fd, start, done);
        }
        Ok(Count(done))
    }
}

/// Moves as much as fits the buffer between a file and one of the host, each from a place on. None at the end.
fn exchange_piece(
    task: &Task,
    (fd, host): (Fd, &File),
    (offset, host_offset): (u64, u64),
    buffer: &mut [u8],
    inward: bool,
) -> Result<usize> {
    if !inward {
        let count = task.read(fd, buffer, offset)?;
        host.write_all_at(&buffer[..count], host_offset)?;
        return Ok(count);
    }
    let count = host.read_at(buffer, host_offset)?;
    let mut done = 0;
    while done < count {
        match task.write(fd, &buffer[done..count], offset + done as u64) {
            Ok(0) => break,
            Ok(some) => done += some,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
