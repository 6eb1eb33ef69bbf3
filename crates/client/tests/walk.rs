// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks over a tree in memory: links, dots and slashes; references; giving up.

use outrigger_client::{Client, Follow, Inode, Settings};
use outrigger_core::ops::{Lookup, MkDir, OpenFlags};
use outrigger_core::{
    Abilities, Answer, Cancel, Credentials, Cx, Errno, FileKind, Inline, Layer, Name, OpCode, OpSet, Place,
    Reply, Request, Result, Service, Stack, Target,
};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Counts the references that are out, and can leave lookups unanswered.
#[derive(Default)]
struct Watch {
    references: AtomicI64,
    /// Requests that give nothing back.
    requests: AtomicI64,
    hangs: AtomicBool,
    /// Whether it left any.
    hung: AtomicBool,
    /// For each lookup, the hint whether others follow.
    more: Mutex<Vec<bool>>,
}

struct Watched(Arc<Watch>);

impl Layer for Watched {
    fn place(&self) -> Place {
        Place::anywhere("watched")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        if let Request::Lookup(_) = &request {
            self.0.more.lock().unwrap().push(cx.more_to_follow);
        }
        self.0.requests.fetch_add(i64::from(!request.gives_back()), SeqCst);
        match &request {
            Request::Lookup(_) | Request::MkDir(_) if self.0.hangs.load(SeqCst) => {
                self.0.hung.store(true, SeqCst);
                return Answer::later(std::future::pending());
            }
            Request::Forget(forget) => drop(self.0.references.fetch_sub(forget.count as i64, SeqCst)),
            _ => {}
        }
        next.call(cx, request).map(|reply| {
            let counted = match &reply {
                Reply::Entry(_) | Reply::Created(_) => 1,
                Reply::Entries(entries) => entries.len() as i64,
                Reply::DirentsPlus(list) => list.entries.len() as i64,
                _ => 0,
            };
            self.0.references.fetch_add(counted, SeqCst);
            reply
        })
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// `/dir/sub/file`, and links to all sorts of places.
fn tree(settings: Settings) -> (Client, Arc<Watch>) {
    let runtime = Arc::new(Threads::new());
    let mem = Inline::new(Mem::new(Options::default(), runtime.clone()), runtime.clone());
    let watch = Arc::new(Watch::default());
    let stack = Stack::new(Arc::new(mem)).push(Watched(watch.clone())).unwrap();
    let client = Client::new(stack.service(), runtime, settings);
    let root = client.root().unwrap();
    let dir = root.mkdir(&name("dir"), 0o755).unwrap();
    let sub = dir.mkdir(&name("sub"), 0o755).unwrap();
    sub.create(&name("file"), 0o644, OpenFlags::READ_WRITE).unwrap();
    let links = [
        ("abs", "/dir/sub"),
        ("rel", "dir/sub"),
        ("out", "../../../../dir"),
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("tofile", "dir/sub/file"),
        ("slash", "dir/sub/"),
    ];
    for (link, target) in links {
        root.symlink(&name(link), Target::new(target).unwrap()).unwrap();
    }
    // One link more than a walk follows, and exactly as many.
    for number in 0..41 {
        let target = if number == 0 { "dir".to_owned() } else { format!("chain{}", number - 1) };
        root.symlink(&name(&format!("chain{number}")), Target::new(target).unwrap()).unwrap();
    }
    (client, watch)
}

#[test]
fn paths_lead_where_path_resolution_says() {
    let (client, watch) = tree(Settings::default());
    let same = |path: &str, as_path: &str| {
        let (one, other) =
            (client.walk(path.as_bytes(), Follow::Yes), client.walk(as_path.as_bytes(), Follow::No));
        assert!(one.unwrap().is_same(&other.unwrap()), "{path} is {as_path}");
    };
    for (path, as_path) in [
        ("", "/"),
        ("//", "/"),
        ("..", "/"),
        ("dir/../../dir", "/dir"),
        ("dir/./sub//file", "/dir/sub/file"),
        ("abs/file", "/dir/sub/file"),
        ("rel/file", "/dir/sub/file"),
        ("rel/..", "/dir"),
        ("out", "/dir"),
        ("tofile", "/dir/sub/file"),
        ("slash", "/dir/sub"),
        ("dir/sub/", "/dir/sub"),
        ("chain39", "/dir"),
    ] {
        same(path, as_path);
    }
    let errno = |path: &str, follow| client.walk(path.as_bytes(), follow).unwrap_err().errno;
    let long = "n".repeat(256);
    for (path, expected) in [
        ("nowhere", Errno::ENOENT),
        ("dangling", Errno::ENOENT),
        ("loop", Errno::ELOOP),
        ("loop/x", Errno::ELOOP),
        ("chain40", Errno::ELOOP),
        ("dir/sub/file/x", Errno::ENOTDIR),
        ("dir/sub/file/..", Errno::ENOTDIR),
        ("dir/sub/file/", Errno::ENOTDIR),
        ("tofile/", Errno::ENOTDIR),
        (&long, Errno::ENAMETOOLONG),
    ] {
        assert_eq!(errno(path, Follow::Yes), expected, "{path}");
    }
    let link = client.walk(b"abs", Follow::No).unwrap();
    assert_eq!(&link.readlink().unwrap()[..], b"/dir/sub");
    assert!(client.walk(b"abs/", Follow::No).unwrap().is_dir(), "a slash asks for the directory");
    drop(link);
    assert_eq!(watch.references.load(SeqCst), 0, "every reference was returned");
}

#[test]
fn the_parent_of_a_path_and_its_name() {
    let (client, watch) = tree(Settings::default());
    let parent = |path: &str| -> Result<(Inode, Name)> { client.walk_parent(path.as_bytes()) };
    for (path, dir, last) in
        [("new", "/", "new"), ("abs/new", "/dir/sub", "new"), ("dir/new//", "/dir", "new")]
    {
        let (found, rest) = parent(path).unwrap();
        assert!(found.is_same(&client.walk(dir.as_bytes(), Follow::Yes).unwrap()), "{path}");
        assert_eq!(rest, name(last));
    }
    for path in ["/", "", "dir/..", "dir/."] {
        assert!(parent(path).is_err(), "{path:?} has no name");
    }
    assert_eq!(parent("dir/sub/file/x").unwrap_err().errno, Errno::ENOTDIR);
    assert_eq!(watch.references.load(SeqCst), 0, "every reference was returned");
}

#[test]
fn a_listing_dropped_half_way_returns_its_references() {
    let (client, watch) = tree(Settings::default());
    let mut entries = client.root().unwrap().entries().unwrap();
    let (_, first) = entries.next().unwrap().unwrap();
    drop(entries);
    drop(first);
    assert_eq!(watch.references.load(SeqCst), 0);
}

/// Lists names without what they lead to.
struct NamesOnly;

impl Layer for NamesOnly {
    fn place(&self) -> Place {
        Place::anywhere("names-only")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        next.call(cx, request)
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { ops: below.ops.without(OpSet::of(&[OpCode::ReadDirPlus])), ..below }
    }
}

#[test]
fn names_without_more_are_looked_up_together_in_their_order_and_return_their_references() {
    let (below, watch) = tree(Settings::default());
    let stack = Stack::new(below.service().clone()).push(NamesOnly).unwrap();
    let client = Client::new(stack.service(), Arc::new(Threads::new()), Settings::default());
    let root = client.root().unwrap();
    watch.more.lock().unwrap().clear();
    let mut entries = root.entries().unwrap();
    for _ in 0..20 {
        let (name, inode) = entries.next().unwrap().unwrap();
        assert!(inode.is_same(&root.lookup(&name).unwrap()), "{name:?}");
    }
    drop(entries);
    let alone = 20;
    let lookups = watch.more.lock().unwrap();
    assert_eq!(lookups.iter().filter(|more| !**more).count(), 5 + alone, "1, 2, 4, 8 and 16 at once");
    assert_eq!((lookups.len(), watch.references.load(SeqCst)), (31 + alone, 0));
}

/// A tree that is asked about each name of a listing with attributes.
struct AsksEach;

impl Layer for AsksEach {
    fn place(&self) -> Place {
        Place::anywhere("asks-each")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        assert_ne!(request.op(), OpCode::ReadDirPlus);
        next.call(cx, request)
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { plus_asks_each: true, ..below }
    }
}

#[test]
fn who_wants_names_and_kinds_asks_about_no_file_where_that_is_one_request_each() {
    let (below, watch) = tree(Settings::default());
    let stack = Stack::new(below.service().clone()).push(AsksEach).unwrap();
    let client = Client::new(stack.service(), Arc::new(Threads::new()), Settings::default());
    let root = client.root().unwrap();
    watch.more.lock().unwrap().clear();
    let found: Vec<(Name, Inode)> = root.names().unwrap().map(|item| item.unwrap()).collect();
    assert_eq!(watch.more.lock().unwrap().len(), 0, "lookups");
    for (name, bare) in found {
        let inode = root.lookup(&name).unwrap();
        assert!(bare.is_bare() && !inode.is_bare());
        assert_eq!((bare.kind(), bare.attr().ino), (inode.kind(), inode.attr().ino), "{name:?}");
    }
    assert_eq!(watch.references.load(SeqCst), 0);
    assert!(below.root().unwrap().names().unwrap().all(|item| !item.unwrap().1.is_bare()), "of other trees");
}

#[test]
fn what_is_asked_together_is_answered_in_order() {
    let (client, watch) = tree(Settings::default());
    let root = client.root().unwrap();
    watch.more.lock().unwrap().clear();
    let names = ["dir", "nowhere", "loop"].map(name);
    let found = client.call_all(names.map(|name| Lookup { dir: root.node(), name }));
    let kinds: Vec<Result<FileKind>> =
        found.iter().map(|found| found.clone().map(|entry| entry.attr.kind())).collect();
    assert_eq!(kinds, [Ok(FileKind::Directory), Err(Errno::ENOENT.into()), Ok(FileKind::Symlink)]);
    assert_eq!(*watch.more.lock().unwrap(), [true, true, false], "the last one says that it is the last");
    assert!(client.call_all(Vec::<Lookup>::new()).is_empty());
}

#[test]
fn a_cancelled_walk_ends_with_eintr() {
    let cancel = Cancel::default();
    let (client, watch) = tree(Settings { cancel: cancel.clone(), ..Settings::default() });
    watch.hangs.store(true, SeqCst);
    let waiting = thread::spawn({
        let client = client.clone();
        move || client.walk(b"dir", Follow::Yes).map(drop)
    });
    cancel.raise();
    assert_eq!(waiting.join().unwrap().unwrap_err().errno, Errno::EINTR);
    assert_eq!(client.root().unwrap_err().errno, Errno::EINTR, "nothing new is started");
    assert!(client.uninterrupted().root().is_ok(), "tidying up goes on");
}

#[test]
fn a_change_that_does_not_come_to_its_end_is_given_up_some_time_after_an_interruption() {
    let (cancel, grace) = (Cancel::default(), Duration::from_millis(20));
    let (client, watch) = tree(Settings { cancel: cancel.clone(), grace, ..Settings::default() });
    let root = client.root().unwrap();
    watch.hangs.store(true, SeqCst);
    let mkdir = move |client: &Client| {
        client.call(MkDir { dir: root.node(), name: name("new"), mode: 0o755, umask: 0, initial: None })
    };
    let interrupted = thread::scope(|scope| {
        let waiting = scope.spawn(|| mkdir(&client));
        while !watch.hung.load(SeqCst) {
            thread::yield_now();
        }
        cancel.raise();
        waiting.join().unwrap().unwrap_err()
    });
    assert_eq!(interrupted.errno, Errno::ETIMEDOUT, "the error says that it may have been done");
    assert!(
        interrupted.reason.as_deref().is_some_and(|reason| reason.contains("interruption")),
        "{interrupted}"
    );
    let again = mkdir(&client.uninterrupted()).unwrap_err();
    assert_eq!(again.errno, Errno::ETIMEDOUT);
    assert!(
        again.reason.as_deref().is_some_and(|reason| reason.contains("any more")),
        "it does not wait again: {again}"
    );
}

#[test]
fn a_walk_that_takes_too_long_says_what_was_slow() {
    let timeout = Some(Duration::from_millis(20));
    let (client, watch) = tree(Settings { timeout, cred: Credentials::ROOT, ..Settings::default() });
    watch.hangs.store(true, SeqCst);
    let error = client.walk(b"dir", Follow::Yes).unwrap_err();
    assert_eq!(error.errno, Errno::ETIMEDOUT);
    assert!(error.reason.as_deref().is_some_and(|reason| reason.contains("lookup on mem:")), "{error}");
}

#[test]
fn the_names_of_a_path_are_one_request() {
    let (client, watch) = tree(Settings::default());
    let before = watch.requests.load(SeqCst);
    client.walk(b"/dir/sub/file", Follow::Yes).unwrap();
    assert_eq!(watch.requests.load(SeqCst) - before, 2, "the attributes of the root, and the walk");
}
