// SPDX-License-Identifier: MIT OR Apache-2.0
//! gzip (RFC 1952) and raw deflate (RFC 1951). Points are deflate block boundaries with the 32 KiB window before them
//! (the method of Mark Adler's `zran`), compressed so that a thousand of them stay small.

use super::{Decode, Input, Point};
use crate::{Result, decode::zstd};
use miniz_oxide::inflate::{
    TINFLStatus,
    core::{BlockBoundaryState, DecompressorOxide, decompress, inflate_flags::*},
};
use std::ops::Range;

const WINDOW: usize = 32 << 10;
/// Output goes through a ring of this many bytes (a power of two, at least twice the window).
const RING: usize = 128 << 10;
const SPACING: u64 = 2 << 20;

// RFC 1952, 2.3.1: FLG bits.
const FHCRC: u8 = 2;
const FEXTRA: u8 = 4;
const FNAME: u8 = 8;
const FCOMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

enum State {
    Header { first: bool },
    Body,
    Trailer,
    End,
}

/// A running gzip or deflate decoder.
pub(super) struct Inflate {
    input: Input,
    gzip: bool,
    state: State,
    core: Box<DecompressorOxide>,
    ring: Box<[u8]>,
    /// Where the next output goes in the ring.
    at: usize,
    /// Output in the ring not yet handed out.
    pending: Range<usize>,
    /// Output produced, handed out or not, from the start of the stream.
    out: u64,
    last_point: u64,
    point: Option<Point>,
    /// CRC and size of the present member; unknown when started in its middle.
    check: Option<(crc32fast::Hasher, u32)>,
}

impl Inflate {
    /// Decodes from `point`, where `input` already stands.
    pub fn new(input: Input, gzip: bool, point: Option<&Point>) -> Result<Self> {
        let mut d = Inflate {
            input,
            gzip,
            state: if gzip { State::Header { first: true } } else { State::Body },
            core: Box::default(),
            ring: vec![0; RING].into_boxed_slice(),
            at: 0,
            pending: 0..0,
            out: 0,
            last_point: 0,
            point: None,
            check: gzip.then(Default::default),
        };
        let Some(p) = point else { return Ok(d) };
        (d.out, d.last_point) = (p.out, p.out);
        if p.inside {
            let window = zstd::unpack(&p.window, WINDOW)
                .filter(|w| w.len() == WINDOW && p.bits < 8)
                .ok_or_else(|| d.input.corrupt("a stored deflate window is damaged"))?;
            d.ring[..WINDOW].copy_from_slice(&window);
            d.at = WINDOW;
            let state = BlockBoundaryState { num_bits: p.bits, bit_buf: p.bit_buf, ..Default::default() };
            *d.core = DecompressorOxide::from_block_boundary_state(&state);
            d.state = State::Body;
            d.check = None;
        }
        Ok(d)
    }

    fn header(&mut self, first: bool) -> Result<()> {
        const WHAT: &str = "a gzip header";
        // After the first member zeros are padding (tapes), and anything else is ignored as gzip(1) does.
        let head = match self.input.fill()? {
            [] => None,
            [0x1f, ..] => Some(self.input.array::<10>(WHAT)?),
            _ => None,
        };
        let head = match head {
            Some(h) if h[1] == 0x8b => h,
            _ if !first => {
                self.state = State::End;
                return Ok(());
            }
            Some(_) => return Err(self.input.corrupt("not a gzip header")),
            None => return Err(self.input.corrupt("no gzip header")),
        };
        let flags = head[3];
        if head[2] != 8 || flags & RESERVED != 0 {
            return Err(self.input.corrupt("a gzip header with an unknown method or flag"));
        }
        if flags & FEXTRA != 0 {
            let n = u16::from_le_bytes(self.input.array(WHAT)?);
            for _ in 0..n {
                self.input.array::<1>(WHAT)?;
            }
        }
        for flag in [FNAME, FCOMMENT] {
            while flags & flag != 0 && self.input.array::<1>(WHAT)? != [0] {}
        }
        if flags & FHCRC != 0 {
            self.input.array::<2>(WHAT)?;
        }
        *self.core = DecompressorOxide::default();
        self.check = Some(Default::default());
        self.state = State::Body;
        Ok(())
    }

    fn trailer(&mut self) -> Result<()> {
        let crc = u32::from_le_bytes(self.input.array("a gzip trailer")?);
        let size = u32::from_le_bytes(self.input.array("a gzip trailer")?);
        if let Some((hasher, n)) = self.check.take()
            && (hasher.finalize(), n) != (crc, size)
        {
            return Err(self.input.corrupt("the gzip checksum or size does not match the data"));
        }
        self.state = State::Header { first: false };
        if self.out >= self.last_point + SPACING {
            self.last_point = self.out;
            self.point = Some(Point::header(self.out, self.input.offset()));
        }
        Ok(())
    }

    /// Decodes some of the deflate stream into the ring.
    fn body(&mut self) -> Result<()> {
        let input = self.input.fill()?;
        let flags = TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY | TINFL_FLAG_HAS_MORE_INPUT;
        let flags = if input.is_empty() { flags & !TINFL_FLAG_HAS_MORE_INPUT } else { flags };
        let (status, used, made) = decompress(&mut self.core, input, &mut self.ring, self.at, flags);
        let starved = input.is_empty();
        self.input.consume(used);
        self.pending = self.at..self.at + made;
        self.at = (self.at + made) % RING;
        self.out += made as u64;
        if let Some((hasher, n)) = &mut self.check {
            hasher.update(&self.ring[self.pending.clone()]);
            *n = n.wrapping_add(made as u32);
        }
        match status {
            TINFLStatus::Done => self.state = if self.gzip { State::Trailer } else { State::End },
            TINFLStatus::BlockBoundary => self.boundary()?,
            TINFLStatus::HasMoreOutput => {}
            TINFLStatus::NeedsMoreInput if !starved => {}
            TINFLStatus::NeedsMoreInput | TINFLStatus::FailedCannotMakeProgress => {
                return Err(self.input.truncated("compressed data"));
            }
            _ => return Err(self.input.corrupt("invalid deflate data")),
        }
        Ok(())
    }

    fn boundary(&mut self) -> Result<()> {
        if self.out < self.last_point + SPACING {
            return Ok(());
        }
        let Some(state) = self.core.block_boundary_state() else { return Ok(()) };
        let mut window = vec![0; WINDOW];
        for (i, b) in window.iter_mut().enumerate() {
            *b = self.ring[(self.at + RING - WINDOW + i) % RING];
        }
        self.last_point = self.out;
        self.point = Some(Point {
            out: self.out,
            input: self.input.offset(),
            bits: state.num_bits,
            bit_buf: state.bit_buf,
            inside: true,
            window: zstd::pack(&window)
                .ok_or_else(|| self.input.corrupt("a window cannot be stored"))?
                .into(),
        });
        Ok(())
    }
}

impl Decode for Inflate {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while self.pending.is_empty() {
            match self.state {
                State::Header { first } => self.header(first)?,
                State::Body => self.body()?,
                State::Trailer => self.trailer()?,
                State::End => return Ok(0),
            }
        }
        let n = out.len().min(self.pending.len());
        out[..n].copy_from_slice(&self.ring[self.pending.start..self.pending.start + n]);
        self.pending.start += n;
        Ok(n)
    }

    fn consumed(&self) -> u64 {
        self.input.offset()
    }

    fn take_point(&mut self) -> Option<Point> {
        self.point.take()
    }
}
