// SPDX-License-Identifier: MIT OR Apache-2.0
//! GUID partition tables: UEFI 2.10, section 5.3.

use crate::bytes::{guid, le32, le64, utf16};
use crate::partition::{MOST, Partition, Scheme, Table};
use crate::{DiskError, Medium};

/// The sizes of sectors that disks have.
const SECTORS: [u32; 2] = [512, 4096];
/// The bytes of a header, as far as they are defined.
const HEADER: usize = 92;
/// The least size of an entry, in bytes; others are this times a power of two.
const ENTRY: usize = 128;
/// The most bytes that entries may have.
const ENTRIES: u64 = 1 << 20;

/// One of the two copies.
struct Copy {
    id: String,
    entry_size: usize,
    entries: Vec<u8>,
}

/// Reads the table: the first copy, or the second at the end of the medium.
pub(crate) fn table(medium: &(impl Medium + ?Sized)) -> Result<Table, DiskError> {
    let mut reasons = Vec::new();
    for sector in SECTORS {
        match copy(medium, sector, 1)? {
            Ok(copy) => {
                let mut remarks = Vec::new();
                if let Err(reason) = last(medium, sector)? {
                    remarks.push(format!("the backup of the partition table {reason}"));
                }
                return Ok(decode(sector, &copy, remarks));
            }
            Err(reason) => reasons.push(reason),
        }
    }
    // The more telling of both: of a sector that has no mark nothing else can be said.
    let reason = reasons.iter().find(|reason| **reason != NO_MARK).unwrap_or(&NO_MARK);
    for sector in SECTORS {
        if let Ok(copy) = last(medium, sector)? {
            let remark = format!("the partition table {reason}; its backup is used");
            return Ok(decode(sector, &copy, vec![remark]));
        }
    }
    Err(DiskError::Damaged(format!("the partition table (GPT) {reason}, and so does its backup")))
}

const NO_MARK: &str = "has no mark where it should begin";

fn last(medium: &(impl Medium + ?Sized), sector: u32) -> Result<Result<Copy, &'static str>, DiskError> {
    match (medium.size() / u64::from(sector)).checked_sub(1) {
        Some(place) => copy(medium, sector, place),
        None => Ok(Err(NO_MARK)),
    }
}

/// The copy whose header is sector number `place`, or what is wrong with it.
fn copy(
    medium: &(impl Medium + ?Sized),
    sector: u32,
    place: u64,
) -> Result<Result<Copy, &'static str>, DiskError> {
    let within =
        |offset: u64, length: u64| offset.checked_add(length).is_some_and(|end| end <= medium.size());
    let sector_size = u64::from(sector);
    let mut header = vec![0; sector as usize];
    if !within(place * sector_size, sector_size) {
        return Ok(Err(NO_MARK));
    }
    medium.read(&mut header, place * sector_size)?;
    if !header.starts_with(b"EFI PART") {
        return Ok(Err(NO_MARK));
    }
    let length = le32(&header, 12) as usize;
    if !(HEADER..=sector as usize).contains(&length) {
        return Ok(Err("has a header of an impossible size"));
    }
    let sum = le32(&header, 16);
    header[16..20].fill(0);
    if crc32fast::hash(&header[..length]) != sum {
        return Ok(Err("has a header with a wrong checksum"));
    }
    if le64(&header, 24) != place {
        return Ok(Err("has a header that belongs elsewhere"));
    }
    let (count, entry_size) = (u64::from(le32(&header, 80)), le32(&header, 84) as usize);
    let bytes = count * entry_size as u64;
    if entry_size < ENTRY
        || !(entry_size / ENTRY).is_power_of_two()
        || entry_size % ENTRY != 0
        || bytes > ENTRIES
    {
        return Ok(Err("has entries of an impossible size"));
    }
    let start = le64(&header, 72).checked_mul(sector_size);
    let Some(start) = start.filter(|&start| within(start, bytes)) else {
        return Ok(Err("has entries outside the image"));
    };
    let mut entries = vec![0; bytes as usize];
    medium.read(&mut entries, start)?;
    if crc32fast::hash(&entries) != le32(&header, 88) {
        return Ok(Err("has entries with a wrong checksum"));
    }
    Ok(Ok(Copy { id: guid(&header, 56), entry_size, entries }))
}

fn decode(sector: u32, copy: &Copy, mut remarks: Vec<String>) -> Table {
    let entries = copy.entries.chunks_exact(copy.entry_size).zip(1..);
    // An entry without a type is free.
    let used = entries.filter(|(entry, _)| entry[..16] != [0; 16]);
    let mut partitions: Vec<Partition> =
        used.take(MOST + 1).map(|(entry, number)| partition(entry, number, sector)).collect();
    if partitions.len() > MOST {
        partitions.truncate(MOST);
        remarks.push(format!("only the first {MOST} partitions are looked at"));
    }
    Table { scheme: Scheme::Gpt, sector, id: copy.id.clone(), partitions, remarks }
}

fn partition(entry: &[u8], number: u32, sector: u32) -> Partition {
    let (first, last) = (le64(entry, 32), le64(entry, 40));
    let bytes = |sectors: u64| sectors.saturating_mul(sector.into());
    // The last sector belongs to it; what ends before it starts has no size.
    let sectors = last.checked_sub(first).map_or(0, |more| more.saturating_add(1));
    Partition {
        number,
        start: bytes(first),
        size: bytes(sectors),
        kind: guid(entry, 0),
        id: guid(entry, 16),
        name: utf16(&entry[56..ENTRY]),
        fault: None,
    }
}
