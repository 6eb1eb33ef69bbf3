// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in an image, by its content. Sources: the superblocks as Linux' headers describe them (`include/uapi/linux/magic.h`
//! and the `fs/` directory of each type).

use crate::disk::Plain;
use crate::flash::is_jffs2;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_disk::marks::{self, Content};
use outrigger_proto_disk::{Medium, Window};
use std::fs::File;

/// A file system that can be served.
#[derive(Debug, Clone, Copy)]
pub struct FsType {
    /// Its name in the kernel.
    pub name: &'static str,
    /// Whether the kernel can write it.
    pub writable: bool,
    /// Options without which the kernel does not mount it.
    pub(crate) options: &'static str,
    /// Bytes that are always at a place.
    marks: &'static [(u64, &'static [u8])],
    /// What else must hold; given the first [`HEAD`] bytes.
    also: Option<fn(&[u8]) -> bool>,
}

/// Every type, those with the most telling marks first.
pub const TYPES: &[FsType] = &[
    marked("btrfs", true, &[(0x1_0040, b"_BHRfS_M")]),
    marked("xfs", true, &[(0, b"XFSB")]),
    marked("squashfs", false, &[(0, b"hsqs")]),
    marked("romfs", false, &[(0, b"-rom1fs-")]),
    marked("ntfs3", true, &[(3, b"NTFS    "), (510, b"\x55\xaa")]),
    marked("exfat", true, &[(3, b"EXFAT   "), (510, b"\x55\xaa")]),
    marked("jfs", true, &[(0x8000, b"JFS1")]),
    // A disc with both is meant to be read as UDF.
    FsType { also: Some(is_udf), ..marked("udf", true, &[]) },
    marked("iso9660", false, &[(0x8001, b"CD001")]),
    marked("erofs", false, &[(1024, b"\xe2\xe1\xf5\xe0")]),
    marked("f2fs", true, &[(1024, b"\x10\x20\xf5\xf2")]),
    marked("cramfs", false, &[(0, b"\x45\x3d\xcd\x28"), (16, b"Compressed ROMFS")]),
    FsType { options: "ufstype=ufs2", ..marked("ufs", true, &[(0x1_055c, b"\x19\x01\x54\x19")]) },
    FsType { options: "ufstype=44bsd", ..marked("ufs", true, &[(0x255c, b"\x54\x19\x01\x00")]) },
    FsType { also: Some(is_ext), ..marked("ext4", true, &[(1080, b"\x53\xef")]) },
    FsType { also: Some(is_nilfs), ..marked("nilfs2", true, &[(1030, b"\x34\x34")]) },
    FsType { also: Some(is_hfsplus), ..marked("hfsplus", true, &[]) },
    FsType { also: Some(is_hfs), ..marked("hfs", true, &[(1024, b"BD")]) },
    FsType { also: Some(is_jffs2), ..marked(FLASH, true, &[]) },
    FsType { also: Some(is_fat), ..marked("vfat", true, &[(510, b"\x55\xaa")]) },
    FsType { also: Some(is_minix), ..marked("minix", true, &[]) },
    FsType { also: Some(|_| false), ..marked(MEMORY, true, &[]) },
];

/// The type that is on flash memory.
const FLASH: &str = "jffs2";
/// The type that is in no image.
const MEMORY: &str = "tmpfs";

/// A type that its marks tell.
const fn marked(name: &'static str, writable: bool, marks: &'static [(u64, &'static [u8])]) -> FsType {
    FsType { name, writable, options: "", marks, also: None }
}

/// How much of an image the checks look at, in bytes: the farthest mark and some.
const HEAD: usize = 68 << 10;

impl FsType {
    /// The type with this name; `ext2` and `ext3` are served by ext4, `msdos` by vfat, `ntfs` by ntfs3,
    /// `ffs`, `ufs1` and `ufs2` by ufs.
    ///
    /// # Errors
    /// `EINVAL` with the names there are.
    pub fn named(name: &str) -> Result<&'static FsType> {
        let name = match name {
            "ext2" | "ext3" => "ext4",
            "msdos" => "vfat",
            "ntfs" => "ntfs3",
            "ffs" | "ufs1" | "ufs2" => "ufs",
            other => other,
        };
        TYPES.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let names: Vec<&str> = TYPES.iter().map(|kind| kind.name).collect();
            Errno::EINVAL.because(format!("no file system \"{name}\"; there are {}", names.join(" ")))
        })
    }

    /// Whether it is on flash memory.
    pub(crate) fn is_flash(&self) -> bool {
        self.name == FLASH
    }

    /// Whether it is in no image, but in memory.
    pub(crate) fn is_memory(&self) -> bool {
        self.name == MEMORY
    }

    fn fits(&self, head: &[u8]) -> bool {
        let has = |&(place, mark): &(u64, &[u8])| {
            head.get(place as usize..).is_some_and(|rest| rest.starts_with(mark))
        };
        self.marks.iter().all(has) && self.also.is_none_or(|also| also(head))
    }
}

