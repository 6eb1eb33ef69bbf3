// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can stand in a message, and the simplest of it.

use crate::decoder::{DecodeError, Decoder};
use crate::encoder::Encoder;
use std::fmt;
use std::num::NonZeroU32;

/// A type with a form in XDR (RFC 4506).
pub trait Xdr: Sized {
    /// The least number of bytes that a value takes.
    const MIN_LEN: usize;

    /// The number of bytes that this value takes.
    fn encoded_len(&self) -> usize;

    /// Appends the value to a message.
    fn encode(&self, out: &mut Encoder);

    /// Takes a value from a message.
    ///
    /// # Errors
    /// Why the next bytes are none.
    fn decode(input: &mut Decoder) -> Result<Self, DecodeError>;

    /// Writes the value on one line, for people. Whatever came from a peer is escaped.
    ///
    /// # Errors
    /// Those of the formatter.
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// Nothing (RFC 4506, 4.16).
impl Xdr for () {
    const MIN_LEN: usize = 0;

    fn encoded_len(&self) -> usize {
        0
    }

    fn encode(&self, _out: &mut Encoder) {}

    fn decode(_input: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(())
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("-")
    }
}

macro_rules! integers {
    ($($(#[$meta:meta])* $ty:ident)*) => {$(
        $(#[$meta])*
        impl Xdr for $ty {
            const MIN_LEN: usize = size_of::<$ty>();

            fn encoded_len(&self) -> usize {
                Self::MIN_LEN
            }

            fn encode(&self, out: &mut Encoder) {
                out.put(&self.to_be_bytes());
            }

            fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
                input.array().map(Self::from_be_bytes)
            }

            fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
integers! {
    /// An integer (RFC 4506, 4.1).
    i32
    /// An unsigned integer (RFC 4506, 4.2).
    u32
    /// An unsigned hyper integer (RFC 4506, 4.5).
    u64
}

/// A code that says that something failed: 0 is refused.
impl Xdr for NonZeroU32 {
    const MIN_LEN: usize = 4;

    fn encoded_len(&self) -> usize {
        4
    }

    fn encode(&self, out: &mut Encoder) {
        self.get().encode(out);
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        let code = u32::decode(input)?;
        NonZeroU32::new(code).ok_or_else(|| input.no_value("code of an error", code))
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A boolean (RFC 4506, 4.4).
impl Xdr for bool {
    const MIN_LEN: usize = 4;

    fn encoded_len(&self) -> usize {
        4
    }

    fn encode(&self, out: &mut Encoder) {
        u32::from(*self).encode(out);
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        match u32::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(input.no_value("boolean", other)),
        }
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Optional data (RFC 4506, 4.19), and a union over a boolean with one empty arm.
impl<T: Xdr> Xdr for Option<T> {
    const MIN_LEN: usize = 4;

    fn encoded_len(&self) -> usize {
        4 + self.as_ref().map_or(0, Xdr::encoded_len)
    }

    fn encode(&self, out: &mut Encoder) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        bool::decode(input)?.then(|| T::decode(input)).transpose()
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Some(value) => value.print(f),
            None => f.write_str("-"),
        }
    }
}

/// A union over a status (RFC 4506, 4.15): 0, then the result; or an error, which begins with a code that is not 0
/// ([`xdr_status!`](crate::xdr_status)).
impl<T: Xdr, E: Xdr> Xdr for Result<T, E> {
    const MIN_LEN: usize = 4;

    fn encoded_len(&self) -> usize {
        match self {
            Ok(value) => 4 + value.encoded_len(),
            Err(error) => error.encoded_len(),
        }
    }

    fn encode(&self, out: &mut Encoder) {
        match self {
            Ok(value) => {
                0_u32.encode(out);
                value.encode(out);
            }
            Err(error) => error.encode(out),
        }
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        if input.peek()? != 0 {
            return E::decode(input).map(Err);
        }
        u32::decode(input)?;
        T::decode(input).map(Ok)
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ok(value) => {
                f.write_str("OK ")?;
                value.print(f)
            }
            Err(error) => error.print(f),
        }
    }
}
