// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bytes are characters. Two character sets are known: ASCII (the C locale) and UTF-8.
//!
//! Messages are English and names are sorted by their bytes, as in the C and C.UTF-8 locales, whatever the locale.

use std::env;
use unicode_width::UnicodeWidthChar;

/// How bytes become characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charset {
    /// Bytes above 127 are no characters.
    Ascii,
    /// UTF-8.
    Utf8,
}

/// One character of a byte string, or a byte that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The character, unless the byte is none.
    pub character: Option<char>,
}

impl Unit<'_> {
    /// Whether a terminal shows it.
    pub fn printable(&self) -> bool {
        self.character.is_some_and(|character| character.width().is_some())
    }

    /// How many columns it takes; 0 for control characters, 1 for bytes that are no characters.
    pub fn width(&self) -> usize {
        self.character.map_or(1, |character| character.width().unwrap_or(0))
    }
}

impl Charset {
    /// That of the environment: `LC_ALL`, else `LC_CTYPE`, else `LANG`.
    pub fn of_environment() -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
            .unwrap_or_default()
            .to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Charset::Utf8 } else { Charset::Ascii }
    }

    /// The characters of `bytes`.
    pub fn units(self, bytes: &[u8]) -> Units<'_> {
        Units { charset: self, rest: bytes }
    }

    /// How many columns of a terminal `bytes` take.
    pub fn width(self, bytes: &[u8]) -> usize {
        match self {
            Charset::Ascii => bytes.iter().filter(|byte| (0x20..0x7f).contains(*byte)).count(),
            Charset::Utf8 if bytes.iter().all(|byte| (0x20..0x7f).contains(byte)) => bytes.len(),
            Charset::Utf8 => self.units(bytes).map(|unit| unit.width()).sum(),
        }
    }
}

/// See [`Charset::units`].
pub struct Units<'a> {
    charset: Charset,
    rest: &'a [u8],
}

impl<'a> Iterator for Units<'a> {
    type Item = Unit<'a>;

    fn next(&mut self) -> Option<Unit<'a>> {
        let (&first, _) = self.rest.split_first()?;
        let character = match self.charset {
            _ if first < 0x80 => Some(char::from(first)),
            Charset::Ascii => None,
            Charset::Utf8 => first_character(self.rest),
        };
        let (bytes, rest) = self.rest.split_at(character.map_or(1, char::len_utf8));
        self.rest = rest;
        Some(Unit { bytes, character })
    }
}

fn first_character(bytes: &[u8]) -> Option<char> {
    let chunk = &bytes[..bytes.len().min(4)];
    match std::str::from_utf8(chunk) {
        Ok(text) => text.chars().next(),
        Err(error) => std::str::from_utf8(&chunk[..error.valid_up_to()]).ok()?.chars().next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths() {
        let cases: [(&[u8], usize, usize); 5] = [
            (b"plain", 5, 5),
            ("\u{fc}ber".as_bytes(), 3, 4),
            ("\u{6f22}".as_bytes(), 0, 2),
            (b"a\x01b", 2, 2),
            (b"\xff\xfe", 0, 2),
        ];
        for (bytes, ascii, utf8) in cases {
            assert_eq!(Charset::Ascii.width(bytes), ascii, "{bytes:?}");
            assert_eq!(Charset::Utf8.width(bytes), utf8, "{bytes:?}");
        }
    }

    #[test]
    fn broken_utf8_is_taken_byte_by_byte() {
        let units: Vec<_> = Charset::Utf8.units(b"\xc3(\xe2\x82\xac\xe2\x82").collect();
        let lengths: Vec<_> = units.iter().map(|unit| unit.bytes.len()).collect();
        assert_eq!(lengths, [1, 1, 3, 1, 1]);
        assert!(!units[0].printable() && units[2].printable());
    }
}
