// SPDX-License-Identifier: MIT OR Apache-2.0
//! What requests of 9P2000.L do that no client of ours asks for.

use crate::support::*;
use outrigger_conformance::block_on;
use outrigger_core::ops::{Lookup, MkDir};
use outrigger_core::{Credentials, Cx, Inline, Name, Node, Service, ask};
use outrigger_door_ninep::Squash;
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_proto_ninep::*;
use outrigger_runtime::Threads;
use std::sync::Arc;

fn start() -> (Running, Client) {
    let running = serve(vec![("/", checked(mem()))], &callers());
    let client = Client::new(running.address);
    (running, client)
}

fn local(dir: &std::path::Path) -> Arc<dyn Service> {
    let local = Local::open(dir, LocalOptions::default()).unwrap();
    checked(Arc::new(Inline::new(local, Arc::new(Threads::new()))))
}

#[test]
fn a_walk_goes_as_far_as_there_are_names_and_up_to_the_root() {
    let (_running, mut client) = start();
    client.mkdir(0, text("a")).unwrap();
    client.walk(0, 1, &["a"]).unwrap();
    client.create(1, 2, "f").unwrap();
    assert_eq!(client.walk(0, 3, &["a", "f"]), Ok(2));
    assert_eq!(client.walk(0, 4, &["a", "none", "f"]), Ok(1), "a part of the way");
    assert_eq!(client.clunk(4), Err(BADF), "it stands for nothing");
    assert_eq!(client.walk(0, 4, &["none"]), Err(NOENT));
    assert_eq!(client.walk(3, 4, &["x"]), Err(20), "not a directory");
    assert_eq!(client.walk(0, 4, &["a", "f", "x"]), Ok(2));
    assert_eq!(client.walk(1, 4, &["..", "..", "a", "..", "a", "f"]), Ok(6));
    assert_eq!(client.walk(1, 3, &[]), Err(BADF), "the new fid is in use");
    assert_eq!(client.walk(9, 5, &[]), Err(BADF));
    // In its place.
    assert_eq!((client.walk(1, 1, &["none"]), client.walk(1, 1, &["f"])), (Err(NOENT), Ok(1)));
    for wrong in ["", ".", "a/b", "a\0b"] {
        let expected = if wrong.is_empty() { NOENT } else { INVAL };
        assert_eq!(client.walk(0, 6, &[wrong]), Err(expected), "{wrong:?}");
        assert_eq!(client.walk(0, 6, &["a", wrong]), Ok(1), "{wrong:?}");
    }
}

#[test]
fn names_that_are_none_are_refused_wherever_they_stand() {
    let (_running, mut client) = start();
    client.mkdir(0, text("d")).unwrap();
    for (name, expected) in [
        (text("."), INVAL),
        (text(".."), INVAL),
        (text("a/b"), INVAL),
        (text("a\0"), INVAL),
        (text(""), NOENT),
        (long(256), NAMETOOLONG),
    ] {
        assert_eq!(client.mkdir(0, name.clone()), Err(expected));
        let unlink = Tunlinkat { dfid: 0, name: name.clone(), flags: UNLINK_DIRECTORY };
        assert_eq!(client.call(unlink), Err(expected));
        let rename = Trenameat { old_dfid: 0, old_name: text("d"), new_dfid: 0, new_name: name.clone() };
        assert_eq!(client.call(rename), Err(expected));
        let link = Tsymlink { dfid: 0, name, target: text("d"), gid: 0 };
        assert_eq!(client.call(link), Err(expected));
    }
    assert!(client.mkdir(0, long(255)).is_ok());
}

#[test]
fn what_is_asked_in_the_same_breath_happens_in_that_order() {
    let (_running, mut client) = start();
    client.create(0, 1, "f").unwrap();
    for round in 0..200_u32 {
        let fid = 100 + round;
        let names = List::new(vec![text("f")]).unwrap();
        client.begin(1, Twalk { fid: 0, newfid: fid, names });
        client.begin(2, Tgetattr { fid, mask: AttrMask::BASIC });
        client.begin(3, Tlopen { fid, flags: 1 });
        client.begin(4, Twrite { fid, offset: 0, data: bytes::Bytes::from_static(b"content") });
        client.begin(5, Tclunk { fid });
        client.begin(6, Tgetattr { fid, mask: AttrMask::BASIC });
        let mut replies: Vec<(u16, Reply)> = (0..6).map(|_| client.receive().unwrap()).collect();
        replies.sort_by_key(|(tag, _)| *tag);
        let kinds: Vec<u8> = replies.iter().map(|(_, reply)| reply.kind()).collect();
        assert_eq!(kinds, [111, 25, 13, 119, 121, 7], "round {round}: {replies:?}");
    }
}

