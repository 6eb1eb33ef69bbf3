// SPDX-License-Identifier: MIT OR Apache-2.0
//! Write-back of permissions and times.

use crate::client::{Client, name, pass_time, shared_tree};
use crate::content::{pattern, write};
use outrigger_core::ops::*;
use outrigger_core::reply::Created;
use outrigger_core::{
    Abilities, Attr, Credentials, Cx, Errno, Handle, HeapKeep, Layer, LockOwner, Node, OpCode, Place,
    Runtime, Service, SetAttrs, SetTime, Stack, Time, ask,
};
use outrigger_layer_cache::{Cache, OnDisk, Options};
use outrigger_sim::{Sim, explore};
use std::sync::Arc;
use std::time::Duration;

const CLOSE: &[(&str, &str)] = &[("write", "close")];
const FLAGS: OpenFlags = OpenFlags::WRITE_ONLY.union(OpenFlags::EXCL);

/// A tree that keeps the order of what comes by one handle.
struct InOrder;

impl Layer for InOrder {
    fn place(&self) -> Place {
        Place::anywhere("in-order")
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { in_order: true, ..below }
    }
}

fn tree(sim: &Arc<Sim>, in_order: bool) -> Arc<dyn Service> {
    let tree = shared_tree(sim);
    if in_order { Stack::new(tree).push(InOrder).expect("any order is good").service() } else { tree }
}

fn created(client: &Client, text: &str) -> (Node, Handle) {
    let create =
        Create { dir: Node::ROOT, name: name(text), mode: 0o600, umask: 0, flags: FLAGS, initial: None };
    let Created { entry, opened } = client.ask(create).expect("a new file");
    (entry.node, opened.handle)
}

fn set(client: &Client, node: Node, attrs: SetAttrs) -> Attr {
    client.ask(SetAttr { node, handle: None, attrs }).expect("set").attr
}

fn mode(mode: u32) -> SetAttrs {
    SetAttrs { mode: Some(mode), ..SetAttrs::default() }
}

fn mtime(secs: i64) -> SetAttrs {
    SetAttrs { mtime: Some(SetTime::To(Time::new(secs, 7))), ..SetAttrs::default() }
}

fn close(client: &Client, node: Node, handle: Handle) -> Result<(), Errno> {
    let flushed = client.ask(Flush { node, handle, owner: LockOwner(1) }).map_err(|error| error.errno);
    let (owner, flock_release) = (LockOwner(1), false);
    client.ask(Release { node, handle, flags: FLAGS, owner, flock_release }).expect("released");
    flushed
}

/// What a client without a cache finds.
fn truth(client: &Client, node: Node) -> Attr {
    let other = Client::new(&client.sim, &client.tree, &[("cache", "never")]);
    other.ask(GetAttr { node, handle: None }).expect("attributes").attr
}

#[test]
fn what_is_set_while_a_file_is_written_costs_its_user_one_round_trip_at_the_end() {
    for in_order in [false, true] {
        let sim = Sim::new(1);
        let client = Client::new(&sim, &tree(&sim, in_order), CLOSE);
        let (node, handle) = created(&client, "file");
        let (before, uid) = (client.elapsed(), truth(&client, node).uid);
        let after_truth = client.elapsed();
        write(&client, node, handle, 0, pattern(1000, 1));
        set(&client, node, mtime(5));
        let owner = SetAttrs { uid: Some(uid), kill_setid: true, ..SetAttrs::default() };
        set(&client, node, owner);
        let told = set(&client, node, mode(0o640));
        assert_eq!((told.permissions(), told.mtime, told.size), (0o640, Time::new(5, 7), 1000));
        let asked = client.ask(GetAttr { node, handle: None }).expect("attributes").attr;
        assert_eq!(asked, told, "what was answered is what is told");
        assert!((client.elapsed() - after_truth).as_millis() < 1, "nobody waited");
        assert!(before < after_truth);
        close(&client, node, handle).expect("closed");
        let trips = (client.elapsed() - after_truth).as_millis() / 5;
        assert_eq!(
            trips,
            if in_order { 3 } else { 4 },
            "of writing, of setting where that waits, and of closing"
        );
        assert_eq!((client.count(OpCode::Write), client.count(OpCode::SetAttr)), (1, 1));
        let found = truth(&client, node);
        assert_eq!((found.permissions(), found.mtime, found.size), (0o640, Time::new(5, 7), 1000));
        client.passed();
        let asked = client.ask(GetAttr { node, handle: None }).expect("attributes").attr;
        assert_eq!((asked.mtime, client.passed()), (found.mtime, 0), "and nobody has to ask");
    }
}

#[test]
fn a_write_that_follows_changes_the_time_again() {
    let sim = Sim::new(2);
    let client = Client::new(&sim, &tree(&sim, false), CLOSE);
    let (node, handle) = created(&client, "file");
    write(&client, node, handle, 0, pattern(10, 1));
    set(&client, node, mtime(5));
    write(&client, node, handle, 10, pattern(10, 1));
    let told = client.ask(GetAttr { node, handle: None }).expect("attributes").attr;
    assert!(told.mtime.secs > 5 && told.size == 20, "{told:?}");
    close(&client, node, handle).expect("closed");
    let found = truth(&client, node);
    assert!(found.mtime.secs > 5 && found.size == 20, "{found:?}");
}

