// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compressed clusters.

use super::damaged;
use super::header::Compression;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use std::io;
use zstd::stream::raw::{DParameter, Decoder, Operation};
use zstd::zstd_safe::{InBuffer, OutBuffer};

/// The largest window a frame may ask for: two to the power of this. A cluster is smaller.
const WINDOW_LOG: u32 = 23;

/// The content of a cluster of `size` bytes. After `data` there may be bytes that do not belong to it.
pub(super) fn unpack(compression: Compression, data: &[u8], size: usize) -> io::Result<Vec<u8>> {
    let mut content = vec![0; size];
    let filled = match compression {
        Compression::Deflate => {
            let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
            decompress(&mut DecompressorOxide::new(), data, &mut content, 0, flags).2
        }
        Compression::Zstd => unpack_zstd(data, &mut content)?,
    };
    match filled == size {
        true => Ok(content),
        false => Err(damaged("a compressed cluster is too short")),
    }
}

fn unpack_zstd(data: &[u8], content: &mut [u8]) -> io::Result<usize> {
    let mut decoder = Decoder::new()?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
    let (mut input, mut output) = (InBuffer::around(data), OutBuffer::around(content));
    loop {
        let before = (input.pos(), output.pos());
        let rest = decoder.run(&mut input, &mut output)?;
        if rest == 0 || before == (input.pos(), output.pos()) {
            return Ok(output.pos());
        }
    }
}
