// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many threads on one tree: nothing deadlocks, nothing is lost, nothing leaks.

use outrigger_conformance::{Direct, Expect, Flags, Subject};
use outrigger_core::ops::{Create, MkDir, OpenFlags, Rename, RenameFlags};
use outrigger_core::{Answer, Credentials, Cx, Errno, FileKind, Inline, Name, Node, Reply, Request, Service};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const THREADS: u64 = 4;

fn tree() -> Direct {
    let threads = Arc::new(Threads::new());
    Direct::new(Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads)))
}

/// A sequence of numbers that differs by seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// One of a few paths, so that threads meet.
    fn path(&mut self) -> PathBuf {
        let depth = 1 + self.below(3);
        (0..depth).map(|_| ["a", "b", "c"][self.below(3) as usize]).collect()
    }
}

fn change_something(fs: &Direct, numbers: &mut Numbers) {
    let (one, other) = (numbers.path(), numbers.path());
    // Whether a call succeeds depends on the other threads; what it must not do is hang or break the tree.
    let _ = match numbers.below(10) {
        0 | 1 => fs.mkdir(&one, 0o755),
        2 | 3 => fs.open(&one, Flags::BOTH | Flags::CREATE, 0o644).and_then(|fd| {
            fs.write_at(fd, numbers.below(10_000), &[7; 5000])?;
            fs.close(fd)
        }),
        4 => fs.unlink(&one),
        5 => fs.rmdir(&one),
        6 => fs.rename(&one, &other, RenameFlags::EXCHANGE),
        7 => fs.link(&one, &other),
        _ => fs.rename(&one, &other, RenameFlags::empty()),
    };
}

/// Counts directories below `dir`, checks link counts on the way, and removes everything.
fn check_and_remove(fs: &Direct, dir: &Path) {
    let fd = fs.open(dir, Flags::READ | Flags::DIRECTORY, 0).must();
    let entries = fs.read_dir(fd, 0, 1 << 20).must().entries;
    fs.close(fd).must();
    let mut subdirectories = 0;
    for entry in &entries {
        let path = dir.join(String::from_utf8_lossy(&entry.name).as_ref());
        subdirectories += u32::from(fs.stat(&path).must().kind() == FileKind::Directory);
    }
    assert_eq!(fs.stat(dir).must().nlink, 2 + subdirectories, "links of {}", dir.display());
    for entry in entries {
        let path = dir.join(String::from_utf8_lossy(&entry.name).as_ref());
        if fs.stat(&path).must().is_dir() {
            check_and_remove(fs, &path);
            fs.rmdir(&path).must();
        } else {
            fs.unlink(&path).must();
        }
    }
}

#[test]
fn namespace_changes_from_all_sides() {
    let fs = tree();
    let before = fs.statfs(Path::new("")).must();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let mut numbers = Numbers(seed + 1);
                (0..20_000).for_each(|_| change_something(fs, &mut numbers));
            });
        }
    });
    fs.close_all();
    check_and_remove(&fs, Path::new(""));
    assert_eq!(fs.statfs(Path::new("")).must(), before, "space and inodes after everything was removed");
}

#[test]
fn appends_from_all_sides_are_all_there() {
    let fs = tree();
    fs.open(Path::new("f"), Flags::NEW, 0o644).must();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let fd = fs.open(Path::new("f"), Flags::WRITE | Flags::APPEND, 0).must();
                (0..1000).for_each(|_| assert_eq!(fs.write_at(fd, 0, &[seed as u8; 10]).must(), 10));
            });
        }
    });
    let fd = fs.open(Path::new("f"), Flags::READ, 0).must();
    let data = fs.read_at(fd, 0, 1 << 20).must();
    assert_eq!(data.len() as u64, THREADS * 10_000);
    assert!(data.chunks(10).all(|piece| piece.iter().all(|byte| *byte == piece[0])), "a piece was torn");
}

#[test]
fn one_name_is_given_once() {
    let fs = tree();
    for round in 0..500 {
        let name = format!("n{round}");
        let made: usize = thread::scope(|scope| {
            let make = || fs.open(Path::new(&name), Flags::NEW, 0o644);
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(make)).collect();
            let results = threads.into_iter().map(|thread| thread.join().expect("the thread ends"));
            results.filter(|result| *result != Err(Errno::EEXIST)).count()
        });
        assert_eq!(made, 1, "{name}");
    }
}

/// Asks by node, as a door for clients does that may name any of them.
fn ask(service: &dyn Service, request: Request) -> Reply {
    match service.call(&Cx::new(1, Credentials::ROOT, "test"), request) {
        Answer::Ready(reply) => reply,
        Answer::Later(_) => panic!("not prompt"),
    }
}

#[test]
fn a_file_named_as_the_directory_of_a_rename_blocks_nobody() {
    let threads = Arc::new(Threads::new());
    let service = Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads));
    let name = |text: &str| Name::try_from(text).expect("a name");
    let Reply::Entry(dir) = ask(
        &*service,
        MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o755, umask: 0, initial: None }.into(),
    ) else {
        panic!("no directory");
    };
    let dir = dir.node;
    let create =
        |name| Create { dir, name, mode: 0o644, umask: 0, flags: OpenFlags::READ_WRITE, initial: None };
    let Reply::Created(file) = ask(&*service, create(name("file")).into()) else { panic!("no file") };
    let file = file.entry.node;

    let rename = |dir, from: &str, to_dir, to: &str| {
        let flags = RenameFlags::empty();
        Request::from(Rename { dir, name: name(from), to_dir, to_name: name(to), flags })
    };
    let back_and_forth = [rename(dir, "file", dir, "other"), rename(dir, "other", dir, "file")];
    let senseless = [rename(file, "x", dir, "x"), rename(dir, "x", file, "x")];
    let (done, ends) = mpsc::channel();
    for requests in [back_and_forth, senseless] {
        let (service, done) = (service.clone(), done.clone());
        thread::spawn(move || {
            let replies: Vec<Reply> =
                (0..20_000).map(|step| ask(&*service, requests[step % 2].clone())).collect();
            done.send(replies).expect("the test waits");
        });
    }
    for _ in 0..2 {
        let replies = ends.recv_timeout(Duration::from_secs(60)).expect("both threads end");
        let refused = |reply: &Reply| matches!(reply, Reply::Error(error) if error.errno == Errno::ENOTDIR);
        assert!(replies.iter().all(|reply| *reply == Reply::Done(())) || replies.iter().all(refused));
    }
}
