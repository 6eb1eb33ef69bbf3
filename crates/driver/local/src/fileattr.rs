// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attribute flags of files, as chattr(1) and xfs_io(8) ask for them by ioctl_iflags(2) and ioctl_xfs_fsgetxattr(2).
//!
//! A kernel that sets flags for its client asks for the extended form first, so both are needed.

#![allow(unsafe_code)]

use crate::attr::failed;
use bytes::Bytes;
use outrigger_core::ops::Ioctl;
use outrigger_core::reply::IoctlDone;
use outrigger_core::{Errno, Result};
use rustix::fs::IFlags;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Commands of ioctl(2) from `<linux/fs.h>`; the data of these is an `int` whatever their number says.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// And of these a `struct fsxattr`.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// The size of a `struct fsxattr`, in bytes.
const FSXATTR: usize = 28;

/// Asks the host for flags of the open file, or sets them.
///
/// # Errors
/// `ENOTTY` for any other command; what the host says.
pub(crate) fn ioctl(fd: BorrowedFd<'_>, op: &Ioctl) -> Result<IoctlDone> {
    let done = |output: &[u8]| Ok(IoctlDone { result: 0, output: Bytes::copy_from_slice(output) });
    match op.command {
        FS_IOC_GETFLAGS if op.output_size >= 4 => {
            let flags = rustix::fs::ioctl_getflags(fd).map_err(failed)?;
            done(&flags.bits().to_ne_bytes())
        }
        FS_IOC_SETFLAGS => {
            let flags = op.input.first_chunk::<4>().ok_or(Errno::EINVAL)?;
            let flags = IFlags::from_bits_retain(u32::from_ne_bytes(*flags));
            rustix::fs::ioctl_setflags(fd, flags).map_err(failed)?;
            done(&[])
        }
        FS_IOC_FSGETXATTR if op.output_size as usize >= FSXATTR => {
            let mut attributes = [0; FSXATTR];
            exchange(fd, FS_IOC_FSGETXATTR, &mut attributes)?;
            done(&attributes)
        }
        FS_IOC_FSSETXATTR => {
            let mut attributes = *op.input.first_chunk::<FSXATTR>().ok_or(Errno::EINVAL)?;
            exchange(fd, FS_IOC_FSSETXATTR, &mut attributes)?;
            done(&[])
        }
        _ => Err(Errno::ENOTTY.into()),
    }
}

/// One of the commands whose data is a `struct fsxattr`.
fn exchange(fd: BorrowedFd<'_>, command: u32, attributes: &mut [u8; FSXATTR]) -> Result<()> {
    // SAFETY: both commands read or write FSXATTR bytes there, without regard to alignment, and keep no pointer.
    match unsafe { libc::ioctl(fd.as_raw_fd(), command.into(), attributes.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}
