// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing directories while they change.

use crate::report::{Case, Place};
use crate::subject::{Fd, Flags, Listed};
use crate::tester::{Expect, Tester};
use outrigger_core::ops::{Forget, ReadDirPlus};
use outrigger_core::reply::COOKIE_MAX;
use outrigger_core::{FileKind, Node, OpCode};
use std::collections::BTreeSet;

pub(super) const CASES: &[Case] = &[
    Case::new("listing/an_empty_directory_ends_at_once", &[], empty),
    Case::new("listing/shows_kind_and_inode", &[OpCode::SymLink, OpCode::MkNod], kinds),
    Case::new("listing/small_pieces_show_everything_once", &[], pieces),
    Case::new("listing/3000_names", &[], many),
    Case::new("listing/continues_after_any_cookie", &[], any_cookie),
    Case::new("listing/cookies_survive_removal_of_what_was_seen", &[OpCode::Unlink], remove_seen),
    Case::new("listing/cookies_survive_removal_of_the_last_seen", &[OpCode::Unlink], remove_last),
    Case::new("listing/removed_names_are_not_shown", &[OpCode::Unlink], removed_hidden),
    Case::new("listing/removing_all_while_listing_finds_all", &[OpCode::Unlink], remove_all),
    Case::new("listing/additions_do_not_disturb", &[], additions),
    Case::new("listing/a_rename_shows_one_of_the_names", &[OpCode::Rename], renamed),
    Case::new("listing/can_start_again", &[], rewind),
    Case::new("listing/cookies_are_in_range", &[], cookie_range).at(Place::Direct),
    Case::new("listing/plus_agrees_with_lookup", &[OpCode::ReadDirPlus, OpCode::Forget], plus)
        .at(Place::Direct),
    Case::new("listing/plus_pages_like_plain", &[OpCode::ReadDirPlus, OpCode::Forget], plus_pages)
        .at(Place::Direct),
];

fn fill(t: &Tester<'_>, count: usize) -> BTreeSet<String> {
    t.mkdir("d", 0o755).must();
    (0..count)
        .map(|i| {
            let name = format!("name-{i:05}");
            t.write_file(format!("d/{name}"), b"");
            name
        })
        .collect()
}

fn name(entry: &Listed) -> String {
    String::from_utf8_lossy(&entry.name).into_owned()
}

/// The rest of a listing after `cookie`.
fn rest(t: &Tester<'_>, fd: Fd, mut cookie: u64) -> Vec<Listed> {
    let mut all = Vec::new();
    loop {
        let piece = t.fs.read_dir(fd, cookie, 512).must();
        let Some(last) = piece.entries.last() else { return all };
        cookie = last.cookie;
        all.extend(piece.entries);
        if piece.eof {
            return all;
        }
    }
}

fn open(t: &Tester<'_>) -> Fd {
    t.open("d", Flags::READ | Flags::DIRECTORY).must()
}

fn empty(t: &Tester<'_>) {
    fill(t, 0);
    let fd = open(t);
    let piece = t.fs.read_dir(fd, 0, 4096).must();
    assert!(piece.entries.is_empty() && piece.eof);
    t.close(fd);
}

fn kinds(t: &Tester<'_>) {
    t.write_file("file", b"");
    t.mkdir("dir", 0o755).must();
    t.symlink("x", "link").must();
    t.mknod("fifo", FileKind::Fifo, 0o644, 0).must();
    let expected = [
        ("file", FileKind::Regular),
        ("dir", FileKind::Directory),
        ("link", FileKind::Symlink),
        ("fifo", FileKind::Fifo),
    ];
    let listed = t.list("", 4096);
    assert_eq!(listed.len(), expected.len());
    for (name, kind) in expected {
        let entry = listed.iter().find(|entry| entry.name == name.as_bytes()).expect(name);
        assert!(entry.kind.is_none_or(|found| found == kind), "{name}");
        assert_eq!(entry.ino, t.stat(name).must().ino, "{name}");
    }
}

fn pieces(t: &Tester<'_>) {
    let expected = fill(t, 50);
    for size in [1, 64, 300, 1000] {
        let listed: Vec<String> = t.list("d", size).iter().map(name).collect();
        assert_eq!(listed.len(), expected.len(), "in pieces of {size} bytes");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    }
}

fn many(t: &Tester<'_>) {
    let expected = fill(t, 3000);
    assert_eq!(t.names("d"), expected);
}

fn any_cookie(t: &Tester<'_>) {
    fill(t, 40);
    let all = t.list("d", 4096);
    let fd = open(t);
    for (index, entry) in all.iter().enumerate().rev() {
        let rest: Vec<String> = rest(t, fd, entry.cookie).iter().map(name).collect();
        let expected: Vec<String> = all[index + 1..].iter().map(name).collect();
        assert_eq!(rest, expected, "after {}", name(entry));
    }
    t.close(fd);
}

