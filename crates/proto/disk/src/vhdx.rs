// SPDX-License-Identifier: MIT OR Apache-2.0
//! VHDX, the images of Hyper-V, fixed and dynamic. Source: Microsoft, `[MS-VHDX]` "Virtual Hard Disk v2 (VHDX) File Format".
//!
//! Of two headers the newer one that is whole counts. A table of regions leads to the metadata, which has the sizes, and to a table
//! with the state and place of each block. What a writer that was cut off had logged is read as if it were in its place already; the
//! file does not change. Images with differences to another one are refused.

mod log;

use crate::bytes::{guid, le16, le32, le64};
use crate::container::{Container, Source, Tables, ends_within, piece};
use crate::{Bytes, DiskError, Medium};
use log::Replayed;
use std::io;

const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const HEADER_SIZE: u64 = 4096;
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const REGIONS_SIZE: u64 = 64 << 10;
/// The most entries in the tables of regions and of metadata.
const ENTRIES: usize = 2047;
const BAT: &str = "2dc27766-f623-4200-9d64-115e9bfd4a08";
const METADATA: &str = "8b7ca206-4790-4b9a-b8fe-575f050f886e";
const METADATA_SIZE: u64 = 64 << 10;
const PARAMETERS: &str = "caa16737-fa36-4d43-b3b6-33f0aa44e76b";
const DISK_SIZE: &str = "2fa54224-cd1b-4876-b211-5dbed83bf4b8";
const SECTOR_SIZE: &str = "8141bf1d-a96f-4709-ba47-f233a8faab5f";
/// Items that say nothing about where bytes are: the identifier of the disk, and the size of physical sectors.
const OTHERS: [&str; 2] = ["beca12ab-b2e6-4523-93ef-c309e000c746", "cda348c7-445d-4471-9cc9-e9885251c556"];
const HAS_PARENT: u32 = 1 << 1;
/// Parts of an entry of the table of blocks.
const STATE: u64 = 7;
const PLACE: u64 = !0xf_ffff;
/// States of blocks that are in the file.
const PRESENT: u64 = 6;
/// Those of the others: never written, undefined, zero, unmapped.
const ABSENT: u64 = 3;

fn damaged<T>(what: &str) -> Result<T, DiskError> {
    Err(DiskError::Damaged(format!("the VHDX image is damaged: {what}")))
}

fn refused<T>(what: &str) -> Result<T, DiskError> {
    Err(DiskError::Unsupported(format!("a VHDX image with {what} is not served")))
}

/// Whether a structure that starts with a mark has the sum at its fourth byte.
fn is_whole(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.starts_with(mark) && log::sum(&[&bytes[..4], &[0; 4], &bytes[8..]]) == le32(bytes, 4)
}

/// The newer one of the headers that are whole.
fn header(file: &dyn Medium) -> Result<Vec<u8>, DiskError> {
    let mut newest: Option<Vec<u8>> = None;
    for place in HEADERS {
        let header = piece(file, place, HEADER_SIZE, "a header")?;
        let number = |header: &[u8]| le64(header, 8);
        let is_newer = newest.as_ref().is_none_or(|newest| number(newest) < number(&header));
        if is_whole(&header, b"head") && is_newer {
            newest = Some(header);
        }
    }
    match newest {
        Some(header) if le16(&header, 66) == 1 => Ok(header),
        Some(header) => refused(&format!("version {}", le16(&header, 66))),
        None => damaged("both of its headers"),
    }
}

/// Where the table of blocks and the metadata are, and their sizes.
fn regions(file: &dyn Medium) -> Result<[(u64, u64); 2], DiskError> {
    for place in REGIONS {
        let table = piece(file, place, REGIONS_SIZE, "a table of regions")?;
        if !is_whole(&table, b"regi") {
            continue;
        }
        let (mut bat, mut metadata) = (None, None);
        for entry in table[16..].chunks_exact(32).take((le32(&table, 8) as usize).min(ENTRIES)) {
            let region = Some((le64(entry, 16), u64::from(le32(entry, 24))));
            match guid(entry, 0).as_str() {
                BAT => bat = region,
                METADATA => metadata = region,
                other if le32(entry, 28) & 1 != 0 => return refused(&format!("the region {other}")),
                _ => {}
            }
        }
        return match (bat, metadata) {
            (Some(bat), Some(metadata)) => Ok([bat, metadata]),
            _ => damaged("a region is missing"),
        };
    }
    damaged("both of its tables of regions")
}

