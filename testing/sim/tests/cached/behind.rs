// SPDX-License-Identifier: MIT OR Apache-2.0
//! Write-back: writes that are answered before they reach the tree.

use crate::client::{Client, name, pass_time, shared_tree};
use crate::content::{open, pattern, read, with_file, write};
use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::OpenHow;
use outrigger_core::{
    Abilities, Credentials, Cx, Errno, Handle, HeapKeep, Layer, LockOwner, Node, OpCode, OpSet, Payload,
    Place, Result, Runtime, Service, SetAttrs, Stack, ask,
};
use outrigger_layer_cache::{Cache, OnDisk, Options};
use outrigger_sim::{Sim, explore};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const CLOSE: &[(&str, &str)] = &[("write", "close")];
pub const BEHIND: &[(&str, &str)] = &[("write", "behind")];

pub fn flush(client: &Client, node: Node, handle: Handle) -> Result<(), Errno> {
    client.ask(Flush { node, handle, owner: LockOwner(1) }).map_err(|error| error.errno)
}

fn fsync(client: &Client, node: Node, handle: Handle) -> Result<(), Errno> {
    client.ask(FSync { node, handle, data_only: false }).map_err(|error| error.errno)
}

/// The content at the other end.
async fn at_other_end(tree: &Arc<dyn Service>, node: Node, offset: u64, len: u32) -> Bytes {
    let (cx, flags) = (Cx::new(99, Credentials::ROOT, "test"), OpenFlags::empty());
    let handle = ask(&**tree, &cx, Open { node, flags }).await.expect("an open file").handle;
    let data = ask(&**tree, &cx, Read { node, handle, offset, len }).await.expect("content");
    let (owner, flock_release) = (LockOwner(99), false);
    ask(&**tree, &cx, Release { node, handle, flags, owner, flock_release }).await.expect("closed");
    data.into_bytes().expect("bytes")
}

/// The start of a file at the other end.
fn truth(client: &Client, node: Node, len: u32) -> Bytes {
    let tree = client.tree.clone();
    client.sim.block_on(async move { at_other_end(&tree, node, 0, len).await })
}

#[test]
fn writing_a_file_waits_for_no_more_than_its_close() {
    let sim = Sim::new(1);
    let (client, node, _) = with_file(&sim, 100, CLOSE);
    let data = pattern(8 << 20, 3);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    let before = client.elapsed();
    write(&client, node, handle, 0, data.clone());
    assert!((client.elapsed() - before).as_millis() < 1, "no write waits");
    flush(&client, node, handle).expect("flushed");
    assert!((client.elapsed() - before).as_millis() <= 15, "the last of them, and the close");
    assert_eq!(client.count(OpCode::Write), 8);
    assert!(truth(&client, node, 8 << 20) == data);
}

#[test]
fn small_writes_become_large_ones() {
    let sim = Sim::new(2);
    let (client, node, _) = with_file(&sim, 100, CLOSE);
    let data = pattern(2 << 20, 3);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    for (number, piece) in data.chunks(4096).enumerate() {
        write(&client, node, handle, number as u64 * 4096, Bytes::copy_from_slice(piece));
    }
    flush(&client, node, handle).expect("flushed");
    assert!(client.count(OpCode::Write) <= 4, "{}", client.count(OpCode::Write));
    assert!(truth(&client, node, 2 << 20) == data);
}

#[test]
fn behind_a_close_waits_for_nothing_and_fsync_for_all() {
    let sim = Sim::new(3);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.arrived();
    client.stall(OpCode::Write, 0);
    write(&client, node, handle, 0, pattern(1000, 1));
    flush(&client, node, handle).expect("flushed");
    assert!(!client.arrived().contains(&OpCode::Write));
    assert_eq!(client.ask(GetAttr { node, handle: None }).expect("attributes").attr.size, 1000);
    client.go_on();
    fsync(&client, node, handle).expect("on stable storage");
    assert_eq!(client.arrived().last(), Some(&OpCode::FSync));
    assert!(truth(&client, node, 1000) == pattern(1000, 1));
}

