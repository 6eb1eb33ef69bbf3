// SPDX-License-Identifier: MIT OR Apache-2.0
//! The header of a qcow2 image and its extensions.

use crate::bytes::{be32, be64};
use crate::{DiskError, Medium};

/// What every version begins with.
const MAGIC: &[u8] = b"QFI\xfb";
/// How much of the start is looked at, in bytes: no header with its extensions is larger in practice, and what says more is
/// ignored as the format allows.
const HEAD: u64 = 64 << 10;
/// Where the extensions start in version 2.
const HEADER_2: usize = 72;
/// The least length of a header of version 3.
const HEADER_3: usize = 104;
/// The largest tables that are taken, in bytes; the same as QEMU's.
const L1_MOST: u64 = 32 << 20;
pub(super) const COUNTS_MOST: u64 = 8 << 20;
/// Extensions by their types.
const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const FEATURE_NAMES: u32 = 0x6803_f857;
/// Where the bits are that a program must clear when it writes without knowing them.
pub(super) const AUTOCLEAR: u64 = 88;
/// Where offset and size of the refcount table are.
pub(super) const COUNTS: u64 = 48;

const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED: u64 = 1 << 4;

/// How clusters are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Deflate (RFC 1951), without a header.
    Deflate,
    /// Zstandard (RFC 8878).
    Zstd,
}

/// Where the bytes of clusters that an image does not have are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// The name of the file, as the image has it.
    pub name: Vec<u8>,
    /// Its form, if the image says so.
    pub format: Option<String>,
}

/// What the header of an image says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// The size of the disk, in bytes.
    pub size: u64,
    /// The size of a cluster is two to the power of this; 9 to 21.
    pub cluster_bits: u32,
    /// How clusters are compressed that are.
    pub compression: Compression,
    /// The image it is based on.
    pub backing: Option<Backing>,
    /// How many internal snapshots it has.
    pub snapshots: u32,
    /// Why it may be read only, if so.
    pub read_only: Option<&'static str>,
    /// Where the first table is, and how many entries it has.
    pub(super) l1: (u64, usize),
    /// Where the refcount table is, and its size in bytes.
    pub(super) counts: (u64, u64),
    /// The bits of a refcount are two to the power of this; 0 to 6.
    pub(super) count_order: u32,
    /// Whether there are bits that writing has to clear.
    pub(super) autoclear: bool,
}

fn damaged<T>(what: impl Into<String>) -> Result<T, DiskError> {
    Err(DiskError::Damaged(format!("the qcow2 image is damaged: {}", what.into())))
}

fn refused<T>(what: impl Into<String>) -> Result<T, DiskError> {
    Err(DiskError::Unsupported(format!("a qcow2 image with {} is not served", what.into())))
}

impl Header {
    /// The header of the image on `medium`; none when it is not one of qcow2 (or of qcow before it).
    ///
    /// # Errors
    /// Those of reading; when it is damaged; when it needs what is not known here.
    pub fn read(medium: &(impl Medium + ?Sized)) -> Result<Option<Self>, DiskError> {
        let mut head = vec![0; medium.size().min(HEAD) as usize];
        medium.read(&mut head, 0)?;
        if !head.starts_with(MAGIC) {
            return Ok(None);
        }
        let version = be32(&head, 4);
        let length = match version {
            2 => HEADER_2,
            3 => be32(&head, 100) as usize,
            _ => return refused(format!("version {version}")),
        };
        let cluster_bits = be32(&head, 20);
        if !(9..=21).contains(&cluster_bits) {
            return damaged(format!("clusters of 2^{cluster_bits} bytes"));
        }
        if head.len() < HEADER_2 || version == 3 && length < HEADER_3 || length > 1 << cluster_bits {
            return damaged("its header is cut off");
        }
        if be32(&head, 32) != 0 {
            return refused("encryption");
        }
        let extensions = Extensions::read(&head, length, cluster_bits);
        let features = if version == 3 { be64(&head, 72) } else { 0 };
        must_be_known(features, &extensions)?;
        let header = Header {
            version,
            size: be64(&head, 24),
            cluster_bits,
            compression: compression(&head, length, features)?,
            backing: backing(&head, cluster_bits, extensions.backing_format)?,
            snapshots: be32(&head, 60),
            read_only: read_only(features),
            l1: (be64(&head, 40), be32(&head, 36) as usize),
            counts: (be64(&head, COUNTS as usize), u64::from(be32(&head, 56)) << cluster_bits),
            count_order: if version == 3 { be32(&head, 96) } else { 4 },
            autoclear: version == 3 && be64(&head, AUTOCLEAR as usize) != 0,
        };
        header.must_make_sense(medium.size())?;
        Ok(Some(header))
    }

