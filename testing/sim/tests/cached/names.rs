// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names and attributes.

use crate::client::{Client, name, old_tree, pass_time};
use outrigger_core::ops::*;
use outrigger_core::{
    Clock, Credentials, Cx, Errno, FileKind, LockOwner, Name, Node, Op, OpCode, Payload, Result, Runtime,
    Service, SetAttrs,
};
use outrigger_sim::{Sim, explore};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

#[test]
fn listing_all_of_a_tree_a_second_time_asks_nothing() {
    let sim = Sim::new(1);
    let tree = old_tree(&sim, 20, 30);
    let client = Client::new(&sim, &tree, &[]);
    let first = client.everything();
    assert_eq!(first.len(), 20 + 20 * 30);
    // The root's attributes; and for each directory opening, one piece, closing.
    assert!(client.passed() <= 1 + 21 * 3);
    assert_eq!(client.everything(), first);
    assert_eq!(client.passed(), 0);
    pass_time(&sim, Duration::from_secs(21));
    assert_eq!(client.everything(), first);
    assert!(client.passed() <= 1 + 21 * 3, "after the time has passed directories are asked, not files");
}

#[test]
fn names_that_are_asked_for_one_by_one_are_listed() {
    let sim = Sim::new(2);
    let tree = old_tree(&sim, 1, 500);
    let client = Client::new(&sim, &tree, &[]);
    let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    client.passed();
    for file in 0..500 {
        client.lookup(dir, &format!("file-{file}")).expect("a file");
        let missing = client.lookup(dir, &format!("missing-{file}"));
        assert_eq!(missing.map_err(|error| error.errno).err(), Some(Errno::ENOENT));
    }
    assert!(client.passed() < 20);
}

#[test]
fn a_name_that_was_looked_up_is_believed_whether_it_exists_or_not() {
    let sim = Sim::new(3);
    let tree = old_tree(&sim, 1, 1);
    let client = Client::new(&sim, &tree, &[]);
    for _ in 0..3 {
        client.lookup(Node::ROOT, "dir-0").expect("the directory");
        client.lookup(Node::ROOT, "nothing").expect_err("no such name");
    }
    assert_eq!(client.passed(), 2);
    pass_time(&sim, Duration::from_secs(5));
    client.lookup(Node::ROOT, "dir-0").expect("what is old is believed for longer");
    assert_eq!(client.passed(), 0);
    client.lookup(Node::ROOT, "nothing").expect_err("no such name");
    assert_eq!(client.passed(), 1);
}

#[test]
fn own_changes_are_seen_at_once_and_cost_nothing_but_themselves() {
    let sim = Sim::new(4);
    let tree = old_tree(&sim, 1, 100);
    let client = Client::new(&sim, &tree, &[]);
    let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    client.list(dir).expect("a listing");
    client.passed();
    client.lookup(dir, "new").expect_err("no such name");
    let new = client.make(dir, "new", b"");
    client.ask(Unlink { dir, name: name("file-0") }).expect("removed");
    let (to_dir, flags) = (dir, RenameFlags::empty());
    let rename = Rename { dir, name: name("file-1"), to_dir, to_name: name("moved"), flags };
    client.ask(rename).expect("renamed");
    let attrs = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    client.ask(SetAttr { node: new.node, handle: None, attrs }).expect("changed");
    assert_eq!(client.passed(), 1 + 3 + 1 + 1 + 1, "create, write and close; unlink; rename; setattr");
    let names: BTreeSet<String> =
        client.list(dir).expect("a listing").into_iter().map(|entry| entry.name.to_string()).collect();
    assert!(names.contains("new") && names.contains("moved"));
    assert!(!names.contains("file-0") && !names.contains("file-1"));
    assert_eq!(names.len(), 100);
    assert_eq!(client.lookup(dir, "new").expect("the file").attr.permissions(), 0o600);
    for gone in ["file-0", "file-1"] {
        client.lookup(dir, gone).expect_err("gone");
    }
    assert_eq!(client.passed(), 0);
}

#[test]
fn never_asks_every_time_and_always_only_once() {
    let sim = Sim::new(5);
    let tree = old_tree(&sim, 1, 3);
    let never = Client::new(&sim, &tree, &[("cache", "never")]);
    let always = Client::new(&sim, &tree, &[("cache", "always")]);
    let partly = Client::new(&sim, &tree, &[("cache", "always"), ("cache:/dir-0", "never")]);
    for client in [&never, &always, &partly] {
        client.everything();
        client.passed();
    }
    pass_time(&sim, Duration::from_secs(1 << 30));
    always.everything();
    assert_eq!(always.passed(), 0);
    for client in [&never, &partly] {
        client.everything();
        let once = client.passed();
        client.everything();
        assert!(once > 0 && client.passed() == once);
    }
    partly.lookup(Node::ROOT, "dir-0").expect("the directory");
    assert!(partly.passed() == 1, "the place itself is part of what it names");
    always.control.flush();
    always.everything();
    assert!(always.passed() > 0);
}

