// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sparse extents.

use super::{SECTOR, damaged, refused};
use crate::bytes::{le16, le32, le64};
use crate::container::{Tables, ends_within, piece};
use crate::{Bytes, DiskError, Medium};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_PARSE_ZLIB_HEADER, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use std::io;

const MAGIC: &[u8] = b"KDMV";
/// The directory is where the header at the end says.
const AT_END: u64 = u64::MAX;
/// Where that header is, before the end of the file: a marker without content follows it.
const FOOTER: u64 = 1024;
const ZERO_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const MARKERS: u32 = 1 << 17;
const DEFLATE: u16 = 1;
/// The largest grains that are taken, in bytes; usual are 64 KiB.
const GRAIN_MOST: u64 = 2 << 20;
/// The most entries that a table may have.
const ENTRIES_MOST: u64 = 512;
/// The size of what stands before compressed bytes: the sector they are for, and how many they are.
const MARKER: u64 = 12;

/// Whether a file begins as a sparse extent does.
pub(super) fn is_sparse(medium: &dyn Medium) -> Result<bool, DiskError> {
    let mut start = [0; 4];
    if medium.size() < SECTOR {
        return Ok(false);
    }
    medium.read(&mut start, 0)?;
    Ok(start == MAGIC)
}

/// Where the descriptor in a sparse extent is, and its size, in bytes; none where there is none.
pub(super) fn descriptor(medium: &dyn Medium) -> Result<Option<(u64, u64)>, DiskError> {
    let head = piece(medium, 0, SECTOR, "the header")?;
    let (Some(place), Some(size)) = (bytes(le64(&head, 28)), bytes(le64(&head, 36))) else {
        return damaged("the place of its descriptor");
    };
    Ok((place != 0 && size != 0).then_some((place, size)))
}

/// So many sectors in bytes, if there can be so many.
fn bytes(sectors: u64) -> Option<u64> {
    sectors.checked_mul(SECTOR).filter(|&bytes| bytes <= i64::MAX as u64)
}

/// Where bytes of an extent are.
pub(super) enum Place {
    Nowhere,
    Zero,
    /// In its file.
    At(u64),
    /// In the compressed grain at the first, after so many other ones.
    Packed(u64, u64),
}

/// An extent.
pub(super) struct Sparse {
    file: Bytes,
    tables: Tables,
    size: u64,
    /// The size of a grain, in bytes.
    grain: u64,
    /// How many entries a table has.
    entries: u64,
    directory: u64,
    zero_grains: bool,
    compressed: bool,
    /// The grain that was unpacked last, by its place.
    unpacked: Option<(u64, Vec<u8>)>,
}

impl Sparse {
    /// The extent in a file.
    pub fn open(file: Bytes) -> Result<Self, DiskError> {
        let mut head = piece(&*file, 0, SECTOR, "the header")?;
        if le64(&head, 56) == AT_END {
            let place = file.size().saturating_sub(FOOTER);
            head = piece(&*file, place, SECTOR, "the header at its end")?;
        }
        if !head.starts_with(MAGIC) {
            return damaged("a part of it has no header, or is cut off");
        }
        let (version, flags) = (le32(&head, 4), le32(&head, 8));
        if !(1..=3).contains(&version) {
            return refused(&format!("version {version}"));
        }
        let compressed = flags & COMPRESSED != 0;
        if compressed && (le16(&head, 77) != DEFLATE || flags & MARKERS == 0) {
            return refused("grains of unknown compression");
        }
        let entries = u64::from(le32(&head, 44));
        let (Some(size), Some(grain), Some(directory)) =
            (bytes(le64(&head, 12)), bytes(le64(&head, 20)), bytes(le64(&head, 56)))
        else {
            return damaged("the sizes in a header");
        };
        if !grain.is_power_of_two() || !(4096..=GRAIN_MOST).contains(&grain) {
            return damaged("the size of its grains");
        }
        if !(1..=ENTRIES_MOST).contains(&entries) {
            return damaged("the size of its tables");
        }
        let tables = size.div_ceil(grain).div_ceil(entries);
        if !ends_within(directory, tables * 4, file.size()) {
            return damaged("its directory lies outside the file");
        }
        let zero_grains = flags & ZERO_GRAINS != 0;
        let tables = Tables::default();
        Ok(Sparse { file, tables, size, grain, entries, directory, zero_grains, compressed, unpacked: None })
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What it is in.
    pub fn file(&self) -> &dyn Medium {
        &*self.file
    }

    /// Where the bytes from `offset` on are, and how many of `most` in the same way.
    pub fn place(&mut self, offset: u64, most: u64) -> io::Result<(Place, u64)> {
        let (number, skipped) = (offset / self.grain, offset % self.grain);
        let most = most.min(self.grain - skipped);
        let directory = self.directory + number / self.entries * 4;
        let table = u64::from(u32::from_le_bytes(self.tables.entry(&*self.file, directory)?)) * SECTOR;
        if table == 0 {
            return Ok((Place::Nowhere, most));
        }
        let entry = self.tables.entry(&*self.file, table + number % self.entries * 4)?;
        let place = match u64::from(u32::from_le_bytes(entry)) * SECTOR {
            0 => Place::Nowhere,
            SECTOR if self.zero_grains => Place::Zero,
            place if self.compressed => Place::Packed(place, skipped),
            place => Place::At(place + skipped),
        };
        Ok((place, most))
    }

    /// The content of the compressed grain at `place`.
    pub fn unpacked(&mut self, place: u64) -> io::Result<&[u8]> {
        if self.unpacked.as_ref().is_none_or(|(known, _)| *known != place) {
            let outside = |error: DiskError| match error {
                DiskError::Io(error) => error,
                other => io::Error::other(other.to_string()),
            };
            let marker = piece(&*self.file, place, MARKER, "a grain").map_err(outside)?;
            let length = u64::from(le32(&marker, 8));
            if length > 2 * GRAIN_MOST {
                return Err(io::Error::other("the VMDK image is damaged: the size of a compressed grain"));
            }
            let data = piece(&*self.file, place + MARKER, length, "a grain").map_err(outside)?;
            let mut content = vec![0; self.grain as usize];
            let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF | TINFL_FLAG_PARSE_ZLIB_HEADER;
            let (status, _, filled) =
                decompress(&mut DecompressorOxide::new(), &data, &mut content, 0, flags);
            if status != TINFLStatus::Done {
                return Err(io::Error::other("the VMDK image is damaged: a compressed grain"));
            }
            // The last one may end with the disk.
            content.truncate(filled);
            self.unpacked = Some((place, content));
        }
        Ok(self.unpacked.as_ref().map_or(&[], |(_, content)| content))
    }
}
