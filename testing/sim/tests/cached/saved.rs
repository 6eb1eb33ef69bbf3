// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metadata on disk, which is there for the next process.

use crate::client::{Client, name, old_tree, pass_time};
use crate::content;
use outrigger_core::ops::{
    GetAttr, MkDir, Open, OpenDir, OpenFlags, ReadDir, ReadLink, Rename, RenameFlags, SymLink, Unlink,
};
use outrigger_core::{Errno, Node, Notice, OpCode, Service, Target};
use outrigger_layer_cache::{Disk, Metadata, OnDisk};
use outrigger_sim::Sim;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const ROOM: u64 = 64 << 20;
const DIRS: usize = 4;
const FILES: usize = 5;
/// A change by others is seen after an hour at the latest. All that is made long ago is fresh for so long.
const HOUR: &[(&str, &str)] = &[("cache", "3600")];

struct Bench {
    sim: Arc<Sim>,
    caches: TempDir,
    tree: Arc<dyn Service>,
}

impl Bench {
    fn new() -> Self {
        let sim = Sim::new(7);
        let tree = old_tree(&sim, DIRS, FILES);
        // As old as it takes to be fresh for the longest time.
        pass_time(&sim, Duration::from_secs(100_000));
        Bench { sim, caches: tempfile::tempdir().expect("a directory"), tree }
    }

    /// A process that has just mounted the tree.
    fn mounted(&self, options: &[(&str, &str)]) -> Client {
        self.mounted_as("the tree", options)
    }

    fn mounted_as(&self, tree: &str, options: &[(&str, &str)]) -> Client {
        let metadata = Metadata::open(self.caches.path(), tree, (ROOM, 200_000), self.sim.clone());
        let metadata = Some(metadata.expect("a directory for metadata"));
        let content = Disk::open(self.caches.path(), tree, ROOM, self.sim.clone());
        let content = Some(content.expect("a directory for content"));
        Client::with(&self.sim, &self.tree, options, OnDisk { content, metadata })
    }

    /// A process ends as it should.
    fn ends(&self, client: &Client) {
        let control = client.control.clone();
        self.sim.block_on(async move { control.kept_within(Duration::from_secs(10)).await });
    }

    /// Lists everything by a process of its own; answers how many requests that takes.
    fn listed(&self, options: &[(&str, &str)]) -> (BTreeMap<String, (u64, u32, u32)>, u64) {
        let client = self.mounted(options);
        client.passed();
        let everything = everything(&client);
        let passed = client.passed();
        self.ends(&client);
        (everything, passed)
    }

    fn file(&self) -> PathBuf {
        let trees = fs::read_dir(self.caches.path().join("outrigger/metadata")).expect("a directory");
        let mut trees = trees.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir());
        trees.next().expect("a tree").join(format!("{:016x}", 0))
    }
}

/// `ls -lR` by a kernel, which asks for the root first.
fn everything(client: &Client) -> BTreeMap<String, (u64, u32, u32)> {
    client.ask(GetAttr { node: Node::ROOT, handle: None }).expect("the root");
    client.everything()
}

#[test]
fn what_was_listed_once_is_not_asked_for_by_the_next_process_until_its_ttl_ends() {
    let bench = Bench::new();
    let (first, asked) = bench.listed(HOUR);
    assert!(asked > 0 && first.len() == DIRS * (FILES + 1));
    for _ in 0..3 {
        pass_time(&bench.sim, Duration::from_secs(15 * 60));
        assert_eq!(bench.listed(HOUR), (first.clone(), 0), "each process knows it from the one before");
    }
    pass_time(&bench.sim, Duration::from_secs(15 * 60 + 10));
    let (again, asked) = bench.listed(HOUR);
    assert!(again == first && asked > 0, "an hour after it was asked for, not after it was saved");
}

