// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fields one after the other.

use bytes::{BufMut, BytesMut};

/// Why bytes are not a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends before a field does.
    #[error("a packet ends in the middle of its fields")]
    Short,
    /// It has a kind that is none of the protocol, or not one that may come from this side.
    #[error("a packet of the unknown kind {0}")]
    Kind(u8),
    /// It says that it is this long, in bytes with its length field.
    #[error("a packet of {0} bytes")]
    Length(usize),
}

/// Reads fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()? as usize;
        let (string, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(string)
    }

    /// What has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Appends a string after its length.
pub(crate) fn put_string(out: &mut BytesMut, string: &[u8]) {
    out.put_u32(string.len() as u32);
    out.put_slice(string);
}

/// A whole packet: `fill` appends the fields.
pub(crate) fn packet(kind: u8, number: u32, fill: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::with_capacity(64);
    out.put_u32(0);
    out.put_u8(kind);
    out.put_u32(number);
    fill(&mut out);
    let len = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&len.to_be_bytes());
    out
}
