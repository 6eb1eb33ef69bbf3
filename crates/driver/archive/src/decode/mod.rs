// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decompressors that can be started in the middle.
//!
//! Each yields [`Point`]s as it runs: places from which a new decoder can begin. What a point is depends on the
//! format: a deflate block boundary with its window, a bzip2 block, an xz block, a zstd frame.

mod bzip2;
mod checked;
mod deflate;
mod input;
mod xz;
mod zstd;

pub(crate) use checked::{Expected, mismatch};
pub(crate) use input::Input;
pub(crate) use xz::XzTable;
pub(crate) use zstd::{pack, unpack};

use crate::{Limits, Result, source::Origin};
use bytes::Bytes;
use std::sync::Arc;

/// A compressed format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// gzip (RFC 1952), any number of members.
    Gzip,
    /// A raw deflate stream (RFC 1951), as inside zip.
    Deflate,
    /// bzip2, any number of streams.
    Bzip2,
    /// xz (The .xz File Format 1.2), any number of streams and blocks.
    Xz,
    /// Zstandard (RFC 8878), any number of frames.
    Zstd,
}

impl Codec {
    /// Recognises a compressed file by its first bytes (at least 12 are needed to be sure).
    pub fn detect(head: &[u8]) -> Option<Codec> {
        if head.starts_with(&[0x1f, 0x8b, 8]) {
            Some(Codec::Gzip)
        } else if bzip2::is_head(head) {
            Some(Codec::Bzip2)
        } else if head.starts_with(xz::MAGIC) {
            Some(Codec::Xz)
        } else if zstd::is_head(head) {
            Some(Codec::Zstd)
        } else {
            None
        }
    }

    /// Fewest decompressed bytes between two points, so that they cost little beside the data.
    pub(crate) fn spacing(self) -> u64 {
        match self {
            Codec::Gzip | Codec::Deflate => 2 << 20,
            Codec::Bzip2 | Codec::Xz | Codec::Zstd => 512 << 10,
        }
    }

    /// Most points kept; when there are more, every second one is dropped. Deflate's carry a window each.
    pub(crate) fn max_points(self) -> usize {
        match self {
            Codec::Gzip | Codec::Deflate => 1024,
            Codec::Bzip2 | Codec::Xz | Codec::Zstd => 1 << 16,
        }
    }

    /// How many blocks may be decoded and dropped before decoded blocks are kept on disk; `None` for never. Deflate always
    /// has points nearby; a zstd frame or an xz block may be as long as the file, and bzip2 is slow.
    pub(crate) fn spill_after(self) -> Option<u64> {
        match self {
            Codec::Gzip | Codec::Deflate => None,
            Codec::Bzip2 => Some(16),
            Codec::Xz => Some(32),
            Codec::Zstd => Some(64),
        }
    }
}

/// A place in a compressed stream from which decoding can begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Point {
    /// Decompressed bytes before this point.
    pub out: u64,
    /// Compressed bytes before this point, from the start of the stream.
    pub input: u64,
    /// Bits of the byte before (deflate) or at (bzip2) `input` that matter.
    pub bits: u8,
    /// deflate: those bits themselves.
    pub bit_buf: u8,
    /// Whether the point is inside a unit (deflate block, bzip2 block) rather than at a header.
    pub inside: bool,
    /// deflate: the 32 KiB before the point, compressed with zstd.
    pub window: Bytes,
}

impl Point {
    /// The point at a header (gzip member, zstd frame, bzip2 stream).
    fn header(out: u64, input: u64) -> Point {
        Point { out, input, bits: 0, bit_buf: 0, inside: false, window: Bytes::new() }
    }
}

/// A running decompressor.
pub(crate) trait Decode: Send {
    /// Writes the next decompressed bytes to `out` and returns how many; 0 only at the end of the stream.
    fn read(&mut self, out: &mut [u8]) -> Result<usize>;
    /// Compressed bytes consumed so far, from the start of the stream.
    fn consumed(&self) -> u64;
    /// A point passed since the last call.
    fn take_point(&mut self) -> Option<Point>;
}

/// What a decoder needs besides a point: the compressed bytes and how much it may use.
#[derive(Clone)]
pub(crate) struct Setup {
    pub origin: Origin,
    pub codec: Codec,
    /// The compressed bytes within the source: first byte, and one past the last.
    pub range: (u64, u64),
    pub memory: u64,
    /// The block table of an xz file, when it has a readable one.
    pub xz: Option<Arc<XzTable>>,
    /// What the content must be, where that is known.
    pub expected: Option<Expected>,
}

impl Setup {
    /// Prepares to decode the bytes `range` of `origin`; reads the block index of an xz file.
    pub fn new(origin: Origin, codec: Codec, range: (u64, u64), limits: &Limits) -> Setup {
        let xz = match codec {
            Codec::Xz => XzTable::read(&origin, range).ok().map(Arc::new),
            _ => None,
        };
        Setup { origin, codec, range, memory: limits.decoder_memory, xz, expected: None }
    }

    /// A decoder at `point`, or at the start.
    pub fn decoder(&self, point: Option<&Point>) -> Result<Box<dyn Decode>> {
        let input = Input::new(self.origin.clone(), self.range, point.map_or(0, |p| p.input))?;
        let decoder: Box<dyn Decode> = match self.codec {
            Codec::Gzip => Box::new(deflate::Inflate::new(input, true, point)?),
            Codec::Deflate => Box::new(deflate::Inflate::new(input, false, point)?),
            Codec::Bzip2 => Box::new(bzip2::Bunzip::new(input, point)),
            Codec::Zstd => Box::new(zstd::Unzstd::new(input, point, self.memory)?),
            Codec::Xz => match &self.xz {
                Some(table) => Box::new(xz::Blocks::new(input, table.clone(), point, self.memory)),
                None => Box::new(xz::Linear::new(input, self.memory)?),
            },
        };
        Ok(match self.expected {
            Some(expected) => {
                let (out, start) = (point.map_or(0, |p| p.out), self.range.0);
                Box::new(checked::Checked::new(decoder, expected, out, self.origin.clone(), start))
            }
            None => decoder,
        })
    }
}
