// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks at a real server, which locks whole files by their fids.

mod support;

use outrigger_conformance::{Direct, Fd, Flags, Subject, range_lock};
use outrigger_core::ops::LockKind::{self, Read, Unlock, Write};
use outrigger_core::ops::{Lookup, Open, OpenFlags, Release, SetLock};
use outrigger_core::{Credentials, Cx, Driver, Errno, HeapKeep, Keep, LockOwner, Name, Node, ops};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use support::{Far, far};

const END: u64 = u64::MAX;

fn open(near: &Direct) -> Fd {
    near.open(Path::new("f"), Flags::BOTH, 0).expect("opened")
}

fn lock(near: &Direct, file: Fd, kind: LockKind, (start, end): (u64, u64)) -> Result<(), Errno> {
    near.lock(file, range_lock(kind, start, end), false)
}

/// Two clients of a server with the file `f`.
fn two() -> Option<(Far, [Direct; 2])> {
    let far = far()?;
    fs::write(far.server.root().join("f"), "0123456789").expect("written");
    let clients = [far.direct(), far.direct()];
    Some((far, clients))
}

#[test]
fn a_lock_keeps_other_clients_away_until_it_is_given_back_or_the_file_is_closed() {
    let Some((_far, [one, other])) = two() else { return };
    let (mine, theirs) = (open(&one), open(&other));
    assert_eq!(one.flock(mine, Write, false), Ok(()));
    assert_eq!(other.flock(theirs, Read, false), Err(Errno::EAGAIN));
    assert_eq!(lock(&other, theirs, Read, (0, END)), Err(Errno::EAGAIN), "the server has one kind");
    assert_eq!(one.flock(mine, Unlock, false), Ok(()));
    assert_eq!(other.flock(theirs, Read, false), Ok(()));
    assert_eq!(one.flock(mine, Read, false), Ok(()));
    one.close(mine).expect("closed");
    assert_eq!(other.flock(theirs, Write, false), Ok(()), "it ends with the open file");
}

#[test]
fn a_part_that_is_given_back_leaves_the_rest_locked() {
    let Some((_far, [one, other])) = two() else { return };
    let (mine, again, theirs) = (open(&one), open(&one), open(&other));
    assert_eq!(lock(&one, mine, Write, (0, 9)), Ok(()));
    assert_eq!(lock(&one, mine, Write, (20, 29)), Ok(()));
    assert_eq!(lock(&one, again, Write, (40, 49)), Ok(()), "ranges are told apart here");
    assert_eq!(lock(&one, again, Read, (5, 9)), Err(Errno::EAGAIN));
    for (file, range) in [(mine, (0, 9)), (again, (0, END)), (mine, (25, 29))] {
        assert_eq!(lock(&one, file, Unlock, range), Ok(()));
        assert_eq!(lock(&other, theirs, Write, (0, END)), Err(Errno::EAGAIN), "after {range:?}");
    }
    assert_eq!(lock(&one, mine, Unlock, (20, 24)), Ok(()));
    assert_eq!(lock(&other, theirs, Write, (0, END)), Ok(()));
}

#[test]
fn a_shared_lock_that_cannot_be_made_exclusive_stays() {
    let Some((_far, [one, other])) = two() else { return };
    let (mine, theirs) = (open(&one), open(&other));
    assert_eq!(lock(&one, mine, Read, (0, END)), Ok(()));
    assert_eq!(lock(&other, theirs, Read, (0, END)), Ok(()));
    assert_eq!(lock(&one, mine, Write, (0, END)), Err(Errno::EAGAIN));
    assert_eq!(lock(&other, theirs, Write, (0, END)), Err(Errno::EAGAIN), "the other one has its lock");
    assert_eq!(lock(&other, theirs, Unlock, (0, END)), Ok(()));
    assert_eq!(lock(&one, mine, Write, (0, END)), Ok(()));
}

#[test]
fn who_waits_gets_a_lock_when_another_client_gives_it_back() {
    let Some((_far, [one, other])) = two() else { return };
    let (mine, theirs) = (open(&one), open(&other));
    assert_eq!(lock(&one, mine, Write, (0, 9)), Ok(()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock(theirs, range_lock(Write, 5, 5), true));
        assert_eq!(lock(&one, mine, Unlock, (0, 9)), Ok(()));
        assert_eq!(waiting.join().expect("ends"), Ok(()));
    });
    assert_eq!(lock(&one, mine, Write, (5, 5)), Err(Errno::EAGAIN));
}

#[test]
fn locks_are_taken_again_from_a_server_that_was_restarted() {
    let Some((mut far, [one, other])) = two() else { return };
    let (mine, theirs) = (open(&one), open(&other));
    assert_eq!(lock(&one, mine, Write, (0, 9)), Ok(()));
    far.server.stop();
    far.server.again().expect("started again");
    assert_eq!(one.read_at(mine, 0, 3).expect("read"), b"012");
    assert_eq!(lock(&other, theirs, Read, (0, END)), Err(Errno::EAGAIN));
    assert_eq!(lock(&one, mine, Unlock, (0, END)), Ok(()));
    assert_eq!(lock(&other, theirs, Read, (0, END)), Ok(()));
}

#[test]
fn a_process_that_takes_over_has_the_locks() {
    let Some((far, [_, other])) = two() else { return };
    let keep = Arc::new(HeapKeep::default()) as Arc<dyn Keep>;
    let connect = || far.connect_to(far.server.port(), &[], Some(Arc::clone(&keep))).expect("connected");
    let (cx, theirs) = (Cx::new(1, Credentials::ROOT, "test"), open(&other));
    let near = connect();
    let (node, handle) = far.runtime.handle().block_on(async {
        let find = Lookup { dir: Node::ROOT, name: Name::try_from("f").expect("a name") };
        let node = near.lookup(&cx, find).await.expect("found").node;
        let flags = OpenFlags::READ_WRITE;
        let handle = near.open(&cx, Open { node, flags }).await.expect("opened").handle;
        let (owner, lock) = (LockOwner(7), range_lock(Write, 0, 9));
        let set = SetLock { node, handle, owner, lock, wait: false, flock: false };
        near.setlk(&cx, set).await.expect("locked");
        (node, handle)
    });
    drop(near);
    let near = connect();
    let read = near.read(&cx, ops::Read { node, handle, offset: 0, len: 3 });
    let read = far.runtime.handle().block_on(read).expect("read");
    assert_eq!(read.into_bytes().expect("in memory"), "012");
    assert_eq!(lock(&other, theirs, Read, (0, END)), Err(Errno::EAGAIN));
}

/// The kernel tells of no owner when a file is closed that was locked with `F_OFD_SETLK`.
#[test]
fn an_open_file_that_is_closed_gives_back_what_was_taken_by_it() {
    let Some((_far, [one, other])) = two() else { return };
    let (mine, again, theirs) = (open(&one), open(&one), open(&other));
    assert_eq!(lock(&one, mine, Write, (0, 9)), Ok(()));
    let (node, handle, _) = one.opened(mine).expect("open");
    let flags = OpenFlags::READ_WRITE;
    let release = Release { node, handle, flags, owner: LockOwner(0), flock_release: false };
    one.ask(release).expect("closed");
    assert_eq!(lock(&one, again, Write, (0, 9)), Ok(()));
    assert_eq!(lock(&one, again, Unlock, (0, 9)), Ok(()));
    assert_eq!(lock(&other, theirs, Write, (0, 9)), Ok(()));
}
