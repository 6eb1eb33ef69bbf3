// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of any type of a protocol, without a generator for each: the decoder itself says which bytes are one.

use bytes::Bytes;
use outrigger_proto_nfs3::xdr::{DecodeError, Decoder, Encoder};

/// Words of messages, which follow from a seed (splitmix64).
pub struct Words(pub u64);

impl Words {
    fn random(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Often what enumerations and lengths begin with, at times anything that is over every limit.
    fn next(&mut self) -> u32 {
        let random = self.random();
        match random % 8 {
            0 | 1 => 0,
            2 | 3 => 1,
            4 | 5 => (random >> 8) as u32 % 10,
            6 => (random >> 8) as u32 % 40,
            _ => (random >> 32) as u32 | 1 << 31,
        }
    }

    /// A value that `decode` reads: words are tried, one after the other, until all of them are something.
    pub fn value<T>(&mut self, decode: impl Fn(&mut Decoder) -> Result<T, DecodeError>) -> T {
        let mut message = Vec::new();
        loop {
            let error = match decode(&mut Decoder::new(Bytes::copy_from_slice(&message))) {
                Ok(value) => return value,
                Err(error) => error,
            };
            if let DecodeError::Length { at, .. } | DecodeError::Value { at, .. } = error {
                message.truncate(at - 4);
            }
            message.extend_from_slice(&self.next().to_be_bytes());
        }
    }
}

/// The bytes of a message that `encode` writes.
pub fn bytes(encode: impl FnOnce(&mut Encoder)) -> Bytes {
    let mut out = Encoder::new(0);
    encode(&mut out);
    out.finish().into_bytes()
}
