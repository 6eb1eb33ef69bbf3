// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is killed at every request: what the door sees and the tree are as if it had lived.
mod relay;
mod replaced;
mod replay;

use outrigger_conformance::{Direct, Flags, Subject, block_on};
use outrigger_core::ops::{MkDir, RenameFlags, XattrFlags};
use outrigger_core::{Errno, Name, Node, Service, SetTime, Time};
use outrigger_driver_libfuse::launch::{Launch, Mountpoint};
use outrigger_driver_libfuse::{LibFuse, Options};
use outrigger_runtime::Threads;
use relay::{Point, Relay};
use std::fmt::{Debug, Write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

/// A FUSE program that serves the directory `store` below a directory.
struct Case {
    program: &'static str,
    words: fn(&Path) -> Vec<String>,
}

const BINDFS: Case =
    Case { program: "bindfs", words: |dir| vec!["-f".into(), dir.join("store").display().to_string()] };

/// sshfs without ssh: the server runs as its child. Without caches, so that both runs see the same.
const SSHFS: Case = Case {
    program: "sshfs",
    words: |dir| {
        let ssh = dir.join("ssh");
        fs::write(&ssh, "#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n").unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        let options = format!("ssh_command={},dir_cache=no", ssh.display());
        vec!["-f".into(), "-o".into(), options, format!("host:{}", dir.join("store").display())]
    },
};

const MERGERFS: Case = Case {
    program: "mergerfs",
    words: |dir| {
        let store = dir.join("store").display().to_string();
        vec!["-f".into(), "-o".into(), "cache.attr=0,cache.entry=0".into(), store]
    },
};

const OVERLAY: Case = Case {
    program: "fuse-overlayfs",
    words: |dir| {
        fs::create_dir(dir.join("lower")).unwrap();
        fs::create_dir(dir.join("work")).unwrap();
        let at = |name| dir.join(name).display().to_string();
        let layers = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("store"), at("work"));
        vec!["-f".into(), "-o".into(), layers]
    },
};

/// Starts the program with a relay before it, changed by `change`.
fn start(case: &Case, dir: &Path, options: Options, change: impl FnOnce(&mut Relay)) -> (Direct, Arc<Relay>) {
    start_unless(Arc::default(), case, dir, options, change)
}

/// As [`start`]; one start fails whenever `fails` is set.
fn start_unless(
    fails: Arc<AtomicBool>,
    case: &Case,
    dir: &Path,
    options: Options,
    change: impl FnOnce(&mut Relay),
) -> (Direct, Arc<Relay>) {
    let store = dir.join("store");
    fs::create_dir(&store).unwrap();
    let words = (case.words)(dir).into_iter();
    let command: Vec<_> = std::iter::once(case.program.into()).chain(words.map(Into::into)).collect();
    let launch = Launch { mountpoint: Mountpoint::Private, ..Launch::new(command) };
    let program = case.program;
    let mut relay = Relay::new(Box::new(move |signal| relay::kill(program, &store, signal)));
    change(&mut relay);
    let relay = Arc::new(relay);
    let between = Arc::clone(&relay);
    let nothing = Launch { mountpoint: Mountpoint::Private, ..Launch::new(vec!["true".into()]) };
    let starter = Box::new(move |deadline| {
        let launch = if fails.swap(false, Ordering::SeqCst) { &nothing } else { &launch };
        launch.start(deadline).map(|program| between.put(program))
    });
    let runtime = Arc::new(Threads::new());
    let service = LibFuse::with_starter(program.into(), starter, options, runtime).unwrap();
    (Direct::new(Arc::new(service)), relay)
}

/// Does the work, with a program that dies at the request with this number. What was seen, what is left, and how many
/// requests there were.
fn run(case: &Case, kill: Option<(u64, Point)>) -> (String, String, u64) {
    let dir = tempfile::tempdir().unwrap();
    let (fs, relay) = start(case, dir.path(), Options::default(), |relay| relay.kill = kill);
    let mut log = Log(String::new());
    work(&fs, &mut log);
    fs.close_all();
    drop(fs);
    let mut left = String::new();
    tree(&dir.path().join("store"), "", &mut left);
    (log.0, left, relay.requests())
}

