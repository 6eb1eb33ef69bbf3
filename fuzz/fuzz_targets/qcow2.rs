// SPDX-License-Identifier: MIT OR Apache-2.0
//! A qcow2 image behind a script of 16 bytes that says what is done to it: nothing panics, and nothing takes long.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_disk::Medium;
use outrigger_proto_disk::qcow2::{Qcow2, Storage};
use std::io;
use std::sync::Mutex;

/// The most bytes an image may grow to.
const MOST: u64 = 4 << 20;

struct Memory(Mutex<Vec<u8>>);

impl Medium for Memory {
    fn size(&self) -> u64 {
        self.0.lock().expect("a lock").len() as u64
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        Medium::read(&&self.0.lock().expect("a lock")[..], buffer, offset)
    }
}

impl Storage for Memory {
    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.grow(offset.saturating_add(data.len() as u64))?;
        self.0.lock().expect("a lock")[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        let mut bytes = self.0.lock().expect("a lock");
        if size > MOST {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if bytes.len() < size as usize {
            bytes.resize(size as usize, 0);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

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
    let base: Box<dyn Medium + Send + Sync> = Box::new(Memory(Mutex::new(vec![0x5a; 3_000])));
    let Ok(mut disk) = Qcow2::open(Memory(Mutex::new(image.to_vec())), Some(base)) else { return };
    for (&byte, number) in script.iter().zip(0..) {
        let _ = act(&mut disk, byte, number);
    }
    let _ = disk.flush();
});
