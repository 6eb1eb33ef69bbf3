// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each procedure does, on a tree in memory and on a directory of the host.

use crate::support::{Client, Running, at, options, serve, tree};
use outrigger_core::{Inline, Service, Stack};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_simulate::Simulate;
use outrigger_proto_nfs3::mount;
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::nfs::{
    AccessArgs, CommitArgs, CreateArgs, CreateHow, LinkArgs, MkDirArgs, MkNodArgs, MkNodWhat, ReadDirArgs,
    ReadDirPlusArgs, RenameArgs, SetAttrArgs, SymLinkArgs,
};
use outrigger_proto_nfs3::types::{
    Access, FileHandle, FileType, Mode, Path, SetAttrs, SetTime, Stable, Status, Time,
};
use outrigger_runtime::Threads;
use std::collections::BTreeSet;
use std::sync::Arc;

fn mem() -> Arc<dyn Service> {
    let runtime = Arc::new(Threads::new());
    Arc::new(Inline::new(Mem::new(Options::default(), runtime.clone()), runtime))
}

/// A server of each kind of tree, and a client at its root.
fn each(test: impl Fn(&mut Client, FileHandle)) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Arc::new(Threads::new());
    let local = Local::open(dir.path(), LocalOptions::default()).unwrap();
    let local = Stack::new(Arc::new(Inline::new(local, runtime))).push(Simulate::new()).unwrap();
    let local = local.service();
    for service in [mem(), local] {
        let (_running, mut client, root) = start(service);
        test(&mut client, root);
    }
}

fn start(service: Arc<dyn Service>) -> (Running, Client, FileHandle) {
    let running = serve(vec![tree("/", service)], options());
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    (running, client, root)
}

#[test]
fn content_is_read_as_it_was_written() {
    each(|client, root| {
        let file = client.create(root, "file");
        let written = client.write(file, 0, b"0123456789", Stable::Unstable);
        assert_eq!((written.count, written.committed), (10, Stable::Unstable));
        let committed = client.call::<nfs::Commit>(&CommitArgs { file, offset: 0, count: 0 }).unwrap();
        assert_eq!(committed.verifier, written.verifier);
        let read = client.read(file, 2, 4).unwrap();
        assert_eq!((&read.data[..], read.eof), (&b"2345"[..], false));
        let read = client.read(file, 6, 100).unwrap();
        assert_eq!((&read.data[..], read.eof), (&b"6789"[..], true));
        assert!(client.read(file, 10, 1).unwrap().eof);
        assert_eq!(client.call::<nfs::GetAttr>(&file).unwrap().size, 10);
        let stable = client.write(file, 1 << 33, b"far", Stable::FileSync);
        assert_eq!(stable.committed, Stable::FileSync);
        assert_eq!(&client.read(file, 1 << 33, 10).unwrap().data[..], b"far");
        assert_eq!(&client.read(file, 1 << 20, 3).unwrap().data[..], [0; 3]);
    });
}

#[test]
fn a_file_is_made_once_with_each_way_to_create() {
    each(|client, root| {
        let create = |client: &mut Client, name: &str, how| {
            let created = client.call::<nfs::Create>(&CreateArgs { at: at(root, name), how });
            created.map(|created| created.object.unwrap()).map_err(|failed| failed.status)
        };
        let attrs = SetAttrs { mode: Some(Mode(0o640)), ..SetAttrs::NONE };
        let guarded = create(client, "guarded", CreateHow::Guarded(attrs)).unwrap();
        assert_eq!(client.call::<nfs::GetAttr>(&guarded).unwrap().mode, Mode(0o640));
        assert_eq!(create(client, "guarded", CreateHow::Guarded(attrs)), Err(Status::EXIST));
        client.write(guarded, 0, b"content", Stable::Unstable);
        let emptied = SetAttrs { size: Some(0), ..attrs };
        let again = create(client, "guarded", CreateHow::Unchecked(emptied)).unwrap();
        assert_eq!(client.call::<nfs::GetAttr>(&again).unwrap().size, 0);
        let once = CreateHow::Exclusive(*b"\xff\xee\xdd\xcc\xbb\xaa\x99\x88");
        let exclusive = create(client, "exclusive", once).unwrap();
        assert_eq!(create(client, "exclusive", once).unwrap(), exclusive, "it was repeated");
        assert_eq!(create(client, "exclusive", CreateHow::Exclusive([1; 8])), Err(Status::EXIST));
        client.make_dir(root, "dir");
        assert_eq!(create(client, "dir", CreateHow::Unchecked(attrs)), Err(Status::EXIST));
    });
}

