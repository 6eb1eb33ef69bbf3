// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees to die over, and a hand that works in them.
#![allow(dead_code, reason = "each test program uses a part")]

use outrigger_core::ops::*;
use outrigger_core::{
    Clock, Handle, Inline, LockOwner, Name, Node, Payload, Reply, Request, Service, Time, XattrName,
};
use outrigger_crash::{Death, World};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A clock that a test moves.
#[derive(Default)]
pub struct Moved(AtomicI64);

impl Moved {
    pub fn tick(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clock for Moved {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    fn wall(&self) -> Time {
        Time::new(1_000_000_000 + self.0.load(Ordering::SeqCst), 0)
    }
}

/// What worlds are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The driver `mem`, everything in one tick of the clock.
    MemInATick,
    /// The driver `mem`, the clock moves before the request under test.
    Mem,
    /// The driver `local`; the request under test mostly falls into the tick of what was before.
    LocalInATick,
    /// The driver `local`, with a tick before the request under test.
    Local,
}

/// A world, and what is known in it.
pub struct Hand {
    pub world: World,
    pub nodes: HashMap<String, Node>,
    pub handles: HashMap<String, Handle>,
    kind: Kind,
    moved: Arc<Moved>,
    threads: Arc<Threads>,
    _dir: Option<TempDir>,
}

pub fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

pub fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes().to_vec()).expect("a good name")
}

impl Hand {
    pub fn new(kind: Kind, threads: &Arc<Threads>) -> Self {
        let moved = Arc::new(Moved::default());
        let (driver, clock, dir): (Arc<dyn Service>, Arc<dyn Clock>, _) = match kind {
            Kind::Mem | Kind::MemInATick => {
                let mem = Mem::new(Options::default(), moved.clone());
                (Arc::new(Inline::new(mem, threads.clone())), moved.clone(), None)
            }
            Kind::Local | Kind::LocalInATick => {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let local = Local::open(dir.path(), LocalOptions::default()).expect("the directory opens");
                (Arc::new(Inline::new(local, threads.clone())), threads.clone(), Some(dir))
            }
        };
        let world = World::new(driver, clock);
        let nodes = HashMap::from([(String::new(), Node::ROOT)]);
        let threads = Arc::clone(threads);
        Hand { world, nodes, handles: HashMap::new(), kind, moved, threads, _dir: dir }
    }

    /// Lets the clock of the tree move on, where the kind of world says so.
    pub fn tick(&self) {
        match self.kind {
            Kind::Mem => self.moved.tick(),
            Kind::MemInATick | Kind::LocalInATick => {}
            Kind::Local => {
                // It is the clock itself that has to move on.
                let now = self.threads.monotonic();
                while self.threads.monotonic() < now + Duration::from_millis(40) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    pub fn ask(&mut self, request: impl Into<Request>) -> Reply {
        self.world.ask(request, &[])
    }

    pub fn node(&self, name: &str) -> Node {
        *self.nodes.get(name).unwrap_or_else(|| panic!("no node is called {name}"))
    }

    pub fn handle(&self, name: &str) -> Handle {
        *self.handles.get(name).unwrap_or_else(|| panic!("nothing called {name} is open"))
    }

    /// Notes what `reply` gave out under `text`.
    pub fn learn(&mut self, text: &str, reply: &Reply) {
        match reply {
            Reply::Entry(entry) => drop(self.nodes.insert(text.to_owned(), entry.node)),
            Reply::Opened(opened) => drop(self.handles.insert(text.to_owned(), opened.handle)),
            Reply::Created(created) => {
                self.nodes.insert(text.to_owned(), created.entry.node);
                self.handles.insert(text.to_owned(), created.opened.handle);
            }
            _ => {}
        }
    }

    /// A directory in the root.
    pub fn dir(&mut self, text: &str) {
        let reply =
            self.ask(MkDir { dir: Node::ROOT, name: name(text), mode: 0o755, umask: 0, initial: None });
        assert!(reply.error().is_none(), "{reply:?}");
        self.learn(text, &reply);
    }

    /// A file in the root with this content, left open for reading and writing with `flags`.
    pub fn file(&mut self, text: &str, content: &[u8], flags: OpenFlags) {
        let flags = OpenFlags::READ_WRITE | flags;
        let reply = self.ask(Create {
            dir: Node::ROOT,
            name: name(text),
            mode: 0o644,
            umask: 0,
            flags,
            initial: None,
        });
        assert!(reply.error().is_none(), "{reply:?}");
        self.learn(text, &reply);
        let written = self.ask(self.write(text, 0, content));
        assert!(written.error().is_none(), "{written:?}");
    }

    pub fn write(&self, text: &str, offset: u64, content: &[u8]) -> Write {
        let data = Payload::from(content.to_vec());
        let (node, handle) = (self.node(text), self.handle(text));
        Write { node, handle, offset, data, cached: false, kill_setid: false }
    }

    pub fn release(&self, text: &str) -> Release {
        let (node, handle) = (self.node(text), self.handle(text));
        Release { node, handle, flags: OpenFlags::READ_WRITE, owner: LockOwner(1), flock_release: false }
    }
}

/// Deaths to try: each of the first `steps` alone, and each two of the first `pairs` in a row.
pub fn deaths(steps: usize, pairs: usize) -> Vec<Vec<Death>> {
    let alone = Death::all(steps).into_iter().map(|death| vec![death]);
    let pair = if pairs > 0 { Death::all(pairs) } else { vec![] };
    let two = pair.iter().flat_map(|&one| pair.iter().map(move |&two| vec![one, two]));
    alone.chain(two).collect()
}
