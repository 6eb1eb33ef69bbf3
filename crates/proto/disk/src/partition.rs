// SPDX-License-Identifier: MIT OR Apache-2.0
//! Partition tables: GPT (UEFI 2.10, chapter 5) and MBR with extended partitions.
//!
//! A table can say anything: partitions that overlap, that lie outside the medium, chains that bite their own tail. Each
//! partition comes with its [`Fault`], if it has one, and its range never reaches beyond the medium.

use crate::{DiskError, Medium, gpt, mbr};

/// The most partitions that are looked at.
pub const MOST: usize = 1024;

/// How a table is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// GUID partition table.
    Gpt,
    /// Master boot record.
    Mbr,
}

impl Scheme {
    /// Its name, as other programs write it.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Gpt => "gpt",
            Scheme::Mbr => "dos",
        }
    }
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// How it is written.
    pub scheme: Scheme,
    /// The unit of its places, in bytes.
    pub sector: u32,
    /// What tells this disk from others: a GUID, or a number in hexadecimal.
    pub id: String,
    /// The partitions, in ascending order of their numbers.
    pub partitions: Vec<Partition>,
    /// What is wrong with the table as such, in sentences.
    pub remarks: Vec<String>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux counts; from 1.
    pub number: u32,
    /// Where it starts, in bytes.
    pub start: u64,
    /// How long it is, in bytes; not more than the medium has.
    pub size: u64,
    /// What it is for: a GUID, or a number in hexadecimal.
    pub kind: String,
    /// What tells it from others.
    pub id: String,
    /// Its name; only GPT has them.
    pub name: String,
    /// Why it is not to be written, or does not exist at all.
    pub fault: Option<Fault>,
}

/// What is wrong with a partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It starts beyond the end of the medium, or ends before it starts: there is nothing of it.
    #[error("lies outside the image")]
    Outside,
    /// Only a part of it is there.
    #[error("ends beyond the end of the image")]
    CutOff,
    /// It shares bytes with another one, which this says.
    #[error("overlaps partition {0}")]
    Overlaps(u32),
    /// It begins in the table itself.
    #[error("covers the partition table")]
    CoversTable,
}

impl Partition {
    /// What it is for, in words, where that is known.
    pub fn purpose(&self) -> Option<&'static str> {
        PURPOSES.iter().find(|(kind, _)| kind.eq_ignore_ascii_case(&self.kind)).map(|&(_, purpose)| purpose)
    }

    /// Its range of `medium`, if any of it is there: first byte and size.
    pub fn range(&self) -> Option<(u64, u64)> {
        (self.fault != Some(Fault::Outside)).then_some((self.start, self.size))
    }
}

/// Purposes by type: those that are met often.
const PURPOSES: &[(&str, &str)] = &[
    ("01", "FAT12"),
    ("06", "FAT16"),
    ("07", "NTFS or exFAT"),
    ("0b", "FAT32"),
    ("0c", "FAT32"),
    ("0e", "FAT16"),
    ("27", "hidden NTFS"),
    ("82", "Linux swap"),
    ("83", "Linux"),
    ("8e", "Linux LVM"),
    ("a5", "FreeBSD"),
    ("a6", "OpenBSD"),
    ("a9", "NetBSD"),
    ("af", "HFS or HFS+"),
    ("ef", "EFI system"),
    ("fd", "Linux RAID"),
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI system"),
    ("21686148-6449-6e6f-744e-656564454649", "BIOS boot"),
    ("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", "Microsoft basic data"),
    ("e3c9e316-0b5c-4db8-817d-f92df00215ae", "Microsoft reserved"),
    ("de94bba4-06d1-4d40-a16a-bfd50179d6ac", "Windows recovery"),
    ("0fc63daf-8483-4772-8e79-3d69d8477de4", "Linux filesystem"),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "Linux swap"),
    ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "Linux root (x86-64)"),
    ("b921b045-1df0-41c3-af44-4c6f280d3fae", "Linux root (ARM 64)"),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", "Linux extended boot"),
    ("933ac7e1-2eb4-4f13-b844-0e14e2aef915", "Linux home"),
    ("e6d6d379-f507-44c2-a23c-238f2a3df928", "Linux LVM"),
    ("a19d880f-05fc-4d3b-a006-743f0f84911e", "Linux RAID"),
    ("ca7d7ccb-63ed-4c53-861c-1742536059cc", "LUKS"),
    ("516e7cb6-6ecf-11d6-8ff8-00022d09712b", "FreeBSD UFS"),
    ("48465300-0000-11aa-aa11-00306543ecac", "Apple HFS+"),
    ("7c3457ef-0000-11aa-aa11-00306543ecac", "Apple APFS"),
];

/// The partition table on `medium`; none where nothing looks like one.
///
/// # Errors
/// When it cannot be read, or is a GPT of which neither copy is whole.
pub fn table(medium: &(impl Medium + ?Sized)) -> Result<Option<Table>, DiskError> {
    let Some(record) = mbr::record(medium)? else { return Ok(None) };
    let table = match record.protects_gpt() {
        true => gpt::table(medium)?,
        false => mbr::table(medium, &record),
    };
    Ok(Some(checked(table, medium.size())))
}

/// The table with every partition's faults, and no range beyond `end`.
fn checked(mut table: Table, end: u64) -> Table {
    table.partitions.sort_by_key(|partition| partition.number);
    for partition in &mut table.partitions {
        let rest = end.saturating_sub(partition.start);
        if rest == 0 || partition.size == 0 {
            partition.fault = Some(Fault::Outside);
            partition.size = 0;
        } else if partition.size > rest {
            partition.fault = Some(Fault::CutOff);
            partition.size = rest;
        } else if partition.start < u64::from(table.sector) {
            partition.fault = Some(Fault::CoversTable);
        }
    }
    mark_overlaps(&mut table.partitions);
    table
}

/// In the order of their starts, what overlaps anything before it overlaps what reached farthest so far.
fn mark_overlaps(partitions: &mut [Partition]) {
    let mut order: Vec<&mut Partition> =
        partitions.iter_mut().filter(|each| each.range().is_some()).collect();
    order.sort_by_key(|partition| partition.start);
    let end = |partition: &Partition| partition.start + partition.size;
    let mut farthest: Option<&mut Partition> = None;
    for partition in order {
        if let Some(before) = farthest.as_mut().filter(|before| end(before) > partition.start) {
            before.fault.get_or_insert(Fault::Overlaps(partition.number));
            partition.fault.get_or_insert(Fault::Overlaps(before.number));
        }
        if farthest.as_ref().is_none_or(|before| end(partition) > end(before)) {
            farthest = Some(partition);
        }
    }
}