/// What may be refused is asked before it is answered: another owner, set-id bits, files that are not open or not ours; and
/// everything, where writes are made before they are answered.
/// It is set by the handle that writes, which may be about to be closed.
#[test]
fn what_is_set_by_a_handle_is_set_before_that_is_closed() {
    for in_order in [false, true] {
        explore(0..50, |sim| {
            let client = Client::new(sim, &tree(sim, in_order), &[("write", "behind")]);
            let (node, handle) = created(&client, "file");
            client.wander();
            client.stall(OpCode::Write, 0);
            write(&client, node, handle, 0, pattern(100, 1));
            let (top, owner) = (client.top.clone(), LockOwner(1));
            sim.spawn(Box::pin(async move {
                let release = Release { node, handle, flags: FLAGS, owner, flock_release: false };
                ask(&*top, &Cx::new(2, Credentials::ROOT, "test"), release).await.expect("closed");
            }));
            pass_time(sim, Duration::from_secs(1));
            let before = client.elapsed();
            assert_eq!(set(&client, node, mode(0o640)).permissions(), 0o640);
            assert!((client.elapsed() - before).as_millis() < 1, "it is set later");
            client.go_on();
            sim.run();
            let arrived = client.arrived();
            let at = |op| arrived.iter().position(|&one| one == op);
            assert!(at(OpCode::SetAttr) < at(OpCode::Release), "{arrived:?}");
            assert!(at(OpCode::SetAttr).is_some() && client.control.lost().is_empty());
            assert_eq!(truth(&client, node).permissions(), 0o640);
        });
    }
}

#[test]
fn what_a_setting_tells_of_the_file_ends_with_the_write_after_it() {
    explore(0..100, |sim| {
        let client = Client::new(sim, &tree(sim, true), &[("write", "behind")]);
        let (node, handle) = created(&client, "file");
        write(&client, node, handle, 0, pattern(100, 1));
        client.wander();
        set(&client, node, mode(0o640));
        write(&client, node, handle, 200, pattern(100, 1));
        client.ask(FSync { node, handle, data_only: true }).expect("written");
        let attr = client.ask(GetAttr { node, handle: None }).expect("attributes").attr;
        assert_eq!((attr.size, attr.permissions()), (300, 0o640));
    });
}

#[test]
fn what_may_be_refused_is_not_put_off() {
    for (writes, attrs, is_open) in [
        ("close", SetAttrs { uid: Some(77), ..SetAttrs::default() }, true),
        ("close", mode(0o4755), true),
        ("close", SetAttrs { size: Some(3), ..SetAttrs::default() }, true),
        ("close", mode(0o640), false),
        ("through", mode(0o640), true),
    ] {
        let sim = Sim::new(3);
        let client = Client::new(&sim, &tree(&sim, true), &[("write", writes)]);
        let (node, handle) = created(&client, "file");
        if !is_open {
            close(&client, node, handle).expect("closed");
        }
        let before = client.elapsed();
        set(&client, node, attrs.clone());
        assert!((client.elapsed() - before).as_millis() >= 5, "{writes}, {attrs:?}");
    }
}

#[test]
fn a_setting_that_fails_is_told_when_the_file_is_closed() {
    let sim = Sim::new(4);
    let client = Client::new(&sim, &tree(&sim, true), CLOSE);
    let (node, handle) = created(&client, "file");
    client.fail(OpCode::SetAttr);
    set(&client, node, mode(0o640));
    assert_eq!(close(&client, node, handle), Err(Errno::ENOSPC));
    assert_eq!(client.ask(GetAttr { node, handle: None }).expect("attributes").attr.permissions(), 0o600);
}

#[test]
fn a_new_directory_is_known_to_be_empty() {
    let sim = Sim::new(5);
    let client = Client::new(&sim, &tree(&sim, false), CLOSE);
    let dir = client.mkdir(Node::ROOT, "dir");
    client.passed();
    for number in 0..10 {
        client.lookup(dir, &format!("{number}")).expect_err("no such name");
    }
    assert_eq!(client.passed(), 0);
    client.make(dir, "file", b"");
    assert_eq!(client.list(dir).expect("listed").len(), 1);
}

/// A process dies with an answered write and an answered setattr pending: its successor makes both, in order.
#[test]
fn what_was_set_survives_the_process() {
    explore(0..40, |sim| {
        let (below, keep) = (tree(sim, sim.below(2) == 0), HeapKeep::default());
        let mut options = Options::default();
        CLOSE.iter().for_each(|(key, value)| options.set(key, value).expect("a good option"));
        let process = || {
            let cache = Cache::with_keep(&options, sim.clone(), OnDisk::default(), &keep).expect("a cache");
            Client::over(sim, &below, cache)
        };
        let first = process();
        let (node, handle) = created(&first, "file");
        let stalled = [OpCode::Write, OpCode::SetAttr][sim.below(2) as usize];
        first.stall(stalled, 0);
        write(&first, node, handle, 0, pattern(1000, 1));
        set(&first, node, mtime(5));
        set(&first, node, mode(0o640));
        if sim.below(2) == 0 {
            pass_time(sim, Duration::from_secs(1));
        }
        let next = process();
        let control = next.control.clone();
        // It takes over with the first request.
        next.lookup(Node::ROOT, "file").expect("found");
        sim.block_on(async move { control.written().await });
        let found = truth(&next, node);
        assert_eq!((found.permissions(), found.mtime, found.size), (0o640, Time::new(5, 7), 1000));
    });
}
