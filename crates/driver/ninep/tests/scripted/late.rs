// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies about a name that were made before it was changed here, and arrive after that.

use crate::connect;
use crate::server::{Does, Server};
use bytes::Bytes;
use outrigger_core::ops::{Locate, Lookup, Open, OpenDir, OpenFlags, ReadDirPlus, StatFs, Unlink};
use outrigger_core::reply::DirentsPlus;
use outrigger_core::{Credentials, Cx, Driver, Errno, Name, Node};
use outrigger_proto_ninep::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// A listing of a directory with the open file `f` is under way when its name is removed, and the server, by which the file has so many names,
/// answers it after that. Gives what is listed, and where the file is.
fn list_late(names: u64) -> (DirentsPlus, Result<Bytes, Errno>) {
    let (holds, (held, mut is_held)) = (Arc::new(AtomicBool::new(false)), mpsc::unbounded_channel());
    let begun = Arc::clone(&holds);
    let server = Server::start(move |request| match request {
        Request::Tgetattr(_) if begun.swap(false, Ordering::SeqCst) => {
            held.send(()).unwrap();
            Does::Hold
        }
        Request::Tgetattr(_) => Does::Links(names),
        Request::Trenameat(_) => Does::reply(Rrenameat {}.into()),
        Request::Tunlinkat(_) => Does::reply(Runlinkat {}.into()),
        Request::Tstatfs(_) => Does::Release(Box::new(Rstatfs { space: Space::default() }.into())),
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    near.runtime.handle().block_on(async {
        let (cx, name) =
            (Cx::new(1, Credentials::ROOT, "test"), Name::new(Bytes::from_static(b"f")).unwrap());
        let find = Lookup { dir: Node::ROOT, name: name.clone() };
        let node = near.nine.lookup(&cx, find).await.unwrap().node;
        near.nine.open(&cx, Open { node, flags: OpenFlags::empty() }).await.unwrap();
        let handle = near.nine.opendir(&cx, OpenDir { node: Node::ROOT }).await.unwrap().handle;
        holds.store(true, Ordering::SeqCst);
        let list = ReadDirPlus { node: Node::ROOT, handle, cookie: 0, size: 1 << 16 };
        let remove = async {
            is_held.recv().await.unwrap();
            near.nine.unlink(&cx, Unlink { dir: Node::ROOT, name }).await.unwrap();
            near.nine.statfs(&cx, StatFs { node: Node::ROOT }).await.unwrap();
        };
        let (listed, ()) = tokio::join!(near.nine.readdirplus(&cx, list), remove);
        let place = near.nine.locate(&cx, Locate { node }).await;
        (listed.unwrap(), place.map(|path| path.into_bytes()).map_err(|error| error.errno))
    })
}

#[test]
fn a_listing_that_arrives_late_does_not_give_a_hidden_file_its_name_back() {
    let (listed, place) = list_late(1);
    assert_eq!(listed.entries.len(), 1, "it was there when the listing began");
    assert_eq!(listed.entries[0].entry.node, Node(0), "and what it leads to is not known");
    assert!(place.as_ref().is_ok_and(|path| path.starts_with(b"/.outrigger-removed-")), "{place:?}");
}

#[test]
fn a_listing_that_arrives_late_does_not_bring_a_removed_name_back() {
    let (listed, place) = list_late(2);
    assert_eq!(listed.entries[0].entry.node, Node(0), "what it leads to is not known");
    assert_eq!(place, Err(Errno::ESTALE), "no name is known");
}