/// Commands ask for that, with no file open any more.
#[test]
fn synchronising_the_tree_fails_with_the_delayed_write_that_failed() {
    for options in [CLOSE, BEHIND] {
        let sim = Sim::new(5);
        let (client, node, _) = with_file(&sim, 100, options);
        let sync = || client.ask(SyncFs { node: Node::ROOT }).map_err(|error| error.errno);
        assert!(client.top.abilities().ops.has(OpCode::SyncFs));
        let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
        client.fail_writes(1);
        write(&client, node, handle, 0, pattern(1000, 1));
        let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
        client.ask(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
        assert_eq!(sync(), Err(Errno::ENOSPC), "{options:?}");
        assert_eq!(client.control.lost().len(), 1, "no program knows which file it was");
        assert_eq!(sync(), Ok(()), "that was reported");
        client.fail_writes(0);
        let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
        write(&client, node, handle, 0, pattern(1000, 1));
        assert_eq!(sync(), Ok(()));
        assert!(truth(&client, node, 1000) == pattern(1000, 1));
    }
}

/// A server of whole files gets the content when the file is closed there, which is after the program has closed it.
#[test]
fn a_delayed_write_that_fails_when_the_file_is_closed_below_is_lost() {
    let sim = Sim::new(6);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.stall(OpCode::Write, 0);
    write(&client, node, handle, 0, pattern(1000, 1));
    flush(&client, node, handle).expect("that waits for nothing");
    client.go_on();
    client.fail(OpCode::Release);
    let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
    client.ask(Release { node, handle, flags, owner, flock_release: false }).expect_err("not stored");
    let lost: Vec<Node> = client.control.lost().iter().map(|lost| lost.node).collect();
    assert_eq!(lost, [node]);
    let synced = client.ask(SyncFs { node: Node::ROOT }).map_err(|error| error.errno);
    assert_eq!(synced, Err(Errno::ENOSPC));
    let (to_dir, to_name, flags) = (Node::ROOT, name("other"), RenameFlags::empty());
    let renamed = client.ask(Rename { dir: Node::ROOT, name: name("file"), to_dir, to_name, flags });
    assert_eq!(renamed.map_err(|error| error.errno), Err(Errno::ENOSPC));
    assert_eq!(client.control.lost().len(), 1, "who renames it need not be who wrote it");
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    assert_eq!(flush(&client, node, handle), Err(Errno::ENOSPC));
    assert_eq!(fsync(&client, node, handle), Err(Errno::ENOSPC));
    assert!(client.control.lost().is_empty());
}

/// The process that had answered close(2) early dies: what closing the file below brings to light is a loss all the same.
#[test]
fn a_file_that_a_former_process_flushed_early_is_lost_when_it_cannot_be_closed_below() {
    for written_by_the_first in [true, false] {
        let sim = Sim::new(7);
        let (below, keep) = (shared_tree(&sim), HeapKeep::default());
        let mut options = Options::default();
        BEHIND.iter().for_each(|(key, value)| options.set(key, value).expect("a good option"));
        let process = || {
            let cache = Cache::with_keep(&options, sim.clone(), OnDisk::default(), &keep).expect("a cache");
            Client::over(&sim, &below, cache)
        };
        let first = process();
        let node = first.make(Node::ROOT, "file", b"").node;
        let (handle, _) = open(&first, node, OpenFlags::WRITE_ONLY);
        first.stall(OpCode::Write, 0);
        write(&first, node, handle, 0, pattern(1000, 1));
        flush(&first, node, handle).expect("that waits for nothing");
        if written_by_the_first {
            first.go_on();
            let control = first.control.clone();
            sim.block_on(async move { control.written().await });
        }
        let next = process();
        next.lookup(Node::ROOT, "file").expect("it takes over with the first request");
        next.fail(OpCode::Release);
        let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
        next.ask(Release { node, handle, flags, owner, flock_release: false }).expect_err("not stored");
        let lost: Vec<Node> = next.control.lost().iter().map(|lost| lost.node).collect();
        assert_eq!(lost, [node], "written by the first: {written_by_the_first}");
    }
}

#[test]
fn files_that_exchange_their_names_have_no_loss_that_is_not_reported() {
    for (first, second) in [("file", "other"), ("other", "file")] {
        let sim = Sim::new(8);
        let (client, node, _) = with_file(&sim, 100, BEHIND);
        let other = client.make(Node::ROOT, "other", b"").node;
        let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
        client.fail_writes(1);
        write(&client, node, handle, 0, pattern(1000, 1));
        let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
        client.ask(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
        assert_eq!(client.control.lost().len(), 1);
        let exchange = || {
            let (dir, to_dir, flags) = (Node::ROOT, Node::ROOT, RenameFlags::EXCHANGE);
            let op = Rename { dir, name: name(first), to_dir, to_name: name(second), flags };
            client.ask(op).map_err(|error| error.errno)
        };
        assert_eq!(exchange(), Err(Errno::ENOSPC), "{first}");
        assert_eq!(client.lookup(Node::ROOT, "other").expect("found").node, other, "nothing was exchanged");
        assert_eq!(client.control.lost().len(), 1, "who renames it need not be who wrote it");
        assert_eq!(exchange(), Ok(()));
        let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
        assert_eq!(flush(&client, node, handle), Err(Errno::ENOSPC), "{first}");
        assert_eq!(fsync(&client, node, handle), Err(Errno::ENOSPC), "{first}");
        assert!(client.control.lost().is_empty());
    }
}

/// A tree without locks.
struct NoLocks;

impl Layer for NoLocks {
    fn place(&self) -> Place {
        Place::anywhere("no-locks")
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { ops: below.ops.without(OpSet::of(&[OpCode::SetLock, OpCode::GetLock])), ..below }
    }
}

/// A server of whole files would get it for each descriptor that a shell closes, the first time empty.
#[test]
fn a_file_is_stored_once_when_its_last_descriptor_is_closed() {
    let sim = Sim::new(9);
    let tree = Stack::new(shared_tree(&sim)).push(NoLocks).expect("any order is good").service();
    Client::new(&sim, &tree, &[]).make(Node::ROOT, "file", b"old");
    let client = Client::new(&sim, &tree, BEHIND);
    let node = client.lookup(Node::ROOT, "file").expect("the file").node;
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.stall(OpCode::Write, 0);
    write(&client, node, handle, 0, pattern(1000, 1));
    client.arrived();
    flush(&client, node, handle).expect("that waits for nothing");
    client.go_on();
    let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
    client.ask(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
    assert_eq!(client.arrived(), [OpCode::Write, OpCode::Release]);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.arrived();
    flush(&client, node, handle).expect("by the shell");
    write(&client, node, handle, 0, pattern(1000, 1));
    fsync(&client, node, handle).expect("made");
    flush(&client, node, handle).expect("by the program");
    assert_eq!(client.arrived(), [OpCode::Write, OpCode::FSync]);
}

/// `echo text > file` of a shell: the file is emptied, a copy of the descriptor is closed, and then the text is written.
#[test]
fn that_a_file_was_emptied_is_not_stored_before_something_is_written_or_all_is_closed() {
    for options in [CLOSE, BEHIND, &[("write", "through")]] {
        let sim = Sim::new(13);
        let tree = Stack::new(shared_tree(&sim)).push(NoLocks).expect("any order is good").service();
        Client::new(&sim, &tree, &[]).make(Node::ROOT, "file", b"old");
        let client = Client::new(&sim, &tree, options);
        let node = client.lookup(Node::ROOT, "file").expect("the file").node;
        let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
        let emptied = || {
            let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
            let attrs = SetAttrs { size: Some(0), ..SetAttrs::default() };
            client.ask(SetAttr { node, handle: None, attrs }).expect("emptied");
            client.arrived();
            flush(&client, node, handle).expect("of the copy");
            assert_eq!(client.arrived(), [], "{options:?}");
            handle
        };
        let handle = emptied();
        write(&client, node, handle, 0, pattern(10, 1));
        flush(&client, node, handle).expect("of the descriptor");
        client.ask(FSync { node, handle, data_only: false }).expect("stored");
        let flushes = client.arrived().into_iter().filter(|op| *op == OpCode::Flush).count();
        assert_eq!(flushes, usize::from(options != BEHIND), "{options:?}");
        client.ask(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
        // What fails when nothing was written is told of by whatever tells of losses.
        let handle = emptied();
        client.fail(OpCode::Release);
        client.ask(Release { node, handle, flags, owner, flock_release: false }).expect_err("not stored");
        assert_eq!(client.control.lost().len(), 1, "{options:?}");
        let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
        assert!(flush(&client, node, handle).is_err(), "{options:?}");
    }
}

/// A driver that learns of a close before it has the content stores what it has, and lets locks go too early.
#[test]
fn a_tree_with_locks_is_flushed_after_what_was_written_behind() {
    let sim = Sim::new(11);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::READ_WRITE);
    client.stall(OpCode::Write, 0);
    write(&client, node, handle, 0, pattern(1000, 1));
    client.arrived();
    flush(&client, node, handle).expect("without a lock that waits for nothing");
    client.go_on();
    let (owner, flags) = (LockOwner(1), OpenFlags::READ_WRITE);
    client.ask(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
    assert_eq!(client.arrived(), [OpCode::Write, OpCode::Flush, OpCode::Release]);
    // Locks end with any descriptor of the file, also of one that only reads.
    for flags in [OpenFlags::READ_WRITE, OpenFlags::empty()] {
        let (writer, _) = open(&client, node, OpenFlags::READ_WRITE);
        let (closed, _) = open(&client, node, flags);
        let lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Write, pid: 1 };
        client.ask(SetLock { node, handle: writer, owner, lock, wait: false, flock: false }).expect("locked");
        client.arrived();
        write(&client, node, writer, 0, pattern(1000, 2));
        flush(&client, node, closed).expect("flushed");
        assert_eq!(client.arrived(), [OpCode::Write, OpCode::Flush], "{flags:?}");
        for (handle, flags) in [(closed, flags), (writer, OpenFlags::READ_WRITE)] {
            client.ask(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
        }
    }
    // All is closed: the locks are gone.
    let (handle, _) = open(&client, node, OpenFlags::READ_WRITE);
    client.stall(OpCode::Write, 0);
    write(&client, node, handle, 0, pattern(1000, 3));
    flush(&client, node, handle).expect("that waits for nothing");
    client.go_on();
}

/// Some programs store content when a descriptor is closed: what fails then is a loss.
#[test]
fn a_late_flush_that_fails_is_a_loss() {
    let sim = Sim::new(12);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    write(&client, node, handle, 0, pattern(1000, 1));
    flush(&client, node, handle).expect("that waits for nothing");
    client.fail(OpCode::Flush);
    let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
    let releases = client.count(OpCode::Release);
    client.ask(Release { node, handle, flags, owner, flock_release: false }).expect_err("not stored");
    assert_eq!(client.count(OpCode::Release), releases + 1, "closed all the same");
    let lost: Vec<Node> = client.control.lost().iter().map(|lost| lost.node).collect();
    assert_eq!(lost, [node]);
}

/// The kernel asks nothing more once a tree is unmounted, not even to close files.
#[test]
fn what_programs_have_closed_is_closed_below_when_the_tree_ends() {
    let sim = Sim::new(10);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let before = client.count(OpCode::Release);
    let opened = [open(&client, node, OpenFlags::WRITE_ONLY), open(&client, node, OpenFlags::WRITE_ONLY)];
    for (number, (handle, _)) in opened.into_iter().enumerate() {
        write(&client, node, handle, 1000 * number as u64, pattern(1000, 1));
        flush(&client, node, handle).expect("that waits for nothing");
    }
    let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
    let release = Release { node, handle: opened[0].0, flags, owner, flock_release: false };
    let (top, control) = (Arc::clone(&client.top), client.control.clone());
    let is_closed = Arc::new(AtomicBool::new(false));
    let closed = Arc::clone(&is_closed);
    sim.spawn(Box::pin(async move {
        let released = ask(&*top, &Cx::new(1, Credentials::ROOT, "test"), release).await;
        closed.store(released.is_ok(), Ordering::Relaxed);
    }));
    sim.block_on(async move { control.end().await });
    assert!(is_closed.load(Ordering::Relaxed), "what is being closed is waited for");
    let releases = client.count(OpCode::Release) - before;
    assert_eq!(releases, 2);
    assert!(truth(&client, node, 2000) == pattern(1000, 1).repeat(2));
}

#[test]
fn a_file_of_which_a_write_failed_gets_no_other_name_by_a_link() {
    let sim = Sim::new(8);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.fail_writes(1);
    write(&client, node, handle, 0, pattern(1000, 1));
    let (owner, flags) = (LockOwner(1), OpenFlags::WRITE_ONLY);
    client.ask(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
    let link =
        || client.ask(Link { node, dir: Node::ROOT, name: name("other") }).map_err(|error| error.errno);
    assert_eq!(link().map(drop), Err(Errno::ENOSPC));
    assert_eq!(link().map(drop), Ok(()), "that was reported");
}

/// A file can be located while its write-back is stalled.
#[test]
fn where_a_file_is_can_be_told_while_it_is_being_written() {
    let sim = Sim::new(4);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.stall(OpCode::Write, 0);
    write(&client, node, handle, 0, pattern(1000, 1));
    client.ask(Locate { node }).map(drop).unwrap_or_else(|error| assert_eq!(error.errno, Errno::ENOSYS));
}

#[test]
fn who_waits_for_what_was_written_does_not_wait_for_what_is_written_later() {
    let sim = Sim::new(3);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.stall(OpCode::Write, 1);
    write(&client, node, handle, 0, pattern(1000, 1));
    let before = client.control.mark();
    assert_eq!(client.control.unwritten(before), (1, 1000));
    write(&client, node, handle, 5000, pattern(200, 1));
    let (control, after) = (client.control.clone(), client.control.mark());
    let within = Duration::from_secs(1);
    assert!(sim.block_on(async move { control.written_within(before, within).await }));
    assert_eq!(client.control.unwritten(before), (0, 0));
    assert_eq!(client.control.unwritten(after), (1, 200), "the later one is held back");
    client.go_on();
    let control = client.control.clone();
    assert!(sim.block_on(async move { control.written_within(after, within).await }));
    assert_eq!(client.control.unwritten(after), (0, 0));
}

#[test]
fn what_failed_is_told_once_to_who_closes_or_syncs() {
    for mode in [CLOSE, BEHIND] {
        let sim = Sim::new(4);
        let (client, node, data) = with_file(&sim, 1000, mode);
        let (one, _) = open(&client, node, OpenFlags::READ_WRITE);
        let (two, _) = open(&client, node, OpenFlags::READ_WRITE);
        client.fail_writes(1);
        write(&client, node, one, 0, pattern(1000, 1));
        for handle in [one, two] {
            assert_eq!(fsync(&client, node, handle), Err(Errno::ENOSPC));
            assert_eq!(fsync(&client, node, handle), Ok(()));
        }
        write(&client, node, one, 0, pattern(1000, 1));
        let control = client.control.clone();
        sim.block_on(async move { control.written().await });
        assert_eq!(flush(&client, node, one), Err(Errno::ENOSPC));
        assert_eq!(flush(&client, node, one), Err(Errno::ENOSPC), "until the last descriptor is closed");
        let (flags, owner, flock_release) = (OpenFlags::READ_WRITE, LockOwner(1), false);
        client.ask(Release { node, handle: one, flags, owner, flock_release }).expect("released");
        assert_eq!(client.control.lost().len(), 0, "close said it");
        assert!(read(&client, node, two, 0, 1000) == data, "nobody is shown what is not there");
    }
}

#[test]
fn fsync_says_what_the_close_of_a_copy_of_the_descriptor_was_told() {
    for mode in [CLOSE, BEHIND] {
        let sim = Sim::new(4);
        let (client, node, _) = with_file(&sim, 1000, mode);
        let (handle, _) = open(&client, node, OpenFlags::READ_WRITE);
        client.fail_writes(1);
        write(&client, node, handle, 0, pattern(1000, 1));
        let control = client.control.clone();
        sim.block_on(async move { control.written().await });
        assert_eq!(flush(&client, node, handle), Err(Errno::ENOSPC));
        assert_eq!(client.control.lost().len(), 1, "nobody has asked for it");
        assert_eq!(fsync(&client, node, handle), Err(Errno::ENOSPC));
        assert_eq!(client.control.lost().len(), 0);
        assert_eq!(fsync(&client, node, handle), Ok(()));
        assert_eq!(flush(&client, node, handle), Ok(()));
    }
}

#[test]
fn a_file_is_complete_when_it_takes_the_name_of_another() {
    explore(0..30, |sim| {
        let (client, node, data) = with_file(sim, 5000, BEHIND);
        client.wander();
        let new = client.make(Node::ROOT, "new", b"").node;
        let fails = sim.below(2) == 0;
        client.fail_writes(u64::from(fails));
        let (handle, _) = open(&client, new, OpenFlags::WRITE_ONLY);
        write(&client, new, handle, 0, pattern(300_000, 9));
        let (to_dir, to_name, flags) = (Node::ROOT, name("file"), RenameFlags::empty());
        client.arrived();
        let renamed = client.ask(Rename { dir: Node::ROOT, name: name("new"), to_dir, to_name, flags });
        let arrived = client.arrived();
        match fails {
            true => {
                assert_eq!(renamed.map_err(|error| error.errno), Err(Errno::ENOSPC));
                assert!(truth(&client, node, 5000) == data, "what was well stays");
            }
            false => {
                renamed.expect("renamed");
                assert!(truth(&client, new, 300_000) == pattern(300_000, 9));
                let after = arrived.iter().skip_while(|&&op| op != OpCode::Rename);
                assert!(after.filter(|&&op| op == OpCode::Write).count() == 0, "{arrived:?}");
            }
        }
    });
}

#[test]
fn attributes_are_set_after_what_was_written() {
    explore(0..30, |sim| {
        let (client, node, _) = with_file(sim, 0, BEHIND);
        client.wander();
        let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
        write(&client, node, handle, 0, pattern(200_000, 1));
        let cut = SetAttrs { size: Some(1000), ..SetAttrs::default() };
        let attrs = client.ask(SetAttr { node, handle: None, attrs: cut }).expect("cut");
        assert_eq!(attrs.attr.size, 1000);
        write(&client, node, handle, 2000, pattern(100, 1));
        assert_eq!(client.ask(GetAttr { node, handle: None }).expect("attributes").attr.size, 2100);
        client.close(node, handle, OpenFlags::WRITE_ONLY);
        pass_time(sim, Duration::from_secs(1));
        assert_eq!(truth(&client, node, 1 << 20).len(), 2100);
    });
}

/// Writes to one part of a file, and checks the other end after each fsync of it.
async fn use_own_part(sim: Arc<Sim>, client: Arc<Client>, node: Node, part: u64) {
    const PART: u64 = 10_000;
    let (top, cx) = (client.top.clone(), Cx::new(part, Credentials::ROOT, "test"));
    let flags = OpenFlags::READ_WRITE;
    let handle = ask(&*top, &cx, Open { node, flags }).await.expect("an open file").handle;
    let mut own = vec![0; PART as usize];
    let mut sure = false;
    for round in 0..30_u8 {
        let (mut at, mut len) = (sim.below(PART) as usize, sim.below(PART) as usize);
        if !sure {
            (at, len) = (0, PART as usize);
        }
        let data = pattern(len.min(own.len() - at), round);
        own[at..at + data.len()].copy_from_slice(&data);
        let (offset, data) = (part * PART + at as u64, Payload::Bytes(data));
        let write = Write { node, handle, offset, data, cached: false, kill_setid: false };
        sure = ask(&*top, &cx, write).await.is_ok() && (sure || len == PART as usize);
        assert!(client.control.usage().behind <= 40_000, "memory is bounded");
        if sim.below(3) > 0 {
            continue;
        }
        if ask(&*top, &cx, FSync { node, handle, data_only: true }).await.is_err() {
            sure = false;
            continue;
        }
        let found = at_other_end(&client.tree, node, part * PART, PART as u32).await;
        assert!(!sure || found[..] == own[..], "part {part}, round {round}");
    }
    let owner = LockOwner(part);
    let _ = ask(&*top, &cx, Flush { node, handle, owner }).await;
    ask(&*top, &cx, Release { node, handle, flags, owner, flock_release: false }).await.expect("released");
}

#[test]
fn what_fsync_has_acknowledged_is_at_the_other_end_whatever_fails() {
    explore(0..150, |sim| {
        let mode = ["close", "behind"][sim.below(2) as usize];
        let (client, node, _) = with_file(sim, 50_000, &[("write", mode), ("write_memory", "30k")]);
        let client = Arc::new(client);
        client.wander();
        client.fail_writes(sim.below(3) * 10);
        for part in 0..5 {
            sim.spawn(Box::pin(use_own_part(sim.clone(), client.clone(), node, part)));
        }
        assert_eq!(sim.run(), 0, "everything ends");
        assert_eq!(client.control.usage().behind, 0);
    });
}

#[test]
fn modes_hold_where_they_were_chosen() {
    let sim = Sim::new(9);
    let tree = shared_tree(&sim);
    let client = Client::new(&sim, &tree, &[("write", "close"), ("write:/careful", "through")]);
    client.need_no_flush();
    let dir = client.mkdir(Node::ROOT, "careful");
    for (dir, waits) in [(Node::ROOT, false), (dir, true)] {
        let node = client.make(dir, "file", b"").node;
        let (handle, how) = open(&client, node, OpenFlags::WRITE_ONLY);
        assert_eq!(
            how.contains(OpenHow::NO_FLUSH),
            waits,
            "closing waits for writes, or they for themselves"
        );
        let before = client.elapsed();
        write(&client, node, handle, 0, pattern(10, 1));
        assert_eq!((client.elapsed() - before).as_millis() >= 5, waits);
        flush(&client, node, handle).expect("written");
        assert_eq!(client.count(OpCode::Flush), 0, "the tree has nothing to do then");
        client.close(node, handle, OpenFlags::WRITE_ONLY);
    }
}
