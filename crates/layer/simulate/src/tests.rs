// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use outrigger_core::ops::*;
use outrigger_core::reply::{
    Attrs, Count, Dirent, DirentPlus, Dirents, DirentsPlus, Entry, Granted, Offset, Ttl,
};
use outrigger_core::{
    Attr, Credentials, Errno, FileKind, Generation, Handle, Name, Node, Op, Payload, Result, Stack, ask,
};
use outrigger_sim::{Scripted, Sim, Step};
use std::sync::Mutex;

const NAMES: [&str; 4] = ["gone", "a", "secret", "b"];

fn name(name: &str) -> Name {
    Name::try_from(name).expect("a good name")
}

fn attr(kind: FileKind, permissions: u32, size: u64) -> Attr {
    Attr { mode: kind.bits() | permissions, size, uid: 10, gid: 20, ..Attr::default() }
}

fn entry(node: u64, kind: FileKind) -> Entry {
    let (entry_ttl, attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
    let attr = Attr { ino: node, ..attr(kind, 0o640, 0) };
    Entry { node: Node(node), generation: Generation(0), attr, entry_ttl, attr_ttl }
}

/// A driver with `ops` that knows one directory, and the stack on top of it.
fn stack(ops: &[OpCode]) -> (Arc<Scripted>, Arc<dyn Service>) {
    let content = Mutex::new(b"0123456789".to_vec());
    let driver = Scripted::with_ops(&Sim::new(0), OpSet::of(ops), move |_, request| {
        Step::Now(answer(request, &content))
    });
    let stack = Stack::new(driver.clone()).push(Simulate::new()).expect("any order is good");
    (driver, stack.service())
}

fn answer(request: &Request, content: &Mutex<Vec<u8>>) -> Reply {
    match request {
        Request::Lookup(lookup) => found(&lookup.name).into(),
        Request::Walk(walk) => walk.names.iter().map(found).collect::<Result<Vec<Entry>>>().into(),
        Request::ReadDir(list) => {
            let all = NAMES.iter().enumerate().skip(list.cookie as usize);
            // Each listing stops after two names, so that callers have to continue.
            let entries: Vec<Dirent> = all.take(2).map(|(i, text)| dirent(i as u64 + 1, text)).collect();
            let eof = list.cookie as usize + entries.len() == NAMES.len();
            Reply::Dirents(Dirents { entries, eof })
        }
        Request::ReadDirPlus(_) => {
            let one = DirentPlus { cookie: 1, name: name("a"), entry: entry(2, FileKind::Regular) };
            Reply::DirentsPlus(DirentsPlus { entries: vec![one], eof: true })
        }
        Request::MkNod(make) => match &make.name[..] {
            b"new" => Reply::Entry(entry(9, FileKind::Regular)),
            _ => Reply::Error(Errno::EEXIST.into()),
        },
        Request::GetAttr(_) => {
            Reply::Attrs(Attrs { attr: attr(FileKind::Regular, 0o640, 10), ttl: Ttl::NEVER })
        }
        Request::Open(_) => Reply::Opened(Opened { handle: Handle(5), ..Opened::default() }),
        Request::Read(read) => {
            let content = content.lock().expect("no panic before");
            let rest = content.get(read.offset as usize..).unwrap_or_default();
            Reply::Data(Payload::from(rest[..rest.len().min(read.len as usize).min(4)].to_vec()))
        }
        Request::Write(write) => {
            let data = write.data.clone().into_bytes().expect("bytes");
            let mut content = content.lock().expect("no panic before");
            let end = content.len().max(write.offset as usize + data.len());
            content.resize(end, 0);
            content[write.offset as usize..][..data.len()].copy_from_slice(&data);
            Reply::Count(Count(data.len() as u64))
        }
        _ => Reply::Done(()),
    }
}

fn found(name: &Name) -> Result<Entry> {
    match &name[..] {
        b"a" | b"b" => Ok(entry(2, FileKind::Regular)),
        b"dir" => Ok(entry(3, FileKind::Directory)),
        b"secret" => Err(Errno::EACCES.into()),
        _ => Err(Errno::ENOENT.into()),
    }
}

fn dirent(cookie: u64, text: &str) -> Dirent {
    Dirent { ino: cookie, cookie, kind: Some(FileKind::Regular), name: name(text) }
}

fn run<O: Op + Send + 'static>(service: &Arc<dyn Service>, op: O) -> Result<O::Out, Errno>
where
    O::Out: Send + 'static,
{
    run_as(service, op, Credentials::ROOT)
}

fn run_as<O: Op + Send + 'static>(
    service: &Arc<dyn Service>,
    op: O,
    cred: Credentials,
) -> Result<O::Out, Errno>
where
    O::Out: Send + 'static,
{
    let (service, cx) = (Arc::clone(service), Cx::new(1, cred, "test"));
    let answer = Sim::new(0).block_on(async move { ask(&*service, &cx, op).await });
    answer.map_err(|error| error.errno)
}

