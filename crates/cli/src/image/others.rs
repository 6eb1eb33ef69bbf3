// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file systems beside ext4. Their tools take less from outside, so some have identifiers and times of their own.

use super::disk::{Disk, Longest, TIMES, labelled};
use super::keeps::Keeps;
use super::plan::{BLOCK, Plan};
use super::tool::Tool;
use std::ops::RangeInclusive;

const MIB: u64 = 1 << 20;
/// Times of FAT begin with 1980.
const FAT_TIMES: RangeInclusive<u64> = 315_532_800..=*TIMES.end();

/// XFS: never smaller than 300 MiB, of which 64 MiB are its log.
pub const XFS: Disk = Disk {
    kernel: "xfs",
    tool: Tool { program: "mkfs.xfs", package: "xfsprogs" },
    arguments: |wish| labelled(wish, "-L", &["-q", "-f", "-m", &format!("uuid={}", wish.seed.uuid("image"))]),
    variables: |_| Vec::new(),
    size: |plan| (content(plan) * 21 / 20 + plan.files * 640 + 96 * MIB).max(300 * MIB),
    keeps: Keeps::ALL,
    label: Longest::Bytes(12),
    times: TIMES,
};

/// btrfs, whose metadata is there twice.
pub const BTRFS: Disk = Disk {
    kernel: "btrfs",
    tool: Tool { program: "mkfs.btrfs", package: "btrfs-progs" },
    arguments: |wish| labelled(wish, "-L", &["-q", "-f", "-U", &wish.seed.uuid("image")]),
    variables: |_| Vec::new(),
    size: |plan| content(plan) * 6 / 5 + plan.files * 4096 + 256 * MIB,
    keeps: Keeps::ALL,
    // mkfs.btrfs 6.2 cuts off the 255th, which the file system has room for.
    label: Longest::Bytes(254),
    times: TIMES,
};

/// f2fs, where each file has a block of its own.
pub const F2FS: Disk = Disk {
    kernel: "f2fs",
    tool: Tool { program: "mkfs.f2fs", package: "f2fs-tools" },
    arguments: |wish| labelled(wish, "-l", &["-q", "-f", "-U", &wish.seed.uuid("image")]),
    variables: |_| Vec::new(),
    size: |plan| (content(plan) + plan.files * BLOCK) * 5 / 4 + 96 * MIB,
    keeps: Keeps::ALL,
    label: Longest::Bytes(512),
    times: TIMES,
};

/// FAT32, with clusters of 512 bytes where larger ones would be too few for it.
pub const VFAT: Disk = Disk {
    kernel: "vfat",
    tool: Tool { program: "mkfs.vfat", package: "dosfstools" },
    arguments: |wish| {
        let cluster = if wish.size < 300 * MIB { "1" } else { "8" };
        let number = format!("{:08x}", wish.seed.number("image") as u32);
        labelled(wish, "-n", &["--invariant", "-i", &number, "-F", "32", "-s", cluster])
    },
    variables: |_| Vec::new(),
    size: |plan| (dense(plan) * 26 / 25 + 4 * MIB).max(36 * MIB),
    keeps: Keeps::CONTENT,
    label: Longest::Units(11),
    times: FAT_TIMES,
};

/// exFAT.
pub const EXFAT: Disk = Disk {
    kernel: "exfat",
    tool: Tool { program: "mkfs.exfat", package: "exfatprogs" },
    arguments: |wish| labelled(wish, "-L", &["-c", "4K"]),
    variables: |_| Vec::new(),
    size: |plan| dense(plan) * 26 / 25 + 12 * MIB,
    keeps: Keeps::CONTENT,
    label: Longest::Units(11),
    times: FAT_TIMES,
};

/// NTFS.
pub const NTFS: Disk = Disk {
    kernel: "ntfs3",
    tool: Tool { program: "mkfs.ntfs", package: "ntfs-3g" },
    arguments: |wish| labelled(wish, "-L", &["-q", "-F", "-f", "-c", "4096"]),
    variables: |_| Vec::new(),
    size: |plan| dense(plan) * 9 / 8 + plan.files * 1536 + 32 * MIB,
    keeps: Keeps::CONTENT,
    label: Longest::Units(128),
    times: TIMES,
};

/// Bytes that content and directories take, without holes.
fn content(plan: &Plan) -> u64 {
    (plan.blocks + plan.directory_blocks) * BLOCK
}

/// The same where there are no holes.
fn dense(plan: &Plan) -> u64 {
    plan.bytes + (plan.files + plan.directory_blocks) * BLOCK
}