#[test]
fn a_directory_that_has_not_changed_is_confirmed_by_one_request() {
    let bench = Bench::new();
    bench.listed(HOUR);
    pass_time(&bench.sim, Duration::from_secs(4000));
    let client = bench.mounted(HOUR);
    client.ask(GetAttr { node: Node::ROOT, handle: None }).expect("the root");
    client.passed();
    let handle = client.ask(OpenDir { node: Node::ROOT }).expect("open").handle;
    let listed = client.ask(ReadDir { node: Node::ROOT, handle, cookie: 0, size: 4096 }).expect("listed");
    assert_eq!((listed.entries.len(), listed.eof, client.passed()), (DIRS, true, 0));
}

#[test]
fn what_others_changed_meanwhile_is_seen_after_the_ttl() {
    let bench = Bench::new();
    let (first, _) = bench.listed(HOUR);
    let other = Client::new(&bench.sim, &bench.tree, &[]);
    let dir = other.lookup(Node::ROOT, "dir-0").expect("there").node;
    other.make(dir, "new", b"new");
    assert_eq!(bench.listed(HOUR), (first, 0), "as by a process that had gone on");
    other.ask(Unlink { dir, name: name("file-0") }).expect("removed");
    pass_time(&bench.sim, Duration::from_secs(3700));
    let (now, _) = bench.listed(HOUR);
    assert!(!now.contains_key("/dir-0/file-0") && now.contains_key("/dir-0/new"));
}

#[test]
fn a_file_that_was_removed_here_does_not_return_however_the_process_ends() {
    for killed in [false, true] {
        let bench = Bench::new();
        bench.listed(HOUR);
        let client = bench.mounted(HOUR);
        let dir = client.lookup(Node::ROOT, "dir-1").expect("there").node;
        client.ask(Unlink { dir, name: name("file-1") }).expect("removed");
        let moved = Rename {
            dir,
            name: name("file-2"),
            to_dir: Node::ROOT,
            to_name: name("moved"),
            flags: RenameFlags::empty(),
        };
        client.ask(moved).expect("moved");
        client.make(dir, "made", b"made here");
        if !killed {
            bench.ends(&client);
        }
        drop(client);
        let (now, _) = bench.listed(HOUR);
        let has = |path: &str| now.contains_key(path);
        assert!(!has("/dir-1/file-1") && !has("/dir-1/file-2"), "{killed}");
        assert!(has("/moved") && now["/dir-1/made"].0 == 9, "{killed}");
    }
}

#[test]
fn a_process_that_is_killed_has_saved_what_it_knew_half_a_minute_before() {
    let bench = Bench::new();
    let client = bench.mounted(HOUR);
    let first = everything(&client);
    pass_time(&bench.sim, Duration::from_secs(40));
    client.lookup(Node::ROOT, "dir-2").expect("there");
    drop(client);
    assert_eq!(bench.listed(HOUR), (first, 0));
}

#[test]
fn nothing_is_shared_with_another_user_or_other_options() {
    let bench = Bench::new();
    bench.listed(HOUR);
    let other = bench.mounted_as("the tree, as somebody else", HOUR);
    everything(&other);
    assert!(other.passed() > 0);
}

#[test]
fn damage_at_each_place_costs_no_more_than_asking_again() {
    let bench = Bench::new();
    let (first, _) = bench.listed(HOUR);
    let whole = fs::read(bench.file()).expect("saved");
    let step = whole.len() / 60 + 1;
    for at in (0..whole.len()).step_by(step) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        for content in [damaged, whole[..at].to_vec()] {
            fs::write(bench.file(), content).expect("damaged");
            let metadata =
                Metadata::open(bench.caches.path(), "the tree", (ROOM, 200_000), bench.sim.clone());
            assert!(metadata.expect("a directory").is_damaged(), "{at}");
            let (again, asked) = bench.listed(HOUR);
            assert!(again == first && asked > 0, "{at}");
        }
    }
    assert_eq!(bench.listed(HOUR), (first, 0), "it was made anew");
}

