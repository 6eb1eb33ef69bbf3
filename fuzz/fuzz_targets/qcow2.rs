// SPDX-License-Identifier: MIT OR Apache-2.0
//! A qcow2 image behind a script of 16 bytes that says what is done to it: nothing panics, and nothing takes long.
#![no_main]

#[path = "../../crates/proto/disk/tests/support/memory.rs"]
mod memory;

use libfuzzer_sys::fuzz_target;
use memory::Memory;
use outrigger_proto_disk::Medium;
use outrigger_proto_disk::container::Container;
use outrigger_proto_disk::qcow2::Qcow2;
use std::io;

/// The most bytes an image may grow to.
const MOST: u64 = 4 << 20;

/// Does what one byte of the script says, somewhere on the disk.
fn act(disk: &mut Qcow2<Memory>, byte: u8, number: u64) -> io::Result<()> {
    let size = disk.header().size.min(1 << 40);
    let length = [1, 512, 3_000, 70_000][usize::from(byte & 3)].min(size);
    let offset = u64::from(byte >> 5).wrapping_mul(size / 7).wrapping_add(number * 100).min(size - length);
    let mut content = vec![byte; length as usize];
    match byte >> 2 & 7 {
        0 | 1 => disk.read(&mut content, offset),
        2 => disk.discard(offset, length, true),
        3 => disk.discard(offset, length, false),
        4 => disk.flush(),
        _ => disk.write(&content, offset),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((script, image)) = bytes.split_at_checked(16) else { return };
    let base: Box<dyn Medium + Send + Sync> = Box::new(Memory::new(vec![0x5a; 3_000], MOST));
    let Ok(mut disk) = Qcow2::open(Memory::new(image.to_vec(), MOST), Some(base)) else { return };
    for (&byte, number) in script.iter().zip(0..) {
        let _ = act(&mut disk, byte, number);
    }
    let _ = disk.flush();
});
