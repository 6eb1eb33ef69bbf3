// SPDX-License-Identifier: GPL-2.0-only
//! What a file system is on, and how it is registered with the kernel.

use crate::abi;
use crate::attr::device;
use crate::disk::{self, Disk};
use crate::task::{Fd, Task};
use outrigger_core::{Errno, Error, Result};
use std::ffi::CString;

/// The unit of disks, in bytes.
const SECTOR: u32 = 512;
/// JFFS2 mounts nothing smaller, in what is erased together.
const LEAST: u64 = 5;

/// What a file system is on.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// Nothing but memory.
    Memory,
    /// The disk with this number.
    Disk(u32),
    /// Flash memory, made of the disk with this number.
    Flash {
        /// See above.
        number: u32,
        /// How many bytes are erased together.
        erase_size: u32,
    },
}

impl Source {
    /// The number of its disk, if it has one.
    pub fn disk(self) -> Option<u32> {
        match self {
            Source::Memory => None,
            Source::Disk(number) | Source::Flash { number, .. } => Some(number),
        }
    }

    /// Whether it may be changed.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn writable(self) -> Result<bool> {
        self.disk().map_or(Ok(true), |number| Ok(disk::get(number)?.writable()))
    }

    /// Tells the kernel of it; what mount(2) has to be given for it.
    ///
    /// # Errors
    /// When there is no such disk, and what the kernel says.
    pub fn add(self, task: &Task) -> Result<CString> {
        match self {
            Source::Memory => Ok(c"memory".into()),
            Source::Disk(number) => add_disk(task, number, disk::get(number)?),
            Source::Flash { number, erase_size } => add_flash(task, number, erase_size, disk::get(number)?),
        }
    }

    /// Returns when all is on the medium that reaches it at once: the kernel waits for disks by itself, and for flash memory
    /// it has nothing to wait for.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    pub fn settle(self) -> Result<()> {
        match self {
            Source::Flash { number, .. } => Ok(disk::get(number)?.flush()?),
            Source::Memory | Source::Disk(_) => Ok(()),
        }
    }
}

/// Tells the kernel of a disk; gives the path of its block device, in the kernel's own tree.
///
/// # Errors
/// What the kernel says.
pub fn add_disk(task: &Task, number: u32, disk: &Disk) -> Result<CString> {
    let path = CString::new(format!("/disk{number}")).map_err(|_| Error::from(Errno::EINVAL))?;
    task.add_disk(&abi::Disk {
        number,
        sector_size: SECTOR,
        size: disk.size(),
        read_only: !disk.takes_writes(),
        discards: disk.discards(),
    })?;
    task.mknod(Fd::CWD, &path, libc::S_IFBLK | 0o600, device(abi::DISK_MAJOR, number))?;
    Ok(path)
}

/// An image need not be a whole number of what is erased together: the rest is empty, and nothing is written then.
fn add_flash(task: &Task, number: u32, erase_size: u32, disk: &Disk) -> Result<CString> {
    let unit = u64::from(erase_size).max(1);
    let size = disk.size().div_ceil(unit).max(LEAST) * unit;
    let read_only = !disk.writable() || size != disk.size();
    task.add_flash(&abi::Flash { number, erase_size, size, content: disk.size(), read_only })?;
    let name = format!("mtd:flash{number}");
    CString::new(name).map_err(|_| Errno::EINVAL.into())
}
