// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies with content of an open file.
//!
//! Large pieces go from the page cache of that file to the kernel's request through a pipe, so that they never enter
//! our memory. Small ones, and whatever cannot be spliced, are read into a buffer.
use crate::device::Device;
use outrigger_core::{Errno, Error, FileSlice};
use outrigger_proto_fuse::OutHeader;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Pieces below this many bytes are cheaper to copy than to splice.
const SPLICE_FROM: u32 = 128 << 10;
/// A pipe holds this many bytes in each of its buffers.
const PAGE: usize = 4096;

/// How one thread sends content of files; pipe and buffer are made when first needed and used again.
#[derive(Default)]
pub(crate) struct FileSender {
    pipe: Option<Pipe>,
    buffer: Vec<u8>,
    /// Splicing is not wanted or was refused.
    copy_only: bool,
}

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

impl FileSender {
    pub(crate) fn new(splice: bool) -> Self {
        Self { copy_only: !splice, ..Self::default() }
    }

    /// Answers request `unique` with a piece of a file.
    ///
    /// # Errors
    /// What reading the file gave; the request is then still to be answered. What sending gives is in the inner
    /// result.
    pub(crate) fn send(
        &mut self,
        device: &Device,
        unique: u64,
        slice: &FileSlice,
    ) -> Result<std::io::Result<()>, Error> {
        if !self.copy_only
            && slice.len >= SPLICE_FROM
            && let Some(fd) = slice.file.fd()
            && let Some(sent) = self.splice(device, unique, fd, slice)
        {
            return Ok(sent);
        }
        self.copy(device, unique, slice)
    }

    fn copy(
        &mut self,
        device: &Device,
        unique: u64,
        slice: &FileSlice,
    ) -> Result<std::io::Result<()>, Error> {
        let wanted = slice.len as usize;
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        let mut have = 0;
        while have < wanted {
            match slice.file.read_at(slice.offset + have as u64, &mut self.buffer[have..wanted]) {
                Ok(0) => break,
                Ok(count) => have += count,
                Err(error) if error.errno == Errno::EINTR => {}
                Err(error) => return Err(error),
            }
        }
        let head = OutHeader::ok(unique, have).encode();
        Ok(device.send(&[IoSlice::new(&head), IoSlice::new(&self.buffer[..have])]))
    }

    /// `None` when it did not work and nothing was sent.
    fn splice(
        &mut self,
        device: &Device,
        unique: u64,
        file: BorrowedFd<'_>,
        slice: &FileSlice,
    ) -> Option<std::io::Result<()>> {
        let wanted = slice.len as usize;
        // The reply's header takes a buffer of the pipe, content that does not start on a page boundary one more.
        let need = wanted + 2 * PAGE;
        if self.pipe.as_ref().is_none_or(|pipe| pipe.size < need) {
            self.pipe = Pipe::new(need);
            self.copy_only = self.pipe.is_none();
        }
        let pipe = self.pipe.take()?;
        // The header comes first and must know the length: exact unless the file ends earlier.
        let head = OutHeader::ok(unique, wanted).encode();
        let filled = rustix::io::write(&pipe.write, &head).is_ok_and(|count| count == head.len())
            && fill(&pipe, file, slice.offset, wanted);
        if !filled {
            // What is in the pipe goes with it; the end of the file is the usual reason.
            return None;
        }
        let total = head.len() + wanted;
        // With SPLICE_F_MOVE the kernel would take pages out of the cache of that file, and complain in its log about those it cannot use.
        let sent = splice(&pipe.read, None, device.as_fd(), None, total, SpliceFlags::empty());
        match sent {
            Ok(count) if count == total => {
                self.pipe = Some(pipe);
                Some(Ok(()))
            }
            Ok(_) => Some(Err(std::io::ErrorKind::WriteZero.into())),
            // The request was interrupted, or the mount has ended.
            Err(errno @ (rustix::io::Errno::NOENT | rustix::io::Errno::NODEV)) => Some(Err(errno.into())),
            Err(_) => {
                self.copy_only = true;
                None
            }
        }
    }
}

/// Moves `wanted` bytes into the pipe; false when there are fewer.
fn fill(pipe: &Pipe, file: BorrowedFd<'_>, offset: u64, wanted: usize) -> bool {
    let mut position = offset;
    let mut left = wanted;
    while left > 0 {
        match splice(file, Some(&mut position), &pipe.write, None, left, SpliceFlags::NONBLOCK) {
            Ok(0) | Err(_) => return false,
            Ok(count) => left -= count.min(left),
        }
    }
    true
}

impl Pipe {
    /// A pipe for `need` bytes; `None` when the system does not allow one so large.
    fn new(need: usize) -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let size = fcntl_setpipe_size(&write, need).ok()?;
        Some(Self { read, write, size })
    }
}
