// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of one server with options of their own.

use crate::support::{Client, options, serve, tree, user};
use outrigger_core::{IdMap, Inline, Service, Stack};
use outrigger_door_nfs::{Callers, Options, Squash, Tree};
use outrigger_driver_mem::Mem;
use outrigger_layer_permissions::Permissions;
use outrigger_proto_nfs3::mount;
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::nfs::{ReadDirPlusArgs, SetAttrArgs};
use outrigger_proto_nfs3::types::{Mode, SetAttrs, Status};
use outrigger_proto_nfs3::xdr::rpc::AuthStatus;
use outrigger_proto_nfs3::xdr::rpc::{self, Denied};
use outrigger_runtime::Threads;
use std::sync::Arc;

fn mem() -> Arc<dyn Service> {
    let runtime = Arc::new(Threads::new());
    Arc::new(Inline::new(Mem::new(outrigger_driver_mem::Options::default(), runtime.clone()), runtime))
}

fn export(name: &str, callers: Callers) -> Tree {
    Tree { callers: Some(callers), identity: name.as_bytes().to_vec(), ..tree(name, mem()) }
}

#[test]
fn each_export_has_its_own_users() {
    let of = |squash, anonymous| Callers { squash, anonymous, ..options().callers };
    let trees = vec![
        export("/all", of(Squash::All, (7, 8))),
        export("/root", of(Squash::Root, (9, 9))),
        export("/none", of(Squash::None, (9, 9))),
    ];
    let running = serve(trees, options());
    let mut client = Client::new(running.address);
    for (path, owner) in [("/all", 7), ("/root", 9), ("/none", 0)] {
        let root = client.mount(path).unwrap();
        let file = client.create(root, "file");
        assert_eq!(client.call::<nfs::GetAttr>(&file).unwrap().uid, owner, "{path}");
    }
}

/// Users 1000 and 1001 of the client are 501 and 1000 in the tree.
#[test]
fn users_of_clients_are_users_of_the_tree_and_see_their_own_numbers() {
    let mut users = IdMap::default();
    assert!(users.add(1000, 501) && users.add(1001, 1000));
    let mut groups = IdMap::default();
    assert!(groups.add(100, 20));
    let service = Stack::new(mem()).push(Permissions::new(Arc::new(Threads::new()))).unwrap().service();
    let of = |callers, name| Tree { service: service.clone(), ..export(name, callers) };
    let mapped = Callers { users, groups, squash: Squash::All, ..options().callers };
    let running = serve(vec![of(options().callers, "/tree"), of(mapped, "/mapped")], options());
    let mut client = Client::new(running.address);
    let (tree, root) = (client.mount("/tree").unwrap(), client.mount("/mapped").unwrap());
    let open = SetAttrs { mode: Some(Mode(0o777)), ..SetAttrs::NONE };
    client.call::<nfs::SetAttr>(&SetAttrArgs { object: tree, attrs: open, guard: None }).unwrap();

    client.auth = user(1000, 100);
    let file = client.create(root, "file");
    let owner = |client: &mut Client, file| {
        let attrs = client.call::<nfs::GetAttr>(&file).unwrap();
        (attrs.uid, attrs.gid)
    };
    assert_eq!(owner(&mut client, file), (1000, 100), "as the client has it");
    let entries = client.call::<nfs::ReadDirPlus>(&ReadDirPlusArgs {
        dir: root,
        cookie: 0,
        verifier: [0; 8],
        dir_count: 4096,
        max_count: 8192,
    });
    let listed = entries.unwrap().entries.0.into_iter().find(|entry| entry.name[..] == *b"file").unwrap();
    assert_eq!(listed.attrs.map(|attrs| (attrs.uid, attrs.gid)), Some((1000, 100)));
    let theirs = client.look_up(tree, "file").unwrap();
    assert_eq!(owner(&mut client, theirs), (501, 20), "as the tree has it");

    // The owner may change the file; whom the tree's number is at the client may not, nor may those who are in no map.
    let chmod = |client: &mut Client, mode| {
        let attrs = SetAttrs { mode: Some(Mode(mode)), ..SetAttrs::NONE };
        let set = client.call::<nfs::SetAttr>(&SetAttrArgs { object: file, attrs, guard: None });
        set.map(drop).map_err(|failed| failed.status)
    };
    assert_eq!(chmod(&mut client, 0o640), Ok(()));
    for (uid, gid) in [(1001, 100), (501, 20), (0, 0)] {
        client.auth = user(uid, gid);
        assert_eq!(chmod(&mut client, 0o666), Err(Status::PERM), "{uid}");
    }
}

/// A handle that another client has told does not help.
#[test]
fn an_export_for_others_is_refused_by_path_and_by_handle() {
    let elsewhere = Callers { networks: vec!["192.0.2.0/24".parse().unwrap()], ..options().callers };
    let trusted_port = Callers { any_port: false, ..options().callers };
    let all = vec![export("/open", options().callers), export("/shut", options().callers)];
    let running = serve(all, options());
    let mut client = Client::new(running.address);
    let (open, shut) = (client.mount("/open").unwrap(), client.mount("/shut").unwrap());
    drop((client, running));
    for callers in [elsewhere, trusted_port] {
        // The key is the same, so the handles are.
        let running = serve(vec![export("/open", options().callers), export("/shut", callers)], options());
        let mut client = Client::new(running.address);
        assert_eq!(client.mount("/shut"), Err(mount::Status::ACCES));
        assert_eq!(client.call::<nfs::GetAttr>(&shut), Err(Status::ACCES));
        assert!(client.call::<nfs::GetAttr>(&open).is_ok());
    }
}

#[test]
fn a_client_that_no_export_trusts_is_refused_as_before() {
    let callers = Callers { any_port: false, ..options().callers };
    let running = serve(vec![export("/", callers.clone())], Options { callers, ..options() });
    let mut client = Client::new(running.address);
    let refused =
        client.try_call::<nfs::GetAttr>(&outrigger_proto_nfs3::types::FileHandle::new(&[0; 53]).unwrap());
    assert_eq!(refused.unwrap_err(), rpc::Reply::Denied(Denied::AuthError(AuthStatus::TOO_WEAK)));
}
