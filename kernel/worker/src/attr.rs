// SPDX-License-Identifier: GPL-2.0-only
//! From statx(2) to the core's attributes.

use crate::nodes::Key;
use outrigger_core::{Attr, Time};

/// What tells the file apart from all others.
pub fn key(stat: &libc::statx) -> Key {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

/// The number of a file among all of the image. Each subvolume of btrfs numbers its files anew, and the kernel tells them
/// apart by device numbers that one mount does not have in common with the next, and that a mount of ours does not show. So
/// the number of the subvolume is in it, which is on the medium: mirrored, so that both meet only where they need more than
/// 48 bits together, and the partition has room beside them (`crates/driver/kernel/src/partitions.rs`).
pub fn ino(subvolume: u64, ino: u64) -> u64 {
    match subvolume {
        0 | TOP_SUBVOLUME => ino,
        _ => ino ^ subvolume.reverse_bits() >> 16,
    }
}

/// `BTRFS_FS_TREE_OBJECTID`: the subvolume that all others are below.
const TOP_SUBVOLUME: u64 = 5;

/// The core's form of `stat`.
pub fn attr(stat: &libc::statx) -> Attr {
    Attr {
        ino: ino(stat.stx_subvol, stat.stx_ino),
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
        // A subvolume is a file system of its own to those that compare device numbers.
        dev: if stat.stx_subvol == TOP_SUBVOLUME { 0 } else { stat.stx_subvol },
        ..Attr::default()
    }
}

fn time(stamp: libc::statx_timestamp) -> Time {
    Time::new(stamp.tv_sec, stamp.tv_nsec)
}

/// A device number in 32 bits, as the kernel's `new_encode_dev` packs it and mknodat(2) takes it.
pub fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

#[cfg(test)]
mod tests {
    use super::ino;
    use std::collections::HashSet;

    #[test]
    fn files_of_several_subvolumes_have_numbers_of_their_own() {
        assert_eq!((ino(0, 257), ino(5, 257)), (257, 257));
        let subvolumes = [5, 256, 257, 511, 512, 4096, 32_768, 65_535, 1 << 17];
        let files = [256, 257, 65_536, (1 << 30) - 1];
        let all: HashSet<u64> =
            subvolumes.iter().flat_map(|&volume| files.map(|file| ino(volume, file))).collect();
        assert_eq!(all.len(), subvolumes.len() * files.len());
        assert!(all.iter().all(|number| number >> 48 == 0));
    }
}
