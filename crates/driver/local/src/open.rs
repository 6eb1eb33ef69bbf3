// SPDX-License-Identifier: MIT OR Apache-2.0
//! What clients have open.

use crate::dir::OpenDir;
use crate::file::OpenFile;
use crate::handles::{Handles, Kept};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Handle, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A file or a directory; their handles come from one table, so that one is never taken for the other.
#[derive(Clone, Debug)]
pub(crate) enum Open {
    /// A regular file.
    File(Arc<OpenFile>),
    /// A directory.
    Dir(Arc<OpenDir>),
}

/// Set in a note for a directory; the low half is the flags a file was opened with.
const DIRECTORY: u64 = 1 << 32;

impl Kept for Open {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Open::File(file) => file.fd.as_fd(),
            Open::Dir(dir) => dir.fd(),
        }
    }

    fn known(&self) -> u64 {
        match self {
            Open::File(file) => file.flags().bits().into(),
            Open::Dir(_) => DIRECTORY,
        }
    }

    fn adopt(fd: OwnedFd, known: u64) -> Self {
        if known & DIRECTORY != 0 {
            Open::Dir(Arc::new(OpenDir::adopt(fd)))
        } else {
            Open::File(Arc::new(OpenFile::new(fd, OpenFlags::from_bits_retain(known as u32))))
        }
    }
}

impl Handles<Open> {
    /// The open file `handle` names.
    ///
    /// # Errors
    /// `EBADF` when it names none.
    pub(crate) fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        match self.get(handle)? {
            Open::File(file) => Ok(file),
            Open::Dir(_) => Err(Errno::EBADF.because(format!("{handle:?} is a directory"))),
        }
    }

    /// The open directory `handle` names.
    ///
    /// # Errors
    /// `EBADF` when it names none.
    pub(crate) fn dir(&self, handle: Handle) -> Result<Arc<OpenDir>> {
        match self.get(handle)? {
            Open::Dir(dir) => Ok(dir),
            Open::File(_) => Err(Errno::EBADF.because(format!("{handle:?} is no directory"))),
        }
    }
}
