// SPDX-License-Identifier: MIT OR Apache-2.0
//! The links of an HTML page: as much of the language as index pages have, with comments, quotes and character references.

/// The values of `href` of the elements `a` of a page in their order, with character references replaced.
pub(crate) struct Links<'a> {
    rest: &'a [u8],
}

impl<'a> Links<'a> {
    pub(crate) fn of(page: &'a [u8]) -> Self {
        Links { rest: page }
    }

    /// What follows the tag of the last link.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Goes to what follows `mark`, or to the end.
    fn skip_past(&mut self, mark: &[u8]) {
        let found = self.rest.windows(mark.len()).position(|part| part.eq_ignore_ascii_case(mark));
        self.rest = found.map_or(&[], |at| &self.rest[at + mark.len()..]);
    }

    fn take_while(&mut self, fits: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&byte| !fits(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// The next attribute of a tag, with its value; `None` at the end of the tag, which is taken.
    fn attribute(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        self.take_while(|byte| byte.is_ascii_whitespace() || byte == b'/');
        let name = self.take_while(|byte| !byte.is_ascii_whitespace() && !b"=>/".contains(&byte));
        self.take_while(|byte| byte.is_ascii_whitespace());
        match self.rest.first() {
            Some(b'=') => self.rest = &self.rest[1..],
            Some(b'>') if name.is_empty() => {
                self.rest = &self.rest[1..];
                return None;
            }
            None => return None,
            Some(_) => return Some((name, b"")),
        }
        self.take_while(|byte| byte.is_ascii_whitespace());
        let value = match self.rest.first() {
            Some(&quote @ (b'"' | b'\'')) => {
                self.rest = &self.rest[1..];
                let value = self.take_while(|byte| byte != quote);
                self.rest = self.rest.get(1..).unwrap_or_default();
                value
            }
            _ => self.take_while(|byte| !byte.is_ascii_whitespace() && byte != b'>'),
        };
        Some((name, value))
    }
}

impl Iterator for Links<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            self.skip_past(b"<");
            if self.rest.is_empty() {
                return None;
            }
            if self.rest.starts_with(b"!--") {
                self.rest = &self.rest[3..];
                self.skip_past(b"-->");
                continue;
            }
            let tag = self.take_while(|byte| byte.is_ascii_alphanumeric());
            if tag.is_empty() {
                continue;
            }
            let mut target = None;
            while let Some((name, value)) = self.attribute() {
                if name.eq_ignore_ascii_case(b"href") {
                    target.get_or_insert(value);
                }
            }
            // What looks like a link in these is none.
            for (raw, end) in [(&b"script"[..], &b"</script"[..]), (b"style", b"</style")] {
                if tag.eq_ignore_ascii_case(raw) {
                    self.skip_past(end);
                }
            }
            if let Some(target) = target.filter(|_| tag.eq_ignore_ascii_case(b"a")) {
                return Some(unescaped(target));
            }
        }
    }
}

/// With character references replaced: those by number, and the names of HTML.
fn unescaped(text: &[u8]) -> Vec<u8> {
    const LONGEST: usize = 32;
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let end = tail.iter().take(LONGEST).position(|&byte| byte == b';');
        let found = end.filter(|_| byte == b'&').and_then(|end| Some((end, characters(&tail[..end])?)));
        match found {
            Some((end, meant)) => {
                out.extend_from_slice(meant.as_bytes());
                rest = &tail[end + 1..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

/// What a reference means, without its `&` and `;`.
fn characters(name: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(name).ok()?;
    let Some(number) = text.strip_prefix('#') else {
        return quick_xml::escape::resolve_html5_entity(text).map(str::to_owned);
    };
    let code = match number.strip_prefix(['x', 'X']) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => number.parse(),
    };
    char::from_u32(code.ok()?).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_characters_are_those_of_html() {
        let page = br#"<a href="caf&eacute;&nbsp;&copy;&Auml;&amp;&bad;">1</a>"#;
        let links: Vec<_> = Links::of(page).map(|link| String::from_utf8_lossy(&link).into_owned()).collect();
        assert_eq!(links, ["caf\u{e9}\u{a0}\u{a9}\u{c4}&&bad;"]);
    }

    #[test]
    fn links_are_found_however_they_are_written() {
        let page = br#"<!-- <a href="comment"> --><A class=x HREF='one'>1</A><a href=two>2</a>
            <a title="a > b" href="three&amp;&#39;&#x263a;&bad;&">3</a><abbr href="no"><img href="no">
            <script>"<a href='no'>"</script><a name="no"><a  href = "four" href="no"/><a href="open"#;
        let links: Vec<_> = Links::of(page).map(|link| String::from_utf8_lossy(&link).into_owned()).collect();
        assert_eq!(links, ["one", "two", "three&'☺&bad;&", "four", "open"]);
    }
}
