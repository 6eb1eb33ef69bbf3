// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::names::What;
use crate::table::{Found, Table, When};
use outrigger_core::ops::{Forget, GetAttr, Lookup, OpenDir, ReadDirPlus, ReleaseDir};
use outrigger_core::reply::{DirentPlus, DirentsPlus, Entry, Opened};
use outrigger_core::{Attr, Credentials, Errno, FileKind, Generation, Name, Node, Op, Stack, Time, ask};
use outrigger_sim::{Sim, explore};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// Directories with so many names each that they are known as soon as they are asked for, and who holds references to
/// what: a tree of any size that takes no memory.
struct Wide {
    /// How many names are in a directory of each level.
    width: Vec<u64>,
    held: Mutex<HashMap<Node, i64>>,
}

/// Names listed at once.
const BATCH: u64 = 500;

impl Wide {
    fn new(width: &[u64]) -> Arc<Self> {
        Arc::new(Wide { width: width.to_vec(), held: Mutex::default() })
    }

    /// How many levels above the files a node is, and which one of its level.
    fn level(&self, node: Node) -> (usize, u64) {
        ((node.0 >> 40) as usize, node.0 & ((1 << 40) - 1))
    }

    fn child(&self, dir: Node, number: u64) -> Node {
        let (level, index) = if dir == Node::ROOT { (0, 0) } else { self.level(dir) };
        Node((level as u64 + 1) << 40 | (index * self.width[level] + number))
    }

    fn attr(&self, node: Node) -> Attr {
        let level = if node == Node::ROOT { 0 } else { self.level(node).0 };
        let kind = if level < self.width.len() { FileKind::Directory } else { FileKind::Regular };
        Attr { ino: node.0, mode: kind.bits() | 0o755, nlink: 1, mtime: Time::new(1, 0), ..Attr::default() }
    }

    fn hold(&self, node: Node, count: i64) {
        let mut held = lock(&self.held);
        let now = held.entry(node).or_default();
        *now += count;
        assert!(*now >= 0, "more references to {node:?} were given back than handed out");
        if *now == 0 {
            held.remove(&node);
        }
    }

    fn entry(&self, node: Node) -> Entry {
        self.hold(node, 1);
        Entry {
            node,
            generation: Generation(7),
            attr: self.attr(node),
            entry_ttl: Ttl::NEVER,
            attr_ttl: Ttl::NEVER,
        }
    }

    fn list(&self, op: &ReadDirPlus) -> DirentsPlus {
        let (level, _) = if op.node == Node::ROOT { (0, 0) } else { self.level(op.node) };
        let end = self.width[level].min(op.cookie + BATCH);
        let dirent = |number: u64| DirentPlus {
            cookie: number + 1,
            name: Name::new(format!("file-{number}")).expect("a name"),
            entry: self.entry(self.child(op.node, number)),
        };
        DirentsPlus { entries: (op.cookie..end).map(dirent).collect(), eof: end == self.width[level] }
    }
}

