// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles of trees that find files by path only, over restarts of the server.

use crate::support::{Client, Running, options, serve, tree};
use outrigger_core::node_table::NodeTable;
use outrigger_core::{
    Abilities, Answer, Cx, HeapRegion, Identity, Inline, Notify, OpCode, OpSet, Request, Service,
};
use outrigger_door_nfs::{Paths, Tree, needs_paths};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::nfs::{RenameArgs, procedure::Rename};
use outrigger_proto_nfs3::types::{FileHandle, Stable, Status};
use outrigger_runtime::Threads;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A directory of the host that finds no file by its number.
struct ByPath(Arc<dyn Service>);

impl Service for ByPath {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.0.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        let below = self.0.abilities();
        let ops = below.ops.without(OpSet::of(&[OpCode::Resolve]));
        Abilities { ops, identity: Identity::Persistent, ..below }
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

/// A server of the directory whose paths are in this memory.
fn start(dir: &Path, memory: &Arc<HeapRegion>, run: u64) -> (Running, Client) {
    let local = Local::open(dir, LocalOptions::default()).unwrap();
    let service: Arc<dyn Service> = Arc::new(ByPath(Arc::new(Inline::new(local, Arc::new(Threads::new())))));
    assert!(needs_paths(&*service));
    let table = NodeTable::attach(memory.clone()).unwrap();
    let tree = Tree { paths: Some(Paths { table, run }), ..tree("/", service) };
    let running = serve(vec![tree], options());
    let client = Client::new(running.address);
    (running, client)
}

fn read(client: &mut Client, file: FileHandle) -> Result<Vec<u8>, Status> {
    client.read(file, 0, 100).map(|read| read.data.to_vec())
}

#[test]
fn handles_lead_to_the_same_files_in_the_next_server() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(HeapRegion::new(1 << 16)));
    let (running, mut client) = start(dir.path(), &memory, 1);
    let root = client.mount("/").unwrap();
    let sub = client.make_dir(root, "dir");
    let [kept, moved, removed, replaced] =
        ["kept", "moved", "removed", "replaced"].map(|name| client.create(sub, name));
    for (file, content) in [(kept, "kept"), (moved, "moved"), (replaced, "old")] {
        client.write(file, 0, content.as_bytes(), Stable::FileSync);
    }
    let (from, to) = (crate::support::at(sub, "moved"), crate::support::at(root, "elsewhere"));
    client.call::<Rename>(&RenameArgs { from, to }).unwrap();
    drop((client, running));
    fs::remove_file(dir.path().join("dir/removed")).unwrap();
    fs::write(dir.path().join("dir/new"), "new").unwrap();
    fs::rename(dir.path().join("dir/new"), dir.path().join("dir/replaced")).unwrap();

    let (_running, mut client) = start(dir.path(), &memory, 1);
    assert_eq!(read(&mut client, kept), Ok(b"kept".to_vec()));
    assert_eq!(read(&mut client, moved), Ok(b"moved".to_vec()), "it is found under its new name");
    assert_eq!(client.look_up(sub, "kept"), Ok(kept), "the handle is the same");
    assert_eq!(read(&mut client, removed), Err(Status::STALE));
    assert_eq!(read(&mut client, replaced), Err(Status::STALE), "another file has its name");
    let new = client.look_up(sub, "replaced").unwrap();
    assert!(new != replaced && read(&mut client, new) == Ok(b"new".to_vec()));
}

#[test]
fn handles_of_another_table_are_stale() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(HeapRegion::new(1 << 16)));
    let (running, mut client) = start(dir.path(), &memory, 1);
    let root = client.mount("/").unwrap();
    let file = client.create(root, "file");
    drop((client, running));
    let (_running, mut client) = start(dir.path(), &Arc::new(HeapRegion::new(1 << 16)), 2);
    client.create(root, "another");
    assert_eq!(client.call::<nfs::GetAttr>(&file), Err(Status::STALE));
    assert!(client.call::<nfs::GetAttr>(&root).is_ok(), "the root is the same");
}
