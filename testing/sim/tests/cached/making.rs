// SPDX-License-Identifier: MIT OR Apache-2.0
//! Async create: files whose creation is answered before it reaches the tree.

use crate::client::{Client, name, pass_time, shared_tree};
use crate::content::{pattern, write};
use outrigger_core::ops::*;
use outrigger_core::reply::Created;
use outrigger_core::{
    Errno, Handle, HeapKeep, LockOwner, Name, Node, Notice, Notify, OpCode, Result, Service, SetAttrs,
};
use outrigger_layer_cache::{Cache, Lost, OnDisk, Options};
use outrigger_sim::{Sim, explore};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BEHIND: &[(&str, &str)] = &[("write", "behind")];
const FLAGS: OpenFlags = OpenFlags::WRITE_ONLY.union(OpenFlags::TRUNC);

/// A client of an empty directory that it made itself.
fn with_dir(sim: &Arc<Sim>, tree: &Arc<dyn Service>, options: &[(&str, &str)]) -> (Client, Node) {
    let client = Client::new(sim, tree, options);
    client.foretell();
    let dir = client.mkdir(Node::ROOT, "dir");
    (client, dir)
}

fn try_create(client: &Client, dir: Node, text: &str, flags: OpenFlags) -> Result<(Node, Handle)> {
    let Created { entry, opened } =
        client.ask(Create { dir, name: name(text), mode: 0o640, umask: 0, flags, initial: None })?;
    Ok((entry.node, opened.handle))
}

fn create(client: &Client, dir: Node, text: &str) -> (Node, Handle) {
    try_create(client, dir, text, FLAGS).expect("a new file")
}

fn flush(client: &Client, node: Node, handle: Handle) -> Result<(), Errno> {
    client.ask(Flush { node, handle, owner: LockOwner(1) }).map_err(|error| error.errno)
}

fn release(client: &Client, node: Node, handle: Handle) {
    let (owner, flock_release) = (LockOwner(1), false);
    client.ask(Release { node, handle, flags: FLAGS, owner, flock_release }).expect("released");
}

fn fsync(client: &Client, node: Node, handle: Handle) -> Result<(), Errno> {
    client.ask(FSync { node, handle, data_only: false }).map_err(|error| error.errno)
}

/// What a client without a cache finds.
fn truth(client: &Client, dir: Node, text: &str) -> Result<u64, Errno> {
    let other = Client::new(&client.sim, &client.tree, &[("cache", "never")]);
    other.lookup(dir, text).map(|entry| entry.attr.size).map_err(|error| error.errno)
}

/// A thousand files are written, a hundred at a time while the line is stalled.
#[test]
fn new_files_are_written_without_waiting() {
    let sim = Sim::new(1);
    let (client, dir) = with_dir(&sim, &shared_tree(&sim), BEHIND);
    for round in 0..10 {
        let before = client.elapsed();
        client.stall(OpCode::GetAttr, 0);
        for number in 0..100 {
            let (node, handle) = create(&client, dir, &format!("{round}-{number}"));
            write(&client, node, handle, 0, pattern(4096, 1));
            let attrs = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
            client.ask(SetAttr { node, handle: Some(handle), attrs }).expect("set");
            let told = client.ask(GetAttr { node, handle: None }).expect("attributes").attr;
            assert_eq!((told.size, told.permissions()), (4096, 0o600));
        }
        assert_eq!(client.list(dir).expect("listed").len(), 100 * (round + 1));
        assert!((client.elapsed() - before).as_millis() < 5, "nobody waited for an answer");
        client.go_on();
        let control = client.control.clone();
        sim.block_on(async move { control.written().await });
    }
    assert_eq!((client.count(OpCode::Write), client.count(OpCode::Create)), (1000, 0));
    assert_eq!(truth(&client, dir, "9-99"), Ok(4096));
}

