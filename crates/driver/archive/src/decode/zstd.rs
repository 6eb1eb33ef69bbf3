// SPDX-License-Identifier: MIT OR Apache-2.0
//! Zstandard (RFC 8878) by libzstd. Points are frame starts: the state inside a frame cannot be copied through the
//! library, so streams of one long frame rely on the block store instead.

use super::{Decode, Input, Point};
use crate::{Kind, Result};
use ::zstd::zstd_safe::{CCtx, DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

const SPACING: u64 = 512 << 10;

/// Whether `head` begins a zstd frame, skippable ones included (RFC 8878, 3.1).
pub(super) fn is_head(head: &[u8]) -> bool {
    match head.first_chunk::<4>().map(|m| u32::from_le_bytes(*m)) {
        Some(0xfd2f_b528) => true,
        Some(m) => m & 0xffff_fff0 == 0x184d_2a50,
        None => false,
    }
}

/// `data` as one frame at the fastest usual level; `None` only when memory is short.
pub(crate) fn pack(data: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(::zstd::zstd_safe::compress_bound(data.len()));
    CCtx::try_create()?.compress(&mut out, data, 1).ok()?;
    Some(out)
}

/// The content of one frame, when it is valid and at most `max` bytes.
pub(crate) fn unpack(frame: &[u8], max: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(max);
    DCtx::try_create()?.decompress(&mut out, frame).ok()?;
    Some(out)
}

/// A running zstd decoder.
pub(super) struct Unzstd {
    input: Input,
    context: DCtx<'static>,
    /// Between frames, where the input may end.
    between: bool,
    started: bool,
    out: u64,
    last_point: u64,
    point: Option<Point>,
}

impl Unzstd {
    /// Decodes from `point`, where `input` already stands, with windows of at most `memory` bytes.
    pub fn new(input: Input, point: Option<&Point>, memory: u64) -> Result<Self> {
        let context =
            DCtx::try_create().ok_or_else(|| input.error(Kind::Limit, "not enough memory for zstd"))?;
        let out = point.map_or(0, |p| p.out);
        let mut d = Unzstd {
            input,
            context,
            between: true,
            started: point.is_some(),
            out,
            last_point: out,
            point: None,
        };
        let log = memory.max(1 << 10).ilog2().min(31);
        d.context.set_parameter(DParameter::WindowLogMax(log)).map_err(|c| d.failed(c))?;
        Ok(d)
    }

    fn failed(&self, code: usize) -> crate::Error {
        let what = get_error_name(code);
        // ZSTD_error_frameParameter_windowTooLarge has no constant in the binding; its text is stable.
        if what.contains("too much memory") {
            return self.input.error(
                Kind::Limit,
                "the zstd window is larger than decoder_memory allows: raise that option",
            );
        }
        self.input.corrupt(format!("invalid zstd data: {what}"))
    }
}

impl Decode for Unzstd {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let input = self.input.fill()?;
            let ended = input.is_empty();
            if ended && self.between {
                return if self.started { Ok(0) } else { Err(self.input.truncated("a zstd frame")) };
            }
            let mut source = InBuffer::around(input);
            let mut sink = OutBuffer::around(&mut *out);
            let left = self.context.decompress_stream(&mut sink, &mut source);
            let (used, made) = (source.pos, sink.pos());
            self.input.consume(used);
            let left = left.map_err(|c| self.failed(c))?;
            self.started = true;
            self.between = left == 0;
            self.out += made as u64;
            if self.between && self.out >= self.last_point + SPACING {
                self.last_point = self.out;
                self.point = Some(Point::header(self.out, self.input.offset()));
            }
            if made > 0 {
                return Ok(made);
            }
            if ended && !self.between {
                return Err(self.input.truncated("a zstd frame"));
            }
        }
    }

    fn consumed(&self) -> u64 {
        self.input.offset()
    }

    fn take_point(&mut self) -> Option<Point> {
        self.point.take()
    }
}
