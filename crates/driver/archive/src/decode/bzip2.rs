// SPDX-License-Identifier: MIT OR Apache-2.0
//! bzip2. Blocks are independent but not byte-aligned: each is found by its 48-bit mark (as `bzip2recover` does),
//! shifted to a byte boundary and given to the library as a stream of its own. Every block start is a point.
//!
//! A mark could occur inside compressed data by chance once in 2^48 bits; such a file is reported as corrupt.

use super::{Decode, Input, Point};
use crate::Result;
use bzip2::{Decompress, Status};

const BLOCK: u64 = 0x3141_5926_5359;
const STREAM_END: u64 = 0x1772_4538_5090;
const MARK_BITS: usize = 48;
const MARK_MASK: u64 = (1 << MARK_BITS) - 1;
/// More than a block of 900 kB can need: at most 20 bits a symbol, and the tables.
const MAX_BLOCK: usize = 4 << 20;
const SPACING: u64 = 512 << 10;

/// Whether `head` begins a bzip2 stream: `BZh`, a level, and the mark of a block or of the end.
pub(super) fn is_head(head: &[u8]) -> bool {
    let Some(h) = head.first_chunk::<10>() else { return false };
    let mark = h[4..].iter().fold(0, |m, b| m << 8 | u64::from(*b));
    is_stream(h) && (mark == BLOCK || mark == STREAM_END)
}

fn is_stream(h: &[u8]) -> bool {
    h.starts_with(b"BZh") && matches!(h.get(3), Some(b'1'..=b'9'))
}

/// A running bzip2 decoder.
pub(super) struct Bunzip {
    input: Input,
    /// Compressed bytes from the one that holds the start of the present unit.
    held: Vec<u8>,
    /// Offset of `held[0]` in the stream.
    held_at: u64,
    /// Bit of `held[0]` at which the unit starts.
    bit: usize,
    /// Whether the unit is a block or an end mark (not a stream header).
    in_stream: bool,
    first: bool,
    /// Combined checksum of the stream so far; unknown when started in its middle.
    combined: Option<u32>,
    block: Option<(Decompress, Vec<u8>, usize)>,
    ended: bool,
    out: u64,
    last_point: u64,
    point: Option<Point>,
}

impl Bunzip {
    /// Decodes from `point`, where `input` already stands.
    pub fn new(input: Input, point: Option<&Point>) -> Self {
        let held_at = input.offset();
        let out = point.map_or(0, |p| p.out);
        let inside = point.is_some_and(|p| p.inside);
        Bunzip {
            input,
            held: Vec::new(),
            held_at,
            bit: point.map_or(0, |p| usize::from(p.bits & 7)),
            in_stream: inside,
            first: point.is_none(),
            combined: (!inside).then_some(0),
            block: None,
            ended: false,
            out,
            last_point: out,
            point: None,
        }
    }

    /// Makes at least `n` bytes available in `held`; `false` when the input ends before.
    fn hold(&mut self, n: usize) -> Result<bool> {
        while self.held.len() < n {
            let more = self.input.fill()?;
            if more.is_empty() {
                return Ok(false);
            }
            let take = more.len().min(n - self.held.len());
            self.held.extend_from_slice(&more[..take]);
            self.input.consume(take);
        }
        Ok(true)
    }

    /// The `n` (at most 48) bits at bit `at` of `held`, which must be there.
    fn bits(&self, at: usize, n: usize) -> u64 {
        let mut v = 0;
        for i in at..at + n {
            v = v << 1 | u64::from(self.held[i / 8] >> (7 - i % 8) & 1);
        }
        v
    }

    /// Forgets the bits before bit `at` of `held`.
    fn advance(&mut self, at: usize) {
        self.held.drain(..at / 8);
        self.held_at += (at / 8) as u64;
        self.bit = at % 8;
    }

    fn stream_header(&mut self) -> Result<()> {
        if self.bit > 0 {
            // The rest of a byte that ended a stream; a checkpoint may claim one where the input ends.
            if !self.hold(1)? {
                return Err(self.input.truncated("a bzip2 stream"));
            }
            self.advance(8);
        }
        let there = self.hold(4)?;
        if there && is_stream(&self.held) {
            self.in_stream = true;
            self.first = false;
            self.combined = Some(0);
            self.advance(32);
        } else if self.first {
            return Err(self.input.corrupt("not a bzip2 header"));
        } else {
            // bzip2(1) ignores what follows the last stream.
            self.ended = true;
        }
        Ok(())
    }