#[test]
fn a_new_file_has_its_set_id_bits_and_its_group() {
    each(|client, root| {
        let attrs = SetAttrs { mode: Some(Mode(0o6755)), gid: Some(7), ..SetAttrs::NONE };
        let how = CreateHow::Guarded(attrs);
        let file = client.call::<nfs::Create>(&CreateArgs { at: at(root, "file"), how }).unwrap();
        let dir = client.call::<nfs::MkDir>(&MkDirArgs { at: at(root, "dir"), attrs }).unwrap();
        for made in [file.object.unwrap(), dir.object.unwrap()] {
            let attrs = client.call::<nfs::GetAttr>(&made).unwrap();
            assert_eq!((attrs.mode, attrs.gid), (Mode(0o6755), 7));
        }
    });
}

#[test]
fn a_call_that_is_repeated_on_another_connection_happens_once() {
    let running = serve(vec![tree("/", mem())], options());
    let mut first = Client::new(running.address);
    let root = first.mount("/").unwrap();
    first.create(root, "file");
    let (from, to) = (at(root, "file"), at(root, "moved"));
    let rename = RenameArgs { from, to };
    first.call::<nfs::Rename>(&rename).unwrap();
    let mut second = Client::new(running.address);
    second.xid = first.xid;
    assert!(second.again::<nfs::Rename>(&rename).unwrap().is_ok(), "the reply of the first one");
    let failed = second.try_call::<nfs::Rename>(&rename).unwrap().unwrap_err();
    assert_eq!(failed.status, Status::NOENT, "another call");
}

#[test]
fn names_are_added_moved_linked_and_removed() {
    each(|client, root| {
        let dir = client.make_dir(root, "dir");
        let file = client.create(dir, "file");
        let linked = client.call::<nfs::Link>(&LinkArgs { file, link: at(root, "link") }).unwrap();
        assert_eq!(linked.attrs.unwrap().nlink, 2);
        assert_eq!(client.look_up(root, "link").unwrap(), file);
        let rename = RenameArgs { from: at(dir, "file"), to: at(root, "file") };
        client.call::<nfs::Rename>(&rename).unwrap();
        assert_eq!(client.look_up(dir, "file"), Err(Status::NOENT));
        assert_eq!(client.look_up(root, "file").unwrap(), file);
        let not_empty = client.call::<nfs::Remove>(&at(root, "dir")).unwrap_err();
        assert!([Status::ISDIR, Status::PERM].contains(&not_empty.status), "{}", not_empty.status);
        client.create(dir, "in");
        let not_empty = client.call::<nfs::RmDir>(&at(root, "dir")).unwrap_err();
        assert_eq!(not_empty.status, Status::NOTEMPTY);
        client.call::<nfs::Remove>(&at(dir, "in")).unwrap();
        client.call::<nfs::RmDir>(&at(root, "dir")).unwrap();
        assert_eq!(client.call::<nfs::GetAttr>(&dir).unwrap_err(), Status::STALE);
        let target = Path::new("far/away").unwrap();
        let args = SymLinkArgs { at: at(root, "symlink"), attrs: SetAttrs::NONE, target: target.clone() };
        let link = client.call::<nfs::SymLink>(&args).unwrap().object.unwrap();
        assert_eq!(client.call::<nfs::ReadLink>(&link).unwrap().target, target);
        let fifo = MkNodArgs { at: at(root, "fifo"), what: MkNodWhat::Fifo(SetAttrs::NONE) };
        assert_eq!(client.call::<nfs::MkNod>(&fifo).unwrap().attrs.unwrap().kind, FileType::Fifo);
        let wrong = MkNodArgs { at: at(root, "file2"), what: MkNodWhat::Regular };
        assert_eq!(client.call::<nfs::MkNod>(&wrong).unwrap_err().status, Status::BADTYPE);
    });
}

#[test]
fn names_that_are_none_do_not_leave_the_export() {
    each(|client, root| {
        let dir = client.make_dir(root, "dir");
        let inner = client.make_dir(dir, "inner");
        assert_eq!(client.look_up(root, "..").unwrap(), root);
        assert_eq!(client.look_up(root, ".").unwrap(), root);
        assert_eq!(client.look_up(inner, "..").unwrap(), dir);
        assert_eq!(client.look_up(dir, "..").unwrap(), root);
        for name in ["a/b", "/etc", "../dir", "", "nul\0"] {
            assert!(client.look_up(root, name).is_err(), "{name:?}");
            let how = CreateHow::Guarded(SetAttrs::NONE);
            assert!(client.call::<nfs::Create>(&CreateArgs { at: at(root, name), how }).is_err(), "{name:?}");
        }
        for name in [".", ".."] {
            assert!(client.call::<nfs::Remove>(&at(dir, name)).is_err());
            assert!(client.call::<nfs::RmDir>(&at(dir, name)).is_err());
        }
        assert_eq!(client.look_up(root, &"n".repeat(256)), Err(Status::NAMETOOLONG));
    });
}

