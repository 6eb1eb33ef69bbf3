// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of one server with options of their own.

use crate::support::{Client, options, serve, tree};
use outrigger_core::{Inline, Service};
use outrigger_door_nfs::{Callers, Options, Squash, Tree};
use outrigger_driver_mem::Mem;
use outrigger_proto_nfs3::mount;
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::types::Status;
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
