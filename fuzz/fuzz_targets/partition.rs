// SPDX-License-Identifier: MIT OR Apache-2.0
//! A medium with a partition table: its ranges stay inside, and those without a fault share no byte. The checksums of a GPT
//! are put right first, so that what is behind them is reached.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_disk::partition::{Fault, table};

/// Puts the sums of the header in the second sector right, where it has entries inside the medium.
fn repair(medium: &mut [u8]) {
    let word = |medium: &[u8], place: usize| {
        u32::from_le_bytes(medium[place..place + 4].try_into().expect("four bytes"))
    };
    if medium.len() < 1024 || !medium[512..].starts_with(b"EFI PART") {
        return;
    }
    let length = word(medium, 512 + 80) as usize * (word(medium, 512 + 84) as usize).min(4096);
    let start = word(medium, 512 + 72) as usize * 512;
    if let Some(entries) = medium.get(start..).and_then(|rest| rest.get(..length)) {
        let sum = crc32fast::hash(entries).to_le_bytes();
        medium[512 + 88..512 + 92].copy_from_slice(&sum);
    }
    let header = word(medium, 512 + 12).clamp(92, 512) as usize;
    medium[512 + 16..512 + 20].fill(0);
    let sum = crc32fast::hash(&medium[512..512 + header]).to_le_bytes();
    medium[512 + 16..512 + 20].copy_from_slice(&sum);
}

fuzz_target!(|bytes: &[u8]| {
    let mut medium = bytes.to_vec();
    repair(&mut medium);
    let Ok(Some(table)) = table(&&medium[..]) else { return };
    let mut ranges = Vec::new();
    for partition in &table.partitions {
        let end = partition.start.saturating_add(partition.size);
        assert!(partition.fault == Some(Fault::Outside) || end <= medium.len() as u64);
        if partition.fault.is_none() {
            ranges.push(partition.start..end);
        }
    }
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
});
