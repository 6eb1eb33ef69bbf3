// SPDX-License-Identifier: MIT OR Apache-2.0
//! VHD, the images of Virtual PC and the first Hyper-V: of fixed size, dynamic, and with differences to another one. Source:
//! Microsoft, "Virtual Hard Disk Image Format Specification", version 1.0 (2006).
//!
//! A footer of 512 bytes says what the image is. One of fixed size is the disk, and then the footer. In the others the footer is at
//! the start too, and a table has the place of each block, which begins with a bitmap of the sectors that it has; the rest is in
//! the image it is based on, or zero. The disk's size is the one that the footer names, as Hyper-V has it, and not that of its
//! cylinders.

use crate::bytes::{be32, be64, le16, utf16, uuid};
use crate::container::{Container, Source, Tables, ends_within, from_below, piece};
use crate::form::{Other, Others, portable};
use crate::{Bytes, DiskError, Medium};
use std::io;

/// What footers and headers begin with.
const FOOTER: &[u8] = b"conectix";
const HEADER: &[u8] = b"cxsparse";
/// Their sizes, in bytes.
const FOOTER_SIZE: u64 = 512;
const HEADER_SIZE: u64 = 1024;
/// The unit of places and of bitmaps, in bytes.
const SECTOR: u64 = 512;
/// An entry of a block that is not in the file.
const NOWHERE: u32 = 0xffff_ffff;
/// The largest blocks that are taken, in bytes; usual are 2 MiB.
const BLOCK_MOST: u64 = 256 << 20;
/// The longest name that is taken, in bytes.
const NAME_MOST: u64 = 4096;
const FIXED: u32 = 2;
const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;

fn damaged<T>(what: &str) -> Result<T, DiskError> {
    Err(DiskError::Damaged(format!("the VHD image is damaged: {what}")))
}

/// Whether the sum at `place` is that of all other bytes.
fn is_whole(bytes: &[u8], place: usize) -> bool {
    let sum = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_add(u32::from(byte)));
    bytes.len() > place + 4 && !sum(bytes).wrapping_sub(sum(&bytes[place..place + 4])) == be32(bytes, place)
}

/// What a footer says.
struct Footer {
    kind: u32,
    size: u64,
    header: u64,
    identity: Option<String>,
}

impl Footer {
    /// That of an image: at its start, or, where there is none that is whole, at its end.
    fn read(medium: &dyn Medium) -> Result<Option<Self>, DiskError> {
        let end = medium.size().saturating_sub(FOOTER_SIZE);
        for place in [0, end] {
            let mut bytes = [0; FOOTER_SIZE as usize];
            if medium.size() < FOOTER_SIZE {
                break;
            }
            medium.read(&mut bytes, place)?;
            if bytes.starts_with(FOOTER) && is_whole(&bytes, 64) {
                let (kind, size, header) = (be32(&bytes, 60), be64(&bytes, 48), be64(&bytes, 16));
                // At the start of a disk there may be anything.
                if kind == FIXED && (place != end || size > end) {
                    continue;
                }
                return Ok(Some(Footer { kind, size, header, identity: uuid(&bytes, 68) }));
            }
        }
        Ok(None)
    }

    fn of(medium: &dyn Medium) -> Result<Self, DiskError> {
        match Footer::read(medium)? {
            Some(footer) if footer.size <= i64::MAX as u64 => Ok(footer),
            Some(_) => damaged("the size of its disk"),
            None => damaged("its footer"),
        }
    }

    fn header(&self, medium: &dyn Medium) -> Result<Vec<u8>, DiskError> {
        let header = piece(medium, self.header, HEADER_SIZE, "the header")?;
        match header.starts_with(HEADER) && is_whole(&header, 36) {
            true => Ok(header),
            false => damaged("its header"),
        }
    }
}

/// Whether a medium ends with the footer of an image of fixed size, or another one that is whole.
///
/// # Errors
/// Those of reading.
pub(crate) fn has_footer(medium: &dyn Medium) -> io::Result<bool> {
    match Footer::read(medium) {
        Ok(footer) => Ok(footer.is_some()),
        Err(DiskError::Io(error)) => Err(error),
        Err(_) => Ok(false),
    }
}

/// The size of the disk in an image of fixed size, which begins where the file does; none in another one.
///
/// # Errors
/// Those of reading, and when the image is damaged.
pub fn fixed(medium: &dyn Medium) -> Result<Option<u64>, DiskError> {
    let footer = Footer::of(medium)?;
    Ok((footer.kind == FIXED).then_some(footer.size))
}