#[test]
fn two_processes_at_once_are_in_nobodys_way_and_neither_brings_back_what_the_other_removed() {
    let bench = Bench::new();
    let (one, two) = (bench.mounted(HOUR), bench.mounted(HOUR));
    let all = everything(&one);
    assert_eq!(everything(&two), all);
    let dir = two.lookup(Node::ROOT, "dir-3").expect("there").node;
    two.ask(Unlink { dir, name: name("file-3") }).expect("removed");
    bench.ends(&two);
    // It knows nothing of that, and is the last one.
    bench.ends(&one);
    let (now, _) = bench.listed(HOUR);
    assert!(!now.contains_key("/dir-3/file-3") && now.len() == all.len() - 1);
}

#[test]
fn a_clock_that_was_wrong_makes_nothing_valid() {
    let bench = Bench::new();
    bench.listed(&[("cache", "always")]);
    // The same caches at a machine whose clock is a day behind.
    let sim = Sim::new(8);
    let tree = old_tree(&sim, DIRS, FILES);
    let earlier = Bench { sim, caches: bench.caches, tree };
    let (all, asked) = earlier.listed(&[("cache", "always")]);
    assert!(asked > 0 && all.len() == DIRS * (FILES + 1));
}

#[test]
fn what_is_never_fresh_is_asked_for_each_time() {
    let bench = Bench::new();
    bench.listed(HOUR);
    assert!(bench.listed(&[("cache", "never")]).1 > 0);
    bench.listed(HOUR);
    pass_time(&bench.sim, Duration::from_secs(2));
    assert!(bench.listed(&[("cache", "1")]).1 > 0, "the TTL of this process counts");
}

#[test]
fn an_error_and_what_a_notice_called_in_question_are_not_saved() {
    let bench = Bench::new();
    let client = bench.mounted(HOUR);
    let all = everything(&client);
    let other = Client::new(&bench.sim, &bench.tree, &[]);
    let dir = other.lookup(Node::ROOT, "dir-0").expect("there").node;
    other.ask(Unlink { dir, name: name("file-0") }).expect("removed");
    client.notified(Notice::InvalidateEntry { dir, name: name("file-0") });
    client.fail(OpCode::Lookup);
    assert_eq!(client.lookup(dir, "file-0").err().map(|error| error.errno), Some(Errno::ENOSPC));
    bench.ends(&client);
    let (now, _) = bench.listed(HOUR);
    assert!(!now.contains_key("/dir-0/file-0") && now.len() == all.len() - 1);
}

#[test]
fn links_lead_where_they_led() {
    let bench = Bench::new();
    let other = Client::new(&bench.sim, &bench.tree, &[]);
    let target = Target::new("dir-0/file-0").expect("a target");
    let link = SymLink { dir: Node::ROOT, name: name("link"), target: target.clone(), initial: None };
    let node = other.ask(link).expect("a link").node;
    pass_time(&bench.sim, Duration::from_secs(100_000));
    let client = bench.mounted(HOUR);
    everything(&client);
    client.ask(ReadLink { node }).expect("a target");
    bench.ends(&client);
    let client = bench.mounted(HOUR);
    let node = client.lookup(Node::ROOT, "link").expect("there").node;
    assert_eq!((client.ask(ReadLink { node }), client.passed()), (Ok(target), 0));
}

#[test]
fn who_flushes_asks_again_and_so_does_the_next_process() {
    let bench = Bench::new();
    bench.listed(HOUR);
    let client = bench.mounted(HOUR);
    client.lookup(Node::ROOT, "dir-0").expect("there");
    client.control.flush();
    bench.sim.run();
    assert!(!bench.file().exists());
    drop(client);
    assert!(bench.listed(HOUR).1 > 0);
}

#[test]
fn a_file_that_is_written_is_not_saved_with_the_size_that_it_had() {
    let bench = Bench::new();
    bench.listed(HOUR);
    let client = bench.mounted(&[("cache", "3600"), ("write", "behind")]);
    let dir = client.lookup(Node::ROOT, "dir-0").expect("there").node;
    let made = client.ask(MkDir { dir, name: name("sub"), mode: 0o755, umask: 0, initial: None });
    let entry = client.make(made.expect("made").node, "new", b"some words");
    pass_time(&bench.sim, Duration::from_secs(60));
    let opened = client.ask(Open { node: entry.node, flags: OpenFlags::READ_WRITE });
    client.write(entry.node, opened.expect("open").handle, b"more words than before");
    // It dies before the next save.
    drop(client);
    assert_eq!(bench.listed(HOUR).0["/dir-0/sub/new"].0, 22);
}

