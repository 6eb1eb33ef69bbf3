// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listener of the filter: system calls that wait, the memory of their callers, and answers (seccomp_unotify(2)).
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// What a waiting system call gets.
#[derive(Debug)]
pub enum Answer {
    /// The kernel does it, as without a filter.
    Pass,
    /// It succeeds with 0; nothing happens.
    Done,
    /// It fails with this errno.
    Fail(i32),
    /// It gives a new descriptor, a copy of this one.
    Open(OwnedFd, DescriptorFlags),
}

/// `O_CLOEXEC` or 0.
pub type DescriptorFlags = u32;

/// A system call that waits for an answer.
pub struct Waiting<'a> {
    listener: &'a Listener,
    id: u64,
    /// Number of the system call.
    pub call: libc::c_long,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The thread that called, in our process-id namespace.
    pub thread: u32,
}

/// The descriptor that reports system calls.
pub struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    pub fn new(descriptor: OwnedFd) -> Self {
        /// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: the woken thread runs on the same processor at once (Linux 6.6).
        const WAKE_HERE: u64 = 1;
        let request = libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS;
        // SAFETY: the argument is a number. Older kernels refuse the request, which changes nothing but speed.
        unsafe { libc::ioctl(descriptor.as_raw_fd(), request, WAKE_HERE) };
        Self(descriptor)
    }

    /// The next system call, or `None` when its caller was killed in the meantime. Blocks when none waits.
    pub fn receive(&self) -> io::Result<Option<Waiting<'_>>> {
        // SAFETY: all zeros is a value of this structure of integers, and the one the kernel demands.
        let mut told: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut told) {
            Ok(_) => Ok(Some(Waiting {
                listener: self,
                id: told.id,
                call: told.data.nr.into(),
                arguments: told.data.args,
                thread: told.pid,
            })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<i32> {
        // SAFETY: every caller passes the structure that the request is defined for, alive during the call.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut *argument) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }
}

impl Waiting<'_> {
    /// The string at this address of the caller, without its end mark; `None` for a null pointer. Reads `limit` bytes
    /// at most.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a longer string; `EFAULT`, `EPERM`, `ESRCH` of process_vm_readv(2).
    pub fn string(&self, address: u64, limit: usize) -> io::Result<Option<OsString>> {
        const PAGE: usize = 4096;
        if address == 0 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        while bytes.len() < limit {
            let at = address.wrapping_add(bytes.len() as u64);
            // Within a page, so that memory after the string need not exist.
            let chunk = (PAGE - at as usize % PAGE).min(limit - bytes.len());
            let start = bytes.len();
            bytes.resize(start + chunk, 0);
            self.read(at, &mut bytes[start..])?;
            if let Some(end) = bytes[start..].iter().position(|byte| *byte == 0) {
                bytes.truncate(start + end);
                return Ok(Some(OsStr::from_bytes(&bytes).to_owned()));
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
    }

    /// A number at this address of the caller.
    pub fn number<const N: usize>(&self, address: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills the buffer from the memory of the caller.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let ours = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let theirs = libc::iovec { iov_base: address as *mut _, iov_len: buffer.len() };
        // SAFETY: the kernel writes within `buffer` only; the other address is checked by the kernel.
        let read = unsafe {
            libc::process_vm_readv(self.thread as i32, &raw const ours, 1, &raw const theirs, 1, 0)
        };
        match usize::try_from(read) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(read) if read < buffer.len() => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(_) => Ok(()),
        }
    }

    /// Whether the caller still waits. What was read from its memory or from `/proc` before is then its own, and not
    /// that of another process that got its number.
    pub fn is_valid(&self) -> bool {
        self.listener.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut self.id.clone()).is_ok()
    }

    /// Puts a copy of `source` into the caller's table of descriptors, in place of its descriptor `number`.
    pub fn replace(&self, source: BorrowedFd<'_>, number: u32, flags: DescriptorFlags) -> io::Result<()> {
        self.add(source, libc::SECCOMP_ADDFD_FLAG_SETFD, number, flags)
    }

    /// Answers the call.
    ///
    /// # Errors
    /// `ENOENT` when the caller does not wait any more: it was killed or interrupted, and the answer had no effect.
    pub fn answer(&self, answer: Answer) -> io::Result<()> {
        let (error, flags) = match answer {
            Answer::Pass => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Done => (0, 0),
            Answer::Fail(errno) => (-errno, 0),
            Answer::Open(source, flags) => {
                return self.add(source.as_fd(), libc::SECCOMP_ADDFD_FLAG_SEND, 0, flags);
            }
        };
        let mut response = libc::seccomp_notif_resp { id: self.id, val: 0, error, flags };
        self.listener.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut response).map(drop)
    }

    fn add(
        &self,
        source: BorrowedFd<'_>,
        flags: libc::c_ulong,
        newfd: u32,
        newfd_flags: u32,
    ) -> io::Result<()> {
        let mut added = libc::seccomp_notif_addfd {
            id: self.id,
            flags: flags as u32,
            srcfd: source.as_raw_fd() as u32,
            newfd,
            newfd_flags,
        };
        self.listener.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut added).map(drop)
    }
}