/// What tells an image from others.
pub(crate) fn identity(medium: &dyn Medium) -> Result<Option<String>, DiskError> {
    Ok(Footer::of(medium)?.identity)
}

/// What an image needs beside itself.
///
/// Names are those of Windows: the one that is relative to the image counts, else the last part of the other one.
pub(crate) fn others(medium: &dyn Medium) -> Result<Others, DiskError> {
    let footer = Footer::of(medium)?;
    if footer.kind != DIFFERENCING {
        return Ok(Others::default());
    }
    let header = footer.header(medium)?;
    let mut name = None;
    for locator in header[576..768].chunks_exact(24) {
        if locator.starts_with(b"W2ru") {
            let (length, place) = (u64::from(be32(locator, 8)), be64(locator, 16));
            if length > NAME_MOST {
                return damaged("the name of the image it is based on");
            }
            name = Some(utf16(&piece(medium, place, length, "a name")?));
        }
    }
    let whole = || {
        let swapped: Vec<u8> = header[64..576]
            .chunks_exact(2)
            .flat_map(|pair| le16(pair, 0).swap_bytes().to_le_bytes())
            .collect();
        let whole = utf16(&swapped);
        whole.rsplit(['\\', '/']).next().unwrap_or_default().to_owned()
    };
    let name = portable(&name.filter(|name| !name.is_empty()).unwrap_or_else(whole));
    if name.is_empty() {
        return damaged("it does not name the image it is based on");
    }
    let below = Some(Other { name: name.into(), form: Some("vhd".into()) });
    Ok(Others { extents: Vec::new(), below, identity: uuid(&header, 40) })
}

/// An image.
pub struct Vhd {
    file: Bytes,
    below: Option<Bytes>,
    tables: Tables,
    size: u64,
    /// None in an image of fixed size.
    blocks: Option<Blocks>,
}

/// Where blocks are.
#[derive(Clone, Copy)]
struct Blocks {
    table: u64,
    /// The sizes of a block and of its bitmap, in bytes.
    block: u64,
    bitmap: u64,
}

impl Vhd {
    /// The image in `file`, with the one it is based on.
    ///
    /// # Errors
    /// Those of reading; when it is damaged, or of an unknown kind.
    pub fn open(file: Bytes, below: Option<Bytes>) -> Result<Self, DiskError> {
        let footer = Footer::of(&*file)?;
        let blocks = match footer.kind {
            FIXED => None,
            DYNAMIC | DIFFERENCING => {
                let header = footer.header(&*file)?;
                let (table, entries) = (be64(&header, 16), u64::from(be32(&header, 28)));
                let block = u64::from(be32(&header, 32));
                if !block.is_power_of_two() || !(4096..=BLOCK_MOST).contains(&block) {
                    return damaged("the size of its blocks");
                }
                if entries * block < footer.size || !ends_within(table, entries * 4, file.size()) {
                    return damaged("its table");
                }
                Some(Blocks { table, block, bitmap: (block / SECTOR / 8).next_multiple_of(SECTOR) })
            }
            kind => return damaged(&format!("it is of type {kind}")),
        };
        if footer.kind == DIFFERENCING && below.is_none() {
            return damaged("the image it is based on is missing");
        }
        Ok(Vhd { file, below, tables: Tables::default(), size: footer.size, blocks })
    }
}

impl Container for Vhd {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&mut self, offset: u64, most: u64) -> io::Result<(Source<'_>, u64)> {
        let Some(Blocks { table, block, bitmap }) = self.blocks else {
            return Ok((Source::At(&*self.file, offset), most));
        };
        let skipped = offset % block;
        let end = (skipped + most).min(block);
        let entry = u32::from_be_bytes(self.tables.entry(&*self.file, table + offset / block * 4)?);
        if entry == NOWHERE {
            return Ok(from_below(self.below.as_deref(), offset, end - skipped));
        }
        let start = u64::from(entry) * SECTOR;
        let mut has = |sector: u64| -> io::Result<bool> {
            let [byte] = self.tables.entry(&*self.file, start + sector / 8)?;
            Ok(byte << (sector % 8) & 0x80 != 0)
        };
        let first = has(skipped / SECTOR)?;
        let mut reach = skipped / SECTOR + 1;
        while reach * SECTOR < end && has(reach)? == first {
            reach += 1;
        }
        let length = (reach * SECTOR).min(end) - skipped;
        Ok(match first {
            true => (Source::At(&*self.file, start + bitmap + skipped), length),
            false => from_below(self.below.as_deref(), offset, length),
        })
    }
}
