// SPDX-License-Identifier: MIT OR Apache-2.0
//! Partition tables, good and bad ones.

use outrigger_proto_disk::partition::{Fault, Scheme, Table, table};
use proptest::prelude::*;

const SECTOR: usize = 512;
const LINUX: u8 = 0x83;
const EXTENDED: u8 = 0x05;

fn put(disk: &mut [u8], place: usize, bytes: &[u8]) {
    disk[place..place + bytes.len()].copy_from_slice(bytes);
}

/// Writes a record with entries of (type, first sector, sectors) at a sector.
fn record(disk: &mut [u8], sector: usize, entries: &[(u8, u32, u32)]) {
    let base = sector * SECTOR;
    put(disk, base + 510, b"\x55\xaa");
    for (&(kind, first, count), place) in entries.iter().zip((base + 446..).step_by(16)) {
        disk[place + 4] = kind;
        put(disk, place + 8, &first.to_le_bytes());
        put(disk, place + 12, &count.to_le_bytes());
    }
}

fn mbr(sectors: usize, entries: &[(u8, u32, u32)]) -> Vec<u8> {
    let mut disk = vec![0; sectors * SECTOR];
    record(&mut disk, 0, entries);
    disk
}

fn read(disk: &[u8]) -> Table {
    table(&disk).expect("it can be read").expect("a table")
}

/// Number, first sector, sectors and fault of each partition.
fn rows(table: &Table) -> Vec<(u32, u64, u64, Option<Fault>)> {
    let sectors = |bytes: u64| bytes / SECTOR as u64;
    let row = |partition: &outrigger_proto_disk::partition::Partition| {
        (partition.number, sectors(partition.start), sectors(partition.size), partition.fault.clone())
    };
    table.partitions.iter().map(row).collect()
}

#[test]
fn primary_partitions_keep_the_numbers_of_their_entries() {
    let disk = mbr(100, &[(LINUX, 10, 20), (0, 0, 0), (0x0c, 40, 60)]);
    let table = read(&disk);
    assert_eq!((table.scheme, table.sector, table.remarks.len()), (Scheme::Mbr, 512, 0));
    assert_eq!(rows(&table), [(1, 10, 20, None), (3, 40, 60, None)]);
    assert_eq!(table.partitions[1].purpose(), Some("FAT32"));
}

#[test]
fn what_lies_outside_overlaps_or_is_cut_off_is_said() {
    let disk = mbr(100, &[(LINUX, 10, 20), (LINUX, 25, 10), (LINUX, 90, 20), (LINUX, 100, 1)]);
    let expected = [
        (1, 10, 20, Some(Fault::Overlaps(2))),
        (2, 25, 10, Some(Fault::Overlaps(1))),
        (3, 90, 10, Some(Fault::CutOff)),
        (4, 100, 0, Some(Fault::Outside)),
    ];
    assert_eq!(rows(&read(&disk)), expected);
}

#[test]
fn one_partition_may_overlap_several() {
    let disk = mbr(100, &[(LINUX, 10, 80), (LINUX, 20, 10), (LINUX, 40, 10)]);
    let faults: Vec<_> = read(&disk).partitions.into_iter().map(|partition| partition.fault).collect();
    assert_eq!(faults, [Some(Fault::Overlaps(2)), Some(Fault::Overlaps(1)), Some(Fault::Overlaps(1))]);
}

#[test]
fn logical_partitions_count_from_five() {
    let mut disk = mbr(200, &[(LINUX, 1, 9), (EXTENDED, 20, 100)]);
    record(&mut disk, 20, &[(LINUX, 2, 8), (EXTENDED, 30, 20)]);
    record(&mut disk, 50, &[(LINUX, 5, 15)]);
    let table = read(&disk);
    assert_eq!(table.remarks, [""; 0]);
    assert_eq!(rows(&table), [(1, 1, 9, None), (5, 22, 8, None), (6, 55, 15, None)]);
}

#[test]
fn chains_without_end_or_that_lead_away_are_left() {
    type Records = &'static [(usize, &'static [(u8, u32, u32)])];
    let rows: &[(Records, &str, usize)] = &[
        (&[(20, &[(LINUX, 2, 8), (EXTENDED, 0, 20)])], "has no end", 1),
        (
            &[(20, &[(LINUX, 2, 8), (EXTENDED, 30, 9)]), (50, &[(LINUX, 1, 2), (EXTENDED, 30, 9)])],
            "has no end",
            2,
        ),
        (&[(20, &[(LINUX, 2, 8), (EXTENDED, 4_000_000_000, 9)])], "leads out", 1),
        (&[(20, &[(LINUX, 2, 4_000_000_000)])], "leads out", 0),
        (&[(20, &[(LINUX, 2, 8), (EXTENDED, 30, 9)])], "breaks off", 1),
    ];
    for (records, words, found) in rows {
        let mut disk = mbr(200, &[(EXTENDED, 20, 100)]);
        records.iter().for_each(|(sector, entries)| record(&mut disk, *sector, entries));
        let table = read(&disk);
        assert!(table.remarks.iter().any(|remark| remark.contains(words)), "{words}: {:?}", table.remarks);
        assert_eq!(table.partitions.len(), *found, "{words}");
    }
}

#[test]
fn a_boot_sector_is_no_table() {
    let mut disk = mbr(10, &[]);
    assert_eq!(table(&&disk[..]).expect("it can be read"), None);
    // Code where entries would be.
    disk[446..510].fill(0x33);
    assert_eq!(table(&&disk[..]).expect("it can be read"), None);
    for disk in [&[0; 1024][..], &[][..], b"\x55\xaa"] {
        assert_eq!(table(&disk).expect("it can be read"), None);
    }
}

