// SPDX-License-Identifier: MIT OR Apache-2.0
//! What clients of a tree get from the one that stands in for its server.

use crate::support::{Client, options, run, tree};
use outrigger_core::Inline;
use outrigger_door_nfs::{Root, Server};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_proto_nfs3::mount;
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::types::Status;
use outrigger_runtime::Threads;
use std::net::TcpListener;
use std::sync::Arc;

/// It has no exports, whose clients could be those it answers.
#[test]
fn a_stand_in_answers_those_whom_its_server_answered() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::open(dir.path(), LocalOptions::default()).unwrap();
    let tree = tree("/", Arc::new(Inline::new(local, Arc::new(Threads::new()))));
    let (runtime, socket) = (Arc::new(Threads::new()), TcpListener::bind("127.0.0.1:0").unwrap());
    let next = socket.try_clone().unwrap();
    let server = runtime.handle().block_on(async { Server::on(socket, vec![tree], options()) });
    let server = Arc::new(server.unwrap());
    let running = run(runtime.clone(), server.clone());
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    let file = client.create(root, "file");
    let attrs = client.call::<nfs::GetAttr>(&root).unwrap();
    server.refuse_mounts();
    assert_eq!(client.mount("/"), Err(mount::Status::ACCES));
    let left = runtime.handle().block_on(server.root()).unwrap().to_bytes();
    drop((running, server, client));
    let left = Root::from_bytes(&left).unwrap();
    let server = runtime.handle().block_on(async { Server::standing_in(next, left, options()) });
    let server = Arc::new(server.unwrap());
    let running = run(runtime.clone(), server.clone());
    let mut client = Client::new(running.address);
    assert_eq!(client.call::<nfs::GetAttr>(&root).unwrap(), attrs);
    assert_eq!(client.call::<nfs::GetAttr>(&file), Err(Status::STALE));
    assert!(client.mount("/").is_err(), "it gives out no handles");
    // Asking for the file has said that a server is wanted.
    runtime.handle().block_on(server.wanted());
}
