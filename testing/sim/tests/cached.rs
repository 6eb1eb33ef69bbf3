// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `cache` over a tree in memory that is 5 ms away: how many requests come by, and what two clients see of each
//! other.

use outrigger_core::ops::*;
use outrigger_core::reply::{Attrs, DirentPlus, DirentsPlus, Entry};
use outrigger_core::{
    Answer, Clock, Credentials, Cx, Errno, FileKind, Inline, Layer, LockOwner, Name, Node, Op, OpCode,
    Payload, Place, Request, Result, Runtime, Service, SetAttrs, Stack, ask,
};
use outrigger_driver_mem::{Mem, Options as MemOptions};
use outrigger_layer_cache::{Cache, Control, Options};
use outrigger_sim::{Sim, explore};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a request takes to the tree and back.
const ROUND_TRIP: Duration = Duration::from_millis(5);

/// A long line: counts what passes, and takes its time.
#[derive(Clone)]
struct Line {
    sim: Arc<Sim>,
    passed: Arc<Mutex<BTreeMap<OpCode, u64>>>,
}

impl Layer for Line {
    fn place(&self) -> Place {
        Place::anywhere("line")
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        // Returning references is no matter of the line: drivers keep count of them on this side.
        if matches!(request, Request::Forget(_) | Request::Locate(_)) {
            return next.call(cx, request);
        }
        *self.passed.lock().expect("the count").entry(request.op()).or_default() += 1;
        Answer::later(async move {
            self.sim.sleep_until(self.sim.monotonic() + ROUND_TRIP / 2).await;
            let reply = next.call(cx, request).await;
            self.sim.sleep_until(self.sim.monotonic() + ROUND_TRIP / 2).await;
            reply
        })
    }
}

/// A tree that several clients use.
fn shared_tree(sim: &Arc<Sim>) -> Arc<dyn Service> {
    let options = MemOptions { size: 256 << 20, inodes: 100_000, ..MemOptions::default() };
    Arc::new(Inline::new(Mem::new(options, sim.clone()), sim.clone()))
}

/// A client at the other end of a line.
struct Client {
    sim: Arc<Sim>,
    top: Arc<dyn Service>,
    control: Control,
    line: Line,
}

impl Client {
    fn new(sim: &Arc<Sim>, tree: &Arc<dyn Service>, options: &[(&str, &str)]) -> Self {
        let line = Line { sim: sim.clone(), passed: Arc::default() };
        let mut chosen = Options::default();
        options.iter().for_each(|(key, value)| chosen.set(key, value).expect("a good option"));
        let cache = Cache::new(&chosen, sim.clone());
        let control = cache.control();
        let stack = Stack::new(tree.clone()).push(line.clone()).and_then(|stack| stack.push(cache));
        Client { sim: sim.clone(), top: stack.expect("any order is good").service(), control, line }
    }

    fn ask<O: Op + Send + 'static>(&self, op: O) -> Result<O::Out>
    where
        O::Out: Send + 'static,
    {
        let top = self.top.clone();
        self.sim.block_on(async move { ask(&*top, &Cx::new(1, Credentials::ROOT, "test"), op).await })
    }

    /// How many requests passed the line since this was asked last.
    fn passed(&self) -> u64 {
        std::mem::take(&mut *self.line.passed.lock().expect("the count")).into_values().sum()
    }

    fn lookup(&self, dir: Node, text: &str) -> Result<Entry> {
        self.ask(Lookup { dir, name: name(text) })
    }

    fn make(&self, dir: Node, text: &str, content: &'static [u8]) -> Entry {
        let flags = OpenFlags::READ_WRITE;
        let made = self.ask(Create { dir, name: name(text), mode: 0o644, flags }).expect("a new file");
        self.write(made.entry.node, made.opened.handle, content);
        self.close(made.entry.node, made.opened.handle, flags);
        made.entry
    }

    fn write(&self, node: Node, handle: outrigger_core::Handle, content: &'static [u8]) {
        let data = Payload::Bytes(content.into());
        let write = Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
        assert_eq!(self.ask(write).expect("written").0, content.len() as u64);
    }

    fn close(&self, node: Node, handle: outrigger_core::Handle, flags: OpenFlags) {
        let owner = LockOwner(1);
        self.ask(Flush { node, handle, owner }).expect("flushed");
        self.ask(Release { node, handle, flags, owner, flock_release: false }).expect("released");
    }

    fn mkdir(&self, dir: Node, text: &str) -> Node {
        self.ask(MkDir { dir, name: name(text), mode: 0o755 }).expect("a new directory").node
    }

