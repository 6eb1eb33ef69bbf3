// SPDX-License-Identifier: MIT OR Apache-2.0
//! xz by liblzma. The block index at the end of each stream ("The .xz File Format", 4) tells where every block is, so
//! blocks are the points, known before anything is decoded. A file whose index is unreadable (truncated) is decoded
//! from its start.

use super::{Decode, Input, Point};
use crate::{Kind, Result, source::Origin};
use liblzma::stream::{Action, CONCATENATED, Error as LzmaError, Status, Stream};
use std::sync::Arc;

pub(super) const MAGIC: &[u8] = b"\xfd7zXZ\0";
const HEADER: u64 = 12;
const FOOTER: u64 = 12;
/// Larger indexes belong to files of many terabytes.
const MAX_INDEX: u64 = 256 << 20;

/// Where one block lies.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Offset of the block header from the start of the file.
    input: u64,
    /// Size with header and check, without padding.
    unpadded: u64,
    out: u64,
    out_size: u64,
    /// The two bytes of stream flags.
    flags: [u8; 2],
}

/// All blocks of an xz file.
#[derive(Debug)]
pub(crate) struct XzTable {
    blocks: Vec<Block>,
}

impl XzTable {
    /// Reads the indexes of all streams, from the last to the first.
    pub fn read(origin: &Origin, range: (u64, u64)) -> Result<XzTable> {
        let (start, mut end) = range;
        let corrupt = |at: u64, what: &str| origin.error(Kind::Corrupt, at, format!("xz: {what}"));
        let mut streams = Vec::new();
        while end > start {
            end = skip_padding(origin, start, end)?;
            if end == start {
                break;
            }
            if end - start < HEADER + FOOTER {
                return Err(corrupt(end, "no room for a stream"));
            }
            let (blocks, stream_start) = read_stream(origin, start, end)?;
            streams.push(blocks);
            end = stream_start;
        }
        let mut blocks = Vec::new();
        let mut out = 0u64;
        for b in streams.into_iter().rev().flatten() {
            blocks.push(Block { out, input: b.input - start, ..b });
            out = out.checked_add(b.out_size).ok_or_else(|| corrupt(end, "sizes overflow"))?;
        }
        if blocks.is_empty() && start == range.1 {
            return Err(corrupt(start, "no stream"));
        }
        Ok(XzTable { blocks })
    }

    /// Decompressed size of the whole file.
    pub fn size(&self) -> u64 {
        self.blocks.last().map_or(0, |b| b.out.saturating_add(b.out_size))
    }

    /// The start of the last block at or before the decompressed byte `out`.
    pub fn point(&self, out: u64) -> Option<Point> {
        let i = self.blocks.partition_point(|b| b.out <= out).checked_sub(1)?;
        Some(Point { inside: true, ..Point::header(self.blocks[i].out, self.blocks[i].input) })
    }
}

/// `end` without the zeros (in fours) before it.
fn skip_padding(origin: &Origin, start: u64, mut end: u64) -> Result<u64> {
    let mut word = [0; 4];
    while end - start >= 4 {
        origin.exact(&mut word, end - 4, "xz padding")?;
        if word != [0; 4] {
            break;
        }
        end -= 4;
    }
    Ok(end)
}

/// The blocks of the stream that ends at `end`, and where the stream starts.
fn read_stream(origin: &Origin, start: u64, end: u64) -> Result<(Vec<Block>, u64)> {
    let corrupt = |what: &str| origin.error(Kind::Corrupt, end, format!("xz: {what}"));
    let mut footer = [0; FOOTER as usize];
    origin.exact(&mut footer, end - FOOTER, "an xz footer")?;
    if &footer[10..] != b"YZ" || crc32fast::hash(&footer[4..10]).to_le_bytes() != footer[..4] {
        return Err(corrupt("damaged stream footer"));
    }
    let flags = [footer[8], footer[9]];
    let backward = u32::from_le_bytes([footer[4], footer[5], footer[6], footer[7]]);
    let size = (u64::from(backward) + 1) * 4;
    if size > MAX_INDEX || size > end - start - HEADER - FOOTER {
        return Err(corrupt("index larger than the stream"));
    }
    let mut index = vec![0; size as usize];
    let index_at = end - FOOTER - size;
    origin.exact(&mut index, index_at, "an xz index")?;
    let records = parse_index(&index).ok_or_else(|| corrupt("damaged index"))?;
    let total = records
        .iter()
        .try_fold(0u64, |t, (unpadded, _)| t.checked_add(unpadded.checked_next_multiple_of(4)?));
    let total = total
        .filter(|t| *t <= index_at - start - HEADER)
        .ok_or_else(|| corrupt("index beyond the stream"))?;
    let first = index_at - total;
    let mut head = [0; HEADER as usize];
    origin.exact(&mut head, first - HEADER, "an xz header")?;
    if !head.starts_with(MAGIC) || head[6..8] != flags {
        return Err(corrupt("stream header and footer disagree"));
    }
    let mut input = first;
    let mut blocks = Vec::with_capacity(records.len());
    for (unpadded, out_size) in records {
        blocks.push(Block { input, unpadded, out: 0, out_size, flags });
        input += unpadded.next_multiple_of(4);
    }
    Ok((blocks, first - HEADER))
}

