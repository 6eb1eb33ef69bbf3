// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the superblock of a file system says about it. Sources: the on-disk structures as Linux' headers have them, and
//! the standards the modules name.

mod foreign;
mod linux;
mod packed;

use crate::Medium;
use std::io;

/// What is known about a file system without mounting it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its type, as its tools call it.
    pub kind: &'static str,
    /// Its name.
    pub label: Option<String>,
    /// What tells it from others, as blkid(8) writes it.
    pub uuid: Option<String>,
    /// The unit of allocation, in bytes.
    pub block_size: Option<u32>,
    /// Its size, in bytes.
    pub size: Option<u64>,
    /// What was free when it was last unmounted, in bytes.
    pub free: Option<u64>,
    /// What it can do, or needs, by the names its tools use.
    pub features: Vec<String>,
}

/// How much of the start is looked at, in bytes: the farthest superblock and some.
const HEAD: u64 = 72 << 10;

/// Reads the superblock of one type: what finds it in the first bytes, or anywhere on the medium.
enum Reader {
    Head(fn(&[u8]) -> Volume),
    Medium(fn(&[u8], &dyn Medium) -> io::Result<Volume>),
}

/// The types, by the names that Linux has for them.
const READERS: &[(&str, Reader)] = &[
    ("btrfs", Reader::Head(linux::btrfs)),
    ("cramfs", Reader::Head(packed::cramfs)),
    ("erofs", Reader::Head(packed::erofs)),
    ("exfat", Reader::Medium(foreign::exfat)),
    ("ext4", Reader::Head(linux::ext)),
    ("f2fs", Reader::Head(linux::f2fs)),
    ("hfs", Reader::Head(foreign::hfs)),
    ("hfsplus", Reader::Head(foreign::hfsplus)),
    ("iso9660", Reader::Head(packed::iso9660)),
    ("jffs2", Reader::Medium(linux::jffs2)),
    ("jfs", Reader::Head(linux::jfs)),
    ("minix", Reader::Head(linux::minix)),
    ("nilfs2", Reader::Head(linux::nilfs2)),
    ("ntfs3", Reader::Medium(foreign::ntfs)),
    ("romfs", Reader::Head(packed::romfs)),
    ("squashfs", Reader::Head(packed::squashfs)),
    ("udf", Reader::Medium(packed::udf)),
    ("ufs", Reader::Head(foreign::ufs)),
    ("vfat", Reader::Medium(foreign::fat)),
    ("xfs", Reader::Head(linux::xfs)),
];

/// The file system of this type (a name of Linux') on `medium`; none for a type that is not known here.
///
/// # Errors
/// Those of reading. What a damaged superblock says may be wrong.
pub fn describe(kind: &str, medium: &dyn Medium) -> io::Result<Option<Volume>> {
    let Some((_, reader)) = READERS.iter().find(|(name, _)| *name == kind) else { return Ok(None) };
    let mut head = vec![0; medium.size().min(HEAD) as usize];
    medium.read(&mut head, 0)?;
    Ok(Some(match reader {
        Reader::Head(read) => read(&head),
        Reader::Medium(read) => read(&head, medium)?,
    }))
}

/// The bytes at a place of the medium, as far as they are there.
fn piece(medium: &dyn Medium, place: Option<u64>, length: usize) -> io::Result<Vec<u8>> {
    let Some(place) = place.filter(|&place| place < medium.size()) else { return Ok(Vec::new()) };
    let mut bytes = vec![0; (length as u64).min(medium.size() - place) as usize];
    medium.read(&mut bytes, place)?;
    Ok(bytes)
}

/// The names of the bits that are set; a bit without a name is written as a number after `word`.
fn named(word: &str, bits: u64, names: &[(u64, &str)]) -> Vec<String> {
    let name = |bit: u64| names.iter().find(|&&(named, _)| named == bit).map(|&(_, name)| name.to_owned());
    let set = (0..64).map(|shift| 1 << shift).filter(|bit| bits & bit != 0);
    set.map(|bit| name(bit).unwrap_or_else(|| format!("{word}:{bit:#x}"))).collect()
}

/// `count` units of `unit` bytes.
fn bytes(count: u64, unit: u32) -> Option<u64> {
    count.checked_mul(unit.into())
}

/// Two to the power of `log`, when that is a block size.
fn power(log: u32) -> Option<u32> {
    (9..=26).contains(&log).then(|| 1 << log)
}