/// The file system in `image`, if there is one we know.
///
/// # Errors
/// Those of reading it.
pub fn detect(image: &File) -> Result<Option<&'static FsType>> {
    detect_in(&Plain::new(image.try_clone()?)?, 0, None)
}

/// The same for the part of a disk that begins at `start` and has `size` bytes, or all that follow.
pub(crate) fn detect_in(
    disk: &impl Medium,
    start: u64,
    size: Option<u64>,
) -> Result<Option<&'static FsType>> {
    let there = disk.size().saturating_sub(start).min(size.unwrap_or(u64::MAX));
    let mut head = vec![0; there.min(HEAD as u64) as usize];
    if !head.is_empty() {
        disk.read(&mut head, start)?;
    }
    Ok(TYPES.iter().find(|kind| kind.fits(&head)))
}

/// Why a part of a disk cannot be mounted in which no file system is known.
pub(crate) fn unknown(disk: &impl Medium, start: u64, size: Option<u64>) -> Error {
    let size = disk.size().saturating_sub(start).min(size.unwrap_or(u64::MAX));
    match marks::content(&Window { medium: disk, start, size }) {
        Ok(Some(Content { name, tool: Some(tool) })) => Errno::EINVAL.because(format!(
            "it holds {name}, which is not served: on the host `losetup` and `{tool}` make a block device of it"
        )),
        Ok(Some(Content { name, tool: None })) => {
            Errno::EINVAL.because(format!("it holds {name}, which is not served"))
        }
        Ok(None) => Errno::EINVAL.because("no known file system was found"),
        Err(error) => error.into(),
    }
}

fn number(head: &[u8], place: usize, length: usize) -> u32 {
    head.get(place..place + length)
        .unwrap_or_default()
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | u32::from(byte))
}

/// A superblock of ext2, ext3 or ext4: two bytes are a weak mark, so block size, blocks and inodes must make sense.
fn is_ext(head: &[u8]) -> bool {
    let [inodes, blocks, log_block_size] = [0, 4, 24].map(|field| number(head, 1024 + field, 4));
    inodes > 0 && blocks > 0 && log_block_size <= 6
}

/// The descriptors at the start of a UDF volume (ECMA-167): one of the first sectors from 16 on names version 2 or 3.
fn is_udf(head: &[u8]) -> bool {
    let names = |place: usize| head.get(place..place + 5).unwrap_or_default();
    names(0x8001) != [0; 5]
        && (0..16).any(|sector| matches!(names(0x8001 + sector * 0x800), b"NSR02" | b"NSR03"))
}

/// A superblock of nilfs2: a size and a block size that make sense beside its two bytes.
fn is_nilfs(head: &[u8]) -> bool {
    let [revision, bytes, log_block_size] = [0, 8, 20].map(|field| number(head, 1024 + field, 4));
    revision == 2 && (128..=1024).contains(&bytes) && log_block_size <= 6
}

/// A volume header of HFS+ or HFSX: its version belongs to its mark.
fn is_hfsplus(head: &[u8]) -> bool {
    matches!(head.get(1024..1028), Some(b"H+\x00\x04" | b"HX\x00\x05"))
}

/// A master directory block of HFS: blocks of a multiple of 512 bytes, and some of them.
fn is_hfs(head: &[u8]) -> bool {
    let big_endian = |place: usize| number(head, place, 4).swap_bytes();
    let size = big_endian(1024 + 20);
    size > 0 && size % 512 == 0 && number(head, 1024 + 18, 2) > 0
}

