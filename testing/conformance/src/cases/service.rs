// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a service owes its doors, beyond what a program sees.

use crate::direct::block_on;
use crate::report::{Case, Place};
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::ops::*;
use outrigger_core::{Class, Errno, Handle, Name, Node, OpCode, Reply, Request};
use outrigger_sim::sample::{self, Random};

/// How many random requests of each operation are made.
const ROUNDS: usize = 20;

pub(super) const CASES: &[Case] = &[
    Case::new("service/undeclared_operations_are_enosys", &[], undeclared).sample().at(Place::Direct),
    Case::new("service/declared_operations_are_not_enosys", &[], declared).sample().at(Place::Direct),
    Case::new("service/any_request_is_answered_with_its_reply", &[], answered).sample().at(Place::Direct),
    Case::new("service/the_root_is_a_directory", &[OpCode::GetAttr], root).sample().at(Place::Direct),
    Case::new("service/unknown_nodes_are_refused", &[OpCode::GetAttr, OpCode::Lookup], unknown)
        .sample()
        .at(Place::Direct),
    Case::new("service/the_root_can_be_forgotten", &[OpCode::Forget], forget_root).sample().at(Place::Direct),
    Case::new("service/a_reading_driver_refuses_changes", &[], read_only).sample().at(Place::Direct),
    Case::new(
        "service/a_node_and_its_generation_name_one_file",
        &[OpCode::Unlink, OpCode::Forget],
        generations,
    )
    .at(Place::Direct),
    Case::new("service/lookups_agree_on_the_node", &[OpCode::Link, OpCode::Forget], same_node)
        .at(Place::Direct),
    Case::new("service/a_referenced_node_outlives_its_name", &[OpCode::Unlink, OpCode::Forget], referenced)
        .at(Place::Direct),
    Case::new("service/forgetting_too_often_harms_no_other", &[OpCode::Forget], over_forget)
        .at(Place::Direct),
    Case::new(
        "service/attributes_in_entries_are_current",
        &[OpCode::SetAttr, OpCode::Forget],
        entry_attributes,
    )
    .at(Place::Direct),
    Case::new("service/create_opens_what_exists", &[OpCode::Create, OpCode::Forget], create)
        .at(Place::Direct),
    Case::new(
        "service/create_with_trunc_empties_what_exists",
        &[OpCode::Create, OpCode::Forget],
        create_trunc,
    )
    .at(Place::Direct),
    Case::new("service/setattr_changes_all_or_nothing", &[OpCode::SetAttr], all_or_nothing).at(Place::Direct),
    Case::new("service/write_with_append_goes_to_the_end", &[OpCode::Open, OpCode::Write], append)
        .at(Place::Direct),
    Case::new("service/walk_finds_every_step", &[OpCode::Walk, OpCode::Forget], walk).at(Place::Direct),
    Case::new("service/regular_files_poll_ready", &[OpCode::Poll], poll).at(Place::Direct),
    Case::new("service/unknown_ioctls_are_enotty", &[OpCode::Ioctl], ioctl).at(Place::Direct),
];

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn node(t: &Tester<'_>, path: &str) -> Node {
    t.direct().node_of(&t.path(path)).must()
}

fn forget(t: &Tester<'_>, node: Node, count: u64) {
    t.direct().ask(Forget { node, count }).must();
}

/// The reply to a random request. The nodes in it are random too, so it can hardly do anything.
fn reply(t: &Tester<'_>, op: OpCode, random: &mut Random) -> Reply {
    let mut request = sample::request(op, random);
    // A waiting request for a lock would never be answered here.
    if let Request::SetLock(lock) = &mut request {
        lock.wait = false;
    }
    let cx = t.direct().cx();
    block_on(t.direct().service().call(&cx, request).into_future())
}

fn errno(reply: &Reply) -> Option<Errno> {
    reply.error().map(|error| error.errno)
}

fn undeclared(t: &Tester<'_>) {
    let mut random = Random::with_seed(1);
    for &op in OpCode::ALL.iter().filter(|&&op| !t.direct().abilities().ops.has(op)) {
        assert_eq!(errno(&reply(t, op, &mut random)), Some(Errno::ENOSYS), "{}", op.name());
    }
}

