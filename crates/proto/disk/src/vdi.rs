// SPDX-License-Identifier: MIT OR Apache-2.0
//! VDI, the images of VirtualBox, with room taken as it is needed or at once. Source: the structures in
//! `src/VBox/Storage/VDICore.h` of VirtualBox (versions 1.x), as QEMU's `block/vdi.c` reads them too.
//!
//! A table has an entry for each block of the disk: which of the blocks in the file it is, or that it is zero. An image with
//! differences to another one names that one by an identifier that only VirtualBox's registry leads to a file, so these are
//! refused.

use crate::bytes::{le32, le64};
use crate::container::{Container, Source, Tables, ends_within, piece};
use crate::{Bytes, DiskError};
use std::io;

/// How much of the start is looked at, in bytes: the header.
const HEAD: u64 = 0x1c8;
const VERSION: usize = 0x44;
const KIND: usize = 0x4c;
const MAP: usize = 0x154;
const DATA: usize = 0x158;
const SIZE: usize = 0x170;
const BLOCK: usize = 0x178;
const EXTRA: usize = 0x17c;
const BLOCKS: usize = 0x180;
/// Blocks that are in no file: never written, and emptied.
const NOWHERE: [u32; 2] = [0xffff_ffff, 0xffff_fffe];

/// An image.
pub struct Vdi {
    file: Bytes,
    tables: Tables,
    size: u64,
    /// The size of a block, in bytes.
    block: u64,
    /// Where the table and the blocks are.
    map: u64,
    data: u64,
}

fn damaged<T>(what: &str) -> Result<T, DiskError> {
    Err(DiskError::Damaged(format!("the VDI image is damaged: {what}")))
}

fn refused<T>(what: &str) -> Result<T, DiskError> {
    Err(DiskError::Unsupported(format!("a VDI image {what} is not served")))
}

impl Vdi {
    /// The image in `file`.
    ///
    /// # Errors
    /// Those of reading; when it is damaged; when it has differences to another one, or is of an unknown version.
    pub fn open(file: Bytes) -> Result<Self, DiskError> {
        let head = piece(&*file, 0, HEAD, "the header")?;
        if le32(&head, VERSION) >> 16 != 1 {
            return refused(&format!("of version {}", le32(&head, VERSION) >> 16));
        }
        match le32(&head, KIND) {
            1 | 2 => {}
            3 | 4 => return refused("with differences to another one"),
            _ => return damaged("its type is none of those there are"),
        }
        let [map, data, block, extra, blocks] =
            [MAP, DATA, BLOCK, EXTRA, BLOCKS].map(|place| u64::from(le32(&head, place)));
        let size = le64(&head, SIZE);
        if !block.is_power_of_two() || block < 512 || extra != 0 {
            return damaged("the size of its blocks");
        }
        if size > i64::MAX as u64 || blocks * block < size {
            return damaged("it has too few blocks for the disk");
        }
        if !ends_within(map, blocks * 4, file.size()) {
            return damaged("its table lies outside the file");
        }
        Ok(Vdi { file, tables: Tables::default(), size, block, map, data })
    }
}

impl Container for Vdi {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&mut self, offset: u64, most: u64) -> io::Result<(Source<'_>, u64)> {
        let (number, skipped) = (offset / self.block, offset % self.block);
        let entry = u32::from_le_bytes(self.tables.entry(&*self.file, self.map + number * 4)?);
        let length = most.min(self.block - skipped);
        Ok(match NOWHERE.contains(&entry) {
            true => (Source::Zero, length),
            false => (Source::At(&*self.file, self.data + u64::from(entry) * self.block + skipped), length),
        })
    }
}