/// A create waits for the reply with `O_EXCL`, `O_DSYNC` or `O_APPEND`, without `write=behind`, and where the name is not known
/// to be free.
#[test]
fn what_has_to_be_certain_is_waited_for() {
    let behind = "behind";
    for (writes, flags, known) in [
        (behind, FLAGS | OpenFlags::EXCL, true),
        (behind, FLAGS | OpenFlags::DSYNC, true),
        (behind, FLAGS | OpenFlags::APPEND, true),
        (behind, FLAGS, false),
        ("close", FLAGS, true),
        ("through", FLAGS, true),
    ] {
        let sim = Sim::new(2);
        let (client, dir) = with_dir(&sim, &shared_tree(&sim), &[("write", writes)]);
        if !known {
            client.control.flush();
        }
        let before = client.elapsed();
        try_create(&client, dir, "file", flags).expect("a new file");
        assert!((client.elapsed() - before).as_millis() >= 5, "{writes}, {flags:?}, {known}");
    }
}

/// The notices that the door gets.
#[derive(Default)]
struct Door(Mutex<Vec<(Node, Name)>>);

impl Notify for Door {
    fn notify(&self, notice: Notice) {
        if let Notice::InvalidateEntry { dir, name } = notice {
            self.0.lock().expect("the list").push((dir, name));
        }
    }
}

#[test]
fn a_file_that_could_not_be_made_is_told_of_and_its_name_leads_nowhere() {
    let sim = Sim::new(3);
    let (client, dir) = with_dir(&sim, &shared_tree(&sim), BEHIND);
    let door = Arc::new(Door::default());
    client.top.attach(door.clone());
    client.fail(OpCode::Create);
    let (node, handle) = create(&client, dir, "file");
    write(&client, node, handle, 0, pattern(10, 1));
    client.lookup(dir, "file").expect("as was foretold");
    assert_eq!(fsync(&client, node, handle), Err(Errno::EDQUOT));
    assert_eq!(fsync(&client, node, handle), Err(Errno::EDQUOT), "and every time");
    assert_eq!(flush(&client, node, handle), Ok(()), "who was told");
    assert_eq!(client.lookup(dir, "file").map_err(|error| error.errno), Err(Errno::ENOENT));
    assert!(client.list(dir).expect("listed").is_empty());
    assert_eq!(*door.0.lock().expect("the list"), [(dir, name("file"))]);
    release(&client, node, handle);
    let (node, handle) = create(&client, dir, "lost");
    release(&client, node, handle);
    let lost = client.control.lost();
    let [Lost { unmade: Some(unmade), error, .. }] = &lost[..] else {
        panic!("of the other one nobody was told")
    };
    assert_eq!((unmade.dir, &unmade.name), (dir, &name("lost")));
    assert!(error.to_string().contains("'lost' could not be made"), "{error}");
}

#[test]
fn a_file_that_could_not_be_made_is_not_renamed_over_one_that_is_well() {
    let sim = Sim::new(4);
    let (client, dir) = with_dir(&sim, &shared_tree(&sim), BEHIND);
    client.make(dir, "well", b"content");
    client.fail(OpCode::Create);
    let (node, handle) = create(&client, dir, "new");
    write(&client, node, handle, 0, pattern(10, 1));
    release(&client, node, handle);
    let rename =
        Rename { dir, name: name("new"), to_dir: dir, to_name: name("well"), flags: RenameFlags::empty() };
    let renamed = client.ask(rename).map_err(|error| error.errno);
    assert!(renamed == Err(Errno::EDQUOT) || renamed == Err(Errno::ENOENT), "{renamed:?}");
    assert_eq!(truth(&client, dir, "well"), Ok(7));
}

