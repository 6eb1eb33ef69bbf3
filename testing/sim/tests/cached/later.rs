// SPDX-License-Identifier: MIT OR Apache-2.0
//! `write=SECONDS`: a file that was closed is closed below, which stores it at a server of whole files, up to so much later.

use crate::client::{Client, name, pass_time, shared_tree};
use crate::content::{open, pattern, read_all, rewrite, with_file, write};
use outrigger_core::ops::*;
use outrigger_core::{Errno, Handle, HeapKeep, LockOwner, Node, OpCode};
use outrigger_layer_cache::{Cache, OnDisk, Options};
use outrigger_sim::Sim;
use std::time::Duration;

const LATER: &[(&str, &str)] = &[("write", "30")];

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How many files were closed at the other end since the last call.
fn closed(client: &Client) -> usize {
    client.arrived().into_iter().filter(|op| *op == OpCode::Release).count()
}

fn flush(client: &Client, node: Node, handle: Handle) -> Result<(), Errno> {
    client.ask(Flush { node, handle, owner: LockOwner(1) }).map_err(|error| error.errno)
}

/// A client, and a file that was written a moment ago and is to be closed below in 30 seconds.
fn waiting(seed: u64) -> (Client, Node) {
    let (client, node, _) = with_file(&Sim::new(seed), 100, LATER);
    closed(&client);
    rewrite(&client, node, &pattern(1000, 1));
    (client, node)
}

#[test]
fn a_file_that_is_written_several_times_is_stored_once_when_its_time_has_come() {
    let (client, node) = waiting(1);
    let before = client.elapsed();
    for seed in 2..5 {
        pass_time(&client.sim, seconds(5));
        rewrite(&client, node, &pattern(1000, seed));
        assert_eq!(read_all(&client, node, 4096).0, pattern(1000, seed), "a reader here sees what is new");
    }
    assert!(client.elapsed() - before < seconds(16), "no close waits");
    assert!(client.arrived().contains(&OpCode::Write));
    assert_eq!(client.control.unstored(), [node]);
    // The first of the handles is closed below at 30 s, which stores what is there, the last at 45 s.
    pass_time(&client.sim, seconds(14));
    assert_eq!(closed(&client), 0);
    pass_time(&client.sim, seconds(2));
    assert_eq!(closed(&client), 1);
    pass_time(&client.sim, seconds(15));
    assert_eq!(closed(&client), 3);
    assert!(client.control.unstored().is_empty() && client.control.lost().is_empty());
}

#[test]
fn a_delay_in_percent_is_one_of_the_age_that_the_file_had() {
    let (client, node, _) = with_file(&Sim::new(7), 100, &[("write", "10%")]);
    closed(&client);
    // It was made an hour ago.
    rewrite(&client, node, &pattern(1000, 1));
    pass_time(&client.sim, seconds(350));
    assert_eq!(closed(&client), 0);
    pass_time(&client.sim, seconds(15));
    assert_eq!(closed(&client), 1);
    // It is young now.
    rewrite(&client, node, &pattern(1000, 2));
    assert_eq!(closed(&client), 0);
    pass_time(&client.sim, seconds(2));
    assert_eq!(closed(&client), 1);
}

/// What a user does who wants a file to be stored.
#[derive(Debug, Clone, Copy)]
enum Way {
    FSync,
    SyncFs,
    End,
    Wait,
}

#[test]
fn whatever_asks_for_a_stable_file_has_it_stored_at_once() {
    let fsync = |client: &Client, node| {
        let (handle, _) = open(client, node, OpenFlags::empty());
        client.ask(FSync { node, handle, data_only: false }).expect("synchronised");
    };
    let syncfs = |client: &Client| {
        client.ask(SyncFs { node: Node::ROOT }).expect("synchronised");
    };
    let end = |client: &Client| {
        let control = client.control.clone();
        client.sim.block_on(async move { control.end().await });
    };
    let wait = |client: &Client| {
        let (control, mark) = (client.control.clone(), client.control.mark());
        assert_eq!(control.unwritten(mark).0, 1, "it is still to be stored");
        assert!(client.sim.block_on(async move { control.written_within(mark, seconds(1)).await }));
        assert_eq!(client.control.unwritten(mark), (0, 0));
    };
    for way in [Way::FSync, Way::SyncFs, Way::End, Way::Wait] {
        let (client, node) = waiting(2);
        let before = client.elapsed();
        match way {
            Way::FSync => fsync(&client, node),
            Way::SyncFs => syncfs(&client),
            Way::End => end(&client),
            Way::Wait => wait(&client),
        }
        assert_eq!(closed(&client), 1, "{way:?}");
        assert!(client.elapsed() - before < seconds(1), "{way:?}");
    }
}

