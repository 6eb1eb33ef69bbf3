// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the bytes of disks say: partition tables ([`partition`]), superblocks ([`volume`]), images in which a disk's bytes
//! have to be searched for ([`container`], by their [`form`]), and what is known by name only ([`marks`]). [`served`] is how one
//! process asks another one for such bytes.
//!
//! Whatever is decoded here is untrusted. Decoding never panics, reads a bounded number of bytes
//! and keeps nothing it has not checked: sums that a format has are verified, what points beyond the medium or into
//! itself is reported instead of followed. The crate does no I/O: bytes come from a [`Medium`].
#![forbid(unsafe_code)]

mod bytes;
pub mod container;
pub mod form;
mod gpt;
pub mod marks;
mod mbr;
pub mod partition;
pub mod qcow2;
pub mod served;
pub mod vdi;
pub mod vhd;
pub mod vhdx;
pub mod vmdk;
pub mod volume;

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

/// A medium of any kind.
pub type Bytes = Box<dyn Medium + Send + Sync>;

impl Medium for Bytes {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read(buffer, offset)
    }
}

impl Medium for &[u8] {
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

/// A range of a medium as one of its own.
pub struct Window<'a, M: ?Sized> {
    /// The whole.
    pub medium: &'a M,
    /// Where it starts, in bytes.
    pub start: u64,
    /// How long it is, in bytes.
    pub size: u64,
}

impl<M: Medium + ?Sized> Medium for Window<'_, M> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|&end| end <= self.size);
        let start = end.and_then(|_| self.start.checked_add(offset)).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.medium.read(buffer, start)
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
    /// What it holds needs something that is not known here; the sentence says what.
    #[error("{0}")]
    Unsupported(String),
}