    /// All of a directory with attributes, as a kernel lists it.
    fn list(&self, node: Node) -> Result<Vec<DirentPlus>> {
        let handle = self.ask(OpenDir { node })?.handle;
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let DirentsPlus { entries, eof } = self.ask(ReadDirPlus { node, handle, cookie, size: 4096 })?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            all.extend(entries);
            if eof {
                break;
            }
        }
        self.ask(ReleaseDir { node, handle })?;
        Ok(all)
    }

    /// `ls -lR`: path, size, permissions and links of every file.
    fn list_all(&self, dir: Node, path: &str, all: &mut BTreeMap<String, (u64, u32, u32)>) {
        for DirentPlus { name, entry, .. } in self.list(dir).unwrap_or_default() {
            let path = format!("{path}/{name}");
            let entry =
                if entry.node == Node::default() { self.ask(Lookup { dir, name }) } else { Ok(entry) };
            // Another client may have removed what was listed.
            let Ok(entry) = entry else { continue };
            let Ok(Attrs { attr, .. }) = self.ask(GetAttr { node: entry.node, handle: None }) else {
                continue;
            };
            if attr.is_dir() {
                self.list_all(entry.node, &path, all);
            }
            all.insert(path, (attr.size, attr.mode, attr.nlink));
            self.ask(Forget { node: entry.node, count: 1 }).expect("forgotten");
        }
    }

    fn everything(&self) -> BTreeMap<String, (u64, u32, u32)> {
        let mut all = BTreeMap::new();
        self.list_all(Node::ROOT, "", &mut all);
        all
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn pass_time(sim: &Arc<Sim>, period: Duration) {
    let own = sim.clone();
    sim.block_on(async move { own.sleep_until(own.monotonic() + period).await });
}

/// A tree of `dirs` directories with `files` files each, made long ago.
fn old_tree(sim: &Arc<Sim>, dirs: usize, files: usize) -> Arc<dyn Service> {
    let tree = shared_tree(sim);
    let maker = Client::new(sim, &tree, &[]);
    for dir in 0..dirs {
        let node = maker.mkdir(Node::ROOT, &format!("dir-{dir}"));
        for file in 0..files {
            maker.make(node, &format!("file-{file}"), b"content");
        }
    }
    pass_time(sim, Duration::from_secs(3600));
    tree
}

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

/// Changes by one client, as another one may come upon them.
fn change_something(client: &Client, sim: &Arc<Sim>) {
    let dirs = ["dir-0", "dir-1"].map(|dir| client.lookup(Node::ROOT, dir).expect("a directory").node);
    let pick = |what: &str| name(&format!("{what}-{}", sim.below(4)));
    let (dir, to_dir) = (dirs[sim.below(2) as usize], dirs[sim.below(2) as usize]);
    let flags = OpenFlags::READ_WRITE;
    // Most of these fail now and then, which is a case of its own.
    match sim.below(8) {
        0 => drop(client.ask(Unlink { dir, name: pick("file") })),
        1 => drop(client.ask(MkDir { dir, name: pick("sub"), mode: 0o755 })),
        2 => drop(client.ask(RmDir { dir, name: pick("sub") })),
        3 => {
            let (name, to_name, flags) = (pick("file"), pick("file"), RenameFlags::empty());
            drop(client.ask(Rename { dir, name, to_dir, to_name, flags }));
        }
        4 => {
            if let Ok(entry) = client.ask(Lookup { dir, name: pick("file") }) {
                drop(client.ask(Link { node: entry.node, dir: to_dir, name: pick("file") }));
            }
        }
        5 => {
            if let Ok(entry) = client.ask(Lookup { dir, name: pick("file") }) {
                let mode = Some(0o600 + sim.below(64) as u32);
                let attrs = SetAttrs { mode, ..SetAttrs::default() };
                drop(client.ask(SetAttr { node: entry.node, handle: None, attrs }));
            }
        }
        6 => {
            drop(client.ask(MkNod { dir, name: pick("file"), mode: FileKind::Fifo.bits() | 0o644, rdev: 0 }))
        }
        _ => {
            if let Ok(made) = client.ask(Create { dir, name: pick("file"), mode: 0o644, flags }) {
                client.write(made.entry.node, made.opened.handle, &b"content"[..sim.below(8) as usize]);
                client.close(made.entry.node, made.opened.handle, flags);
            }
        }
    }
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
                change_something(client, sim);
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