fn a_death_at_any_request_changes_nothing(case: &Case) {
    if let Err(error) = std::process::Command::new(case.program).arg("--version").output() {
        return println!("SKIPPED: {}: {error}", case.program);
    }
    let (log, left, requests) = run(case, None);
    assert!(requests > 100, "{requests} requests:\n{log}");
    let mut wrong = Vec::new();
    // All of them take minutes: one point for each request, unless more is asked for.
    let thorough = std::env::var_os("OUTRIGGER_EVERY_POINT").is_some();
    for (turn, point) in (0..).zip([Point::BeforeSending, Point::Unanswered, Point::AnswerDropped]) {
        for at in (1..=requests).filter(|at| thorough || at % 3 == turn) {
            let (seen, remains, _) = run(case, Some((at, point)));
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

#[test]
fn bindfs() {
    a_death_at_any_request_changes_nothing(&BINDFS);
}

#[test]
fn sshfs() {
    a_death_at_any_request_changes_nothing(&SSHFS);
}

#[test]
fn mergerfs() {
    a_death_at_any_request_changes_nothing(&MERGERFS);
}

#[test]
fn fuse_overlayfs() {
    a_death_at_any_request_changes_nothing(&OVERLAY);
}

/// Whether bindfs is there.
fn has_bindfs() -> bool {
    let found = std::process::Command::new("bindfs").arg("--version").output();
    if let Err(error) = &found {
        println!("SKIPPED: bindfs: {error}");
    }
    found.is_ok()
}

#[test]
fn a_request_that_kills_every_program_gets_eio_and_others_go_on() {
    if !has_bindfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let change = |relay: &mut Relay| relay.poison = Some(b"poison");
    let (fs, relay) = start(&BINDFS, dir.path(), Options::default(), change);
    fs.mkdir(Path::new("good"), 0o755).unwrap();
    let before = relay.programs();
    assert_eq!(fs.stat(Path::new("poison")).err(), Some(Errno::EIO));
    assert_eq!(relay.programs() - before, 3, "it died three times, and the next one lives");
    assert!(fs.stat(Path::new("good")).is_ok());
}

#[test]
fn a_program_that_others_kill_again_and_again_accuses_no_request() {
    if !has_bindfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let change = |relay: &mut Relay| relay.victims = Some((b"innocent", 5));
    let (fs, relay) = start(&BINDFS, dir.path(), Options::default(), change);
    fs.mkdir(Path::new("innocent"), 0o755).unwrap();
    assert_eq!(relay.programs(), 6);
}

#[test]
fn a_program_that_served_before_each_of_many_deaths_may_fail_to_start_once() {
    if !has_bindfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let (fs, relay) = start_unless(Arc::clone(&fails), &BINDFS, dir.path(), Options::default(), |_| {});
    for death in 0..8 {
        fs.mkdir(Path::new(&format!("{death}")), 0o755).unwrap();
        fails.store(death == 7, Ordering::SeqCst);
        relay.kill_now();
    }
    fs.mkdir(Path::new("last"), 0o755).unwrap();
    assert!(!fails.load(Ordering::SeqCst), "the start that was to fail was made");
}

#[test]
fn a_request_that_is_not_answered_times_out_and_the_connection_goes_on() {
    if !has_bindfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = Options { timeout: Some(Duration::from_millis(100)), ..Options::default() };
    let (fs, relay) = start(&BINDFS, dir.path(), options, |relay| relay.silent = Some(b"silent"));
    assert_eq!(fs.mkdir(Path::new("silent"), 0o755).err(), Some(Errno::ETIMEDOUT));
    fs.mkdir(Path::new("good"), 0o755).unwrap();
    assert_eq!(relay.programs(), 1);
}

#[test]
fn a_change_that_is_cancelled_is_answered_at_once_and_still_made() {
    if !has_bindfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (fs, relay) = start(&BINDFS, dir.path(), Options::default(), |relay| relay.hold = Some(b"held"));
    let cx = fs.cx();
    let cancel = cx.cancel.clone();
    let name = Name::new(b"held".to_vec()).unwrap();
    let service = Arc::clone(fs.service());
    let asked = thread::spawn(move || {
        let make = MkDir { dir: Node::ROOT, name, mode: 0o755, umask: 0, initial: None };
        block_on(service.call(&cx, make.into()).into_future())
    });
    relay.wait_until_held();
    cancel.raise();
    assert_eq!(asked.join().unwrap().error().map(|error| error.errno), Some(Errno::EINTR));
    relay.let_go();
    // The program works on several requests at once: it may answer this one first.
    let deadline = Instant::now() + Duration::from_secs(30);
    while fs.stat(Path::new("held")).is_err() {
        assert!(Instant::now() < deadline, "never made");
        thread::yield_now();
    }
    assert_eq!(relay.programs(), 1);
}

#[test]
fn a_program_that_hangs_is_started_again_when_asked_for() {
    if !has_bindfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = Options { restart_on_hang: Some(Duration::from_millis(100)), ..Options::default() };
    let (fs, relay) = start(&BINDFS, dir.path(), options, |relay| relay.hang = Some(b"once"));
    fs.mkdir(Path::new("once"), 0o755).unwrap();
    assert_eq!(relay.programs(), 2);
}

/// Kills the program at moments that have nothing to do with its requests, while the same work is done again and again.
#[test]
fn deaths_at_any_moment_change_nothing() {
    if !has_bindfs() {
        return;
    }
    let (log, left, _) = run(&BINDFS, None);
    for seed in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let change = |relay: &mut Relay| relay.now_and_then = Some(seed * 1000);
        let (fs, relay) = start(&BINDFS, dir.path(), Options::default(), change);
        let mut seen = Log(String::new());
        work(&fs, &mut seen);
        fs.close_all();
        drop(fs);
        let mut remains = String::new();
        tree(&dir.path().join("store"), "", &mut remains);
        assert_eq!((seen.0, remains), (log.clone(), left.clone()), "seed {seed}");
        assert!(relay.programs() > 1, "seed {seed}: nothing died");
    }
}
