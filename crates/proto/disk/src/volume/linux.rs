// SPDX-License-Identifier: MIT OR Apache-2.0
//! File systems that were made for Linux or came to it with their sources.

use super::{Volume, bytes, named, power};
use crate::Medium;
use crate::bytes::{be16, be32, be64, le16, le32, le64, text, utf16, uuid};
use std::io;

const EXT_COMPATIBLE: &[(u64, &str)] = &[
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];
const EXT_INCOMPATIBLE: &[(u64, &str)] = &[
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];
const EXT_READ_ONLY: &[(u64, &str)] = &[
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];

/// `struct ext4_super_block` of `fs/ext4/ext4.h`.
pub(super) fn ext(head: &[u8]) -> Volume {
    let head = head.get(1024..).unwrap_or_default();
    let [compatible, incompatible, read_only] = [92, 96, 100].map(|place| u64::from(le32(head, place)));
    // What ext3 does not know makes it ext4.
    let kind = match (incompatible & !0x16, read_only & !0x7, compatible & 0x4) {
        (0, 0, 0) => "ext2",
        (0, 0, _) => "ext3",
        _ => "ext4",
    };
    let block_size = power(10_u32.saturating_add(le32(head, 24)));
    let wide = incompatible & 0x80 != 0;
    let count = |low: usize, high: usize| {
        let high = if wide { u64::from(le32(head, high)) << 32 } else { 0 };
        bytes(high | u64::from(le32(head, low)), block_size?)
    };
    let features = [
        named("compat", compatible, EXT_COMPATIBLE),
        named("incompat", incompatible, EXT_INCOMPATIBLE),
        named("ro_compat", read_only, EXT_READ_ONLY),
    ];
    Volume {
        kind,
        label: text(head, 120, 16),
        uuid: uuid(head, 104),
        block_size,
        size: count(4, 336),
        free: count(12, 344),
        features: features.concat(),
    }
}

const XFS_INCOMPATIBLE: &[(u64, &str)] = &[
    (0x1, "ftype"),
    (0x2, "sparse"),
    (0x4, "meta_uuid"),
    (0x8, "bigtime"),
    (0x10, "needsrepair"),
    (0x20, "nrext64"),
    (0x40, "exchange"),
    (0x80, "parent"),
];
const XFS_READ_ONLY: &[(u64, &str)] =
    &[(0x1, "finobt"), (0x2, "rmapbt"), (0x4, "reflink"), (0x8, "inobtcount")];

/// `struct xfs_dsb` of `fs/xfs/libxfs/xfs_format.h`.
pub(super) fn xfs(head: &[u8]) -> Volume {
    let block_size = be32(head, 4);
    let mut features = Vec::new();
    // Version 5 has checksums, and the words that name features.
    if be16(head, 100) & 0xf == 5 {
        features.push("crc".to_owned());
        features.extend(named("ro_compat", be32(head, 212).into(), XFS_READ_ONLY));
        features.extend(named("incompat", be32(head, 216).into(), XFS_INCOMPATIBLE));
    }
    Volume {
        kind: "xfs",
        label: text(head, 108, 12),
        uuid: uuid(head, 32),
        block_size: Some(block_size),
        size: bytes(be64(head, 8), block_size),
        free: bytes(be64(head, 144), block_size),
        features,
    }
}

const BTRFS_INCOMPATIBLE: &[(u64, &str)] = &[
    (0x1, "mixed_backref"),
    (0x2, "default_subvol"),
    (0x4, "mixed_groups"),
    (0x8, "compress_lzo"),
    (0x10, "compress_zstd"),
    (0x20, "big_metadata"),
    (0x40, "extended_iref"),
    (0x80, "raid56"),
    (0x100, "skinny_metadata"),
    (0x200, "no_holes"),
    (0x400, "metadata_uuid"),
    (0x800, "raid1c34"),
    (0x1000, "zoned"),
    (0x2000, "extent_tree_v2"),
    (0x4000, "raid_stripe_tree"),
    (0x1_0000, "simple_quota"),
];
const BTRFS_READ_ONLY: &[(u64, &str)] =
    &[(0x1, "free_space_tree"), (0x2, "free_space_tree_valid"), (0x4, "verity"), (0x8, "block_group_tree")];