/// A superblock of minix: its four versions with names of 14 and 30 bytes, and the one with names of 60. Two bytes are a
/// weak mark, so the maps must lie before the data.
fn is_minix(head: &[u8]) -> bool {
    let field = |place: usize| number(head, 1024 + place, 2);
    let maps = if field(24) == 0x4d5a {
        6
    } else if matches!(field(16), 0x137f | 0x138f | 0x2468 | 0x2478) {
        4
    } else {
        return false;
    };
    let [inode_map, zone_map, data, log_zone_size] = [0, 2, 4, 6].map(|place| field(maps + place));
    inode_map > 0 && zone_map > 0 && data > inode_map + zone_map && log_zone_size == 0 && field(0) > 0
}

/// A boot sector of FAT, which has no mark of its own: sizes that make sense together (fatgen103).
fn is_fat(head: &[u8]) -> bool {
    let sector = number(head, 11, 2);
    let (cluster, reserved, tables, media) =
        (number(head, 13, 1), number(head, 14, 2), number(head, 16, 1), number(head, 21, 1));
    let table_sectors = number(head, 22, 2).max(number(head, 36, 4));
    let sectors = number(head, 19, 2).max(number(head, 32, 4));
    matches!(head.first(), Some(0xeb | 0xe9))
        && matches!(sector, 512 | 1024 | 2048 | 4096)
        && cluster.is_power_of_two()
        && reserved > 0
        && matches!(tables, 1 | 2)
        && (media == 0xf0 || media >= 0xf8)
        && table_sectors > 0
        && sectors > reserved
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Bytes at their places.
    type Pieces = [(usize, &'static [u8])];

    fn image(pieces: &Pieces) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(HEAD as u64).expect("a size");
        for (place, bytes) in pieces {
            file.write_all_at(bytes, *place as u64).expect("a write");
        }
        file
    }

    fn found(pieces: &Pieces) -> Option<&'static str> {
        detect(&image(pieces)).expect("it can be read").map(|kind| kind.name)
    }

    #[test]
    fn types_are_known_by_their_marks() {
        let rows: &[(&str, &Pieces)] = &[
            ("squashfs", &[(0, b"hsqs")]),
            ("romfs", &[(0, b"-rom1fs-")]),
            ("xfs", &[(0, b"XFSB")]),
            ("btrfs", &[(0x1_0040, b"_BHRfS_M")]),
            ("f2fs", &[(1024, b"\x10\x20\xf5\xf2")]),
            ("erofs", &[(1024, b"\xe2\xe1\xf5\xe0")]),
            ("ntfs3", &[(3, b"NTFS    "), (510, b"\x55\xaa")]),
            ("exfat", &[(3, b"EXFAT   "), (510, b"\x55\xaa")]),
            ("iso9660", &[(0x8001, b"CD001")]),
            ("udf", &[(0x8001, b"CD001"), (0x8801, b"BEA01"), (0x9001, b"NSR02")]),
            ("ext4", &[(1024, &[1]), (1028, &[1]), (1080, b"\x53\xef")]),
            ("hfsplus", &[(1024, b"H+\x00\x04")]),
            ("hfs", &[(1024, b"BD"), (1042, &[1]), (1044, &[0, 0, 2, 0])]),
            ("ufs", &[(0x1_055c, b"\x19\x01\x54\x19")]),
            ("jffs2", &[(0, b"\x85\x19\x03\x20\x0c")]),
        ];
        for (name, pieces) in rows {
            assert_eq!(found(pieces), Some(*name));
        }
    }

    #[test]
    fn a_weak_mark_alone_is_none() {
        assert_eq!(found(&[(1080, b"\x53\xef")]), None);
        assert_eq!(found(&[(510, b"\x55\xaa")]), None);
        assert_eq!(found(&[(1024, b"BD")]), None);
        assert_eq!(found(&[(1030, b"\x34\x34")]), None);
        assert_eq!(found(&[(1040, b"\x7f\x13")]), None);
        assert_eq!(found(&[]), None);
        assert!(matches!(detect(&tempfile::tempfile().expect("a file")), Ok(None)));
    }

    #[test]
    fn other_names_of_a_type() {
        assert_eq!(FsType::named("ext2").map(|kind| kind.name), Ok("ext4"));
        assert!(FsType::named("zfs").is_err());
    }
}
