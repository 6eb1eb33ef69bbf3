// SPDX-License-Identifier: MIT OR Apache-2.0

mod across;
mod failures;
mod idle;
mod numbers;

use super::*;
use outrigger_core::ops::*;
use outrigger_core::reply::{Attrs, Created, Data, Dirent, Dirents, Entry, OpenHow, Opened, Ttl};
use outrigger_core::{
    Attr, BoxFuture, Cancel, Clock, Credentials, Errno, Error, FileKind, Generation, Handle, LockOwner, Name,
    Node, Notice, Op, Payload, Reply, Result, Runtime, XattrName, ask, lock,
};
use outrigger_sim::{Scripted, Sim, Step};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

/// Node 2 is the directory `d`, and other numbers are files that have the same number as inodes.
fn entry(node: Node) -> Entry {
    let kind = if node.0 <= 2 { FileKind::Directory } else { FileKind::Regular };
    let attr = Attr { ino: node.0, mode: kind.bits() | 0o700, ..Attr::default() };
    Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::SECOND, attr_ttl: Ttl::SECOND }
}

/// What a healthy tree answers: `d` is node 2, and a name that is a number is that node.
fn healthy(request: &Request) -> Reply {
    match request {
        Request::Lookup(op) if op.name.as_bytes() == b"d" => Reply::Entry(entry(Node(2))),
        Request::Lookup(op) => match String::from_utf8_lossy(&op.name).parse() {
            Ok(number) => Reply::Entry(entry(Node(number))),
            Err(_) => Reply::Error(Errno::ENOENT.into()),
        },
        Request::GetAttr(op) => Reply::Attrs(Attrs { attr: entry(op.node).attr, ttl: Ttl::SECOND }),
        Request::OpenDir(_) | Request::Open(_) => {
            Reply::Opened(Opened { handle: Handle(9), ..Opened::default() })
        }
        Request::ReadDir(_) => {
            let dirent = Dirent { ino: 7, cookie: 1, kind: Some(FileKind::Regular), name: name("7") };
            Reply::Dirents(Dirents { entries: vec![dirent], eof: true })
        }
        Request::Create(op) => {
            let number = String::from_utf8_lossy(&op.name).parse().expect("a number");
            let opened = Opened { handle: Handle(9), ..Opened::default() };
            Reply::Created(Created { entry: entry(Node(number)), opened })
        }
        Request::Read(_) => Reply::Data(Data::from(b"content".to_vec())),
        _ => Reply::Done(()),
    }
}

/// A tree as a test sees it.
struct Toy {
    sim: Arc<Sim>,
    location: String,
    service: Arc<Scripted>,
    /// How often it was opened and closed.
    opened: AtomicUsize,
    closed: AtomicUsize,
    /// How opening it ends; never, where that is nothing.
    opening: Mutex<Option<Result<()>>>,
    is_lasting: bool,
    unwritten: AtomicBool,
    /// What closing it loses.
    loses: Mutex<Option<Error>>,
    /// Closing it never ends.
    hangs: AtomicBool,
    told: Mutex<Option<Arc<dyn Notify>>>,
}

/// The tree with what it is told.
struct Told(Arc<Toy>);

impl Service for Told {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.0.service.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.0.service.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        *lock(&self.0.told) = Some(notify);
    }
}

impl Toy {
    fn asked(&self) -> Vec<Request> {
        self.service.started().into_iter().map(|(_, request)| request).collect()
    }

    fn times(&self) -> (usize, usize) {
        (self.opened.load(Ordering::Relaxed), self.closed.load(Ordering::Relaxed))
    }
}

struct Opens(Arc<Toy>);

impl OpenTree for Opens {
    fn location(&self) -> &str {
        &self.0.location
    }

    fn open(&self) -> BoxFuture<'static, Result<Hosted>> {
        let toy = Arc::clone(&self.0);
        toy.opened.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let outcome = lock(&toy.opening).clone();
            match outcome {
                Some(Ok(())) => {
                    toy.sim.sleep_until(toy.sim.monotonic() + Duration::from_millis(5)).await;
                    let (service, is_lasting) = (Arc::new(Told(Arc::clone(&toy))), toy.is_lasting);
                    Ok(Hosted { service, is_lasting, ending: Arc::new(Ends(toy)) })
                }
                Some(Err(error)) => Err(error),
                None => std::future::pending().await,
            }
        })
    }
}