    fn unit(&mut self) -> Result<()> {
        const WHAT: &str = "a bzip2 stream";
        // The mark and the checksum after it.
        if !self.hold((self.bit + MARK_BITS + 32).div_ceil(8))? {
            return Err(self.input.truncated(WHAT));
        }
        let mark = self.bits(self.bit, MARK_BITS);
        let crc = self.bits(self.bit + MARK_BITS, 32) as u32;
        if mark == STREAM_END {
            if self.combined.is_some_and(|c| c != crc) {
                return Err(self.input.corrupt("the bzip2 stream checksum does not match its blocks"));
            }
            self.advance(self.bit + MARK_BITS + 32);
            self.in_stream = false;
            return Ok(());
        }
        if mark != BLOCK {
            return Err(self.input.corrupt("neither a bzip2 block nor the end of the stream"));
        }
        if self.out >= self.last_point + SPACING {
            self.last_point = self.out;
            let at = Point::header(self.out, self.held_at);
            self.point = Some(Point { bits: self.bit as u8, inside: true, ..at });
        }
        let end = self.find_end()?;
        self.combined = self.combined.map(|c| c.rotate_left(1) ^ crc);
        self.block = Some((Decompress::new(false), self.alone(end, crc), 0));
        self.advance(end);
        Ok(())
    }

    /// The bit of `held` at which the next mark after the present unit's own starts.
    fn find_end(&mut self) -> Result<usize> {
        let mut window = 0u64;
        let mut i = 0;
        let first = self.bit + MARK_BITS;
        loop {
            if i == self.held.len() {
                let more = self.input.fill()?;
                let n = more.len();
                self.held.extend_from_slice(more);
                self.input.consume(n);
                if n == 0 {
                    return Err(self.input.truncated("a bzip2 block"));
                }
            }
            while i < self.held.len() {
                window = window << 8 | u64::from(self.held[i]);
                i += 1;
                for shift in (0..8).rev() {
                    let mark = window >> shift & MARK_MASK;
                    if mark == BLOCK || mark == STREAM_END {
                        let start = (i * 8).saturating_sub(shift + MARK_BITS);
                        if start >= first && i * 8 >= shift + MARK_BITS {
                            return Ok(start);
                        }
                    }
                }
            }
            if i > MAX_BLOCK {
                return Err(self.input.corrupt("a bzip2 block without an end"));
            }
        }
    }

    /// The present block, up to bit `end`, as a complete stream of one block.
    fn alone(&self, end: usize, crc: u32) -> Vec<u8> {
        let mut w = BitWriter { out: Vec::with_capacity(end / 8 + 24), partial: 0, count: 0 };
        w.out.extend_from_slice(b"BZh9");
        let (mut at, shift) = (self.bit, self.bit % 8);
        while at + 8 <= end {
            let hi = u16::from(self.held[at / 8]) << 8;
            let lo = self.held.get(at / 8 + 1).map_or(0, |b| u16::from(*b));
            w.out.push(((hi | lo) >> (8 - shift)) as u8);
            at += 8;
        }
        w.put(self.bits(at, end - at), end - at);
        w.put(STREAM_END, MARK_BITS);
        w.put(u64::from(crc), 32);
        w.put(0, 7);
        w.out
    }

    /// Continues the present block; 0 when it has ended.
    fn block(&mut self, out: &mut [u8]) -> Result<usize> {
        let Some((d, data, at)) = &mut self.block else { return Ok(0) };
        loop {
            let (before_in, before_out) = (d.total_in(), d.total_out());
            let status = d.decompress(&data[*at..], out);
            let made = (d.total_out() - before_out) as usize;
            *at += (d.total_in() - before_in) as usize;
            let ended = match status {
                Ok(Status::StreamEnd) => true,
                Ok(Status::MemNeeded) => {
                    return Err(self.input.error(crate::Kind::Limit, "not enough memory for bzip2"));
                }
                // Without progress the block asks for bits it does not have.
                Ok(_) if made == 0 && *at == data.len() => {
                    return Err(self.input.corrupt("a bzip2 block that does not end where the next begins"));
                }
                Ok(_) => false,
                Err(e) => return Err(self.input.corrupt(format!("invalid bzip2 block: {e}"))),
            };
            if ended {
                self.block = None;
                return Ok(made);
            }
            if made > 0 {
                return Ok(made);
            }
        }
    }
}

impl Decode for Bunzip {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let n = self.block(out)?;
            if n > 0 {
                self.out += n as u64;
                return Ok(n);
            }
            if self.ended {
                return Ok(0);
            }
            if self.in_stream { self.unit()? } else { self.stream_header()? }
        }
    }

    fn consumed(&self) -> u64 {
        self.held_at
    }

    fn take_point(&mut self) -> Option<Point> {
        self.point.take()
    }
}

struct BitWriter {
    out: Vec<u8>,
    partial: u8,
    count: usize,
}

impl BitWriter {
    /// Appends the low `n` bits of `value`, highest first.
    fn put(&mut self, value: u64, n: usize) {
        for i in (0..n).rev() {
            self.partial = self.partial << 1 | (value >> i & 1) as u8;
            self.count += 1;
            if self.count == 8 {
                self.out.push(self.partial);
                (self.partial, self.count) = (0, 0);
            }
        }
    }
}