#[test]
fn who_writes_when_the_time_has_come_has_it_stored_with_that_but_not_for_ever() {
    let (client, node) = waiting(3);
    let flags = OpenFlags::WRITE_ONLY;
    let (handle, _) = open(&client, node, flags);
    pass_time(&client.sim, seconds(40));
    assert_eq!(closed(&client), 0, "a part of what is written would be stored");
    write(&client, node, handle, 0, pattern(1000, 2));
    client.close(node, handle, flags);
    pass_time(&client.sim, seconds(1));
    assert_eq!(closed(&client), 1);
    pass_time(&client.sim, seconds(30));
    assert_eq!(closed(&client), 1);
    rewrite(&client, node, &pattern(1000, 3));
    open(&client, node, flags);
    pass_time(&client.sim, seconds(61));
    assert_eq!(closed(&client), 1);
}

#[test]
fn a_file_that_cannot_be_stored_later_is_lost_by_name_and_synchronising_fails() {
    let (client, node) = waiting(4);
    client.fail(OpCode::Release);
    pass_time(&client.sim, seconds(31));
    let lost: Vec<Node> = client.control.lost().iter().map(|lost| lost.node).collect();
    assert_eq!(lost, [node]);
    let synced = client.ask(SyncFs { node: Node::ROOT }).map_err(|error| error.errno);
    assert_eq!(synced, Err(Errno::ENOSPC));
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    assert_eq!(flush(&client, node, handle), Err(Errno::ENOSPC), "whoever opens it next is told");
}

#[test]
fn a_door_may_forget_a_file_that_is_still_to_be_stored() {
    let (client, node) = waiting(5);
    client.ask(Forget { node, count: 1 }).expect("forgotten");
    client.control.flush();
    pass_time(&client.sim, seconds(31));
    assert_eq!(closed(&client), 1);
    assert!(client.control.lost().is_empty());
    let found = client.lookup(Node::ROOT, "file").expect("found");
    assert_eq!((found.node, found.attr.size), (node, 1000));
}

/// The process that has answered the release dies: the next one stores the file at once, and what fails then is lost.
#[test]
fn the_next_process_stores_what_waited() {
    for fails in [false, true] {
        let sim = Sim::new(6);
        let (below, keep) = (shared_tree(&sim), HeapKeep::default());
        let mut options = Options::default();
        LATER.iter().for_each(|(key, value)| options.set(key, value).expect("a good option"));
        let process = || {
            let cache = Cache::with_keep(&options, sim.clone(), OnDisk::default(), &keep).expect("a cache");
            Client::over(&sim, &below, cache)
        };
        let first = process();
        let node = first.make(Node::ROOT, "file", b"content").node;
        assert_eq!(closed(&first), 0);
        let next = process();
        if fails {
            next.fail(OpCode::Release);
        }
        next.lookup(Node::ROOT, "file").expect("it takes over with the first request");
        // All that there are, as after a death: it has to be stored before.
        next.ask(Forget { node, count: u64::MAX }).expect("forgotten");
        assert_eq!(next.arrived().into_iter().filter(|op| *op == OpCode::Release).count(), 1);
        assert_eq!(next.control.lost().len(), usize::from(fails));
        assert!(next.control.unstored().is_empty());
        let third = process();
        third.lookup(Node::ROOT, "file").expect("nothing is left to take over");
        pass_time(&sim, seconds(1));
        assert_eq!(closed(&third), 0);
    }
}

#[test]
fn not_more_than_some_files_wait() {
    let sim = Sim::new(7);
    let client = Client::new(&sim, &shared_tree(&sim), LATER);
    for number in 0..1025 {
        client.make(Node::ROOT, &format!("file-{number}"), b"x");
    }
    assert_eq!(closed(&client), 1, "the last one was closed at once");
    assert_eq!(client.control.unstored().len(), 1024);
    client.ask(Unlink { dir: Node::ROOT, name: name("file-0") }).expect("removed");
    pass_time(&sim, seconds(60));
    assert_eq!(closed(&client), 1024);
}
