// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists and arrays.

use crate::decoder::{DecodeError, Decoder};
use crate::encoder::Encoder;
use crate::opaque::TooLong;
use crate::print::elements;
use crate::value::Xdr;
use std::fmt;
use std::ops::Deref;

/// A linked list: each element follows a boolean that says that there is one (RFC 4506, 4.19). Its length is bounded by that of the
/// message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List<T>(pub Vec<T>);

/// An array of up to `MAX` elements (RFC 4506, 4.13).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Array<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Array<T, MAX> {
    /// The array of these elements.
    ///
    /// # Errors
    /// When there are too many.
    pub fn new(elements: Vec<T>) -> Result<Self, TooLong> {
        TooLong::check(elements.len(), MAX)?;
        Ok(Array(elements))
    }

    /// The elements.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Deref for Array<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Xdr> Xdr for List<T> {
    const MIN_LEN: usize = 4;

    fn encoded_len(&self) -> usize {
        4 + self.0.iter().map(|element| 4 + element.encoded_len()).sum::<usize>()
    }

    fn encode(&self, out: &mut Encoder) {
        for element in &self.0 {
            true.encode(out);
            element.encode(out);
        }
        false.encode(out);
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        let mut elements = Vec::new();
        while bool::decode(input)? {
            elements.push(T::decode(input)?);
        }
        Ok(List(elements))
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        elements(f, &self.0)
    }
}

impl<T: Xdr, const MAX: usize> Xdr for Array<T, MAX> {
    const MIN_LEN: usize = 4;

    fn encoded_len(&self) -> usize {
        4 + self.iter().map(Xdr::encoded_len).sum::<usize>()
    }

    fn encode(&self, out: &mut Encoder) {
        (self.len() as u32).encode(out);
        self.iter().for_each(|element| element.encode(out));
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        let len = input.length(T::MIN_LEN, MAX)?;
        let mut elements = Vec::with_capacity(len);
        for _ in 0..len {
            elements.push(T::decode(input)?);
        }
        Ok(Array(elements))
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        elements(f, self)
    }
}
