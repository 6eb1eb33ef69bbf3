// SPDX-License-Identifier: MIT OR Apache-2.0
//! The quoting styles of GNU ls (`--quoting-style`).

use super::locale::{Charset, Unit};
use std::borrow::Cow;

/// How odd names are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As they are.
    Literal,
    /// In single quotes when a shell would misread them.
    Shell,
    /// Always in single quotes.
    ShellAlways,
    /// As `Shell`, with `$'\n'` for what a terminal cannot show.
    ShellEscape,
    /// As `ShellAlways`, with `$'\n'` for what a terminal cannot show.
    ShellEscapeAlways,
    /// As a string of C.
    C,
    /// As a string of C when something has to be escaped.
    CMaybe,
    /// With the escapes of C, without quotes.
    Escape,
    /// In the quotes of the locale.
    Locale,
    /// In the quotes of the locale, double ones in the C locale.
    CLocale,
}

impl Style {
    /// The names of the styles.
    pub const NAMES: [(&'static str, Style); 10] = [
        ("literal", Style::Literal),
        ("shell", Style::Shell),
        ("shell-always", Style::ShellAlways),
        ("shell-escape", Style::ShellEscape),
        ("shell-escape-always", Style::ShellEscapeAlways),
        ("c", Style::C),
        ("c-maybe", Style::CMaybe),
        ("escape", Style::Escape),
        ("locale", Style::Locale),
        ("clocale", Style::CLocale),
    ];

    /// Whether plain names stay without quotes and others get them.
    pub fn varies(self) -> bool {
        matches!(self, Style::Shell | Style::ShellEscape | Style::CMaybe)
    }

    fn escapes(self) -> bool {
        !matches!(self, Style::Literal | Style::Shell | Style::ShellAlways)
    }
}

/// A style for a character set.
#[derive(Debug, Clone)]
pub struct Quoting {
    /// The style.
    pub style: Style,
    /// What a character is.
    pub charset: Charset,
    /// More ASCII characters to quote.
    pub extra: Vec<u8>,
}

impl Quoting {
    /// `style` in the environment's character set.
    pub fn new(style: Style) -> Self {
        Quoting { style, charset: Charset::of_environment(), extra: Vec::new() }
    }

    /// The same with more ASCII characters quoted.
    pub fn and(&self, extra: &[u8]) -> Self {
        let mut quoting = self.clone();
        quoting.extra.extend_from_slice(extra);
        quoting
    }

    /// `name` in this style.
    pub fn quote<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        match self.style {
            Style::Literal => Cow::Borrowed(name),
            Style::Shell | Style::ShellEscape if !self.shell_misreads(name) => Cow::Borrowed(name),
            Style::CMaybe if !self.c_escapes(name) => Cow::Borrowed(name),
            Style::Shell | Style::ShellAlways | Style::ShellEscape | Style::ShellEscapeAlways => {
                Cow::Owned(self.shell(name))
            }
            Style::CMaybe => Cow::Owned(self.escaped(name, "\"", "\"", &[])),
            Style::C => Cow::Owned(self.escaped(name, "\"", "\"", &self.extra)),
            Style::Escape => Cow::Owned(self.escaped(name, "", "", &self.extra)),
            Style::Locale | Style::CLocale => {
                let (left, right) = self.locale_quotes();
                Cow::Owned(self.escaped(name, left, right, &self.extra))
            }
        }
    }

    /// Whether quoting changes `name`.
    pub fn changes(&self, name: &[u8]) -> bool {
        match self.quote(name) {
            Cow::Borrowed(_) => false,
            Cow::Owned(quoted) => quoted.len() != name.len() || quoted.first() != name.first(),
        }
    }

    fn locale_quotes(&self) -> (&'static str, &'static str) {
        match (self.charset, self.style) {
            (Charset::Utf8, _) => ("\u{2018}", "\u{2019}"),
            (Charset::Ascii, Style::CLocale) => ("\"", "\""),
            (Charset::Ascii, _) => ("'", "'"),
        }
    }

    fn shell_misreads(&self, name: &[u8]) -> bool {
        let mut start = true;
        name.is_empty()
            || self.charset.units(name).any(|unit| {
                let first = std::mem::replace(&mut start, false);
                match unit.bytes {
                    [b'{' | b'}'] => name.len() == 1 || self.is_extra(unit),
                    [b'#' | b'~'] => first || self.is_extra(unit),
                    [byte] if b" !\"$&()*;<=>[^`|'?\\\n\r\t".contains(byte) => true,
                    _ => (self.style.escapes() && !unit.printable()) || self.is_extra(unit),
                }
            })
    }

    fn is_extra(&self, unit: Unit<'_>) -> bool {
        matches!(unit.bytes, [byte] if self.extra.contains(byte))
    }

    fn shell(&self, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(name.len() + 8);
        if name.contains(&b'\'') && self.fits_double_quotes(name) {
            out.push(b'"');
            out.extend_from_slice(name);
            out.push(b'"');
            return out;
        }
        out.push(b'\'');
        let mut escaping = false;
        for unit in self.charset.units(name) {
            if self.style.escapes() && !unit.printable() {
                if !escaping {
                    out.extend_from_slice(b"'$'");
                    escaping = true;
                }
                escape(&mut out, unit);
                continue;
            }
            if unit.bytes == b"'" {
                out.extend_from_slice(b"'\\''");
            } else {
                if escaping {
                    out.extend_from_slice(b"''");
                }
                out.extend_from_slice(unit.bytes);
            }
            escaping = false;
        }
        out.push(b'\'');
        out
    }