struct Ends(Arc<Toy>);

impl Ending for Ends {
    fn unwritten(&self) -> Option<String> {
        self.0.unwritten.load(Ordering::Relaxed).then(|| "3 bytes of 1 file are not written".to_owned())
    }

    fn unwritten_files(&self) -> BoxFuture<'static, Vec<String>> {
        let is_unwritten = self.0.unwritten.load(Ordering::Relaxed);
        Box::pin(async move { if is_unwritten { vec!["/d/7".to_owned()] } else { Vec::new() } })
    }

    fn flush(&self) {}

    fn close(&self) -> BoxFuture<'static, Result<()>> {
        let toy = Arc::clone(&self.0);
        Box::pin(async move {
            if toy.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            toy.closed.fetch_add(1, Ordering::Relaxed);
            lock(&toy.loses).take().map_or(Ok(()), Err)
        })
    }
}

/// Trees `a` and `b`, and trees in the directory `g` that have any name and are listed only when they are used.
#[derive(Default)]
struct Toys(Mutex<BTreeMap<Vec<String>, Arc<Toy>>>);

impl Names for Toys {
    fn find(&self, dir: &[Name], name: &Name) -> Option<Found> {
        let path: Vec<String> = dir.iter().chain([name]).map(Name::to_string).collect();
        if path == ["g"] {
            return Some(Found::Directory);
        }
        lock(&self.0).get(&path).map(|toy| Found::Tree(Arc::new(Opens(Arc::clone(toy)))))
    }

    fn list(&self, dir: &[Name]) -> Vec<Name> {
        let names = if dir.is_empty() { &["a", "b", "g"][..] } else { &[] };
        names.iter().map(|&text| name(text)).filter(|name| self.find(dir, name).is_some()).collect()
    }
}

/// A door.
struct Door {
    heard: Mutex<Vec<Notice>>,
}

impl Notify for Door {
    fn notify(&self, notice: Notice) {
        lock(&self.heard).push(notice);
    }
}

struct Bench {
    sim: Arc<Sim>,
    demux: Arc<Demux>,
    names: Arc<Toys>,
    door: Arc<Door>,
}