#[test]
fn what_was_read_can_be_read_again_by_a_process_that_cannot_reach_the_server() {
    let bench = Bench::new();
    let read = |client: &Client| {
        let dir = client.lookup(Node::ROOT, "dir-0").expect("there").node;
        let node = client.lookup(dir, "file-0").expect("there").node;
        let handle = client.ask(Open { node, flags: OpenFlags::empty() }).expect("open").handle;
        let bytes = content::read(client, node, handle, 0, 100);
        client.close(node, handle, OpenFlags::empty());
        bytes
    };
    let client = bench.mounted(HOUR);
    everything(&client);
    assert_eq!(&read(&client)[..], b"content");
    bench.sim.run();
    bench.ends(&client);
    let client = bench.mounted(HOUR);
    assert_eq!((&read(&client)[..], client.passed()), (&b"content"[..], 0));
}

#[test]
fn of_a_tree_that_is_larger_than_the_room_the_directories_used_last_are_kept() {
    let bench = Bench::new();
    let room = 24 << 10;
    let mounted = || {
        let metadata = Metadata::open(bench.caches.path(), "small", (room, 200_000), bench.sim.clone());
        let on_disk = OnDisk { metadata: Some(metadata.expect("a directory")), ..OnDisk::default() };
        Client::with(&bench.sim, &bench.tree, HOUR, on_disk)
    };
    let client = mounted();
    let big: Vec<Node> = (0..4).map(|dir| client.mkdir(Node::ROOT, &format!("big-{dir}"))).collect();
    for (dir, file) in big.iter().flat_map(|&dir| (0..40).map(move |file| (dir, file))) {
        client.make(dir, &format!("file-{file}"), b"");
    }
    pass_time(&bench.sim, Duration::from_secs(100_000));
    client.control.flush();
    everything(&client);
    let last = client.lookup(Node::ROOT, "big-2").expect("there").node;
    assert_eq!(client.list(last).expect("listed").len(), 40);
    bench.ends(&client);
    let next = mounted();
    next.ask(GetAttr { node: Node::ROOT, handle: None }).expect("the root");
    next.passed();
    let last = next.lookup(Node::ROOT, "big-2").expect("there").node;
    assert_eq!((next.list(last).expect("listed").len(), next.passed()), (40, 0));
    let others = (0..4).map(|dir| next.lookup(Node::ROOT, &format!("big-{dir}")).expect("there").node);
    others.for_each(|dir| assert_eq!(next.list(dir).expect("listed").len(), 40));
    assert!(next.passed() > 0, "there is no room for all of them");
}

#[test]
fn who_asks_about_one_file_of_a_large_tree_does_not_write_all_that_is_known_again() {
    let bench = Bench::new();
    let client = bench.mounted(&[]);
    let dir = client.mkdir(Node::ROOT, "large");
    for file in 0..200 {
        client.make(dir, &format!("file-{file}"), b"");
    }
    // It saves nothing later.
    bench.ends(&client);
    bench.listed(&[]);
    let content = || fs::read(bench.file()).expect("a file");
    let before = content();
    pass_time(&bench.sim, Duration::from_secs(1000));
    let client = bench.mounted(&[]);
    let asks = || {
        let dir = client.lookup(Node::ROOT, "large").expect("there").node;
        client.lookup(dir, "file-7").expect("there").attr
    };
    asks();
    assert!(client.passed() > 0, "what was known is too old");
    bench.ends(&client);
    let after = content();
    assert!(after == before || after.len() * 10 < before.len(), "{} bytes of {}", after.len(), before.len());
    client.ask(Unlink { dir: Node::ROOT, name: name("none") }).expect_err("no such file");
    client.make(Node::ROOT, "new", b"");
    bench.ends(&client);
    assert_ne!(content(), after, "what was changed here is saved");
}