/// What depends on a file that is being made waits for it, whatever the order in which things arrive.
#[test]
fn names_are_changed_after_the_files_were_made() {
    for step in 0..4 {
        let sim = Sim::new(5);
        let (client, dir) = with_dir(&sim, &shared_tree(&sim), BEHIND);
        let (node, handle) = create(&client, dir, "file");
        let before = client.elapsed();
        let (name, to_name, flags) = (name("file"), name("new"), RenameFlags::empty());
        let done = match step {
            0 => client.ask(Unlink { dir, name }),
            1 => client.ask(Rename { dir, name, to_dir: dir, to_name, flags }),
            2 => client.ask(Open { node, flags: FLAGS }).map(drop),
            _ => client.ask(Link { node, dir, name: to_name }).map(drop),
        };
        done.expect("done");
        assert!((client.elapsed() - before).as_millis() >= 10, "{step}");
        assert!(client.arrived().contains(&OpCode::GetAttr), "of the handle: that it was made");
        release(&client, node, handle);
    }
}

/// A process dies with a pending create: its successor finds out whether that succeeded, and writes the content or reports the
/// error.
#[test]
fn a_file_survives_the_process_that_answered_it() {
    explore(0..40, |sim| {
        let (tree, keep) = (shared_tree(sim), HeapKeep::default());
        let mut options = Options::default();
        BEHIND.iter().for_each(|(key, value)| options.set(key, value).expect("a good option"));
        let process = || {
            let cache = Cache::with_keep(&options, sim.clone(), OnDisk::default(), &keep).expect("a cache");
            Client::over(sim, &tree, cache)
        };
        let first = process();
        first.foretell();
        let dir = first.mkdir(Node::ROOT, "dir");
        first.stall(OpCode::GetAttr, 0);
        let (node, handle) = create(&first, dir, "file");
        let writes = sim.below(2) == 0;
        if writes {
            write(&first, node, handle, 0, pattern(1000, 1));
        }
        if sim.below(2) == 0 {
            pass_time(sim, Duration::from_secs(1));
        }
        let next = process();
        next.arrived();
        next.lookup(dir, "file").expect("found");
        let control = next.control.clone();
        sim.block_on(async move { control.written().await });
        let arrived = next.arrived();
        let asked = |op| arrived.iter().position(|&other| other == op);
        let (outcome, written) = (asked(OpCode::GetAttr), asked(OpCode::Write));
        assert!(outcome.is_some() && (!writes || outcome < written), "{arrived:?}");
        assert_eq!(truth(&next, dir, "file"), Ok(if writes { 1000 } else { 0 }));
    });
}

#[test]
fn synchronising_a_directory_waits_for_new_files_in_it_and_fails_when_one_could_not_be_made() {
    let sim = Sim::new(7);
    let (client, dir) = with_dir(&sim, &shared_tree(&sim), BEHIND);
    let other = client.mkdir(Node::ROOT, "other");
    let sync = |node| {
        let handle = client.ask(OpenDir { node }).expect("open").handle;
        let synced = client.ask(FSyncDir { node, handle, data_only: false }).map_err(|error| error.errno);
        client.ask(ReleaseDir { node, handle }).expect("closed");
        synced
    };
    let (node, handle) = create(&client, dir, "made");
    release(&client, node, handle);
    client.arrived();
    assert_eq!(sync(dir), Ok(()));
    let (node, handle) = create(&client, dir, "made later");
    client.arrived();
    assert_eq!(sync(dir), Ok(()));
    let arrived = client.arrived();
    let at =
        |op| arrived.iter().position(|&one| one == op).unwrap_or_else(|| panic!("{op:?} in {arrived:?}"));
    assert!(at(OpCode::GetAttr) < at(OpCode::FSyncDir), "{arrived:?}");
    release(&client, node, handle);
    client.fail(OpCode::Create);
    let (node, handle) = create(&client, dir, "unmade");
    release(&client, node, handle);
    assert_eq!(sync(other), Ok(()));
    assert_eq!(sync(dir), Err(Errno::EDQUOT));
    assert_eq!(sync(dir), Ok(()), "that was reported");
    assert!(client.control.lost().is_empty());
}
