// SPDX-License-Identifier: GPL-2.0-only
//! From statx(2) to the core's attributes.

use crate::nodes::Key;
use outrigger_core::{Attr, Time};

/// What tells the file apart from all others.
pub fn key(stat: &libc::statx) -> Key {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

/// The core's form of `stat`.
pub fn attr(stat: &libc::statx) -> Attr {
    Attr {
        ino: stat.stx_ino,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: (stat.stx_mask & libc::STATX_BTIME != 0).then(|| time(stat.stx_btime)),
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: device(stat.stx_rdev_major, stat.stx_rdev_minor),
        blksize: stat.stx_blksize,
    }
}

fn time(stamp: libc::statx_timestamp) -> Time {
    Time::new(stamp.tv_sec, stamp.tv_nsec)
}

/// A device number in 32 bits, as the kernel's `new_encode_dev` packs it and mknodat(2) takes it.
pub fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}