fn remove_seen(t: &Tester<'_>) {
    let all = fill(t, 60);
    let fd = open(t);
    let first = t.fs.read_dir(fd, 0, 512).must().entries;
    let seen: BTreeSet<String> = first.iter().map(name).collect();
    assert!(!seen.is_empty() && seen.len() < all.len(), "one piece must not hold the whole directory");
    for (entry, _) in first.iter().zip(1..first.len()) {
        t.unlink(format!("d/{}", name(entry))).must();
    }
    let later: BTreeSet<String> =
        rest(t, fd, first.last().expect("not empty").cookie).iter().map(name).collect();
    assert_eq!(later, all.difference(&seen).cloned().collect());
    t.close(fd);
}

fn remove_last(t: &Tester<'_>) {
    let all = fill(t, 60);
    let fd = open(t);
    let first = t.fs.read_dir(fd, 0, 512).must().entries;
    let last = first.last().expect("not empty");
    t.unlink(format!("d/{}", name(last))).must();
    let seen: BTreeSet<String> = first.iter().map(name).collect();
    let later: BTreeSet<String> = rest(t, fd, last.cookie).iter().map(name).collect();
    assert_eq!(later, all.difference(&seen).cloned().collect());
    t.close(fd);
}

fn removed_hidden(t: &Tester<'_>) {
    let mut all = fill(t, 30);
    for i in [0, 7, 29] {
        let name = format!("name-{i:05}");
        t.unlink(format!("d/{name}")).must();
        all.remove(&name);
    }
    assert_eq!(t.names("d"), all);
}

fn remove_all(t: &Tester<'_>) {
    let all = fill(t, 500);
    let fd = open(t);
    let (mut cookie, mut seen) = (0, BTreeSet::new());
    loop {
        let piece = t.fs.read_dir(fd, cookie, 700).must();
        let Some(last) = piece.entries.last() else { break };
        cookie = last.cookie;
        for entry in &piece.entries {
            t.unlink(format!("d/{}", name(entry))).must();
            seen.insert(name(entry));
        }
    }
    t.close(fd);
    assert_eq!(seen, all);
    assert!(t.names("d").is_empty());
}

fn additions(t: &Tester<'_>) {
    let all = fill(t, 60);
    let fd = open(t);
    let first = t.fs.read_dir(fd, 0, 512).must().entries;
    for i in 0..60 {
        t.write_file(format!("d/added-{i:05}"), b"");
    }
    let mut listed: Vec<String> = first.iter().map(name).collect();
    listed.extend(rest(t, fd, first.last().expect("not empty").cookie).iter().map(name));
    let old: Vec<&String> = listed.iter().filter(|name| !name.starts_with("added")).collect();
    assert_eq!(old.len(), all.len(), "each name that was there all the time is shown once");
    let unique: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "no name is shown twice");
    t.close(fd);
}

fn renamed(t: &Tester<'_>) {
    let mut all = fill(t, 60);
    t.rename("d/name-00003", "d/other").must();
    all.remove("name-00003");
    all.insert("other".into());
    assert_eq!(t.names("d"), all);
}

fn rewind(t: &Tester<'_>) {
    let mut all = fill(t, 20);
    let fd = open(t);
    assert_eq!(rest(t, fd, 0).len(), 20);
    t.write_file("d/late", b"");
    all.insert("late".into());
    let again: BTreeSet<String> = rest(t, fd, 0).iter().map(name).collect();
    assert_eq!(again, all);
    t.close(fd);
}

fn cookie_range(t: &Tester<'_>) {
    fill(t, 20);
    assert!(t.list("d", 4096).iter().all(|entry| (1..=COOKIE_MAX).contains(&entry.cookie)));
}

fn plus(t: &Tester<'_>) {
    fill(t, 10);
    t.mkdir("d/sub", 0o700).must();
    let fd = open(t);
    let (node, handle, _) = t.direct().opened(fd).must();
    let found = t.direct().ask(ReadDirPlus { node, handle, cookie: 0, size: 1 << 16 }).must();
    assert!(found.eof);
    assert_eq!(found.entries.len(), 11);
    for entry in found.entries {
        let path = format!("d/{}", entry.name);
        assert_eq!(entry.entry.attr.ino, t.stat(&path).must().ino);
        let (told, found) = (entry.entry.attr, t.stat(&path).must());
        // Number 0 says that there is such a name, and no more.
        if entry.entry.node == Node::default() {
            assert_eq!(told.kind(), found.kind());
            continue;
        }
        assert_eq!(told.mode, found.mode);
        t.direct().ask(Forget { node: entry.entry.node, count: 1 }).must();
    }
    t.close(fd);
}

fn plus_pages(t: &Tester<'_>) {
    let all = fill(t, 40);
    let fd = open(t);
    let (node, handle, _) = t.direct().opened(fd).must();
    let (mut cookie, mut seen) = (0, BTreeSet::new());
    loop {
        let piece = t.direct().ask(ReadDirPlus { node, handle, cookie, size: 1000 }).must();
        for entry in &piece.entries {
            assert!(seen.insert(entry.name.to_string()), "{} twice", entry.name);
            cookie = entry.cookie;
            t.direct().ask(Forget { node: entry.entry.node, count: 1 }).must();
        }
        if piece.eof || piece.entries.is_empty() {
            break;
        }
    }
    assert_eq!(seen, all);
    t.close(fd);
}
