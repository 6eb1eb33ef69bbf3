// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server says it can do (RFC 2389).

use crate::{Bad, Reply, command};

/// The facts of files that [`crate::mlsx`] reads.
const FACTS: [&str; 5] = ["TYPE", "SIZE", "SIZD", "MODIFY", "UNIX.MODE"];

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

    /// What OPTS is to be given, so that MLST and MLSD tell all facts of files that this library reads, of those that the server
    /// knows; `None` where they do anyway (RFC 3659, 7.9).
    pub fn mlst_selection(&self) -> Option<String> {
        let facts = self.words.iter().find_map(|word| word.strip_prefix("MLST "))?;
        let is_read = |fact: &&str| FACTS.contains(&fact.trim_end_matches('*'));
        let read: Vec<&str> = facts.split(';').filter(is_read).collect();
        let told = |fact: &&str| fact.ends_with('*');
        let selection = |fact: &&str| format!("{};", fact.trim_end_matches('*'));
        (!read.iter().all(told)).then(|| format!("MLST {}", read.iter().map(selection).collect::<String>()))
    }

    /// The commands that tell size and time of change of a file, of those that the server knows.
    ///
    /// # Errors
    /// Those of [`command`].
    pub fn version_commands(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, Bad> {
        let known = ["SIZE", "MDTM"].into_iter().filter(|verb| self.has(verb));
        known.map(|verb| command(verb, path)).collect()
    }

    /// Why the server would take a path for that of another file, if it would: one that is to be made, or asked about.
    pub fn mistakes(&self, path: &[u8], is_made: bool) -> Option<&'static str> {
        let is_control = |byte: &u8| byte.is_ascii_control();
        if !self.has("SITE PURE") {
            return None;
        }
        if path.iter().any(is_control) {
            return Some("Pure-FTPd takes control characters in names for '_'");
        }
        let ends_blank = is_made && path.ends_with(b" ");
        ends_blank.then_some("Pure-FTPd takes a blank at the end of a new name for '_'")
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
        assert_eq!(features.version_commands(b"/f"), Ok(Vec::new()));
        let tells = Features::of(&reply(211, &["Extensions:", " MDTM", " SIZE", "End"]));
        assert_eq!(tells.version_commands(b"/f"), Ok(vec![b"SIZE /f\r\n".to_vec(), b"MDTM /f\r\n".to_vec()]));
        assert_eq!(tells.version_commands(b"a\nb"), Err(Bad::Argument));
        assert_eq!(Features::of(&reply(500, &["no", "SIZE"])), Features::default());
        let site = features.with_site(&reply(214, &["These are recognized:", " CHMOD IDLE", " UTIME*", "x"]));
        assert!(site.has("SITE CHMOD") && site.has("SITE UTIME") && !site.has("SITE UMASK"));
    }

    #[test]
    fn names_that_pure_ftpd_would_change_are_known() {
        let pure = Features::default().with_site(&reply(214, &["CHMOD", "PURE"]));
        for (path, asked, made) in
            [("/a b", true, true), ("/a ", true, false), ("/a\t", false, false), ("/a\x7f", false, false)]
        {
            assert_eq!(pure.mistakes(path.as_bytes(), false).is_none(), asked, "{path:?}");
            assert_eq!(pure.mistakes(path.as_bytes(), true).is_none(), made, "{path:?}");
            assert_eq!(Features::default().mistakes(path.as_bytes(), true), None);
        }
    }

    #[test]
    fn facts_that_are_not_told_unasked_are_selected() {
        for (line, selection) in [
            (
                " MLST type*;perm*;size*;modify*;unique*;unix.mode;unix.uid;",
                Some("MLST TYPE;SIZE;MODIFY;UNIX.MODE;"),
            ),
            (" MLST type*;size*;sizd*;modify*;UNIX.mode*;unique;", None),
            (" MLST", None),
            (" SIZE", None),
        ] {
            let features = Features::of(&reply(211, &["Extensions:", line, "End"]));
            assert_eq!(features.mlst_selection().as_deref(), selection, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_lines_are_features(lines: Vec<Vec<u8>>) {
            let reply = Reply { code: 211, lines: lines.into_iter().map(Bytes::from).collect() };
            let _ = Features::of(&reply).with_site(&reply).has("SIZE");
        }
    }
}
