// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random messages of any kind, made from the [`layout`] of their encoding.

use crate::layout::{self, Layout};
use bytes::Bytes;
use outrigger_core::{Notice, OpCode, Reply, Request, Wire};

/// Where the randomness comes from.
pub type Random = fastrand::Rng;

/// A random request of the operation `op`.
///
/// # Panics
/// When the layout table does not describe how the operation is encoded.
pub fn request(op: OpCode, random: &mut Random) -> Request {
    let bytes = request_bytes(op, random);
    decode(&bytes, &format!("request {op:?}"))
}

/// The encoding of a random request of the operation `op`.
///
/// # Panics
/// When a field's type is missing from the layout table.
pub fn request_bytes(op: OpCode, random: &mut Random) -> Vec<u8> {
    let mut out = (op as u16).to_le_bytes().to_vec();
    for (_, field) in op.fields() {
        put(field, random, &mut out);
    }
    out
}

/// A random reply of the kind that `op` answers.
///
/// # Panics
/// When the layout table does not describe how the reply is encoded.
pub fn reply(op: OpCode, random: &mut Random) -> Reply {
    let bytes = reply_bytes(op.reply(), random);
    decode(&bytes, &format!("reply {}", op.reply()))
}

/// A random `Error` reply.
///
/// # Panics
/// When the layout table does not describe how errors are encoded.
pub fn error(random: &mut Random) -> Reply {
    decode(&reply_bytes("Error", random), "reply Error")
}

/// The encoding of a random reply of this name.
///
/// # Panics
/// When the name or one of its types is missing from the layout table.
pub fn reply_bytes(name: &str, random: &mut Random) -> Vec<u8> {
    let row = layout::REPLIES.iter().find(|(_, row)| row.0 == name);
    let (number, row) = row.unwrap_or_else(|| panic!("the layout table has no reply {name}"));
    let mut out = number.to_le_bytes().to_vec();
    put_layout(row.0, row.2, random, &mut out);
    out
}

/// A random notice of the kind `row`, a number of the layout table.
///
/// # Panics
/// When the layout table does not describe how notices are encoded.
pub fn notice(index: usize, random: &mut Random) -> Notice {
    let (number, (name, _, layout)) = layout::NOTICES[index];
    let mut bytes = number.to_le_bytes().to_vec();
    put_layout(name, layout, random, &mut bytes);
    decode(&bytes, &format!("notice {name}"))
}

fn decode<T: Wire>(bytes: &[u8], what: &str) -> T {
    let mut input = Bytes::copy_from_slice(bytes);
    match T::get(&mut input) {
        Ok(value) if input.is_empty() => value,
        Ok(_) => panic!("{what}: the layout table has more fields than the message"),
        Err(error) => panic!("{what}: the layout table and the message differ: {error}"),
    }
}

/// Appends a random value of the type called `name`.
fn put(name: &str, random: &mut Random, out: &mut Vec<u8>) {
    if let Some(inner) = name.strip_prefix("Option<").and_then(|rest| rest.strip_suffix('>')) {
        let some = random.bool();
        out.push(u8::from(some));
        if some {
            put(inner, random, out);
        }
    } else if let Some(inner) = name.strip_prefix("Box<").and_then(|rest| rest.strip_suffix('>')) {
        put(inner, random, out);
    } else if let Some(inner) = name.strip_prefix("Vec<").and_then(|rest| rest.strip_suffix('>')) {
        let count = random.u32(..4);
        out.extend_from_slice(&count.to_le_bytes());
        (0..count).for_each(|_| put(inner, random, out));
    } else {
        let layout = layout::of(name).unwrap_or_else(|| panic!("the layout table has no type {name}"));
        put_layout(name, layout, random, out);
    }
}

fn put_layout(name: &str, layout: Layout, random: &mut Random, out: &mut Vec<u8>) {
    match layout {
        Layout::Integer(size) => out.extend_from_slice(&interesting(random).to_le_bytes()[..size]),
        Layout::Choice(size, values) => {
            let value = values[random.usize(..values.len())];
            out.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        Layout::Bytes(min, max, without) => put_bytes(min, max.min(300), without, random, out),
        Layout::Nothing => {}
        Layout::Struct(fields) => fields.iter().for_each(|(_, field)| put(field, random, out)),
        Layout::Enum(variants) => {
            let (number, _, content) = variants[random.usize(..variants.len())];
            out.extend_from_slice(&number.to_le_bytes()[..2]);
            put(content, random, out);
        }
        Layout::Same(other) if other != name => put(other, random, out),
        Layout::Same(other) => {
            let row = layout::SIMPLE.iter().chain(layout::COMPOSITE).find(|row| row.0 == other);
            let row = row.unwrap_or_else(|| panic!("the layout table has no type {other}"));
            put_layout("", row.2, random, out);
        }
    }
}

/// Small numbers, limits and anything.
fn interesting(random: &mut Random) -> u64 {
    match random.u8(..4) {
        0 => random.u64(..4),
        1 => random.u64(..5000),
        2 => u64::MAX >> random.u32(..64),
        _ => random.u64(..),
    }
}

/// A length and bytes: mostly short, now and then of the greatest length; letters or anything.
fn put_bytes(min: usize, max: usize, without: &[u8], random: &mut Random, out: &mut Vec<u8>) {
    let len = if random.u8(..8) == 0 { max } else { random.usize(min..=max.min(12)) };
    let letters = random.bool();
    out.extend_from_slice(&(len as u32).to_le_bytes());
    for _ in 0..len {
        let byte = if letters { random.u8(b'a'..=b'z') } else { random.u8(..) };
        out.push(if without.contains(&byte) { b'_' } else { byte });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_layout_says_is_what_the_encoding_does() {
        let mut random = Random::with_seed(1);
        for &op in OpCode::ALL {
            for _ in 0..200 {
                let bytes = request_bytes(op, &mut random);
                let mut again = Vec::new();
                decode::<Request>(&bytes, op.name()).put(&mut again);
                assert_eq!(again, bytes, "{op:?}");
            }
        }
    }

    #[test]
    fn replies_too() {
        let mut random = Random::with_seed(2);
        for (_, row) in layout::REPLIES {
            for _ in 0..200 {
                let bytes = reply_bytes(row.0, &mut random);
                let mut again = Vec::new();
                decode::<Reply>(&bytes, row.0).put(&mut again);
                // A reason that is no UTF-8 is mended when it is decoded.
                if row.0 != "Error" {
                    assert_eq!(again, bytes, "{}", row.0);
                }
            }
        }
    }
}