    /// Whether a shell reads `name` in double quotes, and a C compiler does, as it stands.
    fn fits_double_quotes(&self, name: &[u8]) -> bool {
        self.charset.units(name).enumerate().all(|(index, unit)| match unit.bytes {
            [b'{' | b'}'] => name.len() == 1,
            [b'#' | b'~'] => index == 0,
            [byte] if b"!\"$&()*;<=>[^`|?\\".contains(byte) => false,
            _ => unit.printable(),
        })
    }

    fn c_escapes(&self, name: &[u8]) -> bool {
        self.charset.units(name).any(|unit| !unit.printable() || unit.bytes == b"\"" || self.is_extra(unit))
    }

    fn escaped(&self, name: &[u8], left: &str, right: &str, extra: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(name.len() + 8);
        out.extend_from_slice(left.as_bytes());
        for unit in self.charset.units(name) {
            match unit.bytes {
                _ if !unit.printable() => escape(&mut out, unit),
                [byte] if *byte == b'\\' || extra.contains(byte) => out.extend_from_slice(&[b'\\', *byte]),
                bytes if bytes == right.as_bytes() => {
                    out.push(b'\\');
                    out.extend_from_slice(bytes);
                }
                bytes => out.extend_from_slice(bytes),
            }
        }
        out.extend_from_slice(right.as_bytes());
        out
    }
}

/// The escape of C for a character a terminal cannot show.
fn escape(out: &mut Vec<u8>, unit: Unit<'_>) {
    for &byte in unit.bytes {
        let letter = match byte {
            0x07 => b'a',
            0x08 => b'b',
            0x0c => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x0b => b'v',
            _ => {
                out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', letter]);
    }
}

/// `name` as coreutils writes it in messages: always in quotes, safe to paste into a shell.
pub fn for_message(name: &[u8]) -> String {
    let quoted = Quoting::new(Style::ShellEscapeAlways).quote(name).into_owned();
    String::from_utf8_lossy(&quoted).into_owned()
}

/// As [`for_message`], where coreutils puts no quotes around a name that needs none: in front of a colon.
pub fn before_colon(name: &[u8]) -> String {
    let quoting = Quoting::new(Style::ShellEscape).and(b":");
    String::from_utf8_lossy(&quoting.quote(name)).into_owned()
}

/// Replaces what a terminal cannot show by question marks (`ls -q`).
pub fn question_marks(charset: Charset, name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for unit in charset.units(name) {
        if unit.printable() {
            out.extend_from_slice(unit.bytes);
        } else {
            out.push(b'?');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quote(style: Style, charset: Charset, name: &[u8]) -> String {
        let quoting = Quoting { style, charset, extra: Vec::new() };
        String::from_utf8_lossy(&quoting.quote(name)).into_owned()
    }

    #[test]
    fn styles() {
        let cases: &[(Style, &[u8], &str)] = &[
            (Style::Shell, b"plain", "plain"),
            (Style::Shell, b"", "''"),
            (Style::Shell, b"a b", "'a b'"),
            (Style::ShellEscape, b"a\nb", "'a'$'\\n''b'"),
            (Style::ShellEscape, b"\x01\x02", "''$'\\001\\002'"),
            (Style::ShellEscape, b"it's", "\"it's\""),
            (Style::ShellEscape, b"it's $1", "'it'\\''s $1'"),
            (Style::ShellEscape, b"\n'", "''$'\\n'\\'''"),
            (Style::ShellEscape, b"a{b", "a{b"),
            (Style::ShellEscape, b"{", "'{'"),
            (Style::ShellEscape, b"~x", "'~x'"),
            (Style::ShellEscape, b"x~", "x~"),
            (Style::ShellEscapeAlways, b"x", "'x'"),
            (Style::C, b"a\"b\\c\x7f", "\"a\\\"b\\\\c\\177\""),
            (Style::CMaybe, b"a\\b", "a\\b"),
            (Style::CMaybe, b"a\tb", "\"a\\tb\""),
            (Style::Escape, b"a\tb\\", "a\\tb\\\\"),
            (Style::Locale, b"a'b", "'a\\'b'"),
            (Style::CLocale, b"a", "\"a\""),
        ];
        for (style, name, expected) in cases {
            assert_eq!(quote(*style, Charset::Ascii, name), *expected, "{style:?}");
        }
    }

    #[test]
    fn characters_beyond_ascii_depend_on_the_locale() {
        let name = "\u{fc}".as_bytes();
        assert_eq!(quote(Style::ShellEscape, Charset::Ascii, name), "''$'\\303\\274'");
        assert_eq!(quote(Style::ShellEscape, Charset::Utf8, name), "\u{fc}");
        assert_eq!(quote(Style::Locale, Charset::Utf8, name), "\u{2018}\u{fc}\u{2019}");
        assert_eq!(question_marks(Charset::Ascii, name), b"??");
    }

    #[test]
    fn extra_characters() {
        let quoting = Quoting { style: Style::Escape, charset: Charset::Ascii, extra: b" ".to_vec() };
        assert_eq!(&*quoting.quote(b"a b"), b"a\\ b");
        let quoting = Quoting { style: Style::ShellEscape, charset: Charset::Ascii, extra: b":".to_vec() };
        assert_eq!(&*quoting.quote(b"a:b"), b"'a:b'");
        assert!(quoting.changes(b"a:b") && !quoting.changes(b"ab"));
    }
}
