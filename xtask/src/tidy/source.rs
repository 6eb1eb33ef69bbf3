// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small helpers on source text that several rules share.

use proc_macro2::{TokenStream, TokenTree};

/// Calls `visit` on every run of sibling tokens, the outermost first; a rule looks at a token and its neighbours there.
pub fn for_each_run(tokens: TokenStream, visit: &mut impl FnMut(&[TokenTree])) {
    let run: Vec<TokenTree> = tokens.into_iter().collect();
    visit(&run);
    for token in run {
        if let TokenTree::Group(group) = token {
            for_each_run(group.stream(), visit);
        }
    }
}

/// Whether `text[at..at + length]` is a word of its own: no letter, digit or underscore touches it.
pub fn is_whole_word(text: &str, at: usize, length: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..at].ends_with(is_word) && !text[at + length..].starts_with(is_word)
}

/// The lines of `text` with their numbers, from 1.
pub fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// The code of a file before its unit tests, which stand at its end in a module `tests`.
pub fn product(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// The number of the first line of `text` that contains `needle`, or 1.
pub fn line_of(text: &str, needle: &str) -> usize {
    numbered(text).find(|(_, line)| line.contains(needle)).map_or(1, |(number, _)| number)
}