#[test]
fn a_file_that_lost_its_name_lives_as_long_as_its_fid() {
    let dir = tempfile::tempdir().unwrap();
    for tree in [checked(mem()), local(dir.path())] {
        let running = serve(vec![("/", tree)], &callers());
        let mut client = Client::new(running.address);
        client.create(0, 1, "f").unwrap();
        client.call(Tunlinkat { dfid: 0, name: text("f"), flags: 0 }).unwrap();
        client.write(1, 0, b"still here").unwrap();
        assert_eq!(client.read(1, 0, 100).unwrap(), "still here");
        let attrs = client.call(Tgetattr { fid: 1, mask: AttrMask::BASIC }).unwrap().attrs;
        assert_eq!((attrs.nlink, attrs.size), (0, 10));
        client.clunk(1).unwrap();
    }
}

#[test]
fn identities_are_inode_numbers_and_versions_change_with_the_content() {
    let (_running, mut client) = start();
    let made = client.create(0, 1, "f").unwrap();
    client.walk(0, 2, &["f"]).unwrap();
    let attrs =
        |client: &mut Client, fid| client.call(Tgetattr { fid, mask: AttrMask::all() }).unwrap().attrs;
    let before = attrs(&mut client, 2);
    assert_eq!((before.qid.path, before.valid.contains(AttrMask::BASIC | AttrMask::GEN)), (made.path, true));
    client.write(1, 0, b"x").unwrap();
    let after = attrs(&mut client, 1);
    assert_eq!(after.qid.path, made.path);
    assert_ne!(after.qid.version, before.qid.version);
    client.walk(0, 3, &[]).unwrap();
    client.call(Tlopen { fid: 3, flags: 0 }).unwrap();
    let listed = client.names(3, 0, 4096).unwrap();
    let names: Vec<(&[u8], u64)> = listed.iter().map(|entry| (&entry.name[..], entry.qid.path)).collect();
    let root = attrs(&mut client, 0).qid.path;
    assert_eq!(names, [(&b"."[..], root), (b"..", root), (b"f", made.path)]);
}

#[test]
fn a_listing_goes_on_after_any_name_however_little_room_there_is() {
    let (_running, mut client) = start();
    for number in 0..100 {
        client.mkdir(0, text(format!("name {number}"))).unwrap();
    }
    client.walk(0, 1, &[]).unwrap();
    assert_eq!(client.names(1, 0, 4096).map(|_| ()), Err(BADF), "it is not open");
    client.call(Tlopen { fid: 1, flags: 0 }).unwrap();
    for count in [40, 100, 1 << 20, u32::MAX] {
        let (mut all, mut offset) = (Vec::new(), 0);
        loop {
            let listed = client.names(1, offset, count).unwrap();
            let Some(last) = listed.last() else { break };
            offset = last.offset;
            all.extend(listed.into_iter().map(|entry| entry.name.to_vec()));
        }
        let len = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), len), (102, 102), "{count}");
    }
    assert_eq!(client.names(1, 0, 10).map(|_| ()), Err(INVAL), "an empty listing would be its end");
}

#[test]
fn requests_are_made_as_the_user_who_attached() {
    let (_running, mut client) = start();
    client.call(Tmkdir { dfid: 0, name: text("private"), mode: 0o700, gid: 0 }).unwrap();
    client.call(Tmkdir { dfid: 0, name: text("public"), mode: 0o777, gid: 0 }).unwrap();
    client.attach(10, "/", Some(7)).unwrap();
    client.walk(10, 11, &["private"]).unwrap();
    assert_eq!(client.mkdir(11, text("x")), Err(ACCES));
    assert_eq!(client.walk(11, 12, &["x"]), Err(ACCES));
    client.walk(10, 13, &["public"]).unwrap();
    client.call(Tmkdir { dfid: 13, name: text("own"), mode: 0o700, gid: 5 }).unwrap();
    client.walk(13, 14, &["own"]).unwrap();
    let attrs = client.call(Tgetattr { fid: 14, mask: AttrMask::BASIC }).unwrap().attrs;
    assert_eq!((attrs.uid, attrs.gid), (7, 5));
    let set = SetAttrs { valid: SetMask::UID, uid: 8, ..SetAttrs::default() };
    assert_eq!(client.call(Tsetattr { fid: 14, attrs: set }), Err(PERM));
}