    /// The size of a cluster, in bytes.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    fn must_make_sense(&self, end: u64) -> Result<(), DiskError> {
        let (place, entries) = self.l1;
        let aligned = |place: u64| place.is_multiple_of(self.cluster());
        let covered = (entries as u128) << (2 * self.cluster_bits - 3);
        if self.size > i64::MAX as u64 || covered < u128::from(self.size) {
            return damaged("its first table is too small for the disk");
        }
        let length = entries as u64 * 8;
        if !aligned(place) || length > L1_MOST || place.checked_add(length).is_none_or(|last| last > end) {
            return damaged("its first table lies outside the file");
        }
        let (place, length) = self.counts;
        let last = place.checked_add(length);
        if !aligned(place) || place == 0 || length > COUNTS_MOST || last.is_none_or(|last| last > end) {
            return damaged("its refcount table lies outside the file");
        }
        if self.count_order > 6 {
            return damaged(format!("refcounts of 2^{} bits", self.count_order));
        }
        Ok(())
    }
}

/// What the extensions of a header say.
#[derive(Default)]
struct Extensions {
    backing_format: Option<String>,
    /// Kind (0: incompatible), bit, name.
    names: Vec<(u8, u8, String)>,
}

impl Extensions {
    fn read(head: &[u8], start: usize, cluster_bits: u32) -> Self {
        let mut found = Extensions::default();
        let end = head.len().min(1 << cluster_bits);
        let mut place = start;
        while place + 8 <= end {
            let (kind, length) = (be32(head, place), be32(head, place + 4) as usize);
            let Some(data) = head[..end].get(place + 8..).and_then(|rest| rest.get(..length)) else { break };
            match kind {
                END => break,
                BACKING_FORMAT => found.backing_format = Some(String::from_utf8_lossy(data).into_owned()),
                FEATURE_NAMES => found.names = data.chunks_exact(48).map(feature_name).collect(),
                _ => {}
            }
            place += 8 + length.next_multiple_of(8);
        }
        found
    }
}

fn feature_name(entry: &[u8]) -> (u8, u8, String) {
    let name = entry[2..].split(|&byte| byte == 0).next().unwrap_or_default();
    (entry[0], entry[1], String::from_utf8_lossy(name).escape_debug().to_string())
}

fn must_be_known(features: u64, extensions: &Extensions) -> Result<(), DiskError> {
    if features & EXTERNAL != 0 {
        return refused("an external data file");
    }
    if features & EXTENDED != 0 {
        return refused("extended L2 entries (subclusters)");
    }
    let unknown = features & !(DIRTY | CORRUPT | COMPRESSION);
    if unknown != 0 {
        let bit = unknown.trailing_zeros() as u8;
        let named = extensions.names.iter().find(|(kind, number, _)| *kind == 0 && *number == bit);
        let name = named.map_or(format!("number {bit}"), |(_, _, name)| format!("\"{name}\""));
        return refused(format!("the feature {name}"));
    }
    Ok(())
}

fn read_only(features: u64) -> Option<&'static str> {
    if features & CORRUPT != 0 {
        Some("the qcow2 image is marked corrupt: `qemu-img check -r all` repairs it")
    } else if features & DIRTY != 0 {
        Some(
            "the qcow2 image was not closed and its refcounts are not up to date: `qemu-img check -r all` repairs it",
        )
    } else {
        None
    }
}

fn compression(head: &[u8], length: usize, features: u64) -> Result<Compression, DiskError> {
    let kind = if features & COMPRESSION != 0 && length > HEADER_3 { head[HEADER_3] } else { 0 };
    match kind {
        0 => Ok(Compression::Deflate),
        1 => Ok(Compression::Zstd),
        other => refused(format!("compression number {other}")),
    }
}

fn backing(head: &[u8], cluster_bits: u32, format: Option<String>) -> Result<Option<Backing>, DiskError> {
    let (place, length) = (be64(head, 8), be32(head, 16) as usize);
    if place == 0 {
        return Ok(None);
    }
    let within = |place: u64| {
        let start = usize::try_from(place).ok()?;
        head.get(..1 << cluster_bits).unwrap_or(head).get(start..)?.get(..length)
    };
    match within(place) {
        Some(name) if (1..=1023).contains(&length) && !name.contains(&0) => {
            Ok(Some(Backing { name: name.to_vec(), format }))
        }
        _ => damaged("the name of its backing file"),
    }
}
