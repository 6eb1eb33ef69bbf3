// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking a message apart.

use crate::value::Xdr;
use bytes::Bytes;

/// Why bytes are not a message. `at` counts bytes from the beginning of the message to the end of what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside a field.
    #[error("the message ends inside the field at byte {at}")]
    Short {
        /// Where the field begins.
        at: usize,
    },
    /// A length is over its maximum.
    #[error("the length before byte {at} is {len}, at most {max} is allowed")]
    Length {
        /// Where it was read.
        at: usize,
        /// The length.
        len: u32,
        /// Its maximum.
        max: usize,
    },
    /// A value that an enumeration, a union or a boolean does not have.
    #[error("{value} before byte {at} is no {what}")]
    Value {
        /// Where it was read.
        at: usize,
        /// What it should be.
        what: &'static str,
        /// The value.
        value: u32,
    },
    /// The program has no procedure of this number.
    #[error("there is no procedure {0}")]
    Procedure(u32),
}

/// A message and how far it has been read.
#[derive(Debug, Clone)]
pub struct Decoder {
    message: Bytes,
    at: usize,
}

impl Decoder {
    /// From the beginning of `message`, which has no record mark.
    pub fn new(message: Bytes) -> Self {
        Decoder { message, at: 0 }
    }

    /// How many bytes have been read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.message.len() - self.at
    }

    /// What has not been read, without a copy.
    pub fn rest(&self) -> Bytes {
        self.message.slice(self.at..)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let bytes = self.message[self.at..].first_chunk().ok_or(DecodeError::Short { at: self.at })?;
        self.at += N;
        Ok(*bytes)
    }

    /// The next integer, which stays.
    pub(crate) fn peek(&self) -> Result<u32, DecodeError> {
        let bytes = self.message[self.at..].first_chunk().ok_or(DecodeError::Short { at: self.at })?;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// A length or a count of elements of at least `each` bytes, of which there may be `max`. Whether so many bytes are left is known.
    pub(crate) fn length(&mut self, each: usize, max: usize) -> Result<usize, DecodeError> {
        let count = u32::decode(self)?;
        let len = count as usize;
        if len > max {
            return Err(DecodeError::Length { at: self.at, len: count, max });
        }
        match len.checked_mul(each) {
            Some(bytes) if bytes <= self.remaining() => Ok(len),
            _ => Err(DecodeError::Short { at: self.at }),
        }
    }

    /// `len` bytes without a copy, and the padding after them, whatever it is.
    pub(crate) fn fixed(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let padded = len.next_multiple_of(4);
        if padded > self.remaining() {
            return Err(DecodeError::Short { at: self.at });
        }
        let bytes = self.message.slice(self.at..self.at + len);
        self.at += padded;
        Ok(bytes)
    }

    /// A length and that many bytes, at most `max`.
    pub(crate) fn opaque(&mut self, max: usize) -> Result<Bytes, DecodeError> {
        let len = self.length(1, max)?;
        self.fixed(len)
    }

    /// The error for the integer just read.
    #[doc(hidden)]
    pub fn no_value(&self, what: &'static str, value: u32) -> DecodeError {
        DecodeError::Value { at: self.at, what, value }
    }
}