/// The sizes a GPT is tested with: sectors of the disk, and the sector its backup entries begin at.
const SECTORS: usize = 200;
const ENTRIES: usize = 4 * 128;

/// A disk with partitions of (first, last) sector, and both copies of the table.
fn gpt(sector: usize, partitions: &[(u64, u64)]) -> Vec<u8> {
    let mut disk = vec![0; SECTORS * sector];
    record(&mut disk, 0, &[(0xee, 1, u32::MAX)]);
    let mut entries = vec![0; ENTRIES];
    for (&(first, last), entry) in partitions.iter().zip(entries.chunks_mut(128)) {
        entry[..16].copy_from_slice(b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4");
        put(entry, 32, &first.to_le_bytes());
        put(entry, 40, &last.to_le_bytes());
        put(entry, 56, b"r\0o\0o\0t\0");
    }
    for (own, place) in [(1, 2), (SECTORS - 1, SECTORS - 2)] {
        put(&mut disk, place * sector, &entries);
        let mut header = [0; 92];
        put(&mut header, 0, b"EFI PART");
        let numbers = [(12, 92), (80, 4), (84, 128), (88, crc32fast::hash(&entries))];
        numbers.iter().for_each(|&(at, number): &(usize, u32)| put(&mut header, at, &number.to_le_bytes()));
        put(&mut header, 24, &(own as u64).to_le_bytes());
        put(&mut header, 72, &(place as u64).to_le_bytes());
        let sum = crc32fast::hash(&header).to_le_bytes();
        put(&mut header, 16, &sum);
        put(&mut disk, own * sector, &header);
    }
    disk
}

#[test]
fn a_gpt_is_read_with_sectors_of_both_sizes() {
    for sector in [512, 4096] {
        let table = read(&gpt(sector, &[(10, 19), (0, 0), (50, 149)]));
        assert_eq!((table.scheme, table.sector as usize), (Scheme::Gpt, sector));
        assert_eq!(table.remarks, [""; 0]);
        let [first, table_itself, last] = &table.partitions[..] else { panic!("{table:?}") };
        assert_eq!((first.start, first.size), (10 * sector as u64, 10 * sector as u64));
        assert_eq!((first.name.as_str(), first.purpose()), ("root", Some("Linux filesystem")));
        assert_eq!(table_itself.fault, Some(Fault::CoversTable));
        assert_eq!((last.number, last.size), (3, 100 * sector as u64));
    }
}

#[test]
fn the_backup_is_used_when_the_first_copy_is_damaged() {
    for (place, what) in [(512, "no mark"), (512 + 60, "header"), (1024 + 40, "entries")] {
        let mut disk = gpt(512, &[(10, 19)]);
        disk[place] ^= 1;
        let table = read(&disk);
        assert_eq!(table.partitions.len(), 1);
        assert!(
            table.remarks[0].contains(what) && table.remarks[0].contains("backup is used"),
            "{:?}",
            table.remarks
        );
        let end = disk.len() - 512;
        disk[end..].fill(0);
        let error =
            outrigger_proto_disk::partition::table(&&disk[..]).expect_err("both are damaged").to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_damaged_backup_is_remarked() {
    let mut disk = gpt(512, &[(10, 19)]);
    let end = disk.len() - 512;
    disk[end + 20] ^= 1;
    let table = read(&disk);
    assert!(table.remarks[0].starts_with("the backup"), "{:?}", table.remarks);
}

#[test]
fn numbers_of_a_gpt_that_would_overflow_are_outside() {
    let table = read(&gpt(512, &[(u64::MAX - 1, u64::MAX), (0, u64::MAX), (20, 10)]));
    let faults: Vec<_> = table.partitions.into_iter().map(|partition| partition.fault).collect();
    assert_eq!(faults, [Some(Fault::Outside), Some(Fault::CutOff), Some(Fault::Outside)]);
}

proptest! {
    /// Whatever a table says, no range leaves the medium, and what has no fault shares no byte with another.
    #[test]
    fn ranges_without_fault_are_disjoint_and_inside(
        entries in prop::collection::vec((prop::sample::select(vec![LINUX, EXTENDED, 0, 0xee]), 0..300_u32, 0..300_u32), 4),
        second in prop::collection::vec((prop::sample::select(vec![LINUX, EXTENDED, 0]), 0..300_u32, 0..300_u32), 2),
        places in prop::collection::vec((0..250_u64, 0..250_u64), 4),
        with_gpt in any::<bool>(),
    ) {
        let mut disk = if with_gpt { gpt(512, &places) } else { mbr(SECTORS, &entries) };
        if !with_gpt && let Some(extended) = entries.iter().find(|entry| entry.0 == EXTENDED && entry.1 < 199) {
            record(&mut disk, extended.1 as usize, &second);
        }
        if let Ok(Some(table)) = table(&&disk[..]) {
            let mut ranges = Vec::new();
            for partition in &table.partitions {
                prop_assert!(partition.fault == Some(Fault::Outside) || partition.start + partition.size <= disk.len() as u64);
                if partition.fault.is_none() {
                    ranges.push(partition.start..partition.start + partition.size);
                }
            }
            ranges.sort_by_key(|range| range.start);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }

    #[test]
    fn no_bytes_are_too_strange(mut bytes in prop::collection::vec(any::<u8>(), 512..8192), bits in 0..2_u8) {
        put(&mut bytes, 510, b"\x55\xaa");
        (0..4).for_each(|entry| bytes[446 + 16 * entry] &= 0x80);
        if bits == 1 {
            bytes[450] = 0xee;
        }
        let _ = table(&&bytes[..]);
    }
}
