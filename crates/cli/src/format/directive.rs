// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats with directives, `%[FLAGS][WIDTH][.PRECISION][MODIFIER]LETTER`, as `stat -c` and `find -printf` have them.

use outrigger_core::Time;
use std::iter::Peekable;
use std::slice::Iter;

/// The greatest field width.
const WIDEST: usize = 4096;

/// A part of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text as it is.
    Text(Vec<u8>),
    /// Something to put in.
    Directive(Directive),
}

/// Something to put in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directive {
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    /// What follows the dot; `Some(None)` for a dot alone.
    precision: Option<Option<usize>>,
    /// A letter in front of the letter.
    pub modifier: Option<u8>,
    /// Says what to put in; 0 when the format ends too early.
    pub letter: u8,
}

/// Takes `format` apart. Letters in `modifiers` change the letter after them; with `escapes`, `\n` and the like are
/// replaced.
pub fn pieces(format: &[u8], modifiers: &[u8], escapes: bool) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = Vec::new();
    let mut input = format.iter().peekable();
    while let Some(&byte) = input.next() {
        match byte {
            b'%' if input.peek() == Some(&&b'%') => {
                input.next();
                text.push(b'%');
            }
            b'%' if input.peek().is_none() => text.push(b'%'),
            b'%' => {
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                pieces.push(Piece::Directive(Directive::parse(&mut input, modifiers)));
            }
            b'\\' if escapes => {
                if !escape(&mut input, &mut text) {
                    break;
                }
            }
            _ => text.push(byte),
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    pieces
}

/// Replaces the escape after a backslash; answers whether more may follow.
fn escape(input: &mut Peekable<Iter<'_, u8>>, text: &mut Vec<u8>) -> bool {
    let mut number = |radix: u32, most: usize| {
        let mut value = None;
        for _ in 0..most {
            let Some(digit) = input.peek().and_then(|byte| char::from(**byte).to_digit(radix)) else { break };
            value = Some(value.unwrap_or(0) * radix + digit);
            input.next();
        }
        value.map(|value| value as u8)
    };
    if let Some(byte) = number(8, 3) {
        text.push(byte);
        return true;
    }
    match input.next() {
        None => text.push(b'\\'),
        Some(b'a') => text.push(7),
        Some(b'b') => text.push(8),
        Some(b'c') => return false,
        Some(b'e') => text.push(27),
        Some(b'f') => text.push(12),
        Some(b'n') => text.push(b'\n'),
        Some(b'r') => text.push(b'\r'),
        Some(b't') => text.push(b'\t'),
        Some(b'v') => text.push(11),
        Some(&byte @ (b'\\' | b'"')) => text.push(byte),
        Some(&byte) => text.extend_from_slice(&[b'\\', byte]),
    }
    true
}

impl Directive {
    fn parse(input: &mut Peekable<Iter<'_, u8>>, modifiers: &[u8]) -> Self {
        let mut directive = Directive::default();
        while let Some(byte) = input.next_if(|byte| b"-0+ #'I".contains(byte)) {
            match byte {
                b'-' => directive.left = true,
                b'0' => directive.zeros = true,
                b'+' => directive.plus = true,
                b' ' => directive.space = true,
                b'#' => directive.alternate = true,
                _ => {}
            }
        }
        directive.width = decimal(input).unwrap_or(0);
        if input.next_if(|byte| **byte == b'.').is_some() {
            directive.precision = Some(decimal(input));
        }
        directive.modifier = input.next_if(|byte| modifiers.contains(byte)).copied();
        directive.letter = input.next().copied().unwrap_or(0);
        directive
    }

    /// Puts text in, cut to the precision.
    pub fn text(&self, out: &mut Vec<u8>, text: &[u8]) {
        let most = self.precision.map_or(text.len(), Option::unwrap_or_default);
        self.pad(out, &text[..most.min(text.len())], false);
    }

    /// Puts a decimal number in.
    pub fn number(&self, out: &mut Vec<u8>, value: u64) {
        let sign = if self.plus {
            "+"
        } else if self.space {
            " "
        } else {
            ""
        };
        self.digits(out, sign, value.to_string());
    }

    /// Puts an octal number in.
    pub fn octal(&self, out: &mut Vec<u8>, value: u64) {
        let prefix = if self.alternate && value != 0 { "0" } else { "" };
        self.digits(out, "", format!("{prefix}{value:o}"));
    }

    /// Puts a hexadecimal number in.
    pub fn hexadecimal(&self, out: &mut Vec<u8>, value: u64) {
        let prefix = if self.alternate && value != 0 { "0x" } else { "" };
        self.digits(out, prefix, format!("{value:x}"));
    }

    /// Puts seconds since 1970 in, with as many digits of the fraction as the precision says.
    pub fn seconds(&self, out: &mut Vec<u8>, time: Time) {
        let digits = match self.precision {
            None => 0,
            Some(digits) => digits.unwrap_or(9),
        };
        // Before 1970 the fraction counts backwards.
        let (negative, secs, nanos) = match (time.secs < 0, time.nanos) {
            (true, 0) => (true, time.secs.unsigned_abs(), 0),
            (true, nanos) => (true, time.secs.unsigned_abs() - 1, 1_000_000_000 - nanos),
            (false, nanos) => (false, time.secs.unsigned_abs(), nanos),
        };
        let sign = if negative { "-" } else { "" };
        let mut text = format!("{sign}{secs}");
        if digits > 0 {
            let fraction = format!("{nanos:09}");
            text.push('.');
            text.push_str(&fraction[..digits.min(9)]);
            text.extend(std::iter::repeat_n('0', digits.saturating_sub(9)));
        } else if negative && nanos > 0 {
            text = format!("{}", time.secs);
        }
        self.pad(out, text.as_bytes(), self.zeros);
    }

    fn digits(&self, out: &mut Vec<u8>, prefix: &str, digits: String) {
        let least = match self.precision {
            Some(precision) => precision.unwrap_or(0).min(WIDEST),
            None if self.zeros && !self.left => self.width.saturating_sub(prefix.len()),
            None => 0,
        };
        self.pad(out, format!("{prefix}{digits:0>least$}").as_bytes(), false);
    }

    fn pad(&self, out: &mut Vec<u8>, text: &[u8], zeros: bool) {
        let missing = self.width.saturating_sub(text.len());
        if self.left {
            out.extend_from_slice(text);
        }
        out.resize(out.len() + missing, if zeros && !self.left { b'0' } else { b' ' });
        if !self.left {
            out.extend_from_slice(text);
        }
    }
}

fn decimal(input: &mut Peekable<Iter<'_, u8>>) -> Option<usize> {
    let mut value = None;
    while let Some(digit) = input.next_if(|byte| byte.is_ascii_digit()) {
        value = Some((value.unwrap_or(0) * 10 + usize::from(digit - b'0')).min(WIDEST));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(format: &str, put: impl Fn(&Directive, &mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        for piece in pieces(format.as_bytes(), b"HL", true) {
            match piece {
                Piece::Text(text) => out.extend_from_slice(&text),
                Piece::Directive(directive) => put(&directive, &mut out),
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields() {
        let cases = [
            ("[%5s]", "[   42]"),
            ("[%-5s]", "[42   ]"),
            ("[%05s]", "[00042]"),
            ("[%.3s]", "[042]"),
            ("[%+s]", "[+42]"),
        ];
        for (format, expected) in cases {
            assert_eq!(show(format, |directive, out| directive.number(out, 42)), expected);
        }
        assert_eq!(show("%10.3n|%%|%-5.2n|", |d, out| d.text(out, b"abcdef")), "       abc|%|ab   |");
        assert_eq!(show("%#a %04a", |directive, out| directive.octal(out, 0o755)), "0755 0755");
        assert_eq!(show("%#f", |directive, out| directive.hexadecimal(out, 255)), "0xff");
    }

    #[test]
    fn times() {
        let put = |directive: &Directive, out: &mut Vec<u8>| {
            directive.seconds(out, Time::new(12, 345_678_901));
        };
        assert_eq!(
            show("%X %.X %.3X %12.1X %.11X", put),
            "12 12.345678901 12.345         12.3 12.34567890100"
        );
        let put =
            |directive: &Directive, out: &mut Vec<u8>| directive.seconds(out, Time::new(-2, 750_000_000));
        assert_eq!(show("%X %.2X", put), "-2 -1.25");
    }

    #[test]
    fn escapes_and_odd_ends() {
        assert_eq!(show("a\\tb\\101\\q\\", |_, _| {}), "a\tbA\\q\\");
        assert_eq!(show("a\\cb", |_, _| {}), "a");
        assert_eq!(show("100%", |_, _| {}), "100%");
        assert_eq!(show("%99999999999999999999n", |d, out| d.text(out, b"")).len(), WIDEST);
    }
}