impl Service for Wide {
    fn call<'a>(&'a self, _: &'a Cx, request: Request) -> Answer<'a> {
        Answer::Ready(match request {
            Request::Lookup(op) => match op
                .name
                .strip_prefix(b"file-")
                .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
            {
                Some(number) => Reply::Entry(self.entry(self.child(op.dir, number))),
                None => Reply::Error(Errno::ENOENT.into()),
            },
            Request::GetAttr(op) => {
                let held = op.node == Node::ROOT || lock(&self.held).contains_key(&op.node);
                assert!(held, "{:?} is asked about, and nobody holds a reference to it", op.node);
                Reply::Attrs(outrigger_core::reply::Attrs { attr: self.attr(op.node), ttl: Ttl::NEVER })
            }
            Request::OpenDir(_) => Reply::Opened(Opened::default()),
            Request::ReadDirPlus(op) => Reply::DirentsPlus(self.list(&op)),
            Request::ReleaseDir(_) => Reply::Done(()),
            Request::Forget(op) => {
                self.hold(op.node, -(op.count as i64));
                Reply::Done(())
            }
            _ => Reply::Error(Errno::ENOSYS.into()),
        })
    }
    fn abilities(&self) -> Abilities {
        use OpCode::*;
        Abilities::new("wide", "", OpSet::of(&[Lookup, GetAttr, OpenDir, ReadDirPlus, ReleaseDir, Forget]))
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

/// A client of a wide tree, which keeps count of its own references.
struct Bench {
    sim: Arc<Sim>,
    wide: Arc<Wide>,
    top: Arc<dyn Service>,
    control: Control,
    options: Options,
    held: Vec<Node>,
}

impl Bench {
    fn new(sim: &Arc<Sim>, width: &[u64], options: Options) -> Self {
        let (wide, cache) = (Wide::new(width), Cache::new(&options, sim.clone()));
        let control = cache.control();
        let top = Stack::new(wide.clone()).push(cache).expect("any order is good").service();
        Bench { sim: sim.clone(), wide, top, control, options, held: Vec::new() }
    }

    fn ask<O: Op + Send + 'static>(&self, op: O) -> Result<O::Out>
    where
        O::Out: Send + 'static,
    {
        let top = self.top.clone();
        self.sim.block_on(async move { ask(&*top, &Cx::new(1, Credentials::ROOT, "test"), op).await })
    }

    /// Lists a directory in pieces, keeping its entries.
    fn list(&mut self, node: Node, mut each: impl FnMut(&mut Self, Entry)) -> u64 {
        let handle = self.ask(OpenDir { node }).expect("an open directory").handle;
        let (mut cookie, mut count) = (0, 0);
        loop {
            let piece = self.ask(ReadDirPlus { node, handle, cookie, size: 64 << 10 }).expect("a piece");
            let Some(last) = piece.entries.last() else { break };
            cookie = last.cookie;
            count += piece.entries.len() as u64;
            for dirent in piece.entries {
                if dirent.entry.node != Node::default() {
                    self.held.push(dirent.entry.node);
                }
                each(self, dirent.entry);
            }
            self.must_fit();
            if piece.eof {
                break;
            }
        }
        self.ask(ReleaseDir { node, handle }).expect("closed");
        count
    }

    fn must_fit(&self) {
        let usage = self.control.usage();
        assert!(usage.bytes <= self.options.names && usage.files <= self.options.entries, "{usage:?}");
    }

    fn forget_all(&mut self) {
        for node in std::mem::take(&mut self.held) {
            self.ask(Forget { node, count: 1 }).expect("forgotten");
        }
    }

    /// After everything was given back, nobody holds anything.
    fn must_be_even(&mut self) {
        self.forget_all();
        self.control.flush();
        // References are returned with the next request.
        self.ask(Lookup { dir: Node::ROOT, name: Name::try_from("nothing").expect("a name") })
            .expect_err("no such name");
        self.sim.run();
        assert_eq!(lock(&self.wide.held).len(), 0, "references that nobody returns");
    }
}

fn small() -> Options {
    Options { entries: 2000, names: 1 << 20, ..Options::default() }
}

#[test]
fn a_million_files_in_directories_fit_into_the_bound() {
    let mut bench = Bench::new(&Sim::new(1), &[1000, 1000], small());
    let mut dirs = Vec::new();
    bench.list(Node::ROOT, |_, entry| dirs.push(entry.node));
    let mut total = 0;
    for dir in 0..1000 {
        let node = bench.wide.child(Node::ROOT, dir);
        total += bench.list(node, |_, _| {});
        if dir % 100 == 99 {
            bench.forget_all();
        }
    }
    assert_eq!((total, dirs.len()), (1_000_000, 1000));
    bench.must_be_even();
}

/// A door that notes what it is asked to let go of.
#[derive(Default)]
struct Door(Mutex<HashSet<Node>>);

impl Notify for Door {
    fn notify(&self, notice: Notice) {
        if let Notice::Prune { nodes } = notice {
            lock(&self.0).extend(nodes);
        }
    }
}

#[test]
fn the_tree_below_has_to_know_few_files_when_the_door_lets_go_of_what_it_is_asked_to() {
    let mut bench = Bench::new(&Sim::new(4), &[100, 1000], small());
    let door = Arc::new(Door::default());
    bench.top.attach(door.clone());
    bench.list(Node::ROOT, |_, _| {});
    let mut most = 0;
    for dir in 0..100 {
        bench.list(bench.wide.child(Node::ROOT, dir), |_, _| {});
        let unneeded = std::mem::take(&mut *lock(&door.0));
        for node in std::mem::take(&mut bench.held) {
            // Directories have files in them that it keeps.
            if unneeded.contains(&node) && !bench.wide.attr(node).is_dir() {
                bench.ask(Forget { node, count: 1 }).expect("forgotten");
            } else {
                bench.held.push(node);
            }
        }
        most = most.max(lock(&bench.wide.held).len());
    }
    assert!(most < 10_000, "{most} of 100,000 files were known at once");
    bench.must_be_even();
}

#[test]
fn a_directory_with_a_million_names_is_listed_without_being_kept() {
    let mut bench = Bench::new(&Sim::new(2), &[1_000_000], small());
    assert_eq!(
        bench.list(Node::ROOT, |bench, _| {
            if bench.held.len() > 10_000 {
                bench.forget_all();
            }
        }),
        1_000_000
    );
    bench.must_be_even();
}

#[test]
fn names_that_are_made_up_do_not_fill_the_memory() {
    let bench = Bench::new(
        &Sim::new(3),
        &[10],
        Options { policy: Policy { ttls: Ttls::Always, writes: Writes::Through }, ..small() },
    );
    for number in 0..50_000 {
        let name = Name::new(format!("made-up-{number}")).expect("a name");
        bench.ask(Lookup { dir: Node::ROOT, name }).expect_err("no such name");
        bench.must_fit();
    }
}

#[test]
fn references_are_even_whatever_is_asked_and_dropped_in_whatever_order() {
    explore(0..40, |sim| {
        let options = Options { entries: 5 + sim.below(60) as usize, ..small() };
        let mut bench = Bench::new(sim, &[4, 6, 5], options);
        for _ in 0..300 {
            let dir = match bench.held.len() as u64 {
                0 => Node::ROOT,
                count => bench.held[sim.below(count) as usize],
            };
            let is_dir = bench.wide.attr(dir).is_dir();
            match sim.below(6) {
                0 | 1 if is_dir => {
                    let name = Name::new(format!("file-{}", sim.below(4))).expect("a name");
                    let entry = bench.ask(Lookup { dir, name }).expect("a file");
                    bench.held.push(entry.node);
                }
                2 if is_dir => drop(bench.list(dir, |_, _| {})),
                3 => drop(bench.ask(GetAttr { node: dir, handle: None }).expect("attributes")),
                4 if !bench.held.is_empty() => {
                    let at = sim.below(bench.held.len() as u64) as usize;
                    let node = bench.held.swap_remove(at);
                    bench.ask(Forget { node, count: 1 }).expect("forgotten");
                }
                5 if sim.below(20) == 0 => bench.control.flush(),
                _ => {}
            }
        }
        bench.must_be_even();
    });
}

#[test]
fn a_number_that_was_given_to_another_file_brings_nothing_with_it() {
    let mut table = Table::new(&Options::default());
    let (node, name) = (Node(5), Name::try_from("a").expect("a name"));
    table.identify(node, Generation(1));
    table.change_names(node, |names| names.learn(&name, What::Absent, (0, 100)));
    assert!(matches!(table.find(node, &name, 50), Found::Absent));
    table.identify(node, Generation(2));
    assert!(matches!(table.find(node, &name, 50), Found::Unknown));
}

#[test]
fn a_door_hears_of_each_change_of_a_file_that_others_make_whatever_is_kept_of_it() {
    let mut table = Table::new(&Options::default());
    let node = Node(5);
    let file = table.file(node, 0);
    let mut now = 0;
    let mut is_told = |size| {
        now += 100_000;
        let asked = table.asked(When { now, wall: Time::new(1_000_000, 0) });
        let mut attr = Attr { size, mode: FileKind::Regular.bits() | 0o644, nlink: 1, ..Attr::default() };
        table.learn_attr(node, &mut attr, asked);
        std::mem::take(&mut table.notices)
    };
    let attributes = Notice::InvalidateNode { node, offset: -1, len: 0 };
    assert_eq!([is_told(3), is_told(3)], [vec![], vec![]]);
    assert_eq!(is_told(4), std::slice::from_ref(&attributes), "nothing is kept");
    lock(&file.content).any = true;
    assert_eq!(is_told(5), std::slice::from_ref(&attributes), "the kernel has none of what is kept");
    lock(&file.content).any = true;
    lock(&file.content).kernel = Some(1);
    assert_eq!(is_told(6), [Notice::InvalidateNode { node, offset: 0, len: 0 }]);
    lock(&file.content).is_ours();
    assert_eq!(is_told(7), [], "we have written it");
}
