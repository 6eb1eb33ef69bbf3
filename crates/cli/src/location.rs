// SPDX-License-Identifier: MIT OR Apache-2.0
//! The syntax of LOCATION: how people name a place in a tree.
//!
//! ```text
//! LOCATION = BASE [ "::" PATH ]...
//! BASE     = SCHEME "://" REST | SCHEME ":" | HOST ":" PATH | HOST-PATH
//! HOST     = [USER "@"] NAME | [USER "@"] "[" ADDRESS "]"
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
    /// `host:path`, as scp has it, or `sftp://host:port/path`.
    Remote {
        /// `[user@]host`.
        host: String,
        /// The port, where one is named.
        port: Option<u16>,
        /// The path on the host: relative to the home of the user unless it begins with a slash.
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
            Base::Remote { host, port, path } => {
                (TreeName::Whole(Base::Remote { host, port, path: Vec::new() }), path)
            }
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
            Base::Remote { host, port: Some(port), path } => {
                let path = String::from_utf8_lossy(path);
                let home = if path.starts_with('/') { "" } else { "/~/" };
                write!(f, "sftp://{host}:{port}{home}{path}")?;
            }
            Base::Remote { host, port: None, path } => write!(f, "{host}:{}", String::from_utf8_lossy(path))?,
        }
        self.nested.iter().try_for_each(|path| write!(f, "::{}", String::from_utf8_lossy(path)))
    }
}

/// The end of an address in brackets, as in `[::1]:/path` and `sftp://user@[::1]/path`; 0 where there is none.
fn end_of_address(text: &[u8]) -> usize {
    let Some(open) = text.iter().position(|&byte| byte == b'[') else { return 0 };
    let user = text[..open].strip_prefix(b"sftp://").unwrap_or(&text[..open]);
    let is_host = user.is_empty() || user.ends_with(b"@") && !user.contains(&b'/');
    let close = text.iter().position(|&byte| byte == b']').filter(|_| is_host);
    close.map_or(0, |close| close + 1)
}

/// Splits at `::`; `::::` stands for a literal `::`, and the colons of an address stay together.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    let (address, mut rest) = text.split_at(end_of_address(text));
    let mut parts = vec![address.to_vec()];
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
        let start = end_of_address(text);
        let Some(colon) = text[start..].iter().position(|&byte| byte == b':') else { return host() };
        let colon = start + colon;
        if text.starts_with(b"sftp://") {
            return Base::sftp(&text[b"sftp://".len()..]);
        }
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
            (true, Some(rest), _) if before.eq_ignore_ascii_case("sftp") => Base::sftp(rest),
            (true, Some(rest), _) => Base::url(before, rest),
            (true, None, true) => Base::url(before, b""),
            _ => Base::Remote { host: without_brackets(before), port: None, path: after.to_vec() },
        }
    }

    /// What follows `sftp://`. An absolute path; below `/~/` one that starts at the home of the user.
    fn sftp(rest: &[u8]) -> Self {
        let slash = rest[end_of_address(rest)..].iter().position(|&byte| byte == b'/');
        let (host, path) = rest.split_at(slash.map_or(rest.len(), |slash| end_of_address(rest) + slash));
        let (host, path) = (String::from_utf8_lossy(&decoded(host)).into_owned(), decoded(path));
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host.to_owned(), port.parse().ok()),
            _ => (host, None),
        };
        let path = path.strip_prefix(b"/~/").map_or_else(|| path.clone(), <[u8]>::to_vec);
        Base::Remote { host: without_brackets(&host), port, path }
    }

    fn url(scheme: &str, rest: &[u8]) -> Self {
        Base::Url { scheme: scheme.to_ascii_lowercase(), rest: String::from_utf8_lossy(rest).into_owned() }
    }
}

/// The host without the brackets around an address, as ssh wants it.
fn without_brackets(host: &str) -> String {
    host.replace(['[', ']'], "")
}

/// With `%` and two hexadecimal digits replaced by the byte they mean.
fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(meant) => {
                out.push(meant);
                rest = &tail[2..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
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

    fn remote(host: &str, port: Option<u16>, path: &[u8]) -> Base {
        Base::Remote { host: host.into(), port, path: path.to_vec() }
    }

    #[test]
    fn bases() {
        let cases = [
            ("/etc", Base::Host("/etc".into())),
            ("a.tar", Base::Host("a.tar".into())),
            ("./a:b", Base::Host("./a:b".into())),
            ("", Base::Host("".into())),
            ("mem:", url("mem", "")),
            ("HTTP://u@h:22/p", url("http", "u@h:22/p")),
            ("SFTP://u@h:22/p%20q", remote("u@h", Some(22), b"/p q")),
            ("sftp://h", remote("h", None, b"")),
            ("sftp://h/~/x", remote("h", None, b"x")),
            ("sftp://u@[fe80::1%25eth0]:2022/p", remote("u@fe80::1%eth0", Some(2022), b"/p")),
            ("[::1]:/p", remote("::1", None, b"/p")),
            ("u@[::1]:", remote("u@::1", None, b"")),
            ("fuse:bindfs -r /usr", Base::Program("bindfs -r /usr".into())),
            ("host:dir", remote("host", None, b"dir")),
            ("u@host:/dir", remote("u@host", None, b"/dir")),
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
