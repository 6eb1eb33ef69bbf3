// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an image has of its own where other tools take random numbers: the same for the same tree, or for the same words.

use super::source::Found;
use outrigger_core::hash::siphash13;

/// Where identifiers and other numbers of an image come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// Of the words that the user has given.
    pub fn of_words(words: &str) -> Self {
        Seed(siphash13(words.as_bytes()))
    }

    /// Of nothing yet: for a tree.
    pub fn of_tree() -> Self {
        Seed(0)
    }

    /// Takes another name of the tree in: path, kind, mode, owner, size, and time of modification.
    pub fn take(&mut self, Found { path, attr, .. }: &Found) {
        let size = if attr.is_dir() { 0 } else { attr.size };
        let numbers = [
            self.0,
            u64::from(attr.mode),
            u64::from(attr.uid) << 32 | u64::from(attr.gid),
            size,
            u64::from(attr.rdev),
            attr.mtime.secs as u64,
            u64::from(attr.mtime.nanos),
        ];
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|number| number.to_le_bytes()).chain(path.iter().copied()).collect();
        self.0 = siphash13(&bytes);
    }

    /// The number for this purpose.
    pub fn number(self, purpose: &str) -> u64 {
        siphash13(&[&self.0.to_le_bytes(), purpose.as_bytes()].concat())
    }

    /// The identifier for this purpose, as RFC 9562 writes it: version 8, which is for whoever makes it.
    pub fn uuid(self, purpose: &str) -> String {
        let (high, low) = (self.number(purpose), self.number(&format!("{purpose}, second half")));
        let high = high & !0xf000 | 0x8000;
        let low = low & !(3 << 62) | 2 << 62;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_the_same_for_the_same_words_and_of_version_8() {
        let (one, other) = (Seed::of_words("one"), Seed::of_words("other"));
        assert_eq!(one.uuid("image"), Seed::of_words("one").uuid("image"));
        assert_ne!(one.uuid("image"), other.uuid("image"));
        assert_ne!(one.uuid("image"), one.uuid("hash"));
        let text = one.uuid("image");
        let lengths: Vec<usize> = text.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(text.as_bytes()[14], b'8');
        assert!(b"89ab".contains(&text.as_bytes()[19]), "{text}");
    }
}
