// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is killed at every request: what the door sees and the tree are as if it had lived.
mod relay;

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::{RenameFlags, XattrFlags};
use outrigger_core::{SetTime, Time};
use outrigger_driver_libfuse::launch::{Launch, Mountpoint};
use outrigger_driver_libfuse::{LibFuse, Options};
use outrigger_runtime::Threads;
use relay::{Point, Relay};
use std::fmt::{Debug, Write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// What each step answered.
struct Log(String);

impl Log {
    fn note(&mut self, what: &str, outcome: impl Debug) {
        writeln!(self.0, "{what}: {outcome:?}").unwrap();
    }
}

/// Some of everything, as a program does it.
fn work(fs: &Direct, log: &mut Log) {
    let path = Path::new;
    log.note("mkdir", fs.mkdir(path("d"), 0o755));
    log.note("mkdir again", fs.mkdir(path("d"), 0o755));
    log.note("symlink", fs.symlink(b"d/f", path("s")));
    log.note("readlink", fs.readlink(path("s")));
    let f = fs.open(path("d/f"), Flags::NEW, 0o600).unwrap();
    log.note("write", fs.write_at(f, 0, b"0123456789"));
    log.note("write behind", fs.write_at(f, 5, b"abcdefghij"));
    log.note("truncate", fs.ftruncate(f, 12));
    log.note("create again", fs.open(path("d/f"), Flags::NEW, 0o600).err());
    let a = fs.open(path("d/f"), Flags::WRITE | Flags::APPEND, 0).unwrap();
    log.note("append", fs.append(a, b"xyz"));
    log.note("append", fs.append(a, b"uvw"));
    log.note("read", fs.read_at(f, 0, 100));
    log.note("chmod", fs.chmod(path("d/f"), 0o444));
    log.note("write to read-only", fs.write_at(f, 0, b"R"));
    log.note("close", fs.close(a));
    log.note("link", fs.link(path("d/f"), path("d/g")));
    log.note("rename", fs.rename(path("d/g"), path("h"), RenameFlags::empty()));
    log.note("read moved", fs.stat(path("h")).map(|attr| attr.size));
    let o = fs.open(path("old"), Flags::NEW, 0o644).unwrap();
    log.note("write", fs.write_at(o, 0, b"old content"));
    let n = fs.open(path("new"), Flags::NEW, 0o644).unwrap();
    log.note("write", fs.write_at(n, 0, b"new content"));
    log.note("close", fs.close(n));
    log.note("replace", fs.rename(path("new"), path("old"), RenameFlags::empty()));
    log.note("read replaced", fs.read_at(o, 0, 100));
    log.note("links of replaced", fs.fstat(o).map(|attr| attr.nlink));
    log.note("close", fs.close(o));
    log.note("unlink open", fs.unlink(path("d/f")));
    log.note("gone", fs.stat(path("d/f")).err());
    log.note("write removed", fs.write_at(f, 20, b"still"));
    log.note("read removed", fs.read_at(f, 0, 100));
    log.note("rmdir", fs.rmdir(path("d")));
    log.note("close", fs.close(f));
    log.note("xattr", fs.set_xattr(path("h"), "user.a", b"1", XattrFlags::CREATE));
    log.note("xattr", fs.set_xattr(path("h"), "user.b", b"2", XattrFlags::empty()));
    log.note("remove", fs.remove_xattr(path("h"), "user.a"));
    log.note("value", fs.get_xattr(path("h"), "user.b"));
    log.note("names", fs.list_xattrs(path("h")));
    let time = |secs| Some(SetTime::To(Time::new(secs, 7)));
    log.note("times", fs.utimens(path("h"), time(1000), time(2000)));
    list(fs, log);
    log.note("unlink", fs.unlink(path("h")));
    log.note("unlink again", fs.unlink(path("h")));
}

/// A listing in small pieces, with a change in the middle.
fn list(fs: &Direct, log: &mut Log) {
    let path = Path::new;
    log.note("mkdir", fs.mkdir(path("many"), 0o755));
    for at in 0..10 {
        let name = format!("many/{at}");
        let file = fs.open(path(&name), Flags::NEW, 0o644).unwrap();
        log.note("close", fs.close(file));
    }
    let dir = fs.open(path("many"), Flags::READ | Flags::DIRECTORY, 0).unwrap();
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let piece = fs.read_dir(dir, cookie, 64).unwrap();
        names.extend(piece.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
        match piece.entries.last() {
            Some(last) => cookie = last.cookie,
            None => break,
        }
    }
    names.sort();
    log.note("names", names);
    log.note("close", fs.close(dir));
}

/// The whole tree: paths, kinds, permissions, sizes, content, and times that were set.
fn tree(dir: &Path, at: &str, out: &mut String) {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    for name in names {
        let path = dir.join(&name);
        let meta = path.symlink_metadata().unwrap();
        let shown = format!("{at}/{}", name.to_string_lossy());
        let mode = meta.permissions().mode();
        let mtime = if meta.mtime() < 10_000 { meta.mtime() } else { 0 };
        let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let links = if meta.is_dir() { 0 } else { meta.nlink() };
        writeln!(out, "{shown} {mode:o} {links} {mtime} {:?}", content.escape_ascii().to_string()).unwrap();
        if meta.is_dir() {
            tree(&path, &shown, out);
        }
    }
}

/// Does the work, with a program that dies at the request with this number. What was seen, what is left, and how many
/// requests there were.
fn run(kill: Option<(u64, Point)>) -> (String, String, u64) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    fs::create_dir(&store).unwrap();
    let command = ["bindfs".into(), "-f".into(), store.clone().into_os_string()];
    let launch = Launch { mountpoint: Mountpoint::Private, ..Launch::new(command.into()) };
    let store_name = store.clone();
    let relay = Arc::new(Relay::new(kill, Box::new(move || relay::kill("bindfs", &store_name))));
    let between = Arc::clone(&relay);
    let starter = Box::new(move |deadline| launch.start(deadline).map(|program| between.put(program)));
    let service =
        LibFuse::with_starter("bindfs".into(), starter, Options::default(), Arc::new(Threads::new()))
            .unwrap();
    let fs = Direct::new(Arc::new(service));
    let mut log = Log(String::new());
    work(&fs, &mut log);
    fs.close_all();
    drop(fs);
    let mut left = String::new();
    tree(&store, "", &mut left);
    (log.0, left, relay.requests())
}

#[test]
fn a_death_at_any_request_goes_unnoticed() {
    if let Err(error) = std::process::Command::new("bindfs").arg("--version").output() {
        return println!("SKIPPED: bindfs: {error}");
    }
    let (log, left, requests) = run(None);
    assert!(requests > 100, "{requests} requests");
    let mut wrong = Vec::new();
    // All of them take minutes: one point for each request, unless more is asked for.
    let thorough = std::env::var_os("OUTRIGGER_EVERY_POINT").is_some();
    for (turn, point) in (0..).zip([Point::BeforeSending, Point::Unanswered, Point::AnswerDropped]) {
        for at in (1..=requests).filter(|at| thorough || at % 3 == turn) {
            let (seen, remains, _) = run(Some((at, point)));
            let difference = |one: &str, other: &str| {
                let lines = one.lines().zip(other.lines()).find(|(one, other)| one != other);
                lines.map(|(one, other)| format!("{one} | {other}"))
            };
            let found = difference(&log, &seen).or_else(|| difference(&left, &remains));
            if seen != log || remains != left {
                wrong.push(format!("{point:?} {at}: {}", found.unwrap_or_default()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} deaths were noticed:\n{}", wrong.len(), wrong.join("\n"));
}
