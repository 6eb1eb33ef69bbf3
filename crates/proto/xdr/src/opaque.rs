// SPDX-License-Identifier: MIT OR Apache-2.0
//! Strings and opaque data.

use crate::decoder::{DecodeError, Decoder};
use crate::encoder::Encoder;
use crate::print;
use crate::value::Xdr;
use bytes::Bytes;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// More elements or bytes than the protocol allows in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} are too many, at most {max} are allowed")]
pub struct TooLong {
    /// How many there are.
    pub len: usize,
    /// How many there may be.
    pub max: usize,
}

impl TooLong {
    pub(crate) fn check(len: usize, max: usize) -> Result<(), Self> {
        if len <= max { Ok(()) } else { Err(TooLong { len, max }) }
    }
}

macro_rules! shared_bytes {
    ($($(#[$meta:meta])* pub struct $name:ident, $encode:ident, $print:path;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name<const MAX: usize>(Bytes);

        impl<const MAX: usize> $name<MAX> {
            /// These bytes.
            ///
            /// # Errors
            /// When there are more than `MAX`, or than a length on the wire can say.
            pub fn new(bytes: impl Into<Bytes>) -> Result<Self, TooLong> {
                let bytes = bytes.into();
                TooLong::check(bytes.len(), MAX.min(u32::MAX as usize))?;
                Ok($name(bytes))
            }

            /// The bytes.
            pub fn into_bytes(self) -> Bytes {
                self.0
            }
        }

        impl<const MAX: usize> Deref for $name<MAX> {
            type Target = Bytes;

            fn deref(&self) -> &Bytes {
                &self.0
            }
        }

        impl<const MAX: usize> Xdr for $name<MAX> {
            const MIN_LEN: usize = 4;

            fn encoded_len(&self) -> usize {
                4 + self.len().next_multiple_of(4)
            }

            fn encode(&self, out: &mut Encoder) {
                out.$encode(self);
            }

            fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
                input.opaque(MAX).map($name)
            }

            fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $print(f, self)
            }
        }
    )*};
}
shared_bytes! {
    /// A string of up to `MAX` bytes (RFC 4506, 4.11), as bytes: what peers send need not be ASCII nor UTF-8. Printed quoted.
    pub struct Text, opaque, print::text;
    /// Opaque data of up to `MAX` bytes (RFC 4506, 4.10). Printed in hexadecimal.
    pub struct Opaque, opaque, print::hex;
    /// Content of a file, up to `MAX` bytes (RFC 4506, 4.10). Encoded without a copy; its length is printed.
    pub struct Data, data, print::data;
}

/// Opaque data of up to `MAX` bytes, at most 255, in place: it holds no buffer and costs no allocation (RFC 4506, 4.10).
/// Printed in hexadecimal.
#[derive(Clone, Copy)]
pub struct Inline<const MAX: usize> {
    len: u8,
    bytes: [u8; MAX],
}

impl<const MAX: usize> Inline<MAX> {
    /// These bytes.
    ///
    /// # Errors
    /// When there are more than `MAX`.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        const { assert!(MAX <= u8::MAX as usize) };
        TooLong::check(bytes.len(), MAX)?;
        let mut inline = Inline { len: bytes.len() as u8, bytes: [0; MAX] };
        inline.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(inline)
    }
}

impl<const MAX: usize> Deref for Inline<MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl<const MAX: usize> PartialEq for Inline<MAX> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const MAX: usize> Eq for Inline<MAX> {}

impl<const MAX: usize> Hash for Inline<MAX> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<const MAX: usize> fmt::Debug for Inline<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::hex(f, self)
    }
}

impl<const MAX: usize> Xdr for Inline<MAX> {
    const MIN_LEN: usize = 4;

    fn encoded_len(&self) -> usize {
        4 + self.len().next_multiple_of(4)
    }

    fn encode(&self, out: &mut Encoder) {
        out.opaque(self);
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        let bytes = input.opaque(MAX)?;
        Ok(Inline::new(&bytes).expect("the length was compared with the maximum"))
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::hex(f, self)
    }
}

/// Opaque data of a fixed length (RFC 4506, 4.9). Printed in hexadecimal.
impl<const N: usize> Xdr for [u8; N] {
    const MIN_LEN: usize = N.next_multiple_of(4);

    fn encoded_len(&self) -> usize {
        Self::MIN_LEN
    }

    fn encode(&self, out: &mut Encoder) {
        out.fixed(self);
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        let bytes = input.fixed(N)?;
        Ok(*bytes.first_chunk().expect("as many bytes as were asked for"))
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::hex(f, self)
    }
}
