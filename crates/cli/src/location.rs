// SPDX-License-Identifier: MIT OR Apache-2.0
//! The syntax of LOCATION: how people name a place in a tree, and the rule that keeps file names from being more than that.
//!
//! ```text
//! LOCATION = BASE [ "::" PATH ]...
//! BASE     = SCHEME ":" PATH | SCHEME "://" AUTHORITY [ "/" PATH ] | HOST ":" PATH | NAME ":" REST | "fuse:" COMMAND | HOST-PATH
//! HOST     = [USER "@"] NAME | [USER "@"] "[" ADDRESS "]"
//! ```
//!
//! A text that is the name of a file on this machine, when the command starts or later, is that file, whatever else it could be read as; only the rest of the grammar is left for names that do not exist. So a name that a pattern of the shell produced is never a host or a program.
//! `HOST:PATH` is an error where HOST is a file on this machine: a colon is missing. `sftp://HOST/PATH` is that host all the same.
//! `SCHEME:unix:PATH` is a tree of a server that listens at a socket of this machine: the socket, and a path in the tree (`9p:unix:/run/sock/dir`).
//! A scheme of the registry has one tree, whose paths follow the colon (`mem:`), a tree for each authority (`ftp://HOST/PATH`), or one for each argument (`portal:FILE`), whose paths follow `::`.
//! `NAME:REST` is served by the program that `--driver-program NAME=COMMAND` names in front of the command. The program decides what REST means, so a path in its tree follows `::`.
//! `fuse:COMMAND` is refused unless `--allow-programs` stands in front of the command, where no pattern stands.
//!
//! Each `::` opens the file before it as a tree. The longest beginning that exists is the file of this machine; where none does, the first `::` ends it, and `::::` stands for a literal `::`.

mod host;
mod spelling;
mod url;

pub use url::{decoded, without_password};

use crate::drivers::{self, declared};
use crate::status::Failure;
use host::{after_sftp, check_authority, is_host, split_port};
pub use spelling::Spelling;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use url::{Syntax, socket, split_authority};

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
    /// `scheme:path`, `scheme://authority/path`, or `name:rest` of a driver program.
    Url {
        /// The scheme in lower case.
        scheme: String,
        /// What follows `:`; without the `//` in front of an authority.
        rest: Vec<u8>,
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
        let bytes = text.as_bytes();
        let ends = separators(bytes).into_iter().chain([bytes.len()]);
        match ends.enumerate().filter(|(_, end)| exists(&bytes[..*end])).last() {
            Some((number, end)) => Location { base: Base::host(&bytes[..end]), nested: parts(bytes, number) },
            None => Location::of_no_file(text),
        }
    }

    /// What `text` means where no file of this machine has a name that it begins with.
    pub fn of_no_file(text: &OsStr) -> Self {
        let text = text.as_bytes();
        let end = separators(text).first().copied().unwrap_or(text.len());
        Location { base: Base::parse(&unescaped(&text[..end])), nested: parts(text, 0) }
    }

    /// Parses a `text` that begins with the name of the file `path`, followed by `nested` trees.
    pub fn of_file(text: &OsStr, path: PathBuf, nested: usize) -> Self {
        let text = text.as_bytes();
        let number = separators(text).len().saturating_sub(nested);
        Location { base: Base::Host(path), nested: parts(text, number) }
    }
}

/// What stands between the separators of `text` from the one called `first` on.
fn parts(text: &[u8], first: usize) -> Vec<Vec<u8>> {
    let separators = separators(text);
    let ends = separators.iter().skip(first + 1).copied().chain([text.len()]);
    let starts = separators.iter().skip(first).map(|separator| separator + SEPARATOR.len());
    starts.zip(ends).map(|(start, end)| unescaped(&text[start..end])).collect()
}

/// Opens the file before it as a tree.
const SEPARATOR: &[u8] = b"::";
/// Stands for a separator in a name.
const ESCAPED: &[u8] = b"::::";

/// The words of the command line, and what is before a separator in them, that were names of files at the start.
static AT_START: OnceLock<HashSet<Vec<u8>>> = OnceLock::new();

