// SPDX-License-Identifier: MIT OR Apache-2.0
//! From statx(2) to the core's attributes.

use outrigger_core::{Attr, Errno, Error, FileKind, Time};
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};
use std::ffi::CStr;
use std::os::fd::AsFd;

/// The error of a system call.
pub(crate) fn failed(errno: rustix::io::Errno) -> Error {
    Errno(errno.raw_os_error()).into()
}

/// Attributes of `name` in `dir`, or of `dir` itself when `name` is empty. Follows no symbolic link.
pub(crate) fn stat(dir: impl AsFd, name: &CStr) -> Result<Statx, rustix::io::Errno> {
    let flags = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
    rustix::fs::statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

/// The attributes of an open file (an `O_PATH` descriptor will do).
pub(crate) fn stat_fd(fd: impl AsFd) -> Result<Attr, Error> {
    stat(fd, c"").map(|st| attr(&st)).map_err(failed)
}

/// The core's form of `st`.
pub(crate) fn attr(st: &Statx) -> Attr {
    let has_btime = st.stx_mask & StatxFlags::BTIME.bits() != 0;
    Attr {
        ino: st.stx_ino,
        size: st.stx_size,
        blocks: st.stx_blocks,
        atime: time(st.stx_atime),
        mtime: time(st.stx_mtime),
        ctime: time(st.stx_ctime),
        btime: has_btime.then(|| time(st.stx_btime)),
        mode: st.stx_mode.into(),
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        rdev: encode_device(st.stx_rdev_major, st.stx_rdev_minor),
        blksize: st.stx_blksize,
        dev: u64::from(st.stx_dev_major) << 32 | u64::from(st.stx_dev_minor),
        ..Attr::default()
    }
}

/// The kind of file `st` describes.
pub(crate) fn kind(st: &Statx) -> Option<FileKind> {
    FileKind::of_mode(st.stx_mode.into())
}

fn time(stamp: StatxTimestamp) -> Time {
    Time::new(stamp.tv_sec, stamp.tv_nsec)
}

/// A device number in 32 bits, as the kernel's `new_encode_dev` packs it.
fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Major and minor number of what [`encode_device`] packed.
pub(crate) fn decode_device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | (rdev >> 12) & 0xf_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (8, 256), (4095, (1 << 20) - 1)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
    }
}
