// SPDX-License-Identifier: MIT OR Apache-2.0
//! `leftovers`: nothing unfinished, switched off or left from debugging.

use std::path::Path;

use super::{Finding, Rule, Tree};
use crate::tidy::source::{is_whole_word, numbered};

pub const RULE: Rule = Rule {
    name: "leftovers",
    summary: "no marks of unfinished work, debugging macros or ignored tests in code and scripts",
    check,
};

/// The words, written in two parts so that this file keeps its own rule.
const WORDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("unimplemented", "!"),
    concat!("to", "do!"),
    concat!("db", "g!"),
];
const IGNORE: &str = concat!("#[", "ignore");

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_code(path)) {
        for (number, line) in numbered(text) {
            if let Some(word) = WORDS.iter().find(|word| has_word(line, word)) {
                let advice = format!("finish what `{word}` stands for, or take it out");
                findings.push(Finding::new(RULE.name, path, number, advice));
            }
            if line.contains(IGNORE) {
                let advice =
                    "let the test run, or delete it: a test that cannot run here prints `SKIPPED: reason`";
                findings.push(Finding::new(RULE.name, path, number, advice));
            }
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    let letters = word.trim_end_matches('!').len();
    line.match_indices(word).any(|(at, _)| is_whole_word(line, at, letters))
}

/// Code, scripts and build files; prose may name what it forbids.
fn is_code(path: &str) -> bool {
    let path = Path::new(path);
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_script = || path.starts_with(".ci") || path.file_name().is_some_and(|name| name == "Makefile");
    matches!(extension, Some("rs" | "c" | "h" | "sh" | "py" | "toml" | "yml" | "mk")) || is_script()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn finds_each_word_once_per_line() {
        for word in WORDS {
            let text = format!("fn f() {{}}\n// {word}: {word}(later)\n");
            assert_eq!(places(&RULE, &[("a.rs", &text)]), ["a.rs:2"], "{word}");
        }
        let ignored = format!("#[test]\n{IGNORE} = \"slow\"]\nfn f() {{}}\n");
        assert_eq!(places(&RULE, &[("a.rs", &ignored)]), ["a.rs:2"]);
    }

    #[test]
    fn leaves_longer_words_and_prose_alone() {
        let template = format!("mktemp -d out.{0}{0}\n{0}_PATH=1\n", WORDS[2]);
        assert_eq!(places(&RULE, &[("a.sh", &template), ("docs/A.md", WORDS[0])]), [""; 0]);
        assert_eq!(
            places(&RULE, &[(".ci/run", WORDS[0]), ("Makefile", WORDS[1])]),
            [".ci/run:1", "Makefile:1"]
        );
    }
}
