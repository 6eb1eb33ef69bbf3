// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are removed while they are open, when the process dies that removes them.

use super::{Far, USUAL, name, put, try_open};
use crate::server::Server;
use outrigger_client::Follow;
use outrigger_core::ops::{OpenFlags, Read, Release};
use outrigger_core::{Handle, HeapKeep, Keep, LockOwner, Node, Result};
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const HANDLE: Handle = Handle(1);

/// What the open file has.
fn content(far: &Far, node: Node) -> Result<Vec<u8>> {
    let data = far.client.call(Read { node, handle: HANDLE, offset: 0, len: 100 })?;
    Ok(data.into_bytes()?.to_vec())
}

/// Waits for what the next process does by itself.
fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        thread::yield_now();
    }
}

#[test]
fn a_file_that_was_removed_while_it_is_open_is_known_to_the_next_process_whenever_the_first_one_dies() {
    // The name is noted, and the server has not renamed the file; it has, and the first process does not learn it.
    for mute in ["RNFR", "RNTO"] {
        let server = Server::start(USUAL, &[]);
        put(&server, "f", b"content", 0);
        let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
        let first = try_open(&server, &[("timeout", "600")], Some(Arc::clone(&keep))).expect("connected");
        let inode = first.client.walk(b"/f", Follow::Yes).expect("found");
        let (node, file) = (inode.node(), inode.open(OpenFlags::empty()).expect("opened"));
        server.change(|ways| ways.mute = Some(mute));
        thread::spawn(move || {
            // It waits for the answer until the test ends.
            let _ = first.root().unlink(&name("f"));
            std::mem::forget((inode, file, first));
        });
        server.until_asked(mute);
        within("the server renames it", || mute == "RNFR" || !server.at("f").exists());
        server.change(|ways| ways.mute = None);
        let next = try_open(&server, &[], Some(keep)).expect("connected");
        within("it is found", || content(&next, node).is_ok_and(|content| content == b"content"));
        // As the journal has it done again. RNTO may have been on its way to the server, too: then the name is gone.
        let removed = next.root().unlink(&name("f"));
        assert!(removed.is_ok() || mute == "RNTO" || !server.at("f").exists(), "{removed:?}");
        assert_eq!(content(&next, node).expect("it is open"), b"content");
        assert!(!server.at("f").exists(), "{mute}");
        let (owner, flags) = (LockOwner(0), OpenFlags::empty());
        let release = Release { node, handle: HANDLE, flags, owner, flock_release: false };
        next.client.call(release).expect("closed");
        let left: Vec<_> = fs::read_dir(server.at("")).expect("a directory").flatten().collect();
        assert!(left.is_empty(), "{mute}: {left:?}");
    }
}

/// The server does not remove a directory in which files are that no program sees there any more.
#[test]
fn a_directory_can_be_removed_whose_files_were_removed_while_they_are_open() {
    let server = Server::start(USUAL, &[]);
    fs::create_dir(server.at("d")).expect("made");
    put(&server, "d/f", b"content", 0);
    let far = try_open(&server, &[], None).expect("connected");
    let (root, file) = (far.root(), far.file("/d/f", OpenFlags::empty()));
    let dir = far.client.walk(b"/d", Follow::Yes).expect("found");
    dir.unlink(&name("f")).expect("removed");
    root.rmdir(&name("d")).expect("removed");
    assert!(!server.at("d").exists());
    assert_eq!(file.read_at(0, 100).expect("it is open"), b"content"[..]);
    file.close().expect("closed");
    let left: Vec<_> = fs::read_dir(server.at("")).expect("a directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
