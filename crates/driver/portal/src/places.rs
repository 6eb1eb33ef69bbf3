// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a path leads to.

use crate::config::{Config, Provider, Rule, Trust, is_host, port, without_brackets};
use outrigger_core::{FileKind, Name};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A directory above prefixes of the configuration.
    Above,
    /// A directory whose names are made up when they are looked for.
    MadeUp,
    /// A file that makes a connection when it is opened.
    File(Target),
    /// What this machine has there decides.
    Machine(OnMachine),
}

/// What is connected to when a file is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A port of a host; with `tls` TLS is spoken there.
    Tcp { host: String, port: u16, tls: Option<Trust> },
    /// A program and its arguments, and where it runs.
    Exec { words: Vec<OsString>, dir: PathBuf },
    /// A socket or a file of this machine.
    Machine(OnMachine),
}

/// A place in a directory of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnMachine {
    /// The directory, or the file itself.
    pub(crate) base: PathBuf,
    /// The path in it; empty for itself.
    pub(crate) path: PathBuf,
    /// Whether it is about sockets; about regular files otherwise.
    pub(crate) sockets: bool,
}

impl Config {
    /// What `path` leads to, if it leads anywhere.
    pub(crate) fn find(&self, path: &[Name]) -> Option<Place> {
        if path.is_empty() || self.rules.iter().any(|rule| is_below(&rule.prefix, path)) {
            return Some(Place::Above);
        }
        self.rules.iter().find_map(|rule| Some(rule.provider.find(path.strip_prefix(&rule.prefix[..])?)))?
    }

    /// The names in a directory above prefixes, each with what it is where the configuration alone says so.
    pub(crate) fn names(&self, path: &[Name]) -> Vec<(Name, Option<FileKind>)> {
        let below = self.rules.iter().filter(|rule| is_below(&rule.prefix, path));
        let mut names: Vec<_> =
            below.map(|rule| (rule.prefix[path.len()].clone(), rule.kind(path.len() + 1))).collect();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        names.dedup_by(|one, other| one.0 == other.0);
        names
    }
}

fn is_below(prefix: &[Name], path: &[Name]) -> bool {
    prefix.len() > path.len() && prefix.starts_with(path)
}

impl Rule {
    /// What the first `len` names of its prefix lead to.
    fn kind(&self, len: usize) -> Option<FileKind> {
        match self.provider.find(&[]) {
            _ if len < self.prefix.len() => Some(FileKind::Directory),
            Some(Place::MadeUp | Place::Above) => Some(FileKind::Directory),
            Some(Place::File(_)) => Some(FileKind::Regular),
            Some(Place::Machine(_)) | None => None,
        }
    }
}

impl Provider {
    fn find(&self, rest: &[Name]) -> Option<Place> {
        match self {
            Provider::Tcp { host, port, tls } => server((host.as_deref(), *port, tls), rest),
            Provider::Unix(base) => Some(Place::Machine(OnMachine::new(base, rest, true))),
            Provider::Fs(base) => Some(Place::Machine(OnMachine::new(base, rest, false))),
            Provider::Exec { arguments, .. } if rest.len() < *arguments => Some(Place::MadeUp),
            Provider::Exec { command, arguments, dir } => {
                let last = rest.iter().map(|name| OsString::from_vec(name.to_vec()));
                let words = command.iter().cloned().chain(last).collect();
                (rest.len() == *arguments).then_some(Place::File(Target::Exec { words, dir: dir.clone() }))
            }
        }
    }
}

/// The next names of a path are the host and the port that are not known yet.
fn server((host, known, tls): (Option<&str>, Option<u16>, &Option<Trust>), rest: &[Name]) -> Option<Place> {
    let (host, rest) = match (host, rest) {
        (Some(host), rest) => (host, rest),
        (None, []) => return Some(Place::MadeUp),
        (None, [host, rest @ ..]) => (str::from_utf8(host).ok().filter(|host| is_host(host))?, rest),
    };
    let (port, rest) = match (known, rest) {
        (Some(port), rest) => (port, rest),
        (None, []) => return Some(Place::MadeUp),
        (None, [name, rest @ ..]) => (str::from_utf8(name).ok().and_then(port)?, rest),
    };
    let target = Target::Tcp { host: without_brackets(host).to_owned(), port, tls: tls.clone() };
    rest.is_empty().then_some(Place::File(target))
}

impl OnMachine {
    fn new(base: &std::path::Path, rest: &[Name], sockets: bool) -> Self {
        let path = rest.iter().map(|name| OsStr::from_bytes(name)).collect();
        OnMachine { base: base.to_owned(), path, sockets }
    }

    /// As messages show it.
    pub(crate) fn shown(&self) -> String {
        self.base.join(&self.path).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn find(text: &str, path: &str) -> Option<Place> {
        let config = Config::parse(text, ("file", Path::new("/")), (true, true)).expect(text);
        config.find(&names(path))
    }

    fn names(path: &str) -> Vec<Name> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .map(|name| Name::try_from(name).expect(name))
            .collect()
    }

    fn tcp(host: &str, port: u16) -> Option<Place> {
        Some(Place::File(Target::Tcp { host: host.into(), port, tls: None }))
    }

    #[test]
    fn names_of_a_path_say_what_a_line_leaves_open() {
        assert_eq!(find("t tcp", "/t"), Some(Place::MadeUp));
        assert_eq!(find("t tcp", "/t/h"), Some(Place::MadeUp));
        assert_eq!(find("t tcp", "/t/::1/25"), tcp("::1", 25));
        assert_eq!(find("t tcp", "/t/[::1]/25"), tcp("::1", 25));
        assert_eq!(find("t tcp [::1]", "/t/25"), tcp("::1", 25));
        assert_eq!(find("t tcp", "/t/[h]/25"), tcp("[h]", 25));
        assert_eq!(find("t tcp h", "/t/25"), tcp("h", 25));
        assert_eq!(find("t tcp h 25", "/t"), tcp("h", 25));
        for path in ["/t/h/25/x", "/t/h/0", "/t/h/http", "/t/h h/25", "/u"] {
            assert_eq!(find("t tcp", path), None, "{path}");
        }
        assert_eq!(find("a/b tcp", "/a"), Some(Place::Above));
        assert_eq!(find("a/b tcp", "/a/c"), None);
    }

    #[test]
    fn arguments_of_a_program_are_names() {
        let words = ["wc", "-l", "--", "-x"].map(OsString::from).to_vec();
        assert_eq!(find("w/* exec wc -l --", "/w"), Some(Place::MadeUp));
        assert_eq!(
            find("w/* exec wc -l --", "/w/-x"),
            Some(Place::File(Target::Exec { words, dir: "/".into() }))
        );
        assert_eq!(find("w/* exec wc -l --", "/w/-x/y"), None);
        assert!(matches!(find("w exec wc", "/w"), Some(Place::File(_))));
    }

    #[test]
    fn listings_have_the_prefixes_once() {
        let config =
            Config::parse("b/x tcp\nb/y tcp\na exec true\nc fs /", ("file", Path::new("/")), (true, true));
        let config = config.expect("a configuration");
        let shown =
            |path: &str| config.names(&names(path)).into_iter().map(|(name, kind)| (name.to_vec(), kind));
        let (dir, file) = (Some(FileKind::Directory), Some(FileKind::Regular));
        assert!(shown("/").eq([(b"a".to_vec(), file), (b"b".to_vec(), dir), (b"c".to_vec(), None)]));
        assert!(shown("/b").eq([(b"x".to_vec(), dir), (b"y".to_vec(), dir)]));
    }
}