#[test]
fn attributes_are_set_all_at_once_and_under_a_guard() {
    each(|client, root| {
        let file = client.create(root, "file");
        let time = Time { seconds: 1_000_000_000, nanos: 5000 };
        let attrs = SetAttrs {
            mode: Some(Mode(0o604)),
            size: Some(100),
            mtime: SetTime::To(time),
            atime: SetTime::Now,
            ..SetAttrs::NONE
        };
        let set = client.call::<nfs::SetAttr>(&SetAttrArgs { object: file, attrs, guard: None }).unwrap();
        let after = set.wcc.after.unwrap();
        assert_eq!((after.mode, after.size, after.mtime), (Mode(0o604), 100, time));
        let attrs = SetAttrs { size: Some(3), ..SetAttrs::NONE };
        let refused = client.call::<nfs::SetAttr>(&SetAttrArgs { object: file, attrs, guard: Some(time) });
        assert_eq!(refused.unwrap_err().status, Status::NOT_SYNC);
        let guard = Some(after.ctime);
        client.call::<nfs::SetAttr>(&SetAttrArgs { object: file, attrs, guard }).unwrap();
        assert_eq!(client.call::<nfs::GetAttr>(&file).unwrap().size, 3);
    });
}

#[test]
fn permissions_that_a_caller_has() {
    each(|client, root| {
        let file = client.create(root, "file");
        let access = Access::READ | Access::MODIFY | Access::EXTEND | Access::EXECUTE;
        let asked = AccessArgs { object: file, access };
        let granted = client.call::<nfs::Access>(&asked).unwrap().access;
        assert_eq!(granted, Access::READ | Access::MODIFY | Access::EXTEND, "the superuser");
        client.auth = crate::support::user(1234, 1234);
        assert_eq!(client.call::<nfs::Access>(&asked).unwrap().access, Access::empty(), "another user");
    });
}

/// Every name of a directory with 1,000, of which others are removed meanwhile, with pieces of this size.
fn listed(client: &mut Client, dir: FileHandle, count: u32, plus: bool) -> Vec<(String, u64, bool)> {
    let mut names = Vec::new();
    let (mut cookie, mut verifier) = (0, [0; 8]);
    loop {
        let eof = if plus {
            let args = ReadDirPlusArgs { dir, cookie, verifier, dir_count: count, max_count: count };
            let list = client.call::<nfs::ReadDirPlus>(&args).unwrap();
            verifier = list.verifier;
            names.extend(list.entries.0.iter().map(|entry| {
                (String::from_utf8_lossy(&entry.name).into_owned(), entry.cookie, entry.object.is_some())
            }));
            list.eof
        } else {
            let list = client.call::<nfs::ReadDir>(&ReadDirArgs { dir, cookie, verifier, count }).unwrap();
            verifier = list.verifier;
            let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
            names.extend(list.entries.0.iter().map(|entry| (name(&entry.name), entry.cookie, false)));
            list.eof
        };
        if eof {
            return names;
        }
        cookie = names.last().unwrap().1;
    }
}

#[test]
fn a_listing_has_each_name_once_with_any_size_of_pieces() {
    each(|client, root| {
        let dir = client.make_dir(root, "dir");
        let expected: BTreeSet<String> = (0..1000).map(|number| format!("file {number}")).collect();
        expected.iter().for_each(|name| _ = client.create(dir, name));
        for (count, plus) in [(512, false), (1 << 16, false), (1024, true), (1 << 20, true)] {
            let all = listed(client, dir, count, plus);
            assert_eq!(all[0].0, ".");
            assert_eq!(all[1].0, "..");
            assert!(!plus || all[2..].iter().all(|(_, _, has_handle)| *has_handle));
            assert_eq!(all.len(), 1002, "{count}");
            assert_eq!(all.into_iter().skip(2).map(|(name, ..)| name).collect::<BTreeSet<_>>(), expected);
        }
        let too_small = ReadDirArgs { dir, cookie: 0, verifier: [0; 8], count: 64 };
        assert_eq!(client.call::<nfs::ReadDir>(&too_small).unwrap_err().status, Status::TOOSMALL);
    });
}

#[test]
fn handles_of_a_listing_are_those_of_lookups() {
    each(|client, root| {
        let file = client.create(root, "file");
        let args =
            ReadDirPlusArgs { dir: root, cookie: 0, verifier: [0; 8], dir_count: 4096, max_count: 65536 };
        let list = client.call::<nfs::ReadDirPlus>(&args).unwrap();
        let entry = list.entries.0.iter().find(|entry| entry.name[..] == *b"file").unwrap();
        assert_eq!(entry.object, Some(file));
        assert_eq!(client.look_up(root, "file").unwrap(), file);
    });
}

