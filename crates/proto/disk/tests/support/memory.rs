// SPDX-License-Identifier: MIT OR Apache-2.0
//! An image in memory, for tests and the fuzz target.

use outrigger_proto_disk::Medium;
use outrigger_proto_disk::qcow2::Storage;
use std::io;
use std::sync::{Mutex, MutexGuard};

/// An image, and how many bytes it may grow to.
pub struct Memory {
    bytes: Mutex<Vec<u8>>,
    most: u64,
}

impl Memory {
    pub fn new(bytes: Vec<u8>, most: u64) -> Self {
        Memory { bytes: Mutex::new(bytes), most }
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().expect("no panic in between")
    }
}

impl Medium for Memory {
    fn size(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        Medium::read(&&self.bytes()[..], buffer, offset)
    }
}

impl Storage for Memory {
    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.grow(offset.saturating_add(data.len() as u64))?;
        self.bytes()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        if size > self.most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut bytes = self.bytes();
        let length = bytes.len().max(size as usize);
        bytes.resize(length, 0);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