/// Remembers which words of the command line are names of files, before the command removes or renames any: a word that two
/// patterns produced is still a name the second time.
pub fn remember_names(words: impl Iterator<Item = OsString>) {
    let names = words.map(OsString::into_vec).flat_map(|word| {
        let ends = separators(&word).into_iter().chain([word.len()]);
        ends.map(|end| word[..end].to_vec()).filter(|name| exists(name)).collect::<Vec<_>>()
    });
    let _ = AT_START.set(names.collect());
}

/// Whether a file of this machine has this name, be it a symbolic link that leads nowhere, or had it at the start. Without a
/// colon there is nothing else it could be.
fn exists(name: &[u8]) -> bool {
    name.contains(&b':')
        && (std::fs::symlink_metadata(OsStr::from_bytes(name)).is_ok()
            || AT_START.get().is_some_and(|names| names.contains(name)))
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
    /// What the user means by `text`, with its pattern expanded.
    ///
    /// # Errors
    /// When several files match a pattern, and for `FILE:PATH`, where one colon is missing.
    pub fn of(text: &OsStr) -> Result<Self, Failure> {
        let location = Location::parse(text);
        if let Base::Remote { host, port: None, .. } = &location.base
            && after_sftp(text.as_bytes()).is_none()
            && let Some(path) =
                text.as_bytes().strip_prefix(host.as_bytes()).and_then(|rest| rest.strip_prefix(b":"))
            && is_file(Path::new(host))
        {
            let (text, path) = (text.display(), OsStr::from_bytes(path).display());
            return Err(Failure::serious(format!(
                "cannot open '{text}': '{host}' is a file here, and '{host}::{path}' is a place in it; a host of this name is \
                 sftp://{host}/"
            )));
        }
        if let Some(rest) =
            after_sftp(text.as_bytes()).filter(|_| matches!(location.base, Base::Remote { .. }))
        {
            check_authority(rest)?;
        }
        location.expanded()
    }

    /// A place on another host.
    pub fn remote(host: &str, port: Option<u16>, path: &[u8]) -> Self {
        Location {
            base: Base::Remote { host: host.to_owned(), port, path: path.to_vec() },
            nested: Vec::new(),
        }
    }

    /// With the pattern in a host path replaced by the one file that matches it, when there is no file of that name.
    ///
    /// A shell leaves `*.deb::/usr` alone, because nothing of that name exists; what was meant is clear all the same.
    ///
    /// # Errors
    /// When several files match.
    fn expanded(mut self) -> Result<Self, Failure> {
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

    /// As messages show it, where it has a password.
    pub fn without_password(&self) -> Option<String> {
        match &self.base {
            Base::Url { scheme, rest } if matches!(without_password(scheme, rest), Cow::Owned(_)) => {
                Some(self.to_string())
            }
            _ => None,
        }
    }

    /// What stands between this LOCATION, spelt as `text`, and the name of a file in the directory it names: a slash unless it
    /// names all of a tree without a path.
    pub fn joint(&self, text: &OsStr) -> &'static str {
        match &self.base {
            _ if !self.nested.is_empty() => "/",
            Base::Program(_) => "::/",
            Base::Url { scheme, rest } => match Syntax::of(scheme) {
                Syntax::Argument => "::/",
                Syntax::Path if rest.is_empty() => "",
                Syntax::Path | Syntax::Authority => "/",
            },
            Base::Remote { path, .. } if path.is_empty() && text.as_bytes().ends_with(b":") => "",
            Base::Remote { path, .. } if path.is_empty() && !text.as_bytes().ends_with(b"/") => "/~/",
            Base::Remote { .. } | Base::Host(_) => "/",
        }
    }

    /// How the name of a file below this LOCATION is written, so that the whole is a LOCATION of that file.
    pub fn spelling(&self, text: &OsStr) -> Spelling {
        let is_url = |text: &OsStr| after_sftp(text.as_bytes()).is_some();
        match &self.base {
            _ if !self.nested.is_empty() => Spelling::Escaped,
            Base::Host(_) => Spelling::Plain,
            Base::Url { scheme, .. } if Syntax::of(scheme) == Syntax::Authority => Spelling::Encoded,
            Base::Remote { port, .. } if port.is_some() || is_url(text) => Spelling::Encoded,
            Base::Url { .. } | Base::Remote { .. } | Base::Program(_) => Spelling::Escaped,
        }
    }

    /// The innermost tree, and the path in it.
    pub fn split(mut self) -> (TreeName, Vec<u8>) {
        if let Some(path) = self.nested.pop() {
            return match self {
                // The tree itself, not one inside a file of it.
                Location { base, nested } if nested.is_empty() && base.has_paths_behind() => {
                    (TreeName::Whole(base), path)
                }
                other => (TreeName::Inside(Box::new(other)), path),
            };
        }
        match self.base {
            Base::Host(path) => (TreeName::Whole(Base::Host("/".into())), path.into_os_string().into_vec()),
            Base::Remote { host, port, path } => {
                (TreeName::Whole(Base::Remote { host, port, path: Vec::new() }), path)
            }
            Base::Url { scheme, rest } => {
                let (rest, path) = match Syntax::of(&scheme) {
                    Syntax::Path => (Vec::new(), rest),
                    Syntax::Authority => split_authority(rest),
                    Syntax::Argument => (rest, Vec::new()),
                };
                (TreeName::Whole(Base::Url { scheme, rest }), path)
            }
            other @ Base::Program(_) => (TreeName::Whole(other), Vec::new()),
        }
    }
}