fn declared(t: &Tester<'_>) {
    let mut random = Random::with_seed(2);
    for op in t.direct().abilities().ops.iter() {
        assert_ne!(errno(&reply(t, op, &mut random)), Some(Errno::ENOSYS), "{}", op.name());
    }
}

fn answered(t: &Tester<'_>) {
    let mut random = Random::with_seed(3);
    for &op in OpCode::ALL {
        for _ in 0..ROUNDS {
            let reply = reply(t, op, &mut random);
            let right = match &reply {
                Reply::Error(error) => (1..4096).contains(&error.errno.0),
                other => format!("{other:?}").starts_with(op.reply()),
            };
            assert!(right, "{} was answered with {reply:?}", op.name());
        }
    }
}

fn root(t: &Tester<'_>) {
    let attrs = t.direct().ask(GetAttr { node: Node::ROOT, handle: None }).must();
    assert!(attrs.attr.is_dir());
    assert!(attrs.attr.ino > 0 && attrs.attr.nlink > 0);
}

fn unknown(t: &Tester<'_>) {
    let refusals = [Errno::ESTALE, Errno::ENOENT, Errno::EINVAL];
    for number in [0, u64::MAX, 0x7fff_1234_5678_9abc] {
        t.direct().ask(GetAttr { node: Node(number), handle: None }).must_fail_with_one_of(&refusals);
        t.direct().ask(Lookup { dir: Node(number), name: name("x") }).must_fail_with_one_of(&refusals);
    }
}

fn forget_root(t: &Tester<'_>) {
    forget(t, Node::ROOT, 1);
    forget(t, Node::ROOT, u64::MAX);
    root(t);
}

fn read_only(t: &Tester<'_>) {
    if !t.direct().abilities().read_only {
        t.skip("the driver changes things");
    }
    let mut random = Random::with_seed(4);
    let changes = OpCode::ALL.iter().filter(|op| op.class() == Class::Change);
    // Opening and locking change no content.
    for &op in changes.filter(|op| !matches!(op, OpCode::Open | OpCode::SetLock | OpCode::Ioctl)) {
        let errno = errno(&reply(t, op, &mut random));
        assert!(
            matches!(errno, Some(Errno::EROFS | Errno::ENOSYS)),
            "{} was answered with {errno:?}",
            op.name()
        );
    }
}

fn generations(t: &Tester<'_>) {
    let mut seen = Vec::new();
    let dir = node(t, "");
    for _ in 0..50 {
        t.write_file("f", b"");
        let entry = t.direct().ask(Lookup { dir, name: name("f") }).must();
        assert!(!seen.contains(&(entry.node, entry.generation)), "{:?} names two files", entry.node);
        seen.push((entry.node, entry.generation));
        t.unlink("f").must();
        forget(t, entry.node, 1);
    }
    forget(t, dir, 1);
}

fn same_node(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.link("f", "g").must();
    let dir = node(t, "");
    let first = t.direct().ask(Lookup { dir, name: name("f") }).must();
    let second = t.direct().ask(Lookup { dir, name: name("g") }).must();
    assert_eq!((first.node, first.generation), (second.node, second.generation));
    forget(t, first.node, 2);
    forget(t, dir, 1);
}

fn referenced(t: &Tester<'_>) {
    t.write_file("f", b"content");
    let file = node(t, "f");
    t.unlink("f").must();
    let attrs = t.direct().ask(GetAttr { node: file, handle: None }).must();
    assert_eq!((attrs.attr.size, attrs.attr.nlink), (7, 0));
    forget(t, file, 1);
    let gone = t.direct().ask(GetAttr { node: file, handle: None });
    gone.must_fail_with_one_of(&[Errno::ESTALE, Errno::ENOENT]);
}

fn over_forget(t: &Tester<'_>) {
    t.write_file("f", b"content");
    let file = node(t, "f");
    forget(t, file, 1000);
    assert_eq!(t.read_file("f"), b"content");
    forget(t, Node(0x7fff_1234_5678_9abc), 1);
}

