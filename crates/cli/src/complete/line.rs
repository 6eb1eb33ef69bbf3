// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a shell says about its command line: the words before the cursor.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The command line up to the cursor, as a shell would hand it on.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// The words before the one at the cursor, the program's name first.
    pub before: Vec<OsString>,
    /// The word at the cursor, as far as it is typed.
    pub word: OsString,
    /// How `word` begins with what the shell does not replace.
    pub kept: OsString,
}

impl Asked {
    /// Reads the arguments the script for `shell` gives: for bash the line and the word that it would replace, for others the
    /// number of words before the cursor, those, and the word at the cursor.
    pub fn read(shell: &str, arguments: &[OsString]) -> Option<Self> {
        if shell == "bash" {
            let [line, replaced] = arguments else { return None };
            return Asked::of_line(line, replaced);
        }
        let (number, words) = arguments.split_first()?;
        let number: usize = number.to_str()?.parse().ok()?;
        let (before, word) = words.split_at_checked(number)?;
        Some(Asked {
            before: before.to_vec(),
            word: word.first().cloned().unwrap_or_default(),
            kept: OsString::new(),
        })
    }

    /// The line as bash has it: broken at blanks that are not quoted only. What bash replaces begins after an open quote.
    fn of_line(line: &OsStr, replaced: &OsStr) -> Option<Self> {
        let (mut words, open) = words(line.as_bytes(), Quote::None);
        let word = words.pop()?;
        let replaced = self::words(replaced.as_bytes(), open).0.pop()?;
        let kept = word.strip_suffix(&*replaced).unwrap_or_default().to_vec();
        let before = words.into_iter().map(OsString::from_vec).collect();
        Some(Asked { before, word: OsString::from_vec(word), kept: OsString::from_vec(kept) })
    }
}

/// What a word is quoted with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    None,
    Single,
    Double,
}

/// The words of a line that begins inside `quote`, without their quotes, and the quote that is open at its end. The last word
/// is where the line ends, empty after a blank.
fn words(line: &[u8], mut quote: Quote) -> (Vec<Vec<u8>>, Quote) {
    let mut words = vec![Vec::new()];
    let mut in_word = false;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        let taken = match (quote, byte) {
            (Quote::None, b' ' | b'\t' | b'\n') => {
                if std::mem::take(&mut in_word) {
                    words.push(Vec::new());
                }
                continue;
            }
            (Quote::None, b'\'') => switch(&mut quote, Quote::Single),
            (Quote::None, b'"') => switch(&mut quote, Quote::Double),
            (Quote::Single, b'\'') | (Quote::Double, b'"') => switch(&mut quote, Quote::None),
            (Quote::None, b'\\') => bytes.next(),
            (Quote::Double, b'\\') => match bytes.next() {
                Some(next @ (b'"' | b'\\' | b'$' | b'`')) => Some(next),
                next => {
                    words.last_mut().into_iter().for_each(|word| word.push(byte));
                    next
                }
            },
            _ => Some(byte),
        };
        in_word = true;
        if let Some(word) = words.last_mut() {
            word.extend(taken);
        }
    }
    (words, quote)
}

fn switch(quote: &mut Quote, to: Quote) -> Option<u8> {
    *quote = to;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str, replaced: &str) -> (Vec<String>, String, String) {
        let Asked { before, word, kept } =
            Asked::read("bash", &[line.into(), replaced.into()]).expect("a line is understood");
        let text = |word: OsString| word.into_string().unwrap();
        (before.into_iter().map(text).collect(), text(word), text(kept))
    }

    #[test]
    fn what_bash_broke_is_one_word() {
        for (line, replaced, before, word, kept) in [
            ("outrigger ls disk.img::/et", "/et", &["outrigger", "ls"][..], "disk.img::/et", "disk.img::"),
            ("outrigger ls disk.img::", "", &["outrigger", "ls"], "disk.img::", "disk.img::"),
            ("outrigger  --layer fault=op=w", "w", &["outrigger", "--layer"], "fault=op=w", "fault=op="),
            ("outrigger ls ", "", &["outrigger", "ls"], "", ""),
            ("outrigger ls My\\ di", "My\\ di", &["outrigger", "ls"], "My di", ""),
            ("outrigger ls \"a b.img::/x y", "a b.img::/x y", &["outrigger", "ls"], "a b.img::/x y", ""),
            ("outrigger ls a'b c::/d", "b c::/d", &["outrigger", "ls"], "ab c::/d", "a"),
            ("outrigger ls 'it\"s' \"a\\\"b\\c\" d", "d", &["outrigger", "ls", "it\"s", "a\"b\\c"], "d", ""),
        ] {
            let (b, w, k) =
                (before.iter().map(|&word| word.to_owned()).collect(), word.to_owned(), kept.to_owned());
            assert_eq!(asked(line, replaced), (b, w, k), "{line}");
        }
    }

    #[test]
    fn other_shells_say_the_words() {
        let read = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            Asked::read("zsh", &words)
        };
        let asked = read(&["2", "outrigger", "ls", "a:b"]).expect("three words");
        assert_eq!((asked.before.len(), &*asked.word, &*asked.kept), (2, OsStr::new("a:b"), OsStr::new("")));
        assert_eq!(read(&["3", "outrigger"]), None);
        assert_eq!(read(&["many"]), None);
        assert_eq!(read(&[]), None);
    }
}