/// The (unpadded size, decompressed size) records of an index field.
fn parse_index(index: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (body, crc) = index.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) || *body.first()? != 0 {
        return None;
    }
    let mut rest = &body[1..];
    let count = usize::try_from(varint(&mut rest)?).ok()?;
    // Each record takes at least two bytes.
    if count > rest.len() / 2 {
        return None;
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let unpadded = varint(&mut rest)?;
        records.push((Some(unpadded).filter(|u| *u >= 5)?, varint(&mut rest)?));
    }
    (rest.len() < 4 && rest.iter().all(|b| *b == 0)).then_some(records)
}

/// A multibyte integer ("The .xz File Format", 1.2).
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut v = 0;
    for i in 0..9 {
        let (b, tail) = rest.split_first()?;
        *rest = tail;
        v |= u64::from(b & 0x7f) << (7 * i);
        if b & 0x80 == 0 {
            return Some(v);
        }
    }
    None
}

fn failed(input: &Input, e: LzmaError) -> crate::Error {
    match e {
        LzmaError::MemLimit => input
            .error(Kind::Limit, "the xz dictionary is larger than decoder_memory allows: raise that option"),
        LzmaError::Mem => input.error(Kind::Limit, "not enough memory for xz"),
        LzmaError::Options => input.error(Kind::Unsupported, "an xz filter or check that is not supported"),
        e => input.corrupt(format!("invalid xz data: {e}")),
    }
}

/// Decodes block by block along a table.
pub(super) struct Blocks {
    input: Input,
    table: Arc<XzTable>,
    memory: u64,
    /// Index of the next block to begin.
    next: usize,
    /// The decoder of the present block, the input it has still to get, the output it has still to give.
    now: Option<(Stream, u64, u64)>,
}

impl Blocks {
    /// Decodes from the block at `point`.
    pub fn new(input: Input, table: Arc<XzTable>, point: Option<&Point>, memory: u64) -> Self {
        let next = point.map_or(0, |p| table.blocks.partition_point(|b| b.out < p.out));
        Blocks { input, table, memory, next, now: None }
    }

    fn begin(&mut self, b: Block) -> Result<()> {
        self.input.seek(b.input);
        let stream = Stream::new_stream_decoder(self.memory, 0);
        let mut stream = stream.map_err(|e| failed(&self.input, e))?;
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&b.flags);
        head.extend_from_slice(&crc32fast::hash(&b.flags).to_le_bytes());
        stream.process(&head, &mut [], Action::Run).map_err(|e| failed(&self.input, e))?;
        self.now = Some((stream, b.unpadded.next_multiple_of(4), b.out_size));
        self.next += 1;
        Ok(())
    }
}

impl Decode for Blocks {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let Some((stream, left_in, left_out)) = &mut self.now else {
                let Some(b) = self.table.blocks.get(self.next).copied() else { return Ok(0) };
                self.begin(b)?;
                continue;
            };
            if *left_in == 0 && *left_out == 0 {
                self.now = None;
                continue;
            }
            let input = self.input.fill()?;
            let n = usize::try_from(*left_in).unwrap_or(input.len()).min(input.len());
            let (in0, out0) = (stream.total_in(), stream.total_out());
            let status = stream.process(&input[..n], out, Action::Run);
            let used = (stream.total_in() - in0) as usize;
            let made = stream.total_out() - out0;
            self.input.consume(used);
            status.map_err(|e| failed(&self.input, e))?;
            *left_in -= used as u64;
            *left_out = left_out
                .checked_sub(made)
                .ok_or_else(|| self.input.corrupt("an xz block larger than listed"))?;
            if made > 0 {
                return Ok(made as usize);
            }
            if used == 0 {
                let what = if n == 0 && *left_in > 0 {
                    "an xz block"
                } else {
                    "an xz block that its index lists as longer"
                };
                return Err(self.input.truncated(what));
            }
        }
    }

    fn consumed(&self) -> u64 {
        self.input.offset()
    }

    fn take_point(&mut self) -> Option<Point> {
        None
    }
}

/// Decodes a file whose index is unreadable, from its start.
pub(super) struct Linear {
    input: Input,
    stream: Stream,
    ended: bool,
}

impl Linear {
    /// Decodes from the start of `input`.
    pub fn new(input: Input, memory: u64) -> Result<Self> {
        let stream = Stream::new_stream_decoder(memory, CONCATENATED).map_err(|e| failed(&input, e))?;
        Ok(Linear { input, stream, ended: false })
    }
}

impl Decode for Linear {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while !self.ended {
            let input = self.input.fill()?;
            let last = input.is_empty();
            let (in0, out0) = (self.stream.total_in(), self.stream.total_out());
            let status = self.stream.process(input, out, if last { Action::Finish } else { Action::Run });
            let used = (self.stream.total_in() - in0) as usize;
            let made = (self.stream.total_out() - out0) as usize;
            self.input.consume(used);
            match status {
                Ok(Status::StreamEnd) => self.ended = true,
                Ok(Status::MemNeeded) if last && made == 0 => {
                    return Err(self.input.truncated("an xz stream"));
                }
                Ok(_) => {}
                Err(_) if made > 0 => {}
                Err(e) if last && matches!(e, LzmaError::Data) => {
                    return Err(self.input.truncated("an xz stream"));
                }
                Err(e) => return Err(failed(&self.input, e)),
            }
            if made > 0 {
                return Ok(made);
            }
        }
        Ok(0)
    }

    fn consumed(&self) -> u64 {
        self.input.offset()
    }

    fn take_point(&mut self) -> Option<Point> {
        None
    }
}