fn asked(driver: &Scripted) -> Vec<OpCode> {
    driver.started().iter().map(|(_, request)| request.op()).collect()
}

#[test]
fn a_walk_stops_where_a_lookup_fails() {
    let (_, top) = stack(&[OpCode::Lookup]);
    let walk = |names: &[&str]| {
        let names = names.iter().map(|text| name(text)).collect();
        run(&top, Walk { dir: Node::ROOT, names }).map(|entries| entries.len())
    };
    assert_eq!(walk(&["dir", "a"]), Ok(2));
    assert_eq!(walk(&["dir", "missing", "a"]), Ok(1));
    assert_eq!(walk(&["missing"]), Err(Errno::ENOENT));
    assert_eq!(walk(&[]), Ok(0));
}

#[test]
fn a_lookup_is_a_walk_of_one_name() {
    let (driver, top) = stack(&[OpCode::Walk]);
    let lookup = Lookup { dir: Node::ROOT, name: name("a") };
    assert_eq!(run(&top, lookup).map(|entry| entry.node), Ok(Node(2)));
    assert_eq!(asked(&driver), [OpCode::Walk]);
}

#[test]
fn listing_with_attributes_skips_what_is_gone_and_keeps_what_is_forbidden() {
    for ops in [[OpCode::ReadDir, OpCode::Lookup], [OpCode::ReadDir, OpCode::Walk]] {
        let (_, top) = stack(&ops);
        let (mut cookie, mut listed) = (0, Vec::new());
        loop {
            let op = ReadDirPlus { node: Node::ROOT, handle: Handle(0), cookie, size: 4096 };
            let piece = run(&top, op).expect("a listing");
            cookie = piece.entries.last().expect("no empty piece before the end").cookie;
            listed.extend(piece.entries.into_iter().map(|e| (e.name.to_string(), e.entry.node.0)));
            if piece.eof {
                break;
            }
        }
        let expected = [("a", 2), ("secret", 0), ("b", 2)].map(|(text, node)| (text.to_owned(), node));
        assert_eq!(listed, expected);
    }
}

#[test]
fn a_listing_stays_within_its_size_but_is_never_empty() {
    let (_, top) = stack(&[OpCode::ReadDir, OpCode::Lookup]);
    let op = ReadDirPlus { node: Node::ROOT, handle: Handle(0), cookie: 2, size: 160 };
    let piece = run(&top, op).expect("a listing");
    assert_eq!((piece.entries.len(), piece.eof), (1, false));
}

#[test]
fn a_plain_listing_gives_back_the_references_of_one_with_attributes() {
    let (driver, top) = stack(&[OpCode::ReadDirPlus, OpCode::Forget]);
    let op = ReadDir { node: Node::ROOT, handle: Handle(0), cookie: 0, size: 4096 };
    let listed = run(&top, op).expect("a listing");
    assert_eq!(
        listed.entries,
        [Dirent { ino: 2, cookie: 1, kind: Some(FileKind::Regular), name: name("a") }]
    );
    assert_eq!(asked(&driver), [OpCode::ReadDirPlus, OpCode::Forget]);
}

#[test]
fn creating_makes_or_finds_and_opens() {
    let ops = [OpCode::MkNod, OpCode::Lookup, OpCode::Open, OpCode::Forget];
    for (text, flags, expected) in [
        ("new", OpenFlags::EXCL, Ok((Node(9), Handle(5)))),
        ("a", OpenFlags::READ_WRITE, Ok((Node(2), Handle(5)))),
        ("a", OpenFlags::EXCL, Err(Errno::EEXIST)),
        ("dir", OpenFlags::empty(), Err(Errno::EISDIR)),
    ] {
        let (driver, top) = stack(&ops);
        let create =
            Create { dir: Node::ROOT, name: name(text), mode: 0o600, umask: 0, flags, initial: None };
        let created = run(&top, create).map(|created| (created.entry.node, created.opened.handle));
        assert_eq!(created, expected, "{text}");
        let forgot = asked(&driver).contains(&OpCode::Forget);
        assert_eq!(forgot, text == "dir", "the reference of a file that is not handed out is given back");
    }
}