/// What the metadata says.
#[derive(Default)]
struct Metadata {
    parameters: Option<u64>,
    size: Option<u64>,
    sector: Option<u64>,
}

impl Metadata {
    fn read(file: &dyn Medium, place: u64, length: u64) -> Result<Self, DiskError> {
        let table = piece(file, place, METADATA_SIZE, "the metadata")?;
        if !table.starts_with(b"metadata") {
            return damaged("its metadata");
        }
        let mut found = Metadata::default();
        for entry in table[32..].chunks_exact(32).take(usize::from(le16(&table, 10)).min(ENTRIES)) {
            let (offset, size) = (u64::from(le32(entry, 16)), u64::from(le32(entry, 20)));
            let item = || -> Result<u64, DiskError> {
                if !(4..=8).contains(&size) || !ends_within(offset, size, length) {
                    return damaged("an item of its metadata");
                }
                let mut bytes = piece(file, place.saturating_add(offset), size, "an item")?;
                bytes.resize(8, 0);
                Ok(le64(&bytes, 0))
            };
            match guid(entry, 0).as_str() {
                PARAMETERS => found.parameters = Some(item()?),
                DISK_SIZE => found.size = Some(item()?),
                SECTOR_SIZE => found.sector = Some(item()?),
                other if OTHERS.contains(&other) => {}
                // The name of the image it is based on is one of these.
                other if le32(entry, 24) & 4 != 0 && found.parameters.is_none_or(|all| !has_parent(all)) => {
                    return refused(&format!("the item {other}"));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

fn has_parent(parameters: u64) -> bool {
    (parameters >> 32) as u32 & HAS_PARENT != 0
}

/// An image.
pub struct Vhdx {
    file: Replayed,
    tables: Tables,
    size: u64,
    /// The size of a block, in bytes, and after how many of them the table has an entry for another purpose.
    block: u64,
    ratio: u64,
    table: u64,
}

impl Vhdx {
    /// The image in `file`.
    ///
    /// # Errors
    /// Those of reading; when it is damaged, or needs what is not known here.
    pub fn open(file: Bytes) -> Result<Self, DiskError> {
        let header = header(&*file)?;
        let file = Replayed::open(file, &header)?;
        let [(table, length), metadata] = regions(&file)?;
        let found = Metadata::read(&file, metadata.0, metadata.1)?;
        let (Some(parameters), Some(size), Some(sector)) = (found.parameters, found.size, found.sector)
        else {
            return damaged("an item of its metadata is missing");
        };
        if has_parent(parameters) {
            return refused("differences to another one");
        }
        let block = parameters & u64::from(u32::MAX);
        if !block.is_power_of_two() || !(1 << 20..=256 << 20).contains(&block) {
            return damaged("the size of its blocks");
        }
        if !matches!(sector, 512 | 4096) || size > 64 << 40 || !size.is_multiple_of(sector) {
            return damaged("the size of its disk or its sectors");
        }
        let ratio = (sector << 23) / block;
        let blocks = size.div_ceil(block);
        let entries = blocks + blocks.saturating_sub(1) / ratio;
        if entries * 8 > length || !ends_within(table, entries * 8, file.size()) {
            return damaged("its table of blocks");
        }
        Ok(Vhdx { file, tables: Tables::default(), size, block, ratio, table })
    }
}

impl Container for Vhdx {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&mut self, offset: u64, most: u64) -> io::Result<(Source<'_>, u64)> {
        let (number, skipped) = (offset / self.block, offset % self.block);
        let place = self.table + (number + number / self.ratio) * 8;
        let entry = u64::from_le_bytes(self.tables.entry(&self.file, place)?);
        let length = most.min(self.block - skipped);
        match entry & STATE {
            0..=ABSENT => Ok((Source::Zero, length)),
            PRESENT if entry & PLACE != 0 => {
                Ok((Source::At(&self.file, (entry & PLACE).saturating_add(skipped)), length))
            }
            _ => Err(io::Error::other("the VHDX image is damaged: an entry of its table of blocks")),
        }
    }
}
