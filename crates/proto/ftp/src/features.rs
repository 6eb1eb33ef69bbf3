// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server says it can do (RFC 2389).

use crate::Reply;

/// The answer to FEAT, and to SITE HELP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    words: Vec<String>,
}

impl Features {
    /// Most features that are remembered.
    const MAX: usize = 256;

    /// Those in an answer to FEAT; none when it is a refusal.
    pub fn of(reply: &Reply) -> Self {
        let mut features = Features::default();
        if reply.is_good() {
            reply.lines.iter().skip(1).for_each(|line| features.add(line));
        }
        features
    }

    /// With the commands that an answer to SITE HELP names, as `SITE NAME`.
    #[must_use]
    pub fn with_site(mut self, reply: &Reply) -> Self {
        if reply.is_good() {
            for line in &reply.lines {
                let words = line.split(|byte| !byte.is_ascii_alphabetic()).filter(|word| word.len() > 2);
                words.for_each(|word| self.add(&[b"SITE ", word].concat()));
            }
        }
        self
    }

    fn add(&mut self, line: &[u8]) {
        if self.words.len() < Features::MAX {
            self.words.push(String::from_utf8_lossy(line.trim_ascii()).to_ascii_uppercase());
        }
    }

    /// Whether `feature` is among them: a command, or a command with what follows it, in upper case.
    pub fn has(&self, feature: &str) -> bool {
        let begins = |word: &str| word.strip_prefix(feature).is_some_and(|rest| !starts_word(rest));
        self.words.iter().any(|word| begins(word))
    }
}

fn starts_word(rest: &str) -> bool {
    rest.starts_with(|next: char| next.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn reply(code: u16, lines: &[&'static str]) -> Reply {
        Reply { code, lines: lines.iter().map(|line| Bytes::from_static(line.as_bytes())).collect() }
    }

    #[test]
    fn commands_and_their_forms_are_found() {
        let features = Features::of(&reply(
            211,
            &["Extensions:", " MLST type*;size*;", " REST STREAM", " AUTH TLS", " utf8", "End"],
        ));
        for (feature, expected) in
            [("MLST", true), ("REST STREAM", true), ("UTF8", true), ("AUTH TLS", true), ("MLS", false)]
        {
            assert_eq!(features.has(feature), expected, "{feature}");
        }
        assert_eq!(Features::of(&reply(500, &["no", "SIZE"])), Features::default());
        let site = features.with_site(&reply(214, &["These are recognized:", " CHMOD IDLE", " UTIME*", "x"]));
        assert!(site.has("SITE CHMOD") && site.has("SITE UTIME") && !site.has("SITE UMASK"));
    }

    proptest! {
        #[test]
        fn any_lines_are_features(lines: Vec<Vec<u8>>) {
            let reply = Reply { code: 211, lines: lines.into_iter().map(Bytes::from).collect() };
            let _ = Features::of(&reply).with_site(&reply).has("SIZE");
        }
    }
}
