// SPDX-License-Identifier: MIT OR Apache-2.0
//! The syntax of LOCATION: how people name a place in a tree.
//!
//! ```text
//! LOCATION = BASE [ "::" PATH ]...
//! BASE     = SCHEME "://" REST | SCHEME ":" | HOST ":" PATH | HOST-PATH
//! ```
//!
//! Each `::` opens the file before it as a tree. A host path whose name contains `::` is written with `./` in front
//! of a name and its `::` doubled (`::::`).

use crate::status::Failure;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A parsed LOCATION.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The tree of the first part.
    pub base: Base,
    /// Paths after each `::`, outermost first.
    pub nested: Vec<Vec<u8>>,
}

/// Where a LOCATION starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A path of the host.
    Host(PathBuf),
    /// `fuse:COMMAND`: the tree a FUSE program serves.
    Program(String),
    /// `scheme:` or `scheme://rest`.
    Url {
        /// The scheme in lower case.
        scheme: String,
        /// What follows `://`, or `:` when there are no slashes.
        rest: String,
    },
    /// `host:path`, as scp has it.
    Remote {
        /// `[user@]host`.
        host: String,
        /// The path on the host.
        path: Vec<u8>,
    },
}

impl Location {
    /// Parses what the user wrote. Never fails: what is nothing else is a host path.
    pub fn parse(text: &OsStr) -> Self {
        let mut parts = split(text.as_bytes()).into_iter();
        let base = Base::parse(&parts.next().unwrap_or_default());
        Location { base, nested: parts.collect() }
    }
}

/// The tree a LOCATION leads into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeName {
    /// All of what the base names; for host paths the whole host, so that symbolic links lead where they lead elsewhere.
    Whole(Base),
    /// The tree inside the file a LOCATION names.
    Inside(Box<Location>),
}

impl Location {
    /// With the pattern in a host path replaced by the one file that matches it, when there is no file of that name.
    ///
    /// A shell leaves `*.deb::/usr` alone, because nothing of that name exists; what was meant is clear all the same.
    ///
    /// # Errors
    /// When several files match.
    pub fn expanded(mut self) -> Result<Self, Failure> {
        if let Base::Host(path) = &mut self.base
            && !self.nested.is_empty()
            && let Some(pattern) = path.to_str().filter(|text| text.contains(['*', '?', '[']))
            && !path.exists()
        {
            let mut matches = glob::glob(pattern).into_iter().flatten().flatten();
            match (matches.next(), matches.next()) {
                (Some(found), None) => *path = found,
                (Some(one), Some(other)) => {
                    let (one, other) = (one.display(), other.display());
                    return Err(Failure::serious(format!(
                        "'{pattern}' matches {one}, {other}...: name one of them"
                    )));
                }
                (None, _) => {}
            }
        }
        Ok(self)
    }

    /// The innermost tree, and the path in it.
    pub fn split(mut self) -> (TreeName, Vec<u8>) {
        if let Some(path) = self.nested.pop() {
            return match self {
                // The program's tree itself, not one inside a file of it.
                Location { base: program @ Base::Program(_), nested } if nested.is_empty() => {
                    (TreeName::Whole(program), path)
                }
                other => (TreeName::Inside(Box::new(other)), path),
            };
        }
        match self.base {
            Base::Host(path) => (TreeName::Whole(Base::Host("/".into())), path.into_os_string().into_vec()),
            Base::Remote { host, path } => (TreeName::Whole(Base::Remote { host, path: Vec::new() }), path),
            other @ (Base::Url { .. } | Base::Program(_)) => (TreeName::Whole(other), Vec::new()),
        }
    }
}

impl fmt::Display for Location {
    /// As the user would write it, with odd bytes replaced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            Base::Host(path) => write!(f, "{}", path.display())?,
            Base::Url { scheme, rest } => write!(f, "{scheme}://{rest}")?,
            Base::Program(command) => write!(f, "fuse:{command}")?,
            Base::Remote { host, path } => write!(f, "{host}:{}", String::from_utf8_lossy(path))?,
        }
        self.nested.iter().try_for_each(|path| write!(f, "::{}", String::from_utf8_lossy(path)))
    }
}

