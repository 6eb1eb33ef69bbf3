// SPDX-License-Identifier: MIT OR Apache-2.0
//! What doors need whose clients come with a file handle and neither a path nor an open file (NFS, RFC 1813).

use crate::direct::block_on;
use crate::report::{Case, Place};
use crate::tester::{Expect, Tester};
use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::Entry;
use outrigger_core::{
    Around, Asked, Before, Cx, Errno, Generation, Handle, Name, Node, OpCode, Payload, Reply, Request,
    SetAttrs, SetTime, Time, Wcc,
};
use std::sync::Arc;

pub(super) const CASES: &[Case] = &[
    Case::new("stateless/a_directory_finds_its_parent", &[OpCode::Parent, OpCode::Forget], parent)
        .at(Place::Direct),
    Case::new("stateless/a_moved_directory_has_its_new_parent", &[OpCode::Parent, OpCode::Rename], moved)
        .at(Place::Direct),
    Case::new(
        "stateless/a_file_is_found_by_number_and_generation",
        &[OpCode::Resolve, OpCode::Forget, OpCode::Unlink],
        resolve,
    )
    .at(Place::Direct),
    Case::new("stateless/content_moves_without_a_handle", &[OpCode::FSync], content).at(Place::Direct),
    Case::new("stateless/a_listing_goes_on_without_an_open_directory", &[OpCode::Unlink], listing)
        .at(Place::Direct),
    Case::new("stateless/new_files_have_their_first_attributes", &[OpCode::SymLink, OpCode::MkNod], initial)
        .root()
        .at(Place::Direct),
    Case::new("stateless/attributes_around_a_change_are_exact", &[OpCode::Unlink, OpCode::Rename], around)
        .at(Place::Direct),
];

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

/// The node of a file, with a reference.
fn node(t: &Tester<'_>, path: &str) -> Node {
    t.direct().node_of(&t.path(path)).must()
}

fn forget(t: &Tester<'_>, node: Node, count: u64) {
    t.direct().ask(Forget { node, count }).must();
}

/// The inode number of the directory above; returns the references to both.
fn parent_of(t: &Tester<'_>, dir: Node) -> u64 {
    let parent = t.direct().ask(Parent { dir }).must();
    forget(t, parent.node, 1);
    forget(t, dir, 1);
    parent.attr.ino
}

fn parent(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.mkdir("d/e", 0o755).must();
    t.write_file("d/f", b"");
    assert_eq!(parent_of(t, node(t, "d/e")), t.stat("d").must().ino);
    assert_eq!(parent_of(t, node(t, "d")), t.stat("").must().ino);
    let root = t.direct().ask(GetAttr { node: Node::ROOT, handle: None }).must().attr.ino;
    assert_eq!(parent_of(t, node(t, "")), root);
    assert_eq!(parent_of(t, Node::ROOT), root, "the root is its own parent");
}

fn moved(t: &Tester<'_>) {
    for dir in ["d", "d/e", "to"] {
        t.mkdir(dir, 0o755).must();
    }
    let e = node(t, "d/e");
    t.rename("d/e", "to/e").must();
    assert_eq!(parent_of(t, e), t.stat("to").must().ino);
}

fn resolve(t: &Tester<'_>) {
    t.write_file("f", b"content");
    let dir = node(t, "");
    let entry = t.direct().ask(Lookup { dir, name: name("f") }).must();
    forget(t, dir, 1);
    let (node, generation) = (entry.node, Some(entry.generation));
    forget(t, node, 1);
    let found = t.direct().ask(Resolve { node, generation }).must();
    assert_eq!((found.node, found.attr.ino, found.attr.size), (node, entry.attr.ino, 7));
    assert_eq!(t.direct().ask(Resolve { node, generation: None }).must().generation, entry.generation);
    let other = Some(Generation(entry.generation.0 ^ 1));
    t.direct().ask(Resolve { node, generation: other }).must_fail(Errno::ESTALE);
    forget(t, node, 2);
    t.unlink("f").must();
    let gone = [Errno::ESTALE, Errno::ENOENT];
    t.direct().ask(Resolve { node, generation }).must_fail_with_one_of(&gone);
}

fn content(t: &Tester<'_>) {
    let abilities = t.direct().abilities();
    if !abilities.anonymous_io && !abilities.stateless_files {
        return;
    }
    t.write_file("f", b"content");
    let (node, handle) = (node(t, "f"), Handle::NONE);
    let data = Payload::Bytes(Bytes::from_static(b"CON"));
    let write = Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
    assert_eq!(t.direct().ask(write).must().0, 3);
    t.direct().ask(FSync { node, handle, data_only: false }).must();
    let read = t.direct().ask(Read { node, handle, offset: 0, len: 100 }).must();
    assert_eq!(read.into_bytes().expect("content")[..], b"CONtent"[..]);
    forget(t, node, 1);
}

