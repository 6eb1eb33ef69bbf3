// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading the sample tree (see [`crate::sample`]).

use crate::report::{Case, Place};
use crate::sample::{Content, MTIME, tree};
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::ops::{Forget, Walk};
use outrigger_core::{Errno, FileKind, Name, Node, OpCode};
use std::collections::BTreeSet;

pub(super) const CASES: &[Case] = &[
    Case::new("sample/every_path_has_its_kind_and_mode", &[OpCode::Lookup, OpCode::GetAttr], kinds).sample(),
    Case::new("sample/every_directory_lists_its_names", &[OpCode::ReadDir], names).sample(),
    Case::new("sample/every_file_has_its_content", &[OpCode::Read], contents).sample(),
    Case::new("sample/every_symlink_has_its_target", &[OpCode::ReadLink], targets).sample(),
    Case::new("sample/symlinks_are_followed", &[OpCode::ReadLink, OpCode::Read], followed).sample(),
    Case::new("sample/modification_times", &[OpCode::GetAttr], mtimes).sample(),
    Case::new("sample/hard_links_are_one_file", &[OpCode::GetAttr], hard_links).sample(),
    Case::new("sample/any_part_of_a_file_can_be_read", &[OpCode::Read], parts).sample(),
    Case::new("sample/reading_backwards", &[OpCode::Read], backwards).sample(),
    Case::new("sample/reading_beyond_the_end", &[OpCode::Read], beyond).sample(),
    Case::new("sample/missing_names", &[OpCode::Lookup], missing).sample(),
    Case::new("sample/listing_in_small_pieces", &[OpCode::ReadDir], pieces).sample(),
    Case::new("sample/looking_again_finds_the_same", &[OpCode::Lookup, OpCode::GetAttr], stable).sample(),
    Case::new("sample/walk_finds_every_step", &[OpCode::Walk, OpCode::Forget], walk)
        .sample()
        .at(Place::Direct),
    Case::new("sample/changes_are_refused", &[OpCode::Lookup], refused).sample(),
];

fn kinds(t: &Tester<'_>) {
    for sample in tree() {
        let attr = t.stat(sample.path).must();
        let (kind, size) = match &sample.content {
            Content::Directory => (FileKind::Directory, None),
            Content::File(bytes) => (FileKind::Regular, Some(bytes.len() as u64)),
            Content::Symlink(target) => (FileKind::Symlink, Some(target.len() as u64)),
            Content::HardLink(_) => (FileKind::Regular, None),
        };
        assert_eq!(attr.kind(), kind, "{}", sample.path);
        assert_eq!(size.unwrap_or(attr.size), attr.size, "{}", sample.path);
        if kind != FileKind::Symlink {
            assert_eq!(attr.permissions(), sample.mode, "{}", sample.path);
        }
    }
    assert!(t.stat("").must().is_dir());
}

/// The names the sample tree has in `dir`.
fn expected(dir: &str) -> BTreeSet<String> {
    let inside = |path: &'static str| match path.rsplit_once('/') {
        Some((parent, name)) => (parent == dir).then_some(name),
        None => dir.is_empty().then_some(path),
    };
    tree().into_iter().filter_map(|sample| inside(sample.path)).map(str::to_owned).collect()
}

fn names(t: &Tester<'_>) {
    for dir in ["", "dir", "dir/sub", "dir/void"] {
        assert_eq!(t.names(dir), expected(dir), "{dir}");
    }
}

fn files() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    tree().into_iter().filter_map(|sample| match sample.content {
        Content::File(bytes) => Some((sample.path, bytes)),
        _ => None,
    })
}

fn contents(t: &Tester<'_>) {
    for (path, bytes) in files() {
        assert!(t.read_file(path) == bytes, "{path}");
    }
}

fn targets(t: &Tester<'_>) {
    for sample in tree() {
        if let Content::Symlink(target) = sample.content {
            assert_eq!(t.readlink(sample.path).must(), target.as_bytes());
        }
    }
}

fn followed(t: &Tester<'_>) {
    assert_eq!(t.read_file("dir/up"), b"hello, world\n");
    t.open("dangling", Flags::READ).must_fail(Errno::ENOENT);
}

fn mtimes(t: &Tester<'_>) {
    for sample in tree().iter().filter(|sample| !matches!(sample.content, Content::Symlink(_))) {
        assert_eq!(t.stat(sample.path).must().mtime.secs, MTIME as i64, "{}", sample.path);
    }
}