impl fmt::Display for Location {
    /// As the user would write it, with odd bytes replaced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            Base::Host(path) => write!(f, "{}", path.display())?,
            Base::Url { scheme, rest } => write!(f, "{scheme}:{}", url::shown(scheme, rest))?,
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
    let scheme = text[..open].windows(3).position(|part| part == b"://").filter(|&colon| {
        std::str::from_utf8(&text[..colon]).is_ok_and(|name| Syntax::of(name) == Syntax::Authority)
    });
    let user = &text[scheme.map_or(0, |colon| colon + 3)..open];
    let is_host = user.is_empty() || user.ends_with(b"@") && !user.contains(&b'/');
    let close = text.iter().position(|&byte| byte == b']').filter(|_| is_host);
    close.map_or(0, |close| close + 1)
}

/// Where the separators begin; the colons of an address stay together.
fn separators(text: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = end_of_address(text).max(end_of_scheme(text));
    while at < text.len() {
        if text[at..].starts_with(ESCAPED) {
            at += ESCAPED.len();
        } else if text[at..].starts_with(SEPARATOR) {
            found.push(at);
            at += SEPARATOR.len();
        } else {
            at += 1;
        }
    }
    found
}

/// In `NAME:::/path` the first colon is that of the scheme. With two colons NAME is a file, and four stand for `::` in a name.
fn end_of_scheme(text: &[u8]) -> usize {
    let colon = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
    let colons = text[colon..].iter().take_while(|&&byte| byte == b':').count();
    let name = std::str::from_utf8(&text[..colon]).unwrap_or_default();
    if colons == SEPARATOR.len() + 1 && Syntax::of(name) != Syntax::Authority { colon + 1 } else { 0 }
}

/// Where the path in the innermost tree of a LOCATION begins; 0 for a path of this machine and for `HOST:PATH`.
pub fn end_of_trees(text: &[u8]) -> usize {
    if let Some(last) = separators(text).last() {
        return last + SEPARATOR.len();
    }
    match Location::parse(OsStr::from_bytes(text)).base {
        Base::Url { scheme, .. } if Syntax::of(&scheme) == Syntax::Path => scheme.len() + 1,
        _ => 0,
    }
}

/// Whether a file of this machine may have a tree in it.
fn is_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_block_device())
}

