// SPDX-License-Identifier: MIT OR Apache-2.0
//! File systems of other systems.

use super::{Volume, bytes, piece, power};
use crate::Medium;
use crate::bytes::{at, be16, be32, le16, le32, le64, text, utf16};
use std::io;

/// Boot sector and FSInfo of FAT (fatgen103).
pub(super) fn fat(head: &[u8], medium: &dyn Medium) -> io::Result<Volume> {
    let (sector, cluster) = (u32::from(le16(head, 11)), u32::from(at::<1>(head, 13)[0]));
    let or_wide = |narrow: u16, wide: u32| if narrow == 0 { wide } else { narrow.into() };
    let sectors = or_wide(le16(head, 19), le32(head, 32));
    let table = u64::from(or_wide(le16(head, 22), le32(head, 36)));
    let root = (u64::from(le16(head, 17)) * 32).div_ceil(sector.max(1).into());
    let before = u64::from(le16(head, 14)) + u64::from(at::<1>(head, 16)[0]) * table + root;
    let clusters = u64::from(sectors).saturating_sub(before) / u64::from(cluster.max(1));
    let block_size = sector * cluster;
    // FAT32 alone has no narrow field for the size of its table.
    let wide = le16(head, 22) == 0;
    let own = if wide { 64 } else { 36 };
    let extended = matches!(at::<1>(head, own + 2), [0x29]);
    let mut free = None;
    if wide {
        let info = piece(medium, Some(u64::from(le16(head, 48)) * u64::from(sector)), 512)?;
        let count = le32(&info, 488);
        free = (info.starts_with(b"RRaA") && u64::from(count) <= clusters)
            .then(|| bytes(count.into(), block_size));
    }
    let serial = le32(head, own + 3);
    let name = match (wide, clusters) {
        (true, _) => "FAT32",
        (_, ..4085) => "FAT12",
        _ => "FAT16",
    };
    Ok(Volume {
        kind: "vfat",
        label: text(head, own + 7, 11).filter(|label| extended && label != "NO NAME"),
        uuid: extended.then(|| format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff)),
        block_size: Some(block_size),
        size: bytes(sectors.into(), sector),
        free: free.flatten(),
        features: vec![name.to_owned()],
    })
}

/// How much of a directory or record is read, in bytes.
const RECORD: usize = 4096;

/// Boot sector and root directory of exFAT (Microsoft's specification, sections 3.1 and 7.3).
pub(super) fn exfat(head: &[u8], medium: &dyn Medium) -> io::Result<Volume> {
    let [sector_shift, cluster_shift] = at::<2>(head, 108).map(u32::from);
    let sector = power(sector_shift);
    let block_size = power(sector_shift + cluster_shift);
    let root = u64::from(le32(head, 96)).checked_sub(2).zip(sector.zip(block_size)).and_then(
        |(cluster, (sector, block))| {
            bytes(le32(head, 88).into(), sector)?.checked_add(bytes(cluster, block)?)
        },
    );
    let directory = piece(medium, root, RECORD)?;
    // Entry type 0x83 is the label: how many characters, then they.
    let label = directory.chunks_exact(32).find(|entry| entry[0] == 0x83);
    let label = label.map(|entry| utf16(&entry[2..2 + 2 * usize::from(entry[1].min(11))]));
    let serial = le32(head, 100);
    Ok(Volume {
        kind: "exfat",
        label: label.filter(|label| !label.is_empty()),
        uuid: Some(format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff)),
        block_size,
        size: sector.and_then(|sector| bytes(le64(head, 72), sector)),
        ..Volume::default()
    })
}

