// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a process whose call waits.

use libc::iovec;
use outrigger_core::{Errno, Result};
use std::io;

/// The longest path with its NUL (`PATH_MAX`).
const PATH: usize = 4096;
/// The size of a page: what begins in one that is there may end in one that is not.
const PAGE: u64 = 4096;

/// The memory of a thread's process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory(pub(crate) i32);

impl Memory {
    /// Reads as many bytes as are there, at most `buffer.len()`.
    fn some(self, address: u64, buffer: &mut [u8]) -> Result<usize> {
        let ours = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let theirs = iovec { iov_base: address as *mut _, iov_len: buffer.len() };
        // SAFETY: the kernel writes to the buffer, which outlives the call, no more than its length; the other address is not ours.
        let count = unsafe { libc::process_vm_readv(self.0, &raw const ours, 1, &raw const theirs, 1, 0) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error().into())
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// `EFAULT` when not all is there.
    pub(crate) fn read<const N: usize>(self, address: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills the buffer.
    ///
    /// # Errors
    /// `EFAULT` when not all is there.
    pub(crate) fn read_into(self, address: u64, buffer: &mut [u8]) -> Result<()> {
        if buffer.is_empty() || self.some(address, buffer)? == buffer.len() {
            Ok(())
        } else {
            Err(Errno::EFAULT.into())
        }
    }

    /// Reads a path, up to its NUL.
    ///
    /// # Errors
    /// `EFAULT`, `ENAMETOOLONG`, or when the process may not be looked at.
    pub(crate) fn path(self, address: u64) -> Result<Vec<u8>> {
        let mut path = Vec::with_capacity(256);
        while path.len() < PATH {
            let at = address.wrapping_add(path.len() as u64);
            let piece = (PAGE - at % PAGE).min(256) as usize;
            let before = path.len();
            path.resize(before + piece, 0);
            let count = self.some(at, &mut path[before..])?;
            path.truncate(before + count);
            if let Some(end) = path[before..].iter().position(|&byte| byte == 0) {
                path.truncate(before + end);
                return if path.len() < PATH { Ok(path) } else { Err(Errno::ENAMETOOLONG.into()) };
            }
            if count < piece {
                return Err(Errno::EFAULT.into());
            }
        }
        Err(Errno::ENAMETOOLONG.into())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// `EFAULT` when there is no room for all.
    pub(crate) fn write(self, address: u64, bytes: &[u8]) -> Result<()> {
        let ours = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let theirs = iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: the kernel only reads from our bytes; the other address is not ours.
        let count = unsafe { libc::process_vm_writev(self.0, &raw const ours, 1, &raw const theirs, 1, 0) };
        match usize::try_from(count) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(Errno::EFAULT.into()),
            Err(_) => Err(io::Error::last_os_error().into()),
        }
    }

    /// Writes as much as fits into `size` bytes, and answers how much that is.
    ///
    /// # Errors
    /// `EINVAL` when nothing fits, and `EFAULT`.
    pub(crate) fn cut(self, address: u64, size: u64, bytes: &[u8]) -> Result<i64> {
        // The kernel takes a number of 32 bits, with a sign.
        let size = size as u32 as usize;
        if size == 0 || size > i32::MAX as usize {
            return Err(Errno::EINVAL.into());
        }
        let bytes = &bytes[..bytes.len().min(size)];
        self.write(address, bytes).map(|()| bytes.len() as i64)
    }

    /// Writes all bytes, and answers how many these are; that alone for the size 0.
    ///
    /// # Errors
    /// `ERANGE` when not all fit into `size` bytes, and `EFAULT`.
    pub(crate) fn all(self, address: u64, size: u64, bytes: &[u8]) -> Result<i64> {
        if size > 0 && bytes.len() as u64 > size {
            return Err(Errno::ERANGE.into());
        }
        if size > 0 && !bytes.is_empty() {
            self.write(address, bytes)?;
        }
        Ok(bytes.len() as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ptr;

    #[test]
    fn paths_end_at_their_nul_and_not_at_the_end_of_a_page() {
        let own = Memory(std::process::id() as i32);
        let size = 2 * PAGE as usize;
        // SAFETY: a new mapping, which nothing else uses.
        let pages = unsafe {
            mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let start = pages.unwrap() as u64;
        own.write(start + PAGE - 3, b"/a/path\0").unwrap();
        assert_eq!(own.path(start + PAGE - 3).unwrap(), b"/a/path");
        own.write(start + 2 * PAGE - 3, b"/ab").unwrap();
        // SAFETY: the second page of the mapping, from which nothing is borrowed.
        unsafe { munmap((start + PAGE) as *mut _, PAGE as usize) }.unwrap();
        own.write(start + PAGE - 3, b"/a\0").unwrap();
        assert_eq!(own.path(start + PAGE - 3).unwrap(), b"/a");
        own.write(start + PAGE - 3, b"/ab").unwrap();
        assert_eq!(own.path(start + PAGE - 3).unwrap_err().errno, Errno::EFAULT);
        assert_eq!(own.path(0).unwrap_err().errno, Errno::EFAULT);
    }

    #[test]
    fn what_is_too_long_for_a_path_is_none() {
        let own = Memory(std::process::id() as i32);
        let long = vec![b'x'; 2 * PATH];
        assert_eq!(own.path(long.as_ptr() as u64).unwrap_err().errno, Errno::ENAMETOOLONG);
    }
}
