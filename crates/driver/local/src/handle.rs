// SPDX-License-Identifier: MIT OR Apache-2.0
//! File handles: what a host file system needs to find an inode again, also after a restart. And listxattrat(2), unshare(2).
//!
//! With `fileattr` the only file of the crate with `unsafe`: no maintained crate offers these calls as safe functions (see
//! `docs/design/0001-file-handles.md`).
#![allow(unsafe_code)]

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The most words a handle has: `MAX_HANDLE_SZ` of `<fcntl.h>` is 128 bytes.
const WORDS_MAX: usize = 32;

/// A handle as the kernel lays it out: `struct file_handle` of `<fcntl.h>` with room for the longest one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHandle {
    bytes: u32,
    kind: i32,
    words: [u32; WORDS_MAX],
}

/// The number of listxattrat(2) in the table nearly all machines share; the others know no call of this number.
const SYS_LISTXATTRAT: libc::c_long = 465;

/// Identifies a mount while it exists; what name_to_handle_at(2) reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountId(i32);

/// Gives this thread a umask, and a working directory, of its own.
///
/// # Errors
/// Those of unshare(2).
pub(crate) fn unshare_umask() -> Result<(), Errno> {
    // SAFETY: descriptors stay shared, which is what would make the call unsound.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
}

/// How often a handle is tried again while the kernel says `ENOMEM`: it also does while it is giving the inode number of
/// a removed file to a new one (iget_locked answers nothing for an inode that is being created).
const BEING_MADE: usize = 100;

impl FileHandle {
    /// A handle of the file system's type `kind` with this content; at most 32 words are kept.
    #[cfg(test)]
    pub(crate) fn new(kind: i32, content: &[u32]) -> Self {
        let len = content.len().min(WORDS_MAX);
        let mut words = [0; WORDS_MAX];
        words[..len].copy_from_slice(&content[..len]);
        FileHandle { bytes: (len * 4) as u32, kind, words }
    }

    /// The handle and the mount of `name` in `dir`, or of `dir` itself when `name` is empty. Follows no symbolic link.
    ///
    /// # Errors
    /// Those of name_to_handle_at(2); `EOPNOTSUPP` where the file system has no handles.
    pub(crate) fn of(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<(Self, MountId)> {
        let mut handle = FileHandle { bytes: (WORDS_MAX * 4) as u32, kind: 0, words: [0; WORDS_MAX] };
        let mut mount = 0;
        let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
        // SAFETY: `name` ends in NUL. `handle` has the layout of `struct file_handle` followed by as many bytes as
        // its first field says, so the kernel writes inside it; `mount` is an int it may write.
        let status = unsafe {
            let raw = (&raw mut handle).cast::<libc::file_handle>();
            libc::name_to_handle_at(dir.as_raw_fd(), name.as_ptr(), raw, &raw mut mount, flags)
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok((handle, MountId(mount))) }
    }

    /// Opens the file on the file system of `mount`, which must not be an `O_PATH` descriptor.
    ///
    /// # Errors
    /// Those of open_by_handle_at(2): `ESTALE` when the file is gone, `EPERM` without `CAP_DAC_READ_SEARCH`.
    pub(crate) fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
        for _ in 0..BEING_MADE {
            match self.try_open(mount, flags) {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => std::thread::yield_now(),
                result => return result,
            }
        }
        self.try_open(mount, flags)
    }

    fn try_open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
        let mut handle = *self;
        let flags = (flags | OFlags::CLOEXEC).bits() as libc::c_int;
        // SAFETY: `handle` has the layout of `struct file_handle`, and `bytes` never exceeds its room: the
        // kernel filled it in.
        let fd = unsafe {
            let raw = (&raw mut handle).cast::<libc::file_handle>();
            libc::open_by_handle_at(mount.as_raw_fd(), raw, flags)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor for us; nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The type the file system gave it; its meaning is the file system's.
    pub(crate) fn kind(&self) -> i32 {
        self.kind
    }

    /// Replaces one word of the content.
    pub(crate) fn set(&mut self, at: usize, word: u32) {
        self.words[at] = word;
    }

    /// The content.
    pub(crate) fn words(&self) -> &[u32] {
        let len = (self.bytes as usize / 4).min(WORDS_MAX);
        &self.words[..len]
    }
}

/// The names of the extended attributes of what is called `name` in `dir`, a symbolic link included: each ends in NUL.
/// Answers how many bytes of `buffer` they took.
///
/// # Errors
/// Those of listxattrat(2): `ERANGE` when `buffer` is too small, `ENOSYS` before Linux 6.13.
pub(crate) fn list_xattr_at(dir: BorrowedFd<'_>, name: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: `name` ends in NUL, and the kernel writes at most `buffer.len()` bytes to `buffer`.
    let len = unsafe {
        let (path, flags) = (name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        libc::syscall(SYS_LISTXATTRAT, dir.as_raw_fd(), path, flags, buffer.as_mut_ptr(), buffer.len())
    };
    usize::try_from(len).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