/// Asks as a task of the simulation.
async fn ask<O: Op>(top: &Arc<dyn Service>, op: O) -> Result<O::Out> {
    outrigger_core::ask(&**top, &Cx::new(1, Credentials::ROOT, "test"), op).await
}

/// A change by one client, as another one may come upon it. Most fail now and then, which is a case of its own.
async fn change_something(top: Arc<dyn Service>, sim: Arc<Sim>) -> Result<()> {
    let pick = |what: &str| name(&format!("{what}-{}", sim.below(4)));
    let directory = || ask(&top, Lookup { dir: Node::ROOT, name: name(&format!("dir-{}", sim.below(2))) });
    let (dir, to_dir) = (directory().await?.node, directory().await?.node);
    match sim.below(9) {
        0 => ask(&top, Unlink { dir, name: pick("file") }).await?,
        1 => {
            ask(&top, MkDir { dir, name: pick("sub"), mode: 0o755, umask: 0, initial: None }).await?;
        }
        2 => ask(&top, RmDir { dir, name: pick("sub") }).await?,
        3 => {
            let flags =
                *[RenameFlags::empty(), RenameFlags::EXCHANGE].get(sim.below(2) as usize).expect("two");
            ask(&top, Rename { dir, name: pick("file"), to_dir, to_name: pick("file"), flags }).await?;
        }
        4 => {
            let found = ask(&top, Lookup { dir, name: pick("file") }).await?;
            ask(&top, Link { node: found.node, dir: to_dir, name: pick("file") }).await?;
        }
        5 => {
            let found = ask(&top, Lookup { dir, name: pick("file") }).await?;
            let attrs = SetAttrs { mode: Some(0o600 + sim.below(64) as u32), ..SetAttrs::default() };
            ask(&top, SetAttr { node: found.node, handle: None, attrs }).await?;
        }
        6 => {
            let mode = FileKind::Fifo.bits() | 0o644;
            ask(&top, MkNod { dir, name: pick("file"), mode, umask: 0, rdev: 0, initial: None }).await?;
        }
        7 => {
            let sub = ask(&top, Lookup { dir, name: pick("sub") }).await?;
            ask(&top, MkDir { dir: sub.node, name: pick("sub"), mode: 0o755, umask: 0, initial: None })
                .await?;
        }
        _ => create_something(&top, &sim, dir, pick("file")).await?,
    }
    Ok(())
}

async fn create_something(top: &Arc<dyn Service>, sim: &Arc<Sim>, dir: Node, name: Name) -> Result<()> {
    let flags = OpenFlags::READ_WRITE;
    let made = ask(top, Create { dir, name, mode: 0o644, umask: 0, flags, initial: None }).await?;
    let (node, handle, owner) = (made.entry.node, made.opened.handle, LockOwner(1));
    let data = Payload::Bytes(b"content"[..sim.below(8) as usize].into());
    ask(top, Write { node, handle, offset: 0, data, cached: false, kill_setid: false }).await?;
    ask(top, Flush { node, handle, owner }).await?;
    ask(top, Release { node, handle, flags, owner, flock_release: false }).await
}

/// Lists a directory at any moment.
async fn list_something(top: Arc<dyn Service>, sim: Arc<Sim>) -> Result<()> {
    let found = ask(&top, Lookup { dir: Node::ROOT, name: name(&format!("dir-{}", sim.below(2))) }).await?;
    let (node, cookie, size) = (found.node, 0, 4096);
    let handle = ask(&top, OpenDir { node }).await?.handle;
    ask(&top, ReadDirPlus { node, handle, cookie, size }).await?;
    ask(&top, ReleaseDir { node, handle }).await
}

/// Requests of one client overtake each other: of two changes to one name the order is unknown, listings begin
/// and end in the middle of changes, and replies may be older than others. What is cached without a TTL must be right when all
/// have ended.
#[test]
fn changes_that_cross_each_other_leave_nothing_wrong_behind() {
    explore(0..400, |sim| {
        let tree = old_tree(sim, 2, 4);
        let truth = Client::new(sim, &tree, &[("cache", "never")]);
        let client = Client::new(sim, &tree, &[("cache", "always")]);
        client.wander();
        if sim.below(2) == 0 {
            client.trickle();
        }
        for round in 0..6 {
            if sim.below(2) == 0 {
                client.everything();
            }
            for _ in 0..sim.below(10) {
                let (top, own) = (client.top.clone(), sim.clone());
                let lists = sim.below(4) == 0;
                sim.spawn(Box::pin(async move {
                    let pause = Duration::from_millis(own.below(8));
                    own.sleep_until(own.monotonic() + pause).await;
                    let _ = match lists {
                        true => list_something(top, own).await,
                        false => change_something(top, own).await,
                    };
                }));
            }
            assert_eq!(sim.run(), 0, "everything ends");
            assert_eq!(client.everything(), truth.everything(), "round {round}");
        }
    });
}

