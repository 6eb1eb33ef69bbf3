// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file in memory that must not be read beyond its end, for tests and the fuzz target.

use outrigger_proto_disk::form::{Form, open};
use outrigger_proto_disk::{Bytes, DiskError, Medium};
use std::io;

/// A file; reading beyond its end is a defect of the reader.
pub struct Bounded(pub Vec<u8>);

impl Medium for Bounded {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).expect("a place");
        assert!(end <= self.size(), "read {offset}..{end} of {}", self.size());
        buffer.copy_from_slice(&self.0[offset as usize..end as usize]);
        Ok(())
    }
}

/// The disk in one file, of the form it has.
pub fn disk(file: Vec<u8>) -> Result<Bytes, DiskError> {
    let file = Bounded(file);
    open(vec![(Form::of(&file)?, Box::new(file))])
}

/// All that is on a disk of at most `most` bytes.
pub fn content(disk: &Bytes, most: u64) -> io::Result<Vec<u8>> {
    let mut content = vec![1; disk.size().min(most) as usize];
    // Pieces that are no multiples of anything.
    for (piece, offset) in content.chunks_mut(77_777).zip((0..).step_by(77_777)) {
        disk.read(piece, offset)?;
    }
    Ok(content)
}
