// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damaged qcow2 images: nothing panics, whatever is in their tables, and nothing goes on for ever.

#[path = "support/memory.rs"]
mod memory;

use memory::Memory;
use outrigger_proto_disk::Medium;
use outrigger_proto_disk::container::Container;
use outrigger_proto_disk::qcow2::Qcow2;
use std::io;
use std::path::Path;

/// The most bytes an image may grow to.
const MOST: u64 = 1 << 20;
/// How many images are looked at.
const ROUNDS: u64 = 6_000;
/// What the seeds of the fuzz target have before the image.
const SCRIPT: usize = 16;

/// What a disk is based on.
struct Below;

impl Medium for Below {
    fn size(&self) -> u64 {
        3_000
    }

    fn read(&self, buffer: &mut [u8], _: u64) -> io::Result<()> {
        buffer.fill(0x5a);
        Ok(())
    }
}

fn act(disk: &mut Qcow2<Memory>, choice: u64) -> io::Result<()> {
    let size = disk.header().size;
    let length = [1, 512, 3_000, 70_000][choice as usize % 4].min(size);
    let offset = (choice >> 8) % (size - length + 1);
    // Mostly where the disk begins: that is where the tables say something.
    let offset = if choice & 32 == 0 { offset } else { offset % 40_000.min(size - length + 1) };
    let mut content = vec![choice as u8; length as usize];
    match choice >> 2 & 7 {
        0 | 1 => disk.read(&mut content, offset),
        2 => disk.discard(offset, length, true),
        3 => disk.discard(offset, length, false),
        4 => disk.flush(),
        _ => disk.write(&content, offset),
    }
}

#[test]
fn no_tables_are_too_strange() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/qcow2");
    let seeds: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .expect("the corpus")
        .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a seed")[SCRIPT..].to_vec())
        .collect();
    let mut number = 1_u64;
    let mut next = || {
        number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        number >> 20
    };
    let (mut opened, mut done) = (0, 0);
    for round in 0..ROUNDS {
        let mut image = seeds[round as usize % seeds.len()].clone();
        for _ in 0..1 + next() % 4 {
            // The header, or one of the tables after it: most of their bytes are zero.
            let bound = if next() % 4 == 0 { 112 } else { image.len() as u64 };
            let place = (next() % bound) as usize;
            image[place] = match next() % 3 {
                0 => 0xff,
                1 => 1 << (next() % 8),
                _ => next() as u8,
            };
        }
        let Ok(mut disk) = Qcow2::open(Memory::new(image, MOST), Some(Box::new(Below))) else { continue };
        opened += 1;
        for _ in 0..12 {
            done += u32::from(act(&mut disk, next()).is_ok());
        }
        let _ = disk.flush();
    }
    assert!(opened > ROUNDS / 2 && done > 6 * ROUNDS as u32, "{opened} opened, {done} done");
}
