// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open handles without a table: the handle is the flags that later requests need.
//!
//! Handle 0 belongs to a door that does not open files (`stateless_files`); it may do everything.

use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Handle, Result};

/// Set in every handle that came from an open.
const OPENED: u64 = 1 << 32;

const KEPT: OpenFlags =
    OpenFlags::WRITE_ONLY.union(OpenFlags::READ_WRITE).union(OpenFlags::APPEND).union(OpenFlags::NOATIME);

/// The handle of a file opened with `flags`.
pub(crate) fn of(flags: OpenFlags) -> Handle {
    Handle(OPENED | u64::from(flags.intersection(KEPT).bits()))
}

fn flags(handle: Handle) -> Option<OpenFlags> {
    (handle.0 & OPENED != 0).then(|| OpenFlags::from_bits_retain(handle.0 as u32))
}

/// Whether reading updates the access time; `EBADF` when the file was not opened for reading.
pub(crate) fn check_read(handle: Handle) -> Result<bool> {
    match flags(handle) {
        Some(flags) if !flags.reads() => Err(Errno::EBADF.because("not opened for reading")),
        Some(flags) => Ok(!flags.contains(OpenFlags::NOATIME)),
        None => Ok(true),
    }
}

/// What a file that is written was opened with; nothing of one that is not open. `EBADF` when it was not opened for writing.
pub(crate) fn check_write(handle: Handle) -> Result<OpenFlags> {
    match flags(handle) {
        Some(flags) if !flags.writes() => Err(Errno::EBADF.because("not opened for writing")),
        flags => Ok(flags.unwrap_or(OpenFlags::empty())),
    }
}