#[test]
fn of_changes_to_one_file_at_once_the_last_one_counts() {
    explore(0..100, |sim| {
        let tree = old_tree(sim, 1, 1);
        let client = Client::new(sim, &tree, &[("cache", "always")]);
        client.everything();
        client.wander();
        let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
        let node = client.lookup(dir, "file-0").expect("the file").node;
        for mode in 0o600..0o604 {
            let top = client.top.clone();
            sim.spawn(Box::pin(async move {
                let attrs = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
                ask(&top, SetAttr { node, handle: None, attrs }).await.expect("changed");
            }));
        }
        sim.run();
        let truth = Client::new(sim, &tree, &[("cache", "never")]);
        assert_eq!(client.everything(), truth.everything());
    });
}

#[test]
fn a_change_that_was_given_up_leaves_its_name_to_be_asked_for() {
    let sim = Sim::new(8);
    let tree = old_tree(&sim, 1, 3);
    let client = Client::new(&sim, &tree, &[("cache", "always")]);
    client.everything();
    client.passed();
    let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let unlink = Unlink { dir, name: name("file-0") };
    let mut change = Box::pin(outrigger_core::ask(&*client.top, &cx, unlink));
    assert!(change.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(change);
    assert_eq!(client.passed(), 1, "it set out");
    client.lookup(dir, "file-0").expect("it did not arrive");
    assert_eq!(client.passed(), 1);
}

#[test]
fn what_was_asked_before_a_flush_is_not_believed_after_it() {
    let sim = Sim::new(9);
    let tree = old_tree(&sim, 1, 1);
    let client = Client::new(&sim, &tree, &[("cache", "always")]);
    let node = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    client.control.flush();
    client.stall(OpCode::GetAttr, 0);
    let top = client.top.clone();
    sim.spawn(Box::pin(async move {
        ask(&top, GetAttr { node, handle: None }).await.expect("attributes");
    }));
    pass_time(&sim, Duration::from_secs(1));
    client.control.flush();
    client.go_on();
    sim.run();
    client.passed();
    client.ask(GetAttr { node, handle: None }).expect("attributes");
    assert_eq!(client.passed(), 1);
}

/// Directories that were moved while their parent was listed, and could not be removed after their names had been received
/// because they were not empty, were once missing from what the next reader was shown.
#[test]
fn a_directory_that_could_not_be_removed_is_listed() {
    let sim = Sim::new(7);
    let tree = old_tree(&sim, 0, 0);
    let client = Client::new(&sim, &tree, &[("cache", "always")]);
    let dirs = ["first", "second"].map(|dir| client.mkdir(Node::ROOT, dir));
    for dir in dirs {
        client.mkdir(dir, "inside");
    }
    for file in 0..10 {
        client.make(Node::ROOT, &format!("file-{file}"), b"");
    }
    client.control.flush();
    client.trickle();
    client.stall(OpCode::ReadDirPlus, 0);
    // Lookups one by one start a listing ahead, which has no reader yet.
    for text in ["first", "second", "file-3"] {
        client.lookup(Node::ROOT, text).expect("a file");
    }
    let (name, to_name) = (name("first"), name("second"));
    let (dir, to_dir, flags) = (Node::ROOT, Node::ROOT, RenameFlags::EXCHANGE);
    client.ask(Rename { dir, name: name.clone(), to_dir, to_name, flags }).expect("exchanged");
    client.stall(OpCode::ReadDirPlus, 1);
    pass_time(&sim, Duration::from_secs(1));
    let refused = client.ask(RmDir { dir, name });
    assert_eq!(refused.map_err(|error| error.errno), Err(Errno::ENOTEMPTY));
    client.go_on();
    let names: Vec<String> =
        client.list(dir).expect("a listing").into_iter().map(|entry| entry.name.to_string()).collect();
    assert!(names.iter().any(|name| name == "first"), "{names:?}");
    assert_eq!(names.len(), 12);
}

#[test]
fn clients_see_each_others_changes_when_the_time_has_passed() {
    explore(0..60, |sim| {
        let bound = Duration::from_secs(20);
        let tree = old_tree(sim, 2, 4);
        let clients = [Client::new(sim, &tree, &[]), Client::new(sim, &tree, &[("cache", "20")])];
        let truth = Client::new(sim, &tree, &[("cache", "never")]);
        for _ in 0..6 {
            for _ in 0..sim.below(12) {
                let client = &clients[sim.below(2) as usize];
                let _ = sim.block_on(change_something(client.top.clone(), sim.clone()));
                if sim.below(3) == 0 {
                    client.everything();
                }
                pass_time(sim, Duration::from_millis(sim.below(3000)));
            }
            pass_time(sim, bound);
            let expected = truth.everything();
            assert_eq!(clients[0].everything(), expected, "seen by the first");
            assert_eq!(clients[1].everything(), expected, "seen by the second");
        }
    });
}
