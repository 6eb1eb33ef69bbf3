// SPDX-License-Identifier: MIT OR Apache-2.0
//! New files, which a tree has before its server does, are listed at any time.

mod support;

use bytes::{Bytes, BytesMut};
use outrigger_core::ops::*;
use outrigger_core::{Credentials, Cx, Driver, FileKind, LockOwner, Name, Node};
use outrigger_runtime::Threads;
use outrigger_toolkit_remote::{
    Asked, Begun, Fault, FileOptions, FileServer, FileTree, Found, Listing, Put, Readings, Staged, Version,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use support::Missing;
use tokio::sync::Semaphore;

/// A server that lists slowly: what is stored after a listing has begun is not in it.
#[derive(Clone)]
struct Slow(Arc<State>);

struct State {
    readings: Readings<()>,
    paths: Mutex<BTreeSet<Vec<u8>>>,
    /// Listings that have begun.
    begun: Semaphore,
    /// Listings that may end.
    may_end: Semaphore,
}

fn file(path: &[u8]) -> Found {
    let name = Bytes::copy_from_slice(&path[1..]);
    Found { name, size: Some(0), modified: Some(1), ..Found::new(FileKind::Regular) }
}

impl FileServer for Slow {
    type Transfer = ();
    type Refusal = Missing;

    fn driver(&self) -> &'static str {
        "slow"
    }

    fn shown(&self) -> String {
        "a slow server".to_owned()
    }

    fn readings(&self) -> &Readings<()> {
        &self.0.readings
    }

    async fn stat(&self, path: &[u8]) -> Asked<Found, Self> {
        match path {
            b"/" => Ok(Found::new(FileKind::Directory)),
            path if self.0.paths.lock().expect("paths").contains(path) => Ok(file(path)),
            _ => Err(Fault::Refused(Missing)),
        }
    }

    async fn list(&self, _: &[u8]) -> Asked<Listing, Self> {
        let names = self.0.paths.lock().expect("paths").iter().map(|path| file(path)).collect();
        self.0.begun.add_permits(1);
        self.0.may_end.acquire().await.expect("a permit").forget();
        Ok(Listing { names, odd: None })
    }

    async fn begin(&self, _: &[u8], _: u64) -> Asked<Begun<()>, Self> {
        Ok(Begun { transfer: None, at: 0, version: Version::default() })
    }

    async fn receive(&self, (): &mut (), _: &mut BytesMut) -> Asked<usize, Self> {
        Ok(0)
    }

    async fn send(&self, path: &[u8], _: Put, _: &Arc<Staged>, _: u64) -> Asked<(), Self> {
        self.0.paths.lock().expect("paths").insert(path.to_vec());
        Ok(())
    }

    async fn rename(&self, from: &[u8], to: &[u8], _: Option<u32>) -> Asked<Option<Version>, Self> {
        let mut paths = self.0.paths.lock().expect("paths");
        paths.remove(from);
        paths.insert(to.to_vec());
        Ok(None)
    }
}

#[test]
fn a_file_that_is_stored_while_the_server_lists_is_listed() {
    let runtime = Arc::new(Threads::new());
    let state = State {
        readings: Readings::default(),
        paths: Mutex::default(),
        begun: Semaphore::new(0),
        may_end: Semaphore::new(0),
    };
    let server = Slow(Arc::new(state));
    let tree = FileTree::open(server.clone(), Vec::new(), FileOptions::default(), runtime.clone(), None);
    let tree = tree.expect("a tree");
    runtime.handle().block_on(async move {
        let (dir, name) = (Node::ROOT, Name::try_from("new").expect("a name"));
        let (cx, flags) = (Cx::new(1, Credentials::ROOT, "test"), OpenFlags::WRITE_ONLY);
        let op = Create { dir, name: name.clone(), mode: 0o644, umask: 0, flags, initial: None };
        let created = tree.create(&cx, op).await.expect("a new file");
        let listing = tokio::spawn({
            let (tree, cx) = (tree.clone(), cx.clone());
            async move {
                let handle = tree.opendir(&cx, OpenDir { node: dir }).await.expect("a directory").handle;
                let op = ReadDirPlus { node: dir, handle, cookie: 0, size: 1 << 16 };
                tree.readdirplus(&cx, op).await.expect("a listing").entries
            }
        });
        server.0.begun.acquire().await.expect("a permit").forget();
        let (node, handle) = (created.entry.node, created.opened.handle);
        let op = Release { node, handle, flags, owner: LockOwner::default(), flock_release: false };
        tree.release(&cx, op).await.expect("stored");
        assert_eq!(server.0.paths.lock().expect("paths").len(), 1, "the server has it");
        server.0.may_end.add_permits(1);
        let listed = listing.await.expect("a listing");
        assert_eq!(listed.iter().map(|entry| &entry.name).collect::<Vec<_>>(), [&name]);
    });
}
