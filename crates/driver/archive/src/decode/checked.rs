// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checksum and the length that a zip archive has of each member's content (APPNOTE.TXT 4.4.7 and 4.4.9).

use super::{Decode, Point};
use crate::{Error, Kind, Result, source::Origin};
use crc32fast::Hasher;

/// What the content of a member must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    /// CRC-32.
    pub crc: u32,
    /// In bytes.
    pub size: u64,
}

/// Content that is looked at in order from its beginning.
struct Sum {
    hasher: Hasher,
    /// How much of it there was.
    at: u64,
}

impl Sum {
    /// One at the beginning.
    fn new() -> Self {
        Sum { hasher: Hasher::new(), at: 0 }
    }

    fn add(&mut self, data: &[u8]) {
        self.hasher.update(data);
        self.at += data.len() as u64;
    }

    /// Whether this is all that is expected, and something else.
    fn differs(&self, expected: Expected) -> bool {
        self.at == expected.size && self.hasher.clone().finalize() != expected.crc
    }
}

/// The error of content that is not what a member's entry says; `at` is where it is in the archive.
pub(crate) fn mismatch(origin: &Origin, at: u64) -> Error {
    origin.error(Kind::Corrupt, at, "the checksum of a zip member does not match its data")
}

/// A decoder that gives the last bytes of a member only if it is what is expected. One that was started in the middle knows no
/// checksum, only the length.
pub(super) struct Checked {
    decoder: Box<dyn Decode>,
    expected: Expected,
    sum: Option<Sum>,
    out: u64,
    origin: Origin,
    start: u64,
}

impl Checked {
    /// Checks what `decoder` gives after the first `out` bytes of the content; the compressed bytes begin at `start`.
    pub fn new(decoder: Box<dyn Decode>, expected: Expected, out: u64, origin: Origin, start: u64) -> Self {
        let sum = (out == 0).then(Sum::new);
        Checked { decoder, expected, sum, out, origin, start }
    }

    fn finish(&mut self) -> Result<()> {
        if self.decoder.read(&mut [0])? > 0 {
            return Err(self.too_long());
        }
        match &self.sum {
            Some(sum) if sum.differs(self.expected) => Err(mismatch(&self.origin, self.start)),
            _ => Ok(()),
        }
    }

    fn too_long(&self) -> Error {
        self.origin.error(Kind::Corrupt, self.start, "a zip member is longer than its entry says")
    }
}

impl Decode for Checked {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.out == self.expected.size {
            return Ok(0);
        }
        let count = self.decoder.read(out)?;
        self.out += count as u64;
        if let Some(sum) = &mut self.sum {
            sum.add(&out[..count]);
        }
        if self.out > self.expected.size {
            return Err(self.too_long());
        }
        if self.out == self.expected.size && count > 0 {
            self.finish()?;
        }
        Ok(count)
    }

    fn consumed(&self) -> u64 {
        self.decoder.consumed()
    }

    fn take_point(&mut self) -> Option<Point> {
        self.decoder.take_point()
    }
}