impl Bench {
    fn new() -> Self {
        Bench::with(Options { idle: None, ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let sim = Sim::new(7);
        let names = Arc::<Toys>::default();
        let demux = Arc::new(Demux::new(names.clone(), sim.clone(), options));
        let door = Arc::new(Door { heard: Mutex::default() });
        demux.attach(door.clone());
        let bench = Bench { sim, demux, names, door };
        bench.add(&["a"], |toy| toy);
        bench.add(&["b"], |toy| toy);
        bench
    }

    fn add(&self, path: &[&str], change: impl FnOnce(Toy) -> Toy) -> Arc<Toy> {
        self.add_with(path, |_, request| Step::Now(healthy(request)), change)
    }

    fn add_with(
        &self,
        path: &[&str],
        script: impl Fn(&Cx, &Request) -> Step + Send + Sync + 'static,
        change: impl FnOnce(Toy) -> Toy,
    ) -> Arc<Toy> {
        let toy = Toy {
            sim: self.sim.clone(),
            location: format!("toy:{}", path.join("/")),
            service: Scripted::new(&self.sim, script),
            opened: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            opening: Mutex::new(Some(Ok(()))),
            is_lasting: true,
            unwritten: AtomicBool::new(false),
            loses: Mutex::default(),
            hangs: AtomicBool::new(false),
            told: Mutex::default(),
        };
        let toy = Arc::new(change(toy));
        let path = path.iter().map(|&name| name.to_owned()).collect();
        lock(&self.names.0).insert(path, Arc::clone(&toy));
        toy
    }

    /// The same with a location of its own.
    fn toy(&self, path: &[&str]) -> Arc<Toy> {
        let path: Vec<String> = path.iter().map(|&name| name.to_owned()).collect();
        Arc::clone(&lock(&self.names.0)[&path])
    }

    fn ask<O: Op + Send + 'static>(&self, op: O) -> Result<O::Out>
    where
        O::Out: Send + 'static,
    {
        let demux = Arc::clone(&self.demux);
        self.sim.block_on(async move { ask(&*demux, &cx(), op).await })
    }

    fn errno<O: Op + Send + 'static>(&self, op: O) -> Option<Errno>
    where
        O::Out: Send + 'static,
    {
        self.ask(op).err().map(|error| error.errno)
    }

    fn find(&self, dir: Node, text: &str) -> Node {
        self.ask(Lookup { dir, name: name(text) }).expect(text).node
    }

    fn forget(&self, node: Node, count: u64) {
        self.ask(Forget { node, count }).expect("it never fails");
    }

    /// Lets time pass, and what happens meanwhile.
    fn pass(&self, time: Duration) {
        let sim = Arc::clone(&self.sim);
        self.sim.block_on(async move { sim.sleep_until(sim.monotonic() + time).await });
    }

    fn state(&self, path: &str) -> Option<&'static str> {
        let all = self.demux.control().status();
        all.into_iter().find(|tree| tree.path == path).map(|tree| tree.state)
    }

    /// The nodes that the door was asked to give back.
    fn pruned(&self) -> Vec<Node> {
        let heard = lock(&self.door.heard);
        let nodes = heard.iter().filter_map(|notice| match notice {
            Notice::Prune { nodes } => Some(nodes.clone()),
            _ => None,
        });
        nodes.flatten().collect()
    }
}

fn xattr_name(text: &str) -> XattrName {
    XattrName::new(text.as_bytes().to_vec()).expect("a good name")
}

fn cx() -> Cx {
    Cx::new(1, Credentials::new(1000, 100), "test")
}

fn attr(node: Node) -> GetAttr {
    GetAttr { node, handle: None }
}

fn open(node: Node) -> Open {
    Open { node, flags: OpenFlags::empty() }
}

fn release(node: Node, handle: Handle) -> Release {
    Release { node, handle, flags: OpenFlags::empty(), owner: LockOwner::default(), flock_release: false }
}

fn read_dir(node: Node) -> ReadDir {
    ReadDir { node, handle: Handle::NONE, cookie: 0, size: 4096 }
}

#[test]
fn looking_at_the_directory_of_all_trees_opens_none() {
    let bench = Bench::new();
    let list = bench.ask(read_dir(Node::ROOT)).expect("it is there");
    let mut names: Vec<String> = list.entries.iter().map(|dirent| dirent.name.to_string()).collect();
    names.sort();
    assert_eq!((&*names, list.eof), (&["a".to_owned(), "b".into(), "g".into()][..], true));
    let plus = ReadDirPlus { node: Node::ROOT, handle: Handle::NONE, cookie: 0, size: 4096 };
    let plus = bench.ask(plus).expect("it is there").entries;
    assert!(plus.iter().all(|dirent| dirent.entry.node == Node(0) && dirent.entry.attr.is_dir()));
    let a = bench.find(Node::ROOT, "a");
    let found = bench.ask(attr(a)).expect("it is shown").attr;
    let listed = list.entries.iter().find(|dirent| dirent.name == name("a")).map(|dirent| dirent.ino);
    assert_eq!((found.mode & 0o7777, Some(found.ino)), (0o555, listed));
    let xattr = |text: &str| GetXattr { node: a, name: xattr_name(text) };
    assert_eq!(bench.ask(xattr("user.outrigger.location")).expect("told"), "toy:a");
    assert_eq!(bench.ask(xattr("user.outrigger.state")).expect("told"), "closed");
    assert_eq!(bench.errno(xattr("system.posix_acl_access")), Some(Errno::ENODATA));
    assert_eq!(bench.ask(ListXattr { node: a }).expect("listed").len(), 2);
    assert_eq!(bench.ask(StatFs { node: Node::ROOT }).expect("told").blocks, 0);
    assert_eq!((bench.toy(&["a"]).times(), bench.toy(&["b"]).times()), ((0, 0), (0, 0)));
}

#[test]
fn looking_at_the_root_of_a_tree_opens_it_where_that_is_wanted() {
    let bench = Bench::with(Options { looking_opens: true, idle: None, ..Options::default() });
    let found = bench.ask(Lookup { dir: Node::ROOT, name: name("a") }).expect("it is there");
    assert_eq!((found.attr_ttl, bench.toy(&["a"]).times()), (Ttl::NEVER, (0, 0)), "nothing waits for it yet");
    let shown = bench.ask(attr(found.node)).expect("it is shown").attr;
    assert_eq!(bench.toy(&["a"]).times(), (1, 0));
    assert_ne!(shown.mode & 0o7777, 0o555);
    assert_eq!(shown.ino, found.attr.ino);
    *lock(&bench.toy(&["b"]).opening) = Some(Err(Errno::EHOSTUNREACH.into()));
    let b = bench.find(Node::ROOT, "b");
    assert_eq!(bench.errno(attr(b)), Some(Errno::EHOSTUNREACH));
}

#[test]
fn a_listing_goes_on_by_name() {
    let bench = Bench::new();
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let piece = ReadDir { node: Node::ROOT, handle: Handle::NONE, cookie, size: 30 };
        let piece = bench.ask(piece).expect("it is there");
        assert!(piece.entries.len() <= 1, "there is no room for more");
        names.extend(piece.entries.iter().map(|dirent| dirent.name.to_string()));
        match piece.entries.last() {
            Some(last) => cookie = last.cookie,
            None => break assert!(piece.eof),
        }
    }
    names.sort();
    assert_eq!(names, ["a", "b", "g"]);
}