fn listing(t: &Tester<'_>) {
    let abilities = t.direct().abilities();
    if !abilities.lasting_cookies || !abilities.anonymous_io && !abilities.stateless_dirs {
        return;
    }
    let all: Vec<String> = (0..40).map(|number| format!("file-{number:02}")).collect();
    all.iter().for_each(|name| t.write_file(name, b""));
    let (node, handle) = (node(t, ""), Handle::NONE);
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let piece = t.direct().ask(ReadDir { node, handle, cookie, size: 200 }).must();
        assert!(piece.eof || !piece.entries.is_empty(), "a piece has a name or is the last");
        seen.extend(piece.entries.iter().map(|dirent| dirent.name.to_string()));
        match piece.entries.last() {
            // What was listed already goes away, and the place stays.
            Some(last) => {
                cookie = last.cookie;
                t.unlink(last.name.to_string()).must();
            }
            None => break,
        }
        if piece.eof {
            break;
        }
    }
    forget(t, node, 1);
    seen.sort();
    assert_eq!(seen, all);
}

fn initial(t: &Tester<'_>) {
    if !t.direct().abilities().initial_attrs {
        return;
    }
    let time = Time::new(1_000_000, 5);
    let wanted = SetAttrs {
        uid: Some(7),
        gid: Some(8),
        atime: Some(SetTime::To(time)),
        mtime: Some(SetTime::To(time)),
        ..SetAttrs::default()
    };
    let (dir, umask, initial) = (node(t, ""), 0, Some(Box::new(wanted)));
    let target = outrigger_core::Target::new("target").expect("a target");
    let requests: [Request; 4] = [
        Create { dir, name: name("f"), mode: 0o640, umask, flags: OpenFlags::EXCL, initial: initial.clone() }
            .into(),
        MkDir { dir, name: name("d"), mode: 0o750, umask, initial: initial.clone() }.into(),
        SymLink { dir, name: name("l"), target, initial: initial.clone() }.into(),
        MkNod { dir, name: name("p"), mode: 0o010_600, umask, rdev: 0, initial }.into(),
    ];
    for request in requests {
        let reply = block_on(t.direct().service().call(&t.direct().cx(), request).into_future());
        let Entry { node, attr, .. } = match reply {
            Reply::Entry(entry) => entry,
            Reply::Created(created) => created.entry,
            other => panic!("{other:?}"),
        };
        // No driver that makes attributes with the name has handles.
        forget(t, node, 1);
        assert_eq!((attr.uid, attr.gid, attr.atime, attr.mtime), (7, 8, time, time));
    }
    forget(t, dir, 1);
}

/// Asks for a change, and answers what the driver says of `node` around it.
fn noted(t: &Tester<'_>, request: impl Into<Request>, node: Node) -> Option<Around> {
    let wcc = Arc::new(Wcc::default());
    let cx = Cx { wcc: Some(Arc::clone(&wcc)), ..t.direct().cx() };
    let request = request.into();
    let asked = Asked::of(&request);
    let reply = block_on(t.direct().service().call(&cx, request).into_future());
    assert_eq!(reply.error(), None);
    for request in asked.returns(&reply) {
        let cx = t.direct().cx();
        block_on(t.direct().service().call(&cx, request).into_future());
    }
    wcc.of(node)
}

fn around(t: &Tester<'_>) {
    t.mkdir("to", 0o755).must();
    let (dir, to_dir) = (node(t, ""), node(t, "to"));
    let attr = |node| t.direct().ask(GetAttr { node, handle: None }).must().attr;
    let create =
        |text| Create { dir, name: name(text), mode: 0o644, umask: 0, flags: OpenFlags::EXCL, initial: None };
    let rename = |flags| Rename { dir, name: name("a"), to_dir, to_name: name("b"), flags };
    let requests: [(Request, Node); 5] = [
        (create("a").into(), dir),
        (rename(RenameFlags::empty()).into(), dir),
        (create("a").into(), dir),
        (rename(RenameFlags::empty()).into(), to_dir),
        (Unlink { dir: to_dir, name: name("b") }.into(), to_dir),
    ];
    for (request, node) in requests {
        let before = Before::from(&attr(node));
        if let Some(noted) = noted(t, request, node) {
            assert_eq!(noted, Around { node, before, after: attr(node) });
        }
    }
    forget(t, dir, 1);
    forget(t, to_dir, 1);
}
