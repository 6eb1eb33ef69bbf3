// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images in which a disk's bytes have to be searched for: each form of them is a [`Container`], which says where bytes are.

use crate::{DiskError, Medium};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Where bytes of a disk are.
pub enum Source<'a> {
    /// In a file, from this place on.
    At(&'a dyn Medium, u64),
    /// Here: what was compressed in a file.
    Bytes(&'a [u8]),
    /// Nowhere, for they are zero.
    Zero,
}

/// A form of images that maps ranges of a disk to ranges of files.
pub trait Container {
    /// The size of the disk, in bytes.
    fn size(&self) -> u64;

    /// Where the bytes from `offset` on are, and how many of `most`, at least one, are there side by side. All of these are on
    /// the disk.
    ///
    /// # Errors
    /// Those of reading; when the image is damaged.
    fn find(&mut self, offset: u64, most: u64) -> io::Result<(Source<'_>, u64)>;

    /// Fills `buffer` with what is on the disk from `offset` on.
    ///
    /// # Errors
    /// Those of [`Container::find`] and of reading; beyond the end of the disk.
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.must_contain(offset, buffer.len() as u64)?;
        let (mut offset, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let (source, length) = self.find(offset, rest.len() as u64)?;
            let (piece, after) = rest.split_at_mut(length.clamp(1, rest.len() as u64) as usize);
            match source {
                Source::At(medium, place) if ends_within(place, piece.len() as u64, medium.size()) => {
                    medium.read(piece, place)?;
                }
                Source::At(..) => {
                    return Err(io::Error::other(
                        "the image is damaged: it is cut off, or its tables point beyond its end",
                    ));
                }
                Source::Bytes(bytes) => {
                    let bytes = bytes.get(..piece.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                    piece.copy_from_slice(bytes);
                }
                Source::Zero => piece.fill(0),
            }
            offset += piece.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Whether all of a range is on the disk.
    ///
    /// # Errors
    /// When it is not.
    fn must_contain(&self, offset: u64, length: u64) -> io::Result<()> {
        match ends_within(offset, length, self.size()) {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Many may look at it at once.
impl<C: Container> Medium for Mutex<C> {
    fn size(&self) -> u64 {
        self.lock().unwrap_or_else(PoisonError::into_inner).size()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.lock().unwrap_or_else(PoisonError::into_inner).read(buffer, offset)
    }
}

/// Whether `length` bytes from `place` on are within `size`.
pub(crate) fn ends_within(place: u64, length: u64, size: u64) -> bool {
    place.checked_add(length).is_some_and(|end| end <= size)
}

/// The source of up to `length` bytes, at least one, of a medium behind which there are zeroes.
pub(crate) fn padded(medium: &dyn Medium, place: u64, length: u64) -> (Source<'_>, u64) {
    match medium.size().saturating_sub(place).min(length) {
        0 => (Source::Zero, length),
        there => (Source::At(medium, place), there),
    }
}

/// The same of what an image is based on, if it is based on something.
pub(crate) fn from_below(
    below: Option<&(dyn Medium + Send + Sync)>,
    offset: u64,
    length: u64,
) -> (Source<'_>, u64) {
    below.map_or((Source::Zero, length), |below| padded(below, offset, length))
}

/// Fills `buffer` from `offset` on; beyond the end there are zeroes.
pub(crate) fn read_padded(medium: &(impl Medium + ?Sized), buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let there = medium.size().saturating_sub(offset).min(buffer.len() as u64) as usize;
    if there > 0 {
        medium.read(&mut buffer[..there], offset)?;
    }
    buffer[there..].fill(0);
    Ok(())
}

/// `length` bytes at `place`, which must be there; `what` says in errors what they are. Nothing longer than the medium is
/// allocated.
pub(crate) fn piece(medium: &dyn Medium, place: u64, length: u64, what: &str) -> Result<Vec<u8>, DiskError> {
    if !ends_within(place, length, medium.size()) {
        return Err(DiskError::Damaged(format!("the image is damaged: {what} lies outside the file")));
    }
    let mut bytes = vec![0; length as usize];
    medium.read(&mut bytes, place)?;
    Ok(bytes)
}

/// Tables in a file, of which pieces are in memory.
#[derive(Default)]
pub(crate) struct Tables(BTreeMap<u64, Box<[u8]>>);

impl Tables {
    /// The unit in which they are read, in bytes, and how many of them are kept.
    const PIECE: u64 = 16 << 10;
    const KEPT: usize = 256;

    /// The `N` bytes at `place`.
    ///
    /// # Errors
    /// Those of reading, and when they lie outside the file.
    pub fn entry<const N: usize>(&mut self, medium: &dyn Medium, place: u64) -> io::Result<[u8; N]> {
        let mut found = [0; N];
        let outside = || io::Error::other("the image is damaged: a table lies outside the file");
        for (place, byte) in (place..).zip(&mut found) {
            let number = place / Self::PIECE;
            if !self.0.contains_key(&number) {
                if self.0.len() >= Self::KEPT {
                    self.0.clear();
                }
                let start = number * Self::PIECE;
                let there = medium.size().saturating_sub(start).min(Self::PIECE);
                let mut content = vec![0; there as usize].into_boxed_slice();
                medium.read(&mut content, start)?;
                self.0.insert(number, content);
            }
            let content = self.0.get(&number).and_then(|piece| piece.get((place % Self::PIECE) as usize));
            *byte = *content.ok_or_else(outside)?;
        }
        Ok(found)
    }
}