/// `struct btrfs_super_block` of `include/uapi/linux/btrfs_tree.h`.
pub(super) fn btrfs(head: &[u8]) -> Volume {
    let head = head.get(0x1_0000..).unwrap_or_default();
    let size = le64(head, 0x70);
    let read_only = named("compat_ro", le64(head, 0xb4), BTRFS_READ_ONLY);
    Volume {
        kind: "btrfs",
        label: text(head, 0x12b, 256),
        uuid: uuid(head, 0x20),
        block_size: Some(le32(head, 0x90)),
        size: Some(size),
        free: size.checked_sub(le64(head, 0x78)),
        features: [named("incompat", le64(head, 0xbc), BTRFS_INCOMPATIBLE), read_only].concat(),
    }
}

const F2FS: &[(u64, &str)] = &[
    (0x1, "encrypt"),
    (0x2, "blkzoned"),
    (0x8, "extra_attr"),
    (0x10, "project_quota"),
    (0x20, "inode_checksum"),
    (0x40, "flexible_inline_xattr"),
    (0x80, "quota_ino"),
    (0x100, "inode_crtime"),
    (0x200, "lost_found"),
    (0x400, "verity"),
    (0x800, "sb_checksum"),
    (0x1000, "casefold"),
    (0x2000, "compression"),
    (0x4000, "ro"),
];

/// `struct f2fs_super_block` of `include/linux/f2fs_fs.h`.
pub(super) fn f2fs(head: &[u8]) -> Volume {
    let head = head.get(1024..).unwrap_or_default();
    let block_size = power(le32(head, 16));
    let label = head.get(124..124 + 1024).map(utf16).filter(|label| !label.is_empty());
    Volume {
        kind: "f2fs",
        label,
        uuid: uuid(head, 108),
        block_size,
        size: block_size.and_then(|unit| bytes(le64(head, 36), unit)),
        free: None,
        features: named("feature", le32(head, 2180).into(), F2FS),
    }
}

/// `struct nilfs_super_block` of `include/uapi/linux/nilfs2_ondisk.h`.
pub(super) fn nilfs2(head: &[u8]) -> Volume {
    let head = head.get(1024..).unwrap_or_default();
    let block_size = power(10_u32.saturating_add(le32(head, 20)));
    Volume {
        kind: "nilfs2",
        label: text(head, 168, 80),
        uuid: uuid(head, 152),
        block_size,
        size: Some(le64(head, 32)),
        free: block_size.and_then(|unit| bytes(le64(head, 80), unit)),
        features: named("compat_ro", le64(head, 264), &[(1, "block_count")]),
    }
}

/// `struct jfs_superblock` of `fs/jfs/jfs_superblock.h`.
pub(super) fn jfs(head: &[u8]) -> Volume {
    let head = head.get(0x8000..).unwrap_or_default();
    Volume {
        kind: "jfs",
        label: text(head, 152, 16),
        uuid: uuid(head, 136),
        block_size: Some(le32(head, 16)),
        // Counted in the blocks of the device.
        size: bytes(le64(head, 8), le32(head, 24)),
        ..Volume::default()
    }
}

/// `struct minix_super_block` and `struct minix3_super_block` of `include/uapi/linux/minix_fs.h`.
pub(super) fn minix(head: &[u8]) -> Volume {
    let head = head.get(1024..).unwrap_or_default();
    let (block_size, zones, version) = if le16(head, 24) == 0x4d5a {
        (le16(head, 28).into(), le32(head, 20), "version 3")
    } else if matches!(le16(head, 16), 0x2468 | 0x2478) {
        (1024, le32(head, 20), "version 2")
    } else {
        (1024, le16(head, 2).into(), "version 1")
    };
    Volume {
        kind: "minix",
        block_size: Some(block_size),
        size: bytes(zones.into(), block_size),
        features: vec![version.to_owned()],
        ..Volume::default()
    }
}

/// JFFS2 has no superblock: all of the flash memory is its own.
pub(super) fn jffs2(_: &[u8], medium: &dyn Medium) -> io::Result<Volume> {
    Ok(Volume { kind: "jffs2", size: Some(medium.size()), ..Volume::default() })
}
