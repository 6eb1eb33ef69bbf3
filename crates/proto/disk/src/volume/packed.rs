// SPDX-License-Identifier: MIT OR Apache-2.0
//! File systems of discs, and those that are made at once of a directory.

use super::{Volume, bytes, named, piece, power};
use crate::Medium;
use crate::bytes::{at, be32, le16, le32, le64, text, utf16, uuid};
use std::io;

/// The primary volume descriptor (ECMA-119, section 8.4).
pub(super) fn iso9660(head: &[u8]) -> Volume {
    let head = head.get(0x8000..).unwrap_or_default();
    let block_size = u32::from(le16(head, 128));
    let date: [u8; 16] = at(head, 813);
    let uuid = date.iter().all(u8::is_ascii_digit).then(|| {
        let digits = String::from_utf8_lossy(&date);
        let parts = [0..4, 4..6, 6..8, 8..10, 10..12, 12..14, 14..16];
        parts.map(|range| digits[range].to_owned()).join("-")
    });
    Volume {
        kind: "iso9660",
        label: text(head, 40, 32),
        uuid,
        block_size: Some(block_size),
        size: bytes(le32(head, 80).into(), block_size),
        ..Volume::default()
    }
}

/// How many descriptors of a volume are looked at.
const DESCRIPTORS: u64 = 64;
/// How much of one is read, in bytes.
const DESCRIPTOR: usize = 512;

/// The volume descriptors that the anchor names (ECMA-167, part 3; OSTA UDF 2.60).
pub(super) fn udf(_: &[u8], medium: &dyn Medium) -> io::Result<Volume> {
    let mut volume = Volume { kind: "udf", ..Volume::default() };
    for unit in [512, 1024, 2048, 4096] {
        let anchor = piece(medium, bytes(256, unit), DESCRIPTOR)?;
        if le16(&anchor, 0) != 2 || le32(&anchor, 12) != 256 {
            continue;
        }
        let (start, count) = (u64::from(le32(&anchor, 20)), u64::from(le32(&anchor, 16) / unit));
        for place in (start..).take(count.min(DESCRIPTORS) as usize) {
            let descriptor = piece(medium, bytes(place, unit), DESCRIPTOR)?;
            match le16(&descriptor, 0) {
                1 => volume.uuid = set_id(&characters(&descriptor, 72, 128)),
                5 => volume.size = bytes(le32(&descriptor, 192).into(), unit),
                6 => {
                    volume.label = Some(characters(&descriptor, 84, 128)).filter(|label| !label.is_empty());
                    volume.block_size = Some(le32(&descriptor, 212));
                }
                8 => break,
                _ => {}
            }
        }
        break;
    }
    Ok(volume)
}

/// The characters of a field (OSTA CS0): their width first, the length of the field last.
fn characters(descriptor: &[u8], place: usize, length: usize) -> String {
    let field = descriptor.get(place..place + length).unwrap_or_default();
    let used = usize::from(*field.last().unwrap_or(&0)).min(length.saturating_sub(1));
    match field.get(..used).and_then(<[u8]>::split_first) {
        Some((8, bytes)) => bytes.iter().map(|&byte| char::from(byte)).collect(),
        Some((16, bytes)) => {
            let swapped: Vec<u8> = bytes.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect();
            utf16(&swapped)
        }
        _ => String::new(),
    }
}

/// What tells a disc from others: 16 digits at the start of the name of its set.
fn set_id(name: &str) -> Option<String> {
    let digits = name.get(..16).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digits.map(str::to_ascii_lowercase)
}

/// `struct squashfs_super_block` of `fs/squashfs/squashfs_fs.h`.
pub(super) fn squashfs(head: &[u8]) -> Volume {
    let packer = match le16(head, 20) {
        1 => "gzip",
        2 => "lzma",
        3 => "lzo",
        4 => "xz",
        5 => "lz4",
        6 => "zstd",
        _ => "unknown compression",
    };
    Volume {
        kind: "squashfs",
        block_size: Some(le32(head, 12)),
        size: Some(le64(head, 40)),
        features: vec![packer.to_owned()],
        ..Volume::default()
    }
}

const EROFS: &[(u64, &str)] = &[
    (0x1, "lz4_0padding"),
    (0x2, "compr_cfgs"),
    (0x4, "chunked_file"),
    (0x8, "device_table"),
    (0x10, "ztailpacking"),
    (0x20, "fragments"),
    (0x40, "xattr_prefixes"),
];

/// `struct erofs_super_block` of `fs/erofs/erofs_fs.h`.
pub(super) fn erofs(head: &[u8]) -> Volume {
    let head = head.get(1024..).unwrap_or_default();
    let block_size = power(at::<1>(head, 12)[0].into());
    Volume {
        kind: "erofs",
        label: text(head, 64, 16),
        uuid: uuid(head, 48),
        block_size,
        size: block_size.and_then(|unit| bytes(le32(head, 36).into(), unit)),
        free: None,
        features: named("incompat", le32(head, 80).into(), EROFS),
    }
}

/// `struct romfs_super_block` of `include/uapi/linux/romfs_fs.h`.
pub(super) fn romfs(head: &[u8]) -> Volume {
    let size = Some(u64::from(be32(head, 8)));
    Volume { kind: "romfs", label: text(head, 16, 128), size, ..Volume::default() }
}

/// `struct cramfs_super` of `include/uapi/linux/cramfs_fs.h`.
pub(super) fn cramfs(head: &[u8]) -> Volume {
    let (label, size) = (text(head, 48, 16), Some(u64::from(le32(head, 4))));
    Volume { kind: "cramfs", label, block_size: Some(4096), size, ..Volume::default() }
}
