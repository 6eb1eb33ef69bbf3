// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths of files as URLs have them.

use std::fmt::Write;

/// A path as a URL has it: all but slashes and the unreserved characters of RFC 3986 as `%41`.
pub fn encode_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            _ => write!(text, "%{byte:02X}").expect("a string takes all"),
        }
    }
    text
}

/// With `%41` as `A`; a percent sign without two digits stays.
pub fn decode_path(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let digit = |at: usize| tail.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    bytes
}
