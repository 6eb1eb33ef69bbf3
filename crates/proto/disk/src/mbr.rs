// SPDX-License-Identifier: MIT OR Apache-2.0
//! Master boot records, and the chain of records in an extended partition.

use crate::bytes::le32;
use crate::partition::{Partition, Scheme, Table};
use crate::{DiskError, Medium};
use std::collections::HashSet;

/// The unit of places, in bytes.
const SECTOR: u64 = 512;
/// Where the four entries of a record are.
const ENTRIES: [usize; 4] = [446, 462, 478, 494];
/// Types of partitions that hold partitions.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The type that says: look at the GPT.
const PROTECTIVE: u8 = 0xee;
/// The number of the first partition inside the extended one.
const FIRST_LOGICAL: u32 = 5;
/// The most partitions inside the extended one.
const LOGICAL: usize = 256;

/// A sector with partition entries.
pub(crate) struct Record {
    id: u32,
    entries: [Entry; 4],
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: u8,
    kind: u8,
    first: u32,
    count: u32,
}

impl Entry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.count != 0
    }

    fn is_extended(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }

    fn partition(&self, number: u32, base: u64, disk: u32) -> Partition {
        Partition {
            number,
            start: (base + u64::from(self.first)) * SECTOR,
            size: u64::from(self.count) * SECTOR,
            kind: format!("{:02x}", self.kind),
            id: format!("{disk:08x}-{number:02x}"),
            name: String::new(),
            fault: None,
        }
    }
}

impl Record {
    pub(crate) fn protects_gpt(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == PROTECTIVE)
    }
}

fn read(medium: &(impl Medium + ?Sized), sector: u64) -> Result<Option<Record>, DiskError> {
    let mut bytes = [0; SECTOR as usize];
    if (sector + 1) * SECTOR > medium.size() {
        return Ok(None);
    }
    medium.read(&mut bytes, sector * SECTOR)?;
    if !bytes.ends_with(b"\x55\xaa") {
        return Ok(None);
    }
    let entry = |place: usize| Entry {
        state: bytes[place],
        kind: bytes[place + 4],
        first: le32(&bytes, place + 8),
        count: le32(&bytes, place + 12),
    };
    Ok(Some(Record { id: le32(&bytes, 440), entries: ENTRIES.map(entry) }))
}

/// The first sector, if it is a partition table: its mark is also that of boot sectors, so the entries must make sense.
pub(crate) fn record(medium: &(impl Medium + ?Sized)) -> Result<Option<Record>, DiskError> {
    let Some(record) = read(medium, 0)? else { return Ok(None) };
    let states = record.entries.iter().all(|entry| matches!(entry.state, 0 | 0x80));
    let mut used = record.entries.iter().filter(|entry| entry.is_used()).peekable();
    let some = used.peek().is_some();
    Ok((states && some && used.all(|entry| entry.first > 0)).then_some(record))
}

/// The table with the partitions of its extended one.
pub(crate) fn table(medium: &(impl Medium + ?Sized), record: &Record) -> Table {
    let mut table = Table {
        scheme: Scheme::Mbr,
        sector: SECTOR as u32,
        id: format!("{:08x}", record.id),
        partitions: Vec::new(),
        remarks: Vec::new(),
    };
    let mut logical = Vec::new();
    for (entry, number) in record.entries.iter().zip(1..).filter(|(entry, _)| entry.is_used()) {
        if !entry.is_extended() {
            table.partitions.push(entry.partition(number, 0, record.id));
        } else if logical.is_empty() {
            if let Err(remark) = chain(medium, entry, record.id, &mut logical) {
                table.remarks.push(format!("the chain of partitions in partition {number} {remark}"));
            }
        } else {
            table.remarks.push(format!("partition {number} is a second extended one and is not looked at"));
        }
    }
    table.partitions.append(&mut logical);
    table
}

/// The partitions in an extended one: each has a record in front that also says where the next record is.
fn chain(
    medium: &(impl Medium + ?Sized),
    extended: &Entry,
    disk: u32,
    found: &mut Vec<Partition>,
) -> Result<(), String> {
    let base = u64::from(extended.first);
    let end = base + u64::from(extended.count);
    let (mut place, mut seen) = (base, HashSet::new());
    loop {
        if !seen.insert(place) || seen.len() > LOGICAL {
            return Err("has no end".into());
        }
        let record = read(medium, place).map_err(|error| error.to_string())?;
        let Some(record) = record else { return Err("breaks off".into()) };
        let [own, next, ..] = record.entries;
        if own.is_used() && !own.is_extended() {
            let partition = own.partition(FIRST_LOGICAL + found.len() as u32, place, disk);
            if (place + u64::from(own.first) + u64::from(own.count)) > end {
                return Err("leads out of it".into());
            }
            found.push(partition);
        }
        if !next.is_used() || !next.is_extended() {
            return Ok(());
        }
        place = base + u64::from(next.first);
        if place >= end {
            return Err("leads out of it".into());
        }
    }
}
