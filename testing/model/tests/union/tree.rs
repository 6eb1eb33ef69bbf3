// SPDX-License-Identifier: MIT OR Apache-2.0
//! All that a tree shows, and a tree to begin with.

use outrigger_conformance::{Flags, Subject};
use outrigger_core::ops::XattrFlags;
use outrigger_core::{Attr, FileKind};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// What is shown of a file: kind, permissions, owner, group, content or target, extended attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts(FileKind, u32, u32, u32, Content, Vec<(String, Vec<u8>)>);

/// Bytes that are too many to be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(Vec<u8>);

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(16)];
        write!(f, "{} bytes, \"{}\"...", self.0.len(), shown.escape_ascii())
    }
}

/// Every path with what is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree(pub BTreeMap<String, Facts>);

impl Tree {
    /// The tree that a subject shows.
    pub fn of(subject: &dyn Subject) -> Self {
        let mut tree = Tree::default();
        tree.add(subject, "");
        tree
    }

    /// Its paths.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Paths that are not the same in both, for messages.
    pub fn must_equal(&self, other: &Tree, what: &str) {
        let differs = |path: &&String| self.0.get(*path) != other.0.get(*path);
        let paths = self.0.keys().chain(other.0.keys()).filter(differs);
        let lines: Vec<_> = paths.map(|path| (path, self.0.get(path), other.0.get(path))).collect();
        assert!(lines.is_empty(), "{what}: {lines:#?}");
    }

    fn add(&mut self, subject: &dyn Subject, dir: &str) {
        for name in list(subject, dir) {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let attr = subject.stat(Path::new(&path)).unwrap_or_else(|errno| panic!("{path}: {errno:?}"));
            self.0.insert(path.clone(), facts(subject, &path, &attr));
            if attr.is_dir() {
                self.add(subject, &path);
            }
        }
    }
}

fn facts(subject: &dyn Subject, path: &str, attr: &Attr) -> Facts {
    let content = match attr.kind() {
        FileKind::Regular => read(subject, path),
        FileKind::Symlink => subject.readlink(Path::new(path)).expect("a target"),
        _ => Vec::new(),
    };
    let names = if attr.kind() == FileKind::Symlink {
        Vec::new()
    } else {
        subject.list_xattrs(Path::new(path)).unwrap_or_default()
    };
    let names = names.into_iter().map(|name| String::from_utf8(name).expect("UTF-8"));
    let ours = names.filter(|name| name.starts_with("user.") && !name.starts_with("user.overlay."));
    let mut xattrs: Vec<_> = ours
        .map(|name| (name.clone(), subject.get_xattr(Path::new(path), &name).expect("a value")))
        .collect();
    xattrs.sort();
    let content = Content(content);
    Facts(attr.kind(), attr.permissions(), attr.uid, attr.gid, content, xattrs)
}

/// The names in a directory.
pub fn list(subject: &dyn Subject, dir: &str) -> Vec<String> {
    let path = if dir.is_empty() { PathBuf::from(".") } else { PathBuf::from(dir) };
    let fd = subject.open(&path, Flags::READ | Flags::DIRECTORY, 0).expect("an open directory");
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let listed = subject.read_dir(fd, cookie, 1 << 16).expect("a listing");
        let shown = listed.entries.iter().map(|entry| String::from_utf8(entry.name.clone()).expect("UTF-8"));
        names.extend(shown.filter(|name| name != "." && name != ".."));
        match listed.entries.last() {
            Some(last) if !listed.eof => cookie = last.cookie,
            _ => break,
        }
    }
    subject.close(fd).expect("a close");
    names
}

/// The content of a file.
pub fn read(subject: &dyn Subject, path: &str) -> Vec<u8> {
    let fd = subject.open(Path::new(path), Flags::READ, 0).expect("an open file");
    let content = subject.read_at(fd, 0, 1 << 20).expect("content");
    subject.close(fd).expect("a close");
    content
}

/// Replaces the content of a file, or makes it.
pub fn write(subject: &dyn Subject, path: &str, content: &[u8]) {
    let flags = Flags::WRITE | Flags::CREATE | Flags::TRUNC;
    let fd = subject.open(Path::new(path), flags, 0o644).expect("an open file");
    assert_eq!(subject.write_at(fd, 0, content), Ok(content.len()));
    subject.close(fd).expect("a close");
}

/// Puts files of each kind into an empty tree.
pub fn populate(subject: &dyn Subject) {
    let at = Path::new;
    for dir in ["d", "d/sub", "empty"] {
        subject.mkdir(at(dir), 0o755).expect("a directory");
    }
    write(subject, "d/file", b"content of a file");
    write(subject, "d/sub/deep", b"deep");
    write(subject, "one", b"linked");
    subject.link(at("one"), at("two")).expect("a link");
    subject.symlink(b"nowhere", at("link")).expect("a symbolic link");
    subject.mknod(at("fifo"), FileKind::Fifo, 0o600, 0).expect("a pipe");
    let fd = subject.open(at("holes"), Flags::NEW, 0o644).expect("a file");
    for offset in [0, 20_000, 60_000] {
        subject.write_at(fd, offset, b"data").expect("a write");
    }
    subject.ftruncate(fd, 70_000).expect("a size");
    subject.close(fd).expect("a close");
    subject.set_xattr(at("d/file"), "user.colour", b"red", XattrFlags::empty()).expect("an attribute");
    subject.chown(at("d/file"), Some(1000), Some(100)).expect("an owner");
    subject.chmod(at("d/file"), 0o640).expect("a mode");
    subject.chown(at("d"), Some(1001), Some(100)).expect("an owner");
    subject.chmod(at("d"), 0o751).expect("a mode");
}