#[test]
fn what_a_file_system_has_and_can_do() {
    each(|client, root| {
        let info = client.call::<nfs::FsInfo>(&root).unwrap();
        assert!(info.read_max >= 1 << 16 && info.write_max >= 1 << 16);
        assert!(client.call::<nfs::FsStat>(&root).is_ok());
        assert_eq!(client.call::<nfs::PathConf>(&root).unwrap().name_max, 255);
    });
}

#[test]
fn directories_of_exports_are_mounted_and_nothing_else() {
    let running = serve(vec![tree("/one", mem()), tree("two", mem())], options());
    let mut client = Client::new(running.address);
    let one = client.mount("/one").unwrap();
    let dir = client.make_dir(one, "dir");
    client.create(one, "file");
    assert_eq!(client.mount("/one/dir/").unwrap(), dir);
    assert_eq!(client.mount("/one/file"), Err(mount::Status::NOTDIR));
    assert_eq!(client.mount("/one/none"), Err(mount::Status::NOENT));
    assert_eq!(client.mount("/"), Err(mount::Status::NOENT));
    assert_eq!(client.mount("/one/../two"), Err(mount::Status::NOENT), "above an export is the export");
    let two = client.mount("/two").unwrap();
    let across = RenameArgs { from: at(one, "file"), to: at(two, "file") };
    assert_eq!(client.call::<nfs::Rename>(&across).unwrap_err().status, Status::XDEV);
    let exports = client.call::<mount::procedure::Export>(&());
    let paths: Vec<_> = exports.0.iter().map(|export| export.path.to_vec()).collect();
    assert_eq!(paths, [b"/one".to_vec(), b"/two".to_vec()]);
}

#[test]
fn who_asks_a_read_only_tree_for_all_permissions_learns_of_those_to_read() {
    let service = Stack::new(mem()).push(outrigger_layer_readonly::ReadOnly).unwrap().service();
    let (_running, mut client, root) = start(service);
    let asked = AccessArgs { object: root, access: Access::all() };
    let granted = client.call::<nfs::Access>(&asked).unwrap().access;
    assert_eq!(granted, Access::READ | Access::LOOKUP);
}

#[test]
fn nothing_is_left_of_a_file_that_cannot_be_made_as_it_was_asked_for() {
    let runtime = Arc::new(Threads::new());
    let checked = outrigger_layer_permissions::Permissions::new(runtime).lenient_owner();
    let service = Stack::new(mem()).push(Simulate::new()).unwrap().push(checked).unwrap().service();
    let (_running, mut client, root) = start(service);
    let open = SetAttrs { mode: Some(Mode(0o777)), ..SetAttrs::NONE };
    client.call::<nfs::SetAttr>(&SetAttrArgs { object: root, attrs: open, guard: None }).unwrap();
    client.auth = crate::support::user(1001, 1001);
    let attrs = SetAttrs { uid: Some(0), mode: Some(Mode(0o4755)), ..SetAttrs::NONE };
    let args = CreateArgs { at: at(root, "file"), how: CreateHow::Guarded(attrs) };
    assert_eq!(client.call::<nfs::Create>(&args).unwrap_err().status, Status::PERM);
    let args = MkDirArgs { at: at(root, "dir"), attrs };
    assert_eq!(client.call::<nfs::MkDir>(&args).unwrap_err().status, Status::PERM);
    assert_eq!(client.look_up(root, "file"), Err(Status::NOENT));
    assert_eq!(client.look_up(root, "dir"), Err(Status::NOENT));
}

#[test]
fn a_directory_that_may_be_listed_and_not_searched_is_listed() {
    let runtime = Arc::new(Threads::new());
    let checked = outrigger_layer_permissions::Permissions::new(runtime).lenient_owner();
    let service = Stack::new(mem()).push(Simulate::new()).unwrap().push(checked).unwrap().service();
    let (_running, mut client, root) = start(service);
    let dir = client.make_dir(root, "dir");
    client.create(dir, "file");
    for (object, mode) in [(dir, 0o744), (root, 0o755)] {
        let attrs = SetAttrs { mode: Some(Mode(mode)), ..SetAttrs::NONE };
        client.call::<nfs::SetAttr>(&SetAttrArgs { object, attrs, guard: None }).unwrap();
    }
    client.auth = crate::support::user(1001, 1001);
    for plus in [false, true] {
        let names: Vec<_> = listed(&mut client, dir, 4096, plus).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, [".", "..", "file"], "{plus}");
    }
    assert_eq!(client.look_up(dir, "file"), Err(Status::ACCES));
}