#[test]
fn what_is_asked_in_a_tree_opens_it_once_and_has_its_numbers() {
    let bench = Bench::new();
    let a = bench.find(Node::ROOT, "a");
    let demux = Arc::clone(&bench.demux);
    let both = bench.sim.block_on(async move {
        let (cx, other) = (cx(), cx());
        let one = demux.call(&cx, Lookup { dir: a, name: name("d") }.into());
        let two = demux.call(&other, OpenDir { node: a }.into());
        let (Answer::Later(mut one), Answer::Later(mut two)) = (one, two) else {
            panic!("a tree is opened later")
        };
        let mut replies = (None, None);
        std::future::poll_fn(|context| {
            if replies.0.is_none()
                && let std::task::Poll::Ready(reply) = one.as_mut().poll(context)
            {
                replies.0 = Some(reply);
            }
            if replies.1.is_none()
                && let std::task::Poll::Ready(reply) = two.as_mut().poll(context)
            {
                replies.1 = Some(reply);
            }
            match (&replies.0, &replies.1) {
                (Some(_), Some(_)) => std::task::Poll::Ready(()),
                _ => std::task::Poll::Pending,
            }
        })
        .await;
        replies
    });
    assert!(matches!(both, (Some(Reply::Entry(_)), Some(Reply::Opened(_)))), "{both:?}");
    let toy = bench.toy(&["a"]);
    assert_eq!(toy.times(), (1, 0));
    let asked = toy.asked();
    let roots = asked.iter().filter(|request| match request {
        Request::Lookup(op) => op.dir == Node::ROOT,
        Request::OpenDir(op) => op.node == Node::ROOT,
        _ => false,
    });
    assert_eq!(roots.count(), 2);
    assert_eq!(bench.toy(&["b"]).times(), (0, 0));
}

#[test]
fn the_attributes_of_the_root_are_those_of_the_tree_once_it_is_open() {
    let bench = Bench::new();
    let a = bench.find(Node::ROOT, "a");
    let before = bench.ask(attr(a)).expect("shown").attr;
    bench.find(a, "d");
    let after = bench.ask(attr(a)).expect("shown").attr;
    assert_eq!((after.mode & 0o7777, after.ino), (0o700, before.ino));
    let entry = bench.ask(Lookup { dir: Node::ROOT, name: name("a") }).expect("found");
    assert_eq!((entry.node, entry.attr.mode, entry.attr_ttl), (a, after.mode, Ttl::NEVER));
    // What nothing changes in, programs may look at from memory.
    bench.forget(a, 1);
    assert_eq!(bench.ask(attr(a)).expect("shown").attr.ino, before.ino);
}

#[test]
fn a_name_leads_to_another_tree_once_the_former_one_is_closed() {
    let bench = Bench::with(Options { idle: Some(Duration::from_secs(60)), ..Options::default() });
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    let former = bench.toy(&["a"]);
    let next = bench.add(&["a"], |toy| Toy { location: "toy:next".into(), ..toy });
    bench.find(Node::ROOT, "a");
    bench.find(a, "7");
    assert_eq!((former.times(), next.times()), ((1, 0), (0, 0)), "it is in use");
    bench.forget(d, 1);
    let seven = bench.find(a, "7");
    bench.forget(seven, 2);
    bench.forget(a, 2);
    bench.pass(Duration::from_secs(80));
    assert_eq!(former.times(), (1, 1));
    bench.find(Node::ROOT, "a");
    bench.find(a, "d");
    assert_eq!((former.times(), next.times()), ((1, 1), (1, 0)));
}
