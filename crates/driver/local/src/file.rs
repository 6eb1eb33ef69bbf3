// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files.

use crate::attr::failed;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, Payload, ReadAt, Result};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pread, pwrite, pwritev2};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A file some client has open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The host's file. Never `O_APPEND`: a write from the kernel's cache must land where it says.
    pub(crate) fd: Arc<OwnedFd>,
    flags: OpenFlags,
}

impl OpenFile {
    /// `fd`, opened as [`host_flags`] of `flags` says.
    pub(crate) fn new(fd: OwnedFd, flags: OpenFlags) -> Self {
        OpenFile { fd: Arc::new(fd), flags }
    }

    /// What it was opened with.
    pub(crate) fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Whether reads are allowed.
    pub(crate) fn reads(&self) -> bool {
        self.flags.reads()
    }

    /// Whether writes are allowed.
    pub(crate) fn writes(&self) -> bool {
        self.flags.writes()
    }

    /// Whether writes go to the end.
    pub(crate) fn appends(&self) -> bool {
        self.flags.contains(OpenFlags::APPEND)
    }

    /// Writes all of `data` at `offset`, or at the end. Fewer bytes only when an error struck after some were written.
    pub(crate) fn write(&self, offset: u64, data: Payload, at_end: bool) -> Result<u64> {
        let chunks = match data {
            Payload::Chunks(chunks) => chunks,
            data => vec![data.into_bytes()?],
        };
        let mut written = 0;
        for chunk in &chunks {
            let mut rest = &chunk[..];
            while !rest.is_empty() {
                match self.write_some(offset + written, rest, at_end) {
                    Ok(0) => return Ok(written),
                    Ok(count) => {
                        written += count as u64;
                        rest = &rest[count..];
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(errno) if written == 0 => return Err(failed(errno)),
                    Err(_) => return Ok(written),
                }
            }
        }
        Ok(written)
    }

    fn write_some(&self, offset: u64, data: &[u8], at_end: bool) -> Result<usize, rustix::io::Errno> {
        if at_end {
            pwritev2(&self.fd, &[IoSlice::new(data)], offset, ReadWriteFlags::APPEND)
        } else {
            pwrite(&self.fd, data, offset)
        }
    }
}

impl ReadAt for OpenFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        loop {
            match pread(&self.fd, &mut *buf, offset) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.map_err(failed),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// The full form of `O_SYNC`, `O_DSYNC` included, in Linux's generic ABI.
const SYNC: OpenFlags = OpenFlags::from_bits_retain(0o4010000);

/// The flags for openat(2) that `flags` means on the host.
///
/// `APPEND` is done per write, `DIRECT` would demand aligned buffers of every door, and `EXCL` belongs to creation.
pub(crate) fn host_flags(flags: OpenFlags) -> OFlags {
    let access = match (flags.reads(), flags.writes()) {
        (true, true) => OFlags::RDWR,
        (false, _) => OFlags::WRONLY,
        (true, false) => OFlags::RDONLY,
    };
    let mut host = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
    host.set(OFlags::TRUNC, flags.contains(OpenFlags::TRUNC));
    host.set(OFlags::NOATIME, flags.contains(OpenFlags::NOATIME));
    if flags.contains(SYNC) {
        host |= OFlags::SYNC;
    } else if flags.contains(OpenFlags::DSYNC) {
        host |= OFlags::DSYNC;
    }
    host
}

/// An offset the host can express.
///
/// # Errors
/// `EINVAL` beyond 2^63 - 1.
pub(crate) fn checked_offset(offset: u64) -> Result<u64, Error> {
    if i64::try_from(offset).is_ok() {
        Ok(offset)
    } else {
        Err(Errno::EINVAL.because(format!("offset {offset} is beyond what the host can express")))
    }
}