#[test]
fn opening_a_stateless_file_empties_it_when_asked() {
    let (driver, top) = stack(&[OpCode::SetAttr]);
    for (flags, requests) in [(OpenFlags::READ_WRITE, 0), (OpenFlags::TRUNC, 1)] {
        let opened = run(&top, Open { node: Node(2), flags });
        assert_eq!(opened.map(|opened| opened.handle), Ok(Handle(0)));
        assert_eq!(asked(&driver).len(), requests);
    }
    let Some((_, Request::SetAttr(op))) = driver.started().pop() else { panic!("no setattr") };
    assert_eq!((op.node, op.attrs.size), (Node(2), Some(0)));
}

#[test]
fn copying_takes_as_many_steps_as_it_needs_and_refuses_to_overlap() {
    let (_, top) = stack(&[OpCode::Read, OpCode::Write]);
    let copy = |offset, to_offset, len| {
        let (node, handle, to_node, to_handle) = (Node(2), Handle(1), Node(2), Handle(1));
        run(&top, CopyRange { node, handle, offset, to_node, to_handle, to_offset, len }).map(|count| count.0)
    };
    assert_eq!(copy(0, 100, 10), Ok(10));
    assert_eq!(copy(106, 20, 50), Ok(4), "shorter at the end of the source");
    assert_eq!(copy(0, 5, 10), Err(Errno::EINVAL));
    assert_eq!(copy(u64::MAX, 0, 10), Err(Errno::EOVERFLOW));
    let read = Read { node: Node(2), handle: Handle(1), offset: 100, len: 4 };
    assert_eq!(run(&top, read), Ok(Payload::from(b"0123".to_vec())));
}

#[test]
fn data_reaches_up_to_the_size() {
    let (_, top) = stack(&[OpCode::GetAttr]);
    let seek = |offset, whence| {
        run(&top, Seek { node: Node(2), handle: Handle(1), offset, whence }).map(|Offset(place)| place)
    };
    assert_eq!(seek(3, Whence::Data), Ok(3));
    assert_eq!(seek(3, Whence::Hole), Ok(10));
    assert_eq!(seek(10, Whence::Data), Err(Errno::ENXIO));
    assert_eq!(seek(10, Whence::Hole), Err(Errno::ENXIO));
}

#[test]
fn access_follows_the_permission_bits() {
    let (_, top) = stack(&[OpCode::GetAttr]);
    // The file is rw-r----- and belongs to user 10, group 20.
    for (uid, gid, mask, granted) in [
        (10, 1, 6, 6),
        (10, 20, 7, 6),
        (11, 20, 7, 4),
        (11, 20, 2, 0),
        (11, 21, 7, 0),
        (11, 21, 0, 0),
        (0, 0, 6, 6),
        (0, 0, 7, 6),
    ] {
        let cred = Credentials::new(uid, gid);
        let reply = run_as(&top, Access { node: Node(2), mask }, cred);
        assert_eq!(reply, Ok(Granted(granted)), "{uid} {gid} {mask}");
        assert_eq!(Granted(granted).all(mask).is_ok(), granted == mask);
    }
}

#[test]
fn abilities_grow_by_what_can_be_supplied_and_no_more() {
    let (_, top) = stack(&[OpCode::Lookup, OpCode::GetAttr, OpCode::Open, OpCode::OpenDir]);
    let abilities = top.abilities();
    for (op, expected) in [
        (OpCode::Walk, true),
        (OpCode::Access, true),
        (OpCode::StatFs, true),
        (OpCode::CopyRange, false),
        (OpCode::Create, false),
        (OpCode::ReadDirPlus, false),
        (OpCode::FSync, false),
    ] {
        assert_eq!(abilities.ops.has(op), expected, "{op:?}");
    }
    assert!(!abilities.stateless_files && !abilities.stateless_dirs);
    let bare = stack(&[OpCode::Lookup]).1.abilities();
    assert!(bare.stateless_files && bare.stateless_dirs);
}

#[test]
fn what_the_driver_has_or_may_not_be_supplied_passes() {
    let (driver, top) = stack(&[OpCode::Lookup, OpCode::Walk]);
    assert!(run(&top, Walk { dir: Node::ROOT, names: vec![name("a")] }).is_ok());
    assert_eq!(asked(&driver), [OpCode::Walk]);
    let (driver, _) = stack(&[OpCode::Lookup]);
    let off = Stack::new(driver).push(Simulate::only(OpSet::NONE)).expect("any order is good").service();
    assert_eq!(run(&off, StatFs { node: Node::ROOT }), Err(Errno::ENOSYS));
}