/// Splits at `::`; `::::` stands for a literal `::`.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let last = parts.len() - 1;
        if let Some(tail) = rest.strip_prefix(b"::::") {
            parts[last].extend_from_slice(b"::");
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix(b"::") {
            parts.push(Vec::new());
            rest = tail;
        } else {
            parts[last].push(byte);
            rest = tail;
        }
    }
    parts
}

impl Base {
    fn parse(text: &[u8]) -> Self {
        let host = || Base::Host(PathBuf::from(OsString::from_vec(text.to_vec())));
        let Some(colon) = text.iter().position(|&byte| byte == b':') else { return host() };
        let (before, after) = (&text[..colon], &text[colon + 1..]);
        // As scp has it: a slash before the colon makes it a host path.
        let Ok(before) = std::str::from_utf8(before) else { return host() };
        if before.is_empty() || before.contains('/') {
            return host();
        }
        if before == "fuse" && !after.is_empty() {
            return Base::Program(String::from_utf8_lossy(after).into_owned());
        }
        let scheme = before.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        match (scheme, after.strip_prefix(b"//"), after.is_empty()) {
            (true, Some(rest), _) => Base::url(before, rest),
            (true, None, true) => Base::url(before, b""),
            _ => Base::Remote { host: before.to_owned(), path: after.to_vec() },
        }
    }

    fn url(scheme: &str, rest: &[u8]) -> Self {
        Base::Url { scheme: scheme.to_ascii_lowercase(), rest: String::from_utf8_lossy(rest).into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Location {
        Location::parse(OsStr::new(text))
    }

    fn url(scheme: &str, rest: &str) -> Base {
        Base::Url { scheme: scheme.into(), rest: rest.into() }
    }

    #[test]
    fn bases() {
        let cases = [
            ("/etc", Base::Host("/etc".into())),
            ("a.tar", Base::Host("a.tar".into())),
            ("./a:b", Base::Host("./a:b".into())),
            ("", Base::Host("".into())),
            ("mem:", url("mem", "")),
            ("SFTP://u@h:22/p", url("sftp", "u@h:22/p")),
            ("fuse:bindfs -r /usr", Base::Program("bindfs -r /usr".into())),
            ("host:dir", Base::Remote { host: "host".into(), path: b"dir".to_vec() }),
            ("u@host:/dir", Base::Remote { host: "u@host".into(), path: b"/dir".to_vec() }),
        ];
        for (text, base) in cases {
            assert_eq!(parse(text), Location { base, nested: vec![] }, "{text}");
        }
    }

    #[test]
    fn the_last_part_is_a_path_in_the_tree_of_the_file_before_it() {
        assert_eq!(parse("/etc").split(), (TreeName::Whole(Base::Host("/".into())), b"/etc".to_vec()));
        let (tree, path) = parse("fuse:squashfuse i.sqsh::/usr").split();
        assert_eq!((tree, path), (TreeName::Whole(parse("fuse:squashfuse i.sqsh").base), b"/usr".to_vec()));
        let (tree, path) = parse("a.deb::/data.tar::/usr").split();
        assert_eq!((tree, path), (TreeName::Inside(Box::new(parse("a.deb::/data.tar"))), b"/usr".to_vec()));
    }

    #[test]
    fn a_pattern_stands_for_the_one_file_that_matches() {
        let dir = tempfile::tempdir().unwrap();
        let pattern = format!("{}/*.deb::/usr", dir.path().display());
        assert_eq!(parse(&pattern).expanded().unwrap(), parse(&pattern), "no match: the name as it is");
        std::fs::write(dir.path().join("a.deb"), "").unwrap();
        assert_eq!(parse(&pattern).expanded().unwrap().base, Base::Host(dir.path().join("a.deb")));
        std::fs::write(dir.path().join("b.deb"), "").unwrap();
        assert!(parse(&pattern).expanded().is_err());
    }

    #[test]
    fn nesting() {
        let location = parse("a.deb::/data.tar.xz::/usr");
        assert_eq!(location.base, Base::Host("a.deb".into()));
        assert_eq!(location.nested, [b"/data.tar.xz".to_vec(), b"/usr".to_vec()]);
        assert_eq!(parse("a.tar::").nested, [b"".to_vec()]);
        assert_eq!(parse("./odd::::name").base, Base::Host("./odd::name".into()));
    }
}
