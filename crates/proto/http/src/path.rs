// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths of files as URLs have them.

use std::fmt::Write;

/// A path as a URL has it: what RFC 3986 permits in a path as it is, all else as `%41`. So are a few characters that have another meaning
/// elsewhere: `+` and `;` to some servers, `:` in a relative link, `&` and `'` in HTML and XML.
pub fn encode_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            b'!' | b'$' | b'(' | b')' | b'*' | b',' | b'=' | b'@' => text.push(byte.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_mean_something_else_is_encoded() {
        assert_eq!(encode_path(b"/a,b/(c)!$*=@-._~"), "/a,b/(c)!$*=@-._~");
        assert_eq!(encode_path(b"?#%[] +;:&'\"\\\xff"), "%3F%23%25%5B%5D%20%2B%3B%3A%26%27%22%5C%FF");
    }
}