/// Boot sector and the record of `$Volume` (`fs/ntfs3/ntfs.h`).
pub(super) fn ntfs(head: &[u8], medium: &dyn Medium) -> io::Result<Volume> {
    let sector = u32::from(le16(head, 11));
    let [cluster] = at::<1>(head, 13);
    // From 0x80 on it is a negative exponent.
    let cluster = if cluster > 0x80 { 1 << (256 - u32::from(cluster)).min(16) } else { u32::from(cluster) };
    let block_size = sector * cluster;
    let record_size = match at::<1>(head, 64)[0] {
        exponent @ 0x80.. => 1_u64 << (256 - u32::from(exponent)).min(16),
        clusters => u64::from(clusters) * u64::from(block_size),
    };
    let place = bytes(le64(head, 48), block_size).and_then(|place| place.checked_add(3 * record_size));
    let record = piece(medium, place, RECORD)?;
    Ok(Volume {
        kind: "ntfs",
        label: volume_name(&record),
        uuid: Some(format!("{:016X}", le64(head, 72))),
        block_size: Some(block_size),
        // The last sector is the copy of the first and belongs to no volume.
        size: bytes(le64(head, 40), sector),
        ..Volume::default()
    })
}

/// The attribute `$VOLUME_NAME` of an MFT record.
fn volume_name(record: &[u8]) -> Option<String> {
    let mut place = usize::from(le16(record.strip_prefix(b"FILE").map(|_| record)?, 20));
    while let (kind @ 0x10..0x100, length @ 24..) = (le32(record, place), le32(record, place + 4)) {
        if kind == 0x60 {
            let content = place + usize::from(le16(record, place + 20));
            let name = record.get(content..content + le32(record, place + 16) as usize)?;
            return Some(utf16(name)).filter(|name| !name.is_empty());
        }
        place = place.checked_add(length as usize).filter(|&place| place < record.len())?;
    }
    None
}

/// The master directory block (`struct hfs_mdb` of `fs/hfs/hfs.h`).
pub(super) fn hfs(head: &[u8]) -> Volume {
    let head = head.get(1024..).unwrap_or_default();
    let block_size = be32(head, 20);
    let length = usize::from(at::<1>(head, 36)[0]).min(27);
    Volume {
        kind: "hfs",
        label: text(head, 37, length),
        block_size: Some(block_size),
        size: bytes(be16(head, 18).into(), block_size),
        free: bytes(be16(head, 34).into(), block_size),
        ..Volume::default()
    }
}

/// The volume header (`struct hfsplus_vh` of `fs/hfsplus/hfsplus_raw.h`).
pub(super) fn hfsplus(head: &[u8]) -> Volume {
    let head = head.get(1024..).unwrap_or_default();
    let block_size = be32(head, 40);
    let journaled = be32(head, 4) & 0x2000 != 0;
    let case_sensitive = head.starts_with(b"HX");
    let features = [(journaled, "journal"), (case_sensitive, "HFSX")];
    Volume {
        kind: "hfsplus",
        block_size: Some(block_size),
        size: bytes(be32(head, 44).into(), block_size),
        free: bytes(be32(head, 48).into(), block_size),
        features: features.iter().filter(|(is, _)| *is).map(|(_, name)| (*name).to_owned()).collect(),
        ..Volume::default()
    }
}

/// Where the mark is in a superblock of UFS, in bytes.
const UFS_MARK: usize = 0x55c;

/// `struct ufs_super_block` of `fs/ufs/ufs_fs.h`, in its two versions.
pub(super) fn ufs(head: &[u8]) -> Volume {
    let second = le32(head, 0x1_0000 + UFS_MARK) == 0x1954_0119;
    let head = head.get(if second { 0x1_0000 } else { 8192 }..).unwrap_or_default();
    let fragment = le32(head, 52);
    let (size, blocks, fragments) = if second {
        (le64(head, 1080), le64(head, 1016), le64(head, 1032))
    } else {
        (le32(head, 36).into(), le32(head, 196).into(), le32(head, 204).into())
    };
    let free = blocks.checked_mul(le32(head, 56).into()).and_then(|whole| whole.checked_add(fragments));
    Volume {
        kind: "ufs",
        label: second.then(|| text(head, 680, 32)).flatten(),
        block_size: Some(le32(head, 48)),
        size: bytes(size, fragment),
        free: free.and_then(|free| bytes(free, fragment)),
        features: vec![if second { "ufs2" } else { "ufs1" }.to_owned()],
        ..Volume::default()
    }
}
