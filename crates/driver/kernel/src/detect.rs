// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in an image, by its content. Sources: the superblocks as Linux' headers describe them (`include/uapi/linux/magic.h`
//! and the `fs/` directory of each type).

use outrigger_core::{Errno, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A file system that can be served.
#[derive(Debug, Clone, Copy)]
pub struct FsType {
    /// Its name in the kernel.
    pub name: &'static str,
    /// Whether the kernel can write it.
    pub writable: bool,
    /// Bytes that are always at a place.
    marks: &'static [(u64, &'static [u8])],
    /// What else must hold; given the first [`HEAD`] bytes.
    also: Option<fn(&[u8]) -> bool>,
}

/// Every type, those with the most telling marks first.
pub const TYPES: &[FsType] = &[
    FsType { name: "squashfs", writable: false, marks: &[(0, b"hsqs")], also: None },
    FsType { name: "iso9660", writable: false, marks: &[(0x8001, b"CD001")], also: None },
    FsType { name: "erofs", writable: false, marks: &[(1024, b"\xe2\xe1\xf5\xe0")], also: None },
    FsType { name: "ext4", writable: true, marks: &[(1080, b"\x53\xef")], also: Some(is_ext) },
    FsType { name: "vfat", writable: true, marks: &[(510, b"\x55\xaa")], also: Some(is_fat) },
];

/// How much of an image the checks look at, in bytes: the farthest mark and some.
const HEAD: usize = 36 << 10;

impl FsType {
    /// The type with this name; `ext2` and `ext3` are served by ext4, `msdos` by vfat.
    ///
    /// # Errors
    /// `EINVAL` with the names there are.
    pub fn named(name: &str) -> Result<&'static FsType> {
        let name = match name {
            "ext2" | "ext3" => "ext4",
            "msdos" => "vfat",
            other => other,
        };
        TYPES.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let names: Vec<&str> = TYPES.iter().map(|kind| kind.name).collect();
            Errno::EINVAL.because(format!("no file system \"{name}\"; there are {}", names.join(" ")))
        })
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
    let mut head = vec![0; HEAD];
    let mut length = 0;
    while length < HEAD {
        match image.read_at(&mut head[length..], length as u64)? {
            0 => break,
            count => length += count,
        }
    }
    head.truncate(length);
    Ok(TYPES.iter().find(|kind| kind.fits(&head)))
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

    fn image(pieces: &[(usize, &[u8])]) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(HEAD as u64).expect("a size");
        for (place, bytes) in pieces {
            file.write_all_at(bytes, *place as u64).expect("a write");
        }
        file
    }

    fn found(pieces: &[(usize, &[u8])]) -> Option<&'static str> {
        detect(&image(pieces)).expect("it can be read").map(|kind| kind.name)
    }

    #[test]
    fn types_are_known_by_their_marks() {
        assert_eq!(found(&[(0, b"hsqs")]), Some("squashfs"));
        assert_eq!(found(&[(0x8001, b"CD001")]), Some("iso9660"));
        assert_eq!(found(&[(1024, &[1]), (1028, &[1]), (1080, b"\x53\xef")]), Some("ext4"));
    }

    #[test]
    fn a_weak_mark_alone_is_none() {
        assert_eq!(found(&[(1080, b"\x53\xef")]), None);
        assert_eq!(found(&[(510, b"\x55\xaa")]), None);
        assert_eq!(found(&[]), None);
        assert!(matches!(detect(&tempfile::tempfile().expect("a file")), Ok(None)));
    }

    #[test]
    fn other_names_of_a_type() {
        assert_eq!(FsType::named("ext2").map(|kind| kind.name), Ok("ext4"));
        assert!(FsType::named("zfs").is_err());
    }
}