fn entry_attributes(t: &Tester<'_>) {
    t.write_file("f", b"content");
    t.chmod("f", 0o751).must();
    let dir = node(t, "");
    let entry = t.direct().ask(Lookup { dir, name: name("f") }).must();
    let attrs = t.direct().ask(GetAttr { node: entry.node, handle: None }).must();
    assert_eq!(entry.attr, attrs.attr);
    assert_eq!((entry.attr.permissions(), entry.attr.size), (0o751, 7));
    forget(t, entry.node, 1);
    forget(t, dir, 1);
}

fn create_existing(t: &Tester<'_>, flags: OpenFlags) -> u64 {
    t.write_file("f", b"content");
    let before = t.stat("f").must().ino;
    let dir = node(t, "");
    let create = Create { dir, name: name("f"), mode: 0o600, umask: 0, flags, initial: None };
    let made = t.direct().ask(create.clone()).must();
    let (node, handle, owner) = (made.entry.node, made.opened.handle, Default::default());
    if t.direct().abilities().ops.has(OpCode::Release) {
        t.direct().ask(Release { node, handle, flags, owner, flock_release: false }).must();
    }
    assert_eq!(made.entry.attr.ino, before);
    assert_eq!(t.stat("f").must().permissions(), 0o644, "the mode is for new files");
    t.direct().ask(Create { flags: flags | OpenFlags::EXCL, ..create }).must_fail(Errno::EEXIST);
    forget(t, node, 1);
    forget(t, dir, 1);
    made.entry.attr.size
}

fn create(t: &Tester<'_>) {
    assert_eq!(create_existing(t, OpenFlags::READ_WRITE), 7);
    assert_eq!(t.read_file("f"), b"content");
}

fn create_trunc(t: &Tester<'_>) {
    assert_eq!(create_existing(t, OpenFlags::READ_WRITE | OpenFlags::TRUNC), 0);
    assert_eq!(t.read_file("f"), b"");
}

fn all_or_nothing(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    let dir = node(t, "d");
    let before = t.stat("d").must();
    let attrs = outrigger_core::SetAttrs { size: Some(0), mode: Some(0o700), ..Default::default() };
    let result = t.direct().ask(SetAttr { node: dir, handle: None, attrs }).map(drop);
    result.must_fail_with_one_of(&[Errno::EISDIR, Errno::EINVAL]);
    let after = t.stat("d").must();
    assert_eq!((after.mode, after.ctime), (before.mode, before.ctime));
    if t.direct().abilities().ops.has(OpCode::Forget) {
        forget(t, dir, 1);
    }
}

fn append(t: &Tester<'_>) {
    t.write_file("f", b"0123");
    let fd = t.open("f", Flags::WRITE | Flags::APPEND).must();
    t.fs.write_at(fd, 0, b"45").must();
    t.close(fd);
    assert_eq!(t.read_file("f"), b"012345");
}

fn walk(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("a/b", 0o755).must();
    t.write_file("a/b/f", b"");
    let dir = node(t, "");
    let walk = |path: &str| t.direct().ask(Walk { dir, names: path.split('/').map(name).collect() });
    for (path, found) in [("a/b/f", 3), ("a/b/no/x", 2), ("a/b/f/x", 3)] {
        let entries = walk(path).must();
        assert_eq!(entries.len(), found, "{path}");
        entries.into_iter().for_each(|entry| forget(t, entry.node, 1));
    }
    walk("no/x").must_fail(Errno::ENOENT);
    forget(t, dir, 1);
}

fn poll(t: &Tester<'_>) {
    let fd = t.create("f");
    let (node, handle, _) = t.direct().opened(fd).must();
    let (input, output) = (1, 4);
    match t.direct().ask(Poll { node, handle, events: input | output, key: None }) {
        Err(Errno::ENOSYS) => t.skip("kernels know that it is"),
        ready => assert_eq!(ready.must().0, input | output),
    }
    t.close(fd);
}

fn ioctl(t: &Tester<'_>) {
    let fd = t.create("f");
    let (node, handle, _): (Node, Handle, _) = t.direct().opened(fd).must();
    let request =
        Ioctl { node, handle, command: 0x1234, argument: 0, input: Default::default(), output_size: 0 };
    t.direct().ask(request).must_fail(Errno::ENOTTY);
    t.close(fd);
}