/// A part between separators as it is meant.
fn unescaped(part: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(ESCAPED) {
            out.extend_from_slice(SEPARATOR);
            rest = tail;
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    out
}

impl Base {
    /// Whether a path in the tree follows `::`: the tree of a program, and what else says by itself which tree is meant.
    fn has_paths_behind(&self) -> bool {
        match self {
            Base::Program(_) => true,
            Base::Url { scheme, .. } => Syntax::of(scheme) == Syntax::Argument,
            Base::Host(_) | Base::Remote { .. } => false,
        }
    }

    fn host(path: &[u8]) -> Self {
        Base::Host(PathBuf::from(OsString::from_vec(path.to_vec())))
    }

    /// What the name of no file means.
    fn parse(text: &[u8]) -> Self {
        let host = || Base::host(text);
        let start = end_of_address(text);
        // The colon of a scheme is before an address.
        let scheme = text[..start].windows(3).position(|part| part == b"://");
        let first = || text[start..].iter().position(|&byte| byte == b':').map(|colon| start + colon);
        let Some(colon) = scheme.or_else(first) else { return host() };
        if let Some(rest) = after_sftp(text) {
            return Base::sftp(rest);
        }
        let (before, after) = (&text[..colon], &text[colon + 1..]);
        // As scp has it: a slash before the colon makes it a host path.
        let Ok(before) = std::str::from_utf8(before) else { return host() };
        if before.is_empty() || before.contains('/') {
            return host();
        }
        if declared(before).is_some() {
            return Base::url(before, after.strip_prefix(b"//").unwrap_or(after));
        }
        if matches!(Syntax::of(before), Syntax::Path | Syntax::Argument) {
            return Base::url(before, after);
        }
        if before == "fuse" {
            return Base::Program(String::from_utf8_lossy(after).into_owned());
        }
        if Syntax::of(before) == Syntax::Authority
            && drivers::scheme(before).is_some()
            && let Some(path) = after.strip_prefix(b"unix:")
        {
            return Base::url(before, &socket(path));
        }
        let scheme = before.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        match after.strip_prefix(b"//").filter(|_| scheme) {
            Some(rest) => Base::url(before, rest),
            None if is_host(before) => {
                Base::Remote { host: without_brackets(before), port: None, path: after.to_vec() }
            }
            None => host(),
        }
    }

    /// What follows `sftp://`. An absolute path; below `/~/` one that starts at the home of the user.
    fn sftp(rest: &[u8]) -> Self {
        let slash = rest[end_of_address(rest)..].iter().position(|&byte| byte == b'/');
        let (host, path) = rest.split_at(slash.map_or(rest.len(), |slash| end_of_address(rest) + slash));
        let (host, path) = (String::from_utf8_lossy(&decoded(host)).into_owned(), decoded(path));
        let (host, port) = split_port(&host);
        let (host, port) = (host.to_owned(), port.and_then(|port| port.parse().ok()));
        let path = path.strip_prefix(b"/~/").map_or_else(|| path.clone(), <[u8]>::to_vec);
        Base::Remote { host: without_brackets(&host), port, path }
    }

    fn url(scheme: &str, rest: &[u8]) -> Self {
        Base::Url { scheme: scheme.to_ascii_lowercase(), rest: rest.to_vec() }
    }
}

/// The host without the brackets around an address, as ssh wants it.
fn without_brackets(host: &str) -> String {
    host.replace(['[', ']'], "")
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
            ("sftp://u:22@h/x", remote("u:22@h", None, b"/x")),
            ("sftp://u@[fe80::1%25eth0]:2022/p", remote("u@fe80::1%eth0", Some(2022), b"/p")),
            ("SFTP://u@[::1]:22/p", remote("u@::1", Some(22), b"/p")),
            ("[::1]:/p", remote("::1", None, b"/p")),
            ("u@[::1]:", remote("u@::1", None, b"")),
            ("fuse:bindfs -r /usr", Base::Program("bindfs -r /usr".into())),
            ("host:dir", remote("host", None, b"dir")),
            ("host:", remote("host", None, b"")),
            ("mem:x", url("mem", "x")),
            ("mem:/x", url("mem", "/x")),
            ("NULL:/x", url("null", "/x")),
            ("members:x", remote("members", None, b"x")),
            ("fuse:", Base::Program(String::new())),
            ("fuse:sh x", Base::Program("sh x".into())),
            ("no host:x", Base::Host("no host:x".into())),
            ("-host:x", Base::Host("-host:x".into())),
            ("-oProxyCommand=x@host:x", Base::Host("-oProxyCommand=x@host:x".into())),
            ("a;b:x", Base::Host("a;b:x".into())),
            ("a\x1b[m:x", Base::Host("a\x1b[m:x".into())),
            (":x", Base::Host(":x".into())),
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
        assert_eq!(parse("portal:c::/h").split(), (TreeName::Whole(parse("portal:c").base), b"/h".to_vec()));
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
    fn what_exists_is_a_path_of_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        // A name that begins with a directory is a path anyway; these are read as they stand, and only `exists` differs.
        let at = |name: &str| format!("{}/{name}", dir.path().display());
        let host = |name: &str, nested: &[&str]| Location {
            base: Base::Host(at(name).into()),
            nested: nested.iter().map(|path| path.as_bytes().to_vec()).collect(),
        };
        assert_eq!(parse(&at("x::y::/z")), host("x", &["y", "/z"]));
        std::fs::write(dir.path().join("x::y"), "").unwrap();
        assert_eq!(parse(&at("x::y")), host("x::y", &[]));
        assert_eq!(parse(&at("x::y::/z")), host("x::y", &["/z"]));
        assert_eq!(parse(&at("x::::y::/z")), host("x::y", &["/z"]));
        assert_eq!(parse(&at("x::yz")), host("x", &["yz"]));
        std::os::unix::fs::symlink("nowhere", dir.path().join("l::m")).unwrap();
        assert_eq!(parse(&at("l::m")), host("l::m", &[]));
        std::fs::write(dir.path().join("x::::y"), "").unwrap();
        assert_eq!(parse(&at("x::::y::/z")), host("x::::y", &["/z"]));
    }

    #[test]
    fn a_url_of_a_host_is_its_tree_and_a_path_and_does_not_show_the_password() {
        for (text, tree, path) in [
            ("ftp://h", "h", ""),
            ("ftp://u:p@h:21/a%20b/c", "u:p@h:21", "/a b/c"),
            ("FTPS://h//etc", "h//", "/etc"),
            ("ftp://h/%2Fetc", "h//", "/etc"),
            ("ftp://u@[::1]:21/x", "u@[::1]:21", "/x"),
        ] {
            let (name, at) = parse(text).split();
            let TreeName::Whole(Base::Url { rest, .. }) = name else { panic!("{text}") };
            assert_eq!((&*rest, &at[..]), (tree.as_bytes(), path.as_bytes()), "{text}");
        }
        for (text, shown) in [
            ("ftp://u:p@h/a@b:c", "ftp://u:***@h/a@b:c"),
            ("ftps://u:p:q@x@h::/d", "ftps://u:***@h::/d"),
            ("ftp://u@h/x", "ftp://u@h/x"),
            ("other://u:p@h", "other://u:p@h"),
            ("wire:unix:/run/a b/socket", "wire:unix:/run/a b/socket"),
        ] {
            assert_eq!(parse(text).to_string(), shown);
        }
    }

    #[test]
    fn a_name_below_a_tree_without_a_path_is_joined_so_that_it_leads_there() {
        for (text, joint) in [
            ("host:", ""),
            ("sftp://host", "/~/"),
            ("sftp://host/", "/"),
            ("sftp://host/~/", "/"),
            ("host:dir", "/"),
            ("mem:", ""),
            ("mem:dir", "/"),
            ("fuse:program", "::/"),
            ("portal:", "::/"),
            ("fuse:program::", "/"),
            ("ftp://host", "/"),
            ("dir", "/"),
            ("a.tar::", "/"),
        ] {
            let whole = parse(text);
            assert_eq!(whole.joint(OsStr::new(text)), joint, "{text}");
            let (tree, path) = parse(&format!("{text}{joint}name")).split();
            assert_eq!(tree, whole.split().0, "{text}");
            assert!(path.ends_with(b"name"), "{text}");
        }
    }

    #[test]
    fn names_below_a_url_are_encoded_in_whatever_case_its_scheme_is() {
        for text in ["sftp://h/a", "SFTP://h/a", "Sftp://u@[::1]/a", "FTP://h/a"] {
            assert_eq!(parse(text).spelling(OsStr::new(text)), Spelling::Encoded, "{text}");
        }
        assert_eq!(parse("h:a").spelling(OsStr::new("h:a")), Spelling::Escaped);
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
