// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patterns as fnmatch(3) and the shell have them: `*`, `?`, `[a-z]`, `[!x]`, `[[:digit:]]`, `\*`.

use super::locale::Charset;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub struct Glob {
    tokens: Vec<Token>,
    charset: Charset,
    fold_case: bool,
    guard_period: bool,
}

#[derive(Debug, Clone)]
enum Token {
    AnySequence,
    Any,
    One(u32),
    Set { negated: bool, items: Vec<Item> },
}

#[derive(Debug, Clone)]
enum Item {
    Range(u32, u32),
    Class(fn(char) -> bool),
}

/// Bytes that are no characters, above all characters.
const BYTE: u32 = 0x11_0000;

impl Glob {
    /// Compiles `pattern`. There are no wrong patterns: what is incomplete stands for itself.
    pub fn new(pattern: &[u8]) -> Self {
        let charset = Charset::of_environment();
        let code = codes(charset, pattern);
        let mut tokens = Vec::new();
        let mut rest = &code[..];
        while let Some((&first, tail)) = rest.split_first() {
            rest = tail;
            match char::from_u32(first) {
                Some('*') if matches!(tokens.last(), Some(Token::AnySequence)) => {}
                Some('*') => tokens.push(Token::AnySequence),
                Some('?') => tokens.push(Token::Any),
                Some('[') => match set(tail) {
                    Some((token, after)) => {
                        tokens.push(token);
                        rest = after;
                    }
                    None => tokens.push(Token::One(first)),
                },
                Some('\\') if !tail.is_empty() => {
                    tokens.push(Token::One(tail[0]));
                    rest = &tail[1..];
                }
                _ => tokens.push(Token::One(first)),
            }
        }
        Glob { tokens, charset, fold_case: false, guard_period: false }
    }

    /// The same, with upper and lower case alike (`FNM_CASEFOLD`).
    pub fn fold_case(mut self) -> Self {
        self.fold_case = true;
        self
    }

    /// The same, where only a `.` matches a `.` at the start (`FNM_PERIOD`).
    pub fn guard_period(mut self) -> Self {
        self.guard_period = true;
        self
    }

    /// Whether all of `text` matches. A `*` also matches slashes.
    pub fn matches(&self, text: &[u8]) -> bool {
        let text = codes(self.charset, text);
        if self.guard_period && text.first() == Some(&u32::from('.')) {
            match self.tokens.first() {
                Some(Token::One(code)) if *code == u32::from('.') => {}
                _ => return false,
            }
        }
        self.run(&text)
    }

    /// Takes back only the latest `*`: earlier ones can give nothing that it cannot take.
    fn run(&self, text: &[u32]) -> bool {
        let (mut token, mut at) = (0, 0);
        let mut retry = None;
        loop {
            match self.tokens.get(token) {
                Some(Token::AnySequence) => {
                    retry = Some((token, at));
                    token += 1;
                    continue;
                }
                Some(one) if at < text.len() && self.accepts(one, text[at]) => {
                    token += 1;
                    at += 1;
                    continue;
                }
                None if at == text.len() => return true,
                _ => {}
            }
            match retry {
                Some((star, from)) if from < text.len() => {
                    retry = Some((star, from + 1));
                    token = star + 1;
                    at = from + 1;
                }
                _ => return false,
            }
        }
    }

    fn accepts(&self, token: &Token, code: u32) -> bool {
        let same = |a: u32, b: u32| a == b || (self.fold_case && fold(a) == fold(b));
        match token {
            Token::AnySequence => false,
            Token::Any => true,
            Token::One(expected) => same(*expected, code),
            Token::Set { negated, items } => {
                let found = items.iter().any(|item| match item {
                    Item::Range(low, high) => {
                        let within = |code| (*low..=*high).contains(&code);
                        within(code) || (self.fold_case && (within(fold(code)) || within(unfold(code))))
                    }
                    Item::Class(class) => char::from_u32(code).is_some_and(class),
                });
                found != *negated
            }
        }
    }
}

fn codes(charset: Charset, text: &[u8]) -> Vec<u32> {
    charset
        .units(text)
        .map(|unit| unit.character.map_or(BYTE + u32::from(unit.bytes[0]), u32::from))
        .collect()
}

fn fold(code: u32) -> u32 {
    char::from_u32(code).and_then(|character| character.to_lowercase().next()).map_or(code, u32::from)
}

fn unfold(code: u32) -> u32 {
    char::from_u32(code).and_then(|character| character.to_uppercase().next()).map_or(code, u32::from)
}

/// Parses a bracket expression after its `[`, and gives the rest too; `None` when it has no end.
fn set(code: &[u32]) -> Option<(Token, &[u32])> {
    let is = |at: usize, expected: char| code.get(at) == Some(&u32::from(expected));
    let negated = is(0, '!') || is(0, '^');
    let start = usize::from(negated);
    let (mut at, mut items) = (start, Vec::new());
    loop {
        if is(at, ']') && at > start {
            return Some((Token::Set { negated, items }, &code[at + 1..]));
        }
        if is(at, '[') && is(at + 1, ':') {
            let length =
                code[at + 2..].windows(2).position(|pair| pair == [u32::from(':'), u32::from(']')])?;
            let name: String =
                code[at + 2..at + 2 + length].iter().filter_map(|&c| char::from_u32(c)).collect();
            items.push(Item::Class(class(&name)));
            at += length + 4;
            continue;
        }
        if is(at, '\\') {
            at += 1;
        }
        let low = *code.get(at)?;
        at += 1;
        let ranges = is(at, '-') && code.get(at + 1).is_some_and(|&next| next != u32::from(']'));
        let high = if ranges { code[at + 1] } else { low };
        at += if ranges { 2 } else { 0 };
        items.push(Item::Range(low, high));
    }
}

fn class(name: &str) -> fn(char) -> bool {
    match name {
        "alnum" => char::is_alphanumeric,
        "alpha" => char::is_alphabetic,
        "blank" => |c| c == ' ' || c == '\t',
        "cntrl" => char::is_control,
        "digit" => |c| c.is_ascii_digit(),
        "graph" => |c| !c.is_control() && !c.is_whitespace(),
        "lower" => char::is_lowercase,
        "print" => |c| !c.is_control(),
        "punct" => |c| c.is_ascii_punctuation(),
        "space" => char::is_whitespace,
        "upper" => char::is_uppercase,
        "xdigit" => |c| c.is_ascii_hexdigit(),
        _ => |_| false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("*", "", true),
            ("*.c", "a.c", true),
            ("*.c", "a.cc", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "x", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[^]]", "]", false),
            ("[[:digit:]-]", "-", true),
            ("[[:digit:]-]", "7", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("*/b", "a/b", true),
            ("[\\]]", "]", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(Glob::new(pattern.as_bytes()).matches(text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn case_and_period() {
        assert!(Glob::new(b"*.TXT").fold_case().matches(b"a.txt"));
        assert!(Glob::new(b"[A-C]").fold_case().matches(b"b"));
        assert!(!Glob::new(b"*").guard_period().matches(b".x"));
        assert!(Glob::new(b".*").guard_period().matches(b".x"));
    }

    #[test]
    fn many_stars_end() {
        let pattern = "*a".repeat(200);
        assert!(!Glob::new(pattern.as_bytes()).matches("a".repeat(199).as_bytes()));
    }
}
