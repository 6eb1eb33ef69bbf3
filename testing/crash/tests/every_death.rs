// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each change, in the circumstances that matter, with death at each point of it.

mod support;

use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::{Effect, LockOwner, Node, Reply, Request, SetAttrs, SetTime, Target, Time};
use outrigger_crash::{Death, essence, snapshot};
use outrigger_runtime::Threads;
use std::sync::Arc;
use support::{Hand, Kind, deaths, name, xattr};

/// A request in circumstances that a name describes.
type Case = (&'static str, fn(&Hand) -> Request);

const ROOT: Node = Node::ROOT;

/// What is there before each case: directories `dir` (empty) and `full`, open files `file`, `other` and `log` (to append),
/// the second name `twin` of `file`, and `link`.
fn prepare(hand: &mut Hand) {
    hand.dir("dir");
    hand.dir("full");
    let inside = MkDir { dir: hand.node("full"), name: name("inside"), mode: 0o700, umask: 0, initial: None };
    hand.ask(inside);
    hand.file("file", &[b'f'; 12288], OpenFlags::empty());
    hand.file("log", b"one\n", OpenFlags::APPEND);
    hand.file("other", b"other", OpenFlags::empty());
    let twin = Link { node: hand.node("file"), dir: ROOT, name: name("twin") };
    hand.ask(twin);
    hand.ask(SymLink { dir: ROOT, name: name("link"), target: target("file"), initial: None });
    hand.ask(SetXattr {
        node: hand.node("file"),
        name: xattr("user.old"),
        value: Bytes::from_static(b"value"),
        flags: XattrFlags::empty(),
    });
}

fn target(text: &str) -> Target {
    Target::new(text.as_bytes().to_vec()).expect("a good target")
}

fn mkdir(text: &str) -> Request {
    MkDir { dir: ROOT, name: name(text), mode: 0o750, umask: 0, initial: None }.into()
}

fn mknod(text: &str, mode: u32) -> Request {
    MkNod { dir: ROOT, name: name(text), mode, umask: 0, rdev: 0, initial: None }.into()
}

fn symlink(text: &str) -> Request {
    SymLink { dir: ROOT, name: name(text), target: target("nowhere"), initial: None }.into()
}

fn create(text: &str, flags: OpenFlags) -> Request {
    Create {
        dir: ROOT,
        name: name(text),
        mode: 0o640,
        umask: 0,
        flags: OpenFlags::READ_WRITE | flags,
        initial: None,
    }
    .into()
}

fn link(hand: &Hand, of: &str, text: &str) -> Request {
    Link { node: hand.node(of), dir: ROOT, name: name(text) }.into()
}

fn unlink(text: &str) -> Request {
    Unlink { dir: ROOT, name: name(text) }.into()
}

fn rmdir(text: &str) -> Request {
    RmDir { dir: ROOT, name: name(text) }.into()
}

fn rename(from: &str, to: &str, flags: RenameFlags) -> Request {
    Rename { dir: ROOT, name: name(from), to_dir: ROOT, to_name: name(to), flags }.into()
}

fn open(hand: &Hand, flags: OpenFlags) -> Request {
    Open { node: hand.node("file"), flags: OpenFlags::READ_WRITE | flags }.into()
}

fn fallocate(hand: &Hand, offset: u64, len: u64, mode: FallocateMode) -> Request {
    Fallocate { node: hand.node("file"), handle: hand.handle("file"), offset, len, mode }.into()
}

fn setattr(hand: &Hand, attrs: SetAttrs) -> Request {
    SetAttr { node: hand.node("file"), handle: None, attrs }.into()
}

fn set_xattr(hand: &Hand, text: &str, flags: XattrFlags) -> Request {
    let value = Bytes::from_static(b"value");
    SetXattr { node: hand.node("file"), name: xattr(text), value, flags }.into()
}

fn remove_xattr(hand: &Hand, text: &str) -> Request {
    RemoveXattr { node: hand.node("file"), name: xattr(text) }.into()
}

fn copy(hand: &Hand, to: &str, to_offset: u64) -> Request {
    let (node, handle, to_node, to_handle) =
        (hand.node("file"), hand.handle("file"), hand.node(to), hand.handle(to));
    CopyRange { node, handle, offset: 0, to_node, to_handle, to_offset, len: 100 }.into()
}

fn moved_into(hand: &Hand) -> Request {
    let to_dir = hand.node("full");
    Rename { dir: ROOT, name: name("dir"), to_dir, to_name: name("inside"), flags: RenameFlags::empty() }
        .into()
}

const MAKING: &[Case] = &[
    ("mkdir", |_| mkdir("new")),
    ("mkdir where a directory is", |_| mkdir("dir")),
    ("mkdir where a file is", |_| mkdir("file")),
    ("mknod of a pipe", |_| mknod("new", 0o010_600)),
    ("mknod of a file", |_| mknod("new", 0o100_600)),
    ("mknod where a file is", |_| mknod("file", 0o100_600)),
    ("symlink", |_| symlink("new")),
    ("symlink where one is", |_| symlink("link")),
    ("create", |_| create("new", OpenFlags::empty())),
    ("create where a file is", |_| create("file", OpenFlags::empty())),
    ("create and empty", |_| create("file", OpenFlags::TRUNC)),
    ("create to append", |_| create("log", OpenFlags::APPEND)),
    ("create anew", |_| create("new", OpenFlags::EXCL)),
    ("create anew, empty, to append", |_| {
        create("new", OpenFlags::EXCL | OpenFlags::TRUNC | OpenFlags::APPEND)
    }),
    ("create anew where a file is", |_| create("file", OpenFlags::EXCL)),
    ("create anew where a directory is", |_| create("dir", OpenFlags::EXCL)),
    ("tmpfile", |_| TmpFile { dir: ROOT, mode: 0o600, umask: 0, flags: OpenFlags::READ_WRITE }.into()),
    ("link", |hand| link(hand, "file", "new")),
    ("link where another file is", |hand| link(hand, "file", "log")),
    ("link where the same file is", |hand| link(hand, "file", "twin")),
];

const MOVING: &[Case] = &[
    ("unlink", |_| unlink("log")),
    ("unlink one of two names", |_| unlink("twin")),
    ("unlink nothing", |_| unlink("new")),
    ("unlink a directory", |_| unlink("dir")),
    ("rmdir", |_| rmdir("dir")),
    ("rmdir nothing", |_| rmdir("new")),
    ("rmdir a full one", |_| rmdir("full")),
    ("rmdir a file", |_| rmdir("file")),
    ("rename", |_| rename("file", "new", RenameFlags::empty())),
    ("rename over a file", |_| rename("file", "log", RenameFlags::empty())),
    ("rename over itself", |_| rename("file", "twin", RenameFlags::empty())),
    ("rename nothing", |_| rename("new", "file", RenameFlags::empty())),
    ("rename a directory", |_| rename("full", "new", RenameFlags::empty())),
    ("rename over an empty directory", moved_into),
    ("rename over a full directory", |_| rename("dir", "full", RenameFlags::empty())),
    ("rename, nothing in the way", |_| rename("file", "new", RenameFlags::NOREPLACE)),
    ("rename, something in the way", |_| rename("file", "log", RenameFlags::NOREPLACE)),
    ("exchange", |_| rename("file", "dir", RenameFlags::EXCHANGE)),
    ("exchange two names of a file", |_| rename("file", "twin", RenameFlags::EXCHANGE)),
    ("exchange with nothing", |_| rename("file", "new", RenameFlags::EXCHANGE)),
    ("rename and leave a whiteout", |_| rename("file", "new", RenameFlags::WHITEOUT)),
];

const CHANGING: &[Case] = &[
    ("open", |hand| open(hand, OpenFlags::empty())),
    ("open and empty", |hand| open(hand, OpenFlags::TRUNC)),
    ("opendir", |hand| OpenDir { node: hand.node("full") }.into()),
    ("write", |hand| hand.write("file", 100, b"written").into()),
    ("write behind the end", |hand| hand.write("file", 20_000, b"written").into()),
    ("append", |hand| hand.write("log", 0, b"two\n").into()),
    ("append nothing", |hand| hand.write("log", 0, b"").into()),
    ("write back", |hand| Write { cached: true, ..hand.write("log", 1, b"N") }.into()),
    ("allocate", |hand| fallocate(hand, 0, 40_000, FallocateMode::empty())),
    ("punch", |hand| fallocate(hand, 0, 4096, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE)),
    ("zero", |hand| fallocate(hand, 10, 4096, FallocateMode::ZERO_RANGE)),
    ("collapse", |hand| fallocate(hand, 0, 4096, FallocateMode::COLLAPSE_RANGE)),
    ("insert", |hand| fallocate(hand, 4096, 4096, FallocateMode::INSERT_RANGE)),
    ("insert behind the end", |hand| fallocate(hand, 1 << 20, 4096, FallocateMode::INSERT_RANGE)),
    ("truncate", |hand| setattr(hand, SetAttrs { size: Some(5), ..SetAttrs::default() })),
    ("chmod", |hand| setattr(hand, SetAttrs { mode: Some(0o600), ..SetAttrs::default() })),
    ("touch", |hand| {
        let mtime = Some(SetTime::To(Time::new(5, 6)));
        setattr(hand, SetAttrs { mtime, ..SetAttrs::default() })
    }),
    ("setxattr", |hand| set_xattr(hand, "user.new", XattrFlags::empty())),
    ("setxattr anew", |hand| set_xattr(hand, "user.new", XattrFlags::CREATE)),
    ("setxattr anew where one is", |hand| set_xattr(hand, "user.old", XattrFlags::CREATE)),
    ("replace an attribute", |hand| set_xattr(hand, "user.old", XattrFlags::REPLACE)),
    ("replace no attribute", |hand| set_xattr(hand, "user.new", XattrFlags::REPLACE)),
    ("removexattr", |hand| remove_xattr(hand, "user.old")),
    ("removexattr of none", |hand| remove_xattr(hand, "user.new")),
    ("copy", |hand| copy(hand, "other", 4)),
    ("copy within a file", |hand| copy(hand, "file", 200)),
    ("release", |hand| hand.release("file").into()),
    ("lock", |hand| {
        let lock = Lock { start: 0, end: 9, kind: LockKind::Write, pid: 1 };
        let (node, handle) = (hand.node("file"), hand.handle("file"));
        SetLock { node, handle, owner: LockOwner(1), lock, wait: false, flock: false }.into()
    }),
];

/// What is answered and what is there afterwards, when processes die as `plan` says. `looked`: whether the names that
/// change were looked up before, as the kernel does.
fn outcome(kind: Kind, threads: &Arc<Threads>, case: &Case, plan: &[Death], looked: bool) -> Vec<String> {
    let mut hand = Hand::new(kind, threads);
    prepare(&mut hand);
    hand.tick();
    let request = (case.1)(&hand);
    let changed = request.effects().into_iter().flat_map(Effect::names).filter(|_| looked);
    for (dir, name) in changed {
        hand.world.ask(Lookup { dir, name: name.clone() }, &[]);
    }
    let reply = hand.world.ask(request.clone(), plan);
    let mut outcome = vec![essence(&reply)];
    hand.learn("given", &reply);
    // A handle that was given out works, once and for the right file.
    if let (Reply::Created(_) | Reply::Opened(_), false) = (&reply, matches!(request, Request::OpenDir(_))) {
        if let Request::Open(op) = &request {
            hand.nodes.insert("given".to_owned(), op.node);
        }
        outcome.push(essence(&hand.ask(hand.write("given", 0, b"through it"))));
        outcome.push(essence(&hand.ask(hand.release("given"))));
    }
    // Whatever was opened to append still does.
    hand.world.restart();
    outcome.push(essence(&hand.world.ask(hand.write("log", 0, b"after"), &[Death::After(1)])));
    outcome.extend(snapshot(hand.world.driver()).expect("the tree can be read"));
    outcome
}

/// Tries each case with each of `plans`, all cases at the same time: much of it is waiting.
fn try_all(kind: Kind, plans: &[Vec<Death>]) {
    let threads = Arc::new(Threads::new());
    let try_one = |case: &Case| {
        let undisturbed = outcome(kind, &threads, case, &[], false);
        for (plan, looked) in plans.iter().flat_map(|plan| [(plan, false), (plan, true)]) {
            let disturbed = outcome(kind, &threads, case, plan, looked);
            assert_eq!(disturbed, undisturbed, "{kind:?}, {}, {plan:?}, {looked}", case.0);
        }
    };
    std::thread::scope(|scope| {
        for case in [MAKING, MOVING, CHANGING].into_iter().flatten() {
            scope.spawn(|| try_one(case));
        }
    });
}

#[test]
fn in_memory_after_a_while() {
    try_all(Kind::Mem, &deaths(7, 5));
}

#[test]
fn in_memory_in_one_tick() {
    try_all(Kind::MemInATick, &deaths(7, 5));
}

#[test]
fn in_a_directory_in_one_tick() {
    try_all(Kind::LocalInATick, &deaths(6, 2));
}

#[test]
fn in_a_directory_after_a_while() {
    // Without a look beforehand, what counts happens in the first steps.
    try_all(Kind::Local, &deaths(3, 0));
}