#[test]
fn the_superuser_of_a_client_is_nobody_unless_that_is_wanted() {
    let squashed = outrigger_door_ninep::Callers { squash: Squash::Root, ..callers() };
    let tree = mem();
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let (dir, name) = (Node::ROOT, Name::try_from("public").unwrap());
    for (name, mode) in [(name.clone(), 0o777), (Name::try_from("private").unwrap(), 0o755)] {
        block_on(ask(&*tree, &cx, MkDir { dir, name, mode, umask: 0, initial: None })).unwrap();
    }
    let running = serve(vec![("/", checked(tree.clone()))], &squashed);
    let mut client = Client::new(running.address);
    client.walk(0, 1, &["private"]).unwrap();
    assert_eq!(client.mkdir(1, text("x")), Err(ACCES));
    client.walk(0, 2, &["public"]).unwrap();
    client.mkdir(2, text("x")).unwrap();
    let public = block_on(ask(&*tree, &cx, Lookup { dir, name })).unwrap().node;
    let made = Lookup { dir: public, name: Name::try_from("x").unwrap() };
    let owner = block_on(ask(&*tree, &cx, made)).unwrap().attr;
    assert_eq!((owner.uid, owner.gid), (65534, 65534));
}

#[test]
fn locks_stand_in_the_way_of_other_clients_and_end_with_their_connection() {
    let dir = tempfile::tempdir().unwrap();
    // One tree keeps locks, of the other the door does.
    for tree in [checked(mem()), local(dir.path())] {
        let running = serve(vec![("/", tree)], &callers());
        let [mut one, mut two] = [(); 2].map(|()| Client::new(running.address));
        one.create(0, 1, "f").unwrap();
        two.walk(0, 1, &["f"]).unwrap();
        two.call(Tlopen { fid: 1, flags: 2 }).unwrap();
        let take = |client: &mut Client, kind: LockType, start, length| {
            let (kind, client_id) = (kind.number(), text("host"));
            let call = Tlock { fid: 1, kind, flags: 1, start, length, proc_id: 5, client_id };
            LockStatus::of(client.call(call).unwrap().status).unwrap()
        };
        assert_eq!(take(&mut one, LockType::Write, 10, 10), LockStatus::Success);
        assert_eq!(take(&mut two, LockType::Write, 0, 10), LockStatus::Success);
        assert_eq!(take(&mut two, LockType::Read, 0, 0), LockStatus::Blocked);
        let lock = Lock { kind: 0, start: 0, length: 0, proc_id: 5, client_id: text("host") };
        let found = two.call(Tgetlock { fid: 1, lock: lock.clone() }).unwrap().lock;
        assert_eq!((found.kind, found.start, found.length, found.proc_id), (1, 10, 10, 5));
        // As Linux' client asks.
        let any = Lock { kind: LockType::Unlock.number(), ..lock.clone() };
        assert_eq!(two.call(Tgetlock { fid: 1, lock: any }).unwrap().lock.start, 10);
        assert_eq!(take(&mut one, LockType::Unlock, 0, 0), LockStatus::Success);
        assert_eq!(take(&mut two, LockType::Read, 0, 0), LockStatus::Success);
        assert_eq!(take(&mut one, LockType::Write, 100, 1), LockStatus::Blocked);
        drop(two);
        // The server sees that the connection has gone when it sees it.
        while take(&mut one, LockType::Write, 0, 0) == LockStatus::Blocked {
            std::thread::yield_now();
        }
        assert_eq!(one.call(Tgetlock { fid: 1, lock }).unwrap().lock.kind, LockType::Unlock.number());
        one.clunk(1).unwrap();
    }
}