fn hard_links(t: &Tester<'_>) {
    let (one, other) = (t.stat("hello.txt").must(), t.stat("dir/hard").must());
    assert_eq!(t.read_file("dir/hard"), b"hello, world\n");
    assert_eq!(one.ino, other.ino);
    assert_eq!((one.nlink, other.nlink), (2, 2));
}

fn big() -> Vec<u8> {
    files().find(|(path, _)| *path == "big.bin").map(|(_, bytes)| bytes).unwrap_or_default()
}

fn parts(t: &Tester<'_>) {
    let bytes = big();
    let fd = t.open("big.bin", Flags::READ).must();
    for (offset, len) in
        [(0, 1), (299_999, 1), (4095, 2), (65_535, 70_000), (123_456, 4096), (1, 299_999), (7, 0)]
    {
        assert!(t.fs.read_at(fd, offset as u64, len).must() == bytes[offset..offset + len], "{offset}+{len}");
    }
    t.close(fd);
}

fn backwards(t: &Tester<'_>) {
    let bytes = big();
    let fd = t.open("big.bin", Flags::READ).must();
    for start in (0..bytes.len()).step_by(10_007).collect::<Vec<_>>().into_iter().rev() {
        let end = bytes.len().min(start + 10_007);
        assert!(t.fs.read_at(fd, start as u64, end - start).must() == bytes[start..end], "from {start}");
    }
    t.close(fd);
}

fn beyond(t: &Tester<'_>) {
    let fd = t.open("hello.txt", Flags::READ).must();
    assert_eq!(t.fs.read_at(fd, 7, 100).must(), b"world\n");
    assert_eq!(t.fs.read_at(fd, 13, 100).must(), b"");
    assert_eq!(t.fs.read_at(fd, 1 << 40, 100).must(), b"");
    t.close(fd);
}

fn missing(t: &Tester<'_>) {
    t.stat("no").must_fail(Errno::ENOENT);
    t.stat("dir/no").must_fail(Errno::ENOENT);
    t.stat("hello.txt/no").must_fail(Errno::ENOTDIR);
    t.stat("n".repeat(256)).must_fail(Errno::ENAMETOOLONG);
}

fn pieces(t: &Tester<'_>) {
    for size in [1, 50, 200] {
        let listed = t.list("", size);
        let names: BTreeSet<String> =
            listed.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
        assert_eq!((names.len(), &names), (listed.len(), &expected("")), "in pieces of {size} bytes");
    }
}

fn stable(t: &Tester<'_>) {
    for sample in tree() {
        let (first, second) = (t.stat(sample.path).must(), t.stat(sample.path).must());
        assert_eq!(
            (first.ino, first.mode, first.size),
            (second.ino, second.mode, second.size),
            "{}",
            sample.path
        );
    }
}

fn walk(t: &Tester<'_>) {
    let names =
        |path: &str| path.split('/').map(|part| Name::try_from(part).expect("a name")).collect::<Vec<_>>();
    for (path, found) in [("dir/sub/deep.txt", 3), ("dir/sub/no/x", 2), ("hello.txt/x", 1)] {
        let entries = t.direct().ask(Walk { dir: Node::ROOT, names: names(path) }).must();
        assert_eq!(entries.len(), found, "{path}");
        let mut at = String::new();
        for (entry, name) in entries.iter().zip(path.split('/')) {
            at = if at.is_empty() { name.to_owned() } else { format!("{at}/{name}") };
            assert_eq!(entry.attr.ino, t.stat(&at).must().ino, "{at}");
            t.direct().ask(Forget { node: entry.node, count: 1 }).must();
        }
    }
    t.direct().ask(Walk { dir: Node::ROOT, names: names("no/x") }).must_fail(Errno::ENOENT);
}

fn refused(t: &Tester<'_>) {
    if t.fs.direct().is_none_or(|direct| !direct.abilities().read_only)
        && t.fs.kind() != crate::subject::Kind::Fuse
    {
        t.skip("the tree can be changed");
    }
    let refusals = [Errno::EROFS, Errno::ENOSYS, Errno::EACCES, Errno::EPERM, Errno::EOPNOTSUPP];
    t.mkdir("new", 0o755).must_fail_with_one_of(&refusals);
    t.unlink("hello.txt").must_fail_with_one_of(&refusals);
    t.rename("hello.txt", "new").must_fail_with_one_of(&refusals);
    t.truncate("hello.txt", 0).must_fail_with_one_of(&refusals);
    t.chmod("hello.txt", 0o600).must_fail_with_one_of(&refusals);
    assert_eq!(t.read_file("hello.txt"), b"hello, world\n");
}
