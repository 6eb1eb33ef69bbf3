// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the bytes of disks say: partition tables ([`partition`]).
//!
//! Whatever is decoded here comes from nobody that vouches for it. Decoding never panics, reads a bounded number of bytes
//! and keeps nothing it has not checked: sums that a format has are verified, what points beyond the medium or into
//! itself is reported instead of followed. The crate does no I/O: bytes come from a [`Medium`].
#![forbid(unsafe_code)]

mod bytes;
mod gpt;
mod mbr;
pub mod partition;

use std::io;

/// Where bytes come from.
pub trait Medium {
    /// How many there are.
    fn size(&self) -> u64;

    /// Fills `buffer` with those from `offset` on.
    ///
    /// # Errors
    /// Those of reading, and when the medium ends before.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Medium for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| self.get(start..)?.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Why something cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The medium cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What it holds is damaged; the sentence says what.
    #[error("{0}")]
    Damaged(String),
}