#[test]
fn extended_attributes_are_values_that_fids_stand_for() {
    let (_running, mut client) = start();
    client.create(0, 1, "f").unwrap();
    let set = |client: &mut Client, value: &[u8], size: u64, flags: u32| {
        client.walk(0, 5, &["f"]).unwrap();
        client.call(Txattrcreate { fid: 5, name: text("user.a"), size, flags }).unwrap();
        if !value.is_empty() {
            assert_eq!(client.write(5, 0, value), Ok(value.len() as u32));
        }
        client.clunk(5)
    };
    let get = |client: &mut Client, name: &str| -> Result<bytes::Bytes, Refused> {
        let size = client.call(Txattrwalk { fid: 1, newfid: 6, name: text(name) })?.size;
        let value = client.read(6, 0, 1 << 16).unwrap();
        client.clunk(6).unwrap();
        assert_eq!(value.len() as u64, size);
        Ok(value)
    };
    assert_eq!(get(&mut client, "user.a"), Err(61));
    set(&mut client, b"value", 5, 0).unwrap();
    assert_eq!(set(&mut client, b"value", 5, 1), Err(17), "it is to be new");
    assert_eq!(set(&mut client, b"val", 5, 0), Err(INVAL), "it was announced to be longer");
    assert_eq!(get(&mut client, "user.a").unwrap(), "value");
    assert_eq!(get(&mut client, "").unwrap(), "user.a\0");
    set(&mut client, b"", 0, 0).unwrap();
    assert_eq!(get(&mut client, "user.a").unwrap(), "", "an empty value is one");
    set(&mut client, b"", 0, 2).unwrap();
    assert_eq!(get(&mut client, "user.a"), Err(61), "it was removed");
    client.walk(0, 7, &["f"]).unwrap();
    let large = Txattrcreate { fid: 7, name: text("user.b"), size: u64::MAX, flags: 0 };
    assert_eq!(client.call(large), Err(7));
}

#[test]
fn a_fid_is_moved_and_removed_unless_another_file_has_its_name() {
    let (_running, mut client) = start();
    client.mkdir(0, text("d")).unwrap();
    client.walk(0, 1, &["d"]).unwrap();
    client.create(0, 2, "f").unwrap();
    client.walk(0, 3, &["f"]).unwrap();
    assert_eq!(client.call(Trename { fid: 3, dfid: 3, name: text("x") }), Err(BADF));
    client.call(Trename { fid: 3, dfid: 1, name: text("g") }).unwrap();
    assert_eq!(client.walk(0, 4, &["d", "g"]), Ok(2));
    // The other fid still has the old name.
    assert_eq!(client.call(Tremove { fid: 2 }), Err(NOENT));
    assert_eq!(client.clunk(2), Err(BADF), "it is gone all the same");
    client.call(Tremove { fid: 3 }).unwrap();
    assert_eq!(client.call(Tremove { fid: 4 }), Err(NOENT));
    client.call(Tremove { fid: 1 }).unwrap();
    assert_eq!(client.walk(0, 1, &["d"]), Err(NOENT));
    assert_eq!(client.call(Tremove { fid: 0 }), Err(16), "the root");
}

#[test]
fn a_new_agreement_ends_all_that_was() {
    let (running, mut client) = start();
    client.create(0, 1, "f").unwrap();
    let lock = |fid| {
        let (kind, client_id) = (LockType::Write.number(), text("h"));
        Tlock { fid, kind, flags: 0, start: 0, length: 0, proc_id: 1, client_id }
    };
    client.call(lock(1)).unwrap();
    client.version(1 << 20, "9P2000.L");
    assert_eq!(client.clunk(1), Err(BADF));
    assert_eq!(client.clunk(0), Err(BADF));
    let mut other = Client::new(running.address);
    other.walk(0, 1, &["f"]).unwrap();
    other.call(Tlopen { fid: 1, flags: 1 }).unwrap();
    assert_eq!(other.call(lock(1)).unwrap().status, LockStatus::Success.number());
}

#[test]
fn clients_attach_to_exports_and_to_directories_in_them() {
    let trees = vec![("/music", checked(mem())), ("/music/old", checked(mem()))];
    let running = serve(trees, &callers());
    let mut client = Client::speaking(running.address, Dialect::Linux);
    // Nothing is exported there, but below.
    assert_eq!(client.attach(0, "/", Some(0)), Err(1));
    client.attach(0, "music/", Some(0)).unwrap();
    client.mkdir(0, text("new")).unwrap();
    client.attach(1, "/music/new", Some(0)).unwrap();
    assert_eq!(client.attach(2, "/music/none", Some(0)), Err(NOENT));
    client.attach(2, "/music/old", Some(0)).unwrap();
    assert_eq!(client.walk(2, 3, &["new"]), Err(NOENT), "another tree");
    let rename = Trenameat { old_dfid: 0, old_name: text("new"), new_dfid: 2, new_name: text("new") };
    assert_eq!(client.call(rename), Err(18));
    let login = Tattach { fid: 4, afid: 1, uname: text(""), aname: text("music"), n_uname: Some(0) };
    assert_eq!(client.call(login), Err(INVAL));
    let auth = Tauth { afid: 5, uname: text(""), aname: text("music"), n_uname: Some(0) };
    assert_eq!(client.call(auth), Err(0), "it is not needed");
}
