// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control calls of `/dev/fuse` and the argument of the backing-file call.
use crate::layout::layout;

/// `FUSE_DEV_IOC_CLONE`: attach this descriptor to the connection of the descriptor named by the `u32` argument.
pub const IOC_CLONE: u32 = ioc(READ, 0, 4);
/// `FUSE_DEV_IOC_BACKING_OPEN`: register a file for passthrough; the argument is a [`BackingMap`], the result
/// the id for [`OpenOut::backing_id`](crate::OpenOut::backing_id) (7.40, needs CAP_SYS_ADMIN).
pub const IOC_BACKING_OPEN: u32 = ioc(WRITE, 1, BackingMap::SIZE as u32);
/// `FUSE_DEV_IOC_BACKING_CLOSE`: forget the id named by the `u32` argument; open files keep the backing file.
pub const IOC_BACKING_CLOSE: u32 = ioc(WRITE, 2, 4);

/// Type byte of the device's calls.
const MAGIC: u32 = 229;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// The generic Linux encoding of a control number (`_IOC`), valid on every architecture except alpha, mips,
/// parisc, powerpc and sparc.
const fn ioc(direction: u32, number: u32, size: u32) -> u32 {
    direction << 30 | size << 16 | MAGIC << 8 | number
}

layout! {
    /// Argument of [`IOC_BACKING_OPEN`] (`fuse_backing_map`).
    pub struct BackingMap: 16 {
        /// Descriptor of the file.
        fd: i32 = 0,
        /// Zero.
        flags: u32 = 4,
    }
}
