// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who else uses an image.
//!
//! Two kinds of locks keep writers apart: flock(2) among ourselves and mount(8), and ranges of bytes among virtual machines
//! (QEMU, `raw_apply_lock_bytes` in `block/file-posix.c`). There, one byte stands for each way to use an image, and another
//! one for not letting others use it that way; a process that does either holds a shared lock on it. All locks belong to the
//! open file: they last until they are given back or the last process that has it ends.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, flock};
use outrigger_core::{Errno, Error, Result};
use outrigger_host::locked_by;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};

/// The first byte of those for uses, and of those for uses that others are not to have.
const USED: i64 = 100;
const FORBIDDEN: i64 = 200;
/// Uses, as places among these bytes.
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// An open image, which is given back when this is dropped.
pub(crate) struct Held(File);

impl Held {
    /// Locks an image for reading, or for reading and writing.
    ///
    /// # Errors
    /// `EBUSY` with who uses it in a way that excludes this.
    pub(crate) fn locked(file: File, writable: bool) -> Result<Self> {
        let held = Held(file);
        let operation = match writable {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        match rustix::fs::flock(&held.0, operation) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let who = locked_by(held.0.as_fd()).map(|who| format!(" ({who})")).unwrap_or_default();
                let why = format!(
                    "another process uses this image{who}; it can be read meanwhile where all use it read-only (--opt ro, mount: -o ro)"
                );
                return Err(Errno::EBUSY.because(why));
            }
            Err(errno) => return Err(Errno(errno.raw_os_error()).into()),
        }
        lock_out_machines(&held.0, writable)?;
        Ok(held)
    }

    /// Has the host hold up every process that opens the file, until this is given up or the file is closed, and at most for
    /// `/proc/sys/fs/lease-break-time` (45 s unless set otherwise). This process gets `SIGIO` when one does.
    ///
    /// # Errors
    /// Those of `F_SETLEASE` in fcntl(2): `EAGAIN` while another process has the file open, `EACCES` for another user's
    /// file, `EINVAL` for what is no regular file or on a file system without leases.
    pub(crate) fn reserve(&self) -> Result<()> {
        self.lease(libc::F_WRLCK)
    }

    /// Ends [`Held::reserve`].
    pub(crate) fn release(&self) {
        // Without a lease there is nothing to end.
        let _ = self.lease(libc::F_UNLCK);
    }

    #[allow(unsafe_code, reason = "no safe wrapper of F_SETLEASE")]
    fn lease(&self, kind: libc::c_int) -> Result<()> {
        // SAFETY: a plain system call on a descriptor that `self` keeps open.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, kind) } {
            -1 => Err(std::io::Error::last_os_error().into()),
            _ => Ok(()),
        }
    }

    /// An image that is looked at, even while others use it.
    pub(crate) fn shared(file: File) -> Self {
        Held(file)
    }
}

impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A process that is just being started may have the file for another moment, and locks must not wait for it. There
        // is nothing to be done about one that stays locked until that process ends.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
        let all = flock { l_len: 0, ..range(libc::F_UNLCK, USED) };
        let _ = fcntl(&self.0, FcntlArg::F_OFD_SETLK(&all));
    }
}

fn lock_out_machines(file: &File, writable: bool) -> Result<()> {
    let uses: &[i64] = if writable { &[READ, WRITE] } else { &[READ] };
    for byte in uses.iter().map(|way| USED + way).chain([FORBIDDEN + WRITE, FORBIDDEN + RESIZE]) {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, byte))) {
            Ok(_) => {}
            // Somebody is just looking at these bytes.
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => return Err(in_a_machine()),
            // A file system without such locks; no machine has any there either.
            Err(_) => return Ok(()),
        }
    }
    for byte in uses.iter().map(|way| FORBIDDEN + way).chain([USED + WRITE, USED + RESIZE]) {
        let mut found = range(libc::F_WRLCK, byte);
        let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut found));
        if asked.is_ok() && i32::from(found.l_type) != libc::F_UNLCK {
            return Err(in_a_machine());
        }
    }
    Ok(())
}

fn range(kind: i32, byte: i64) -> flock {
    flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: byte, l_len: 1, l_pid: 0 }
}

fn in_a_machine() -> Error {
    Errno::EBUSY.because("a virtual machine (QEMU) uses this image: what it writes and what is read here would not fit together")
}
