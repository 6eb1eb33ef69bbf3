// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server that dies at any moment, and a copy of its state that goes on: everything that was asked is done once, and every
//! number that was told stays what it was.

use futures_channel::oneshot::{self, Receiver};
use outrigger_core::attr::Attr;
use outrigger_core::ops::{Forget, GetAttr, Lookup, MkDir, Rename, RenameFlags, SyncFs, Unlink};
use outrigger_core::reply::{Attrs, Entries, Entry, Ttl};
use outrigger_core::wire::Frame;
use outrigger_core::{Credentials, Cx, Errno, FileKind, Generation, Name, Node, Reply, Request, Result};
use outrigger_succession::record::Records;
use outrigger_succession::{Ask, Asker, Role, Served, State, Task, tell};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// A tree that is changed when a reply is given, and knows files by numbers of its own.
struct Tree {
    names: BTreeMap<(u64, Name), u64>,
    held: HashMap<Node, (u64, u64)>,
    made: u64,
    numbered: u64,
}

impl Tree {
    fn new() -> Self {
        Tree { names: BTreeMap::new(), held: HashMap::from([(Node::ROOT, (1, 1))]), made: 1, numbered: 1 }
    }

    /// Another process: files keep their inodes, and have no numbers yet.
    fn start_again(&mut self) {
        self.held = HashMap::from([(Node::ROOT, (1, 1))]);
        self.numbered += 100;
    }

    fn inode(&self, node: Node) -> Result<u64> {
        Ok(self.held.get(&node).expect("a number that is known").0)
    }

    fn entry(&mut self, ino: u64) -> Entry {
        let known = self.held.iter().find(|(_, (one, _))| *one == ino).map(|(node, _)| *node);
        let node = known.unwrap_or_else(|| {
            self.numbered += 1;
            Node(self.numbered)
        });
        self.held.entry(node).or_insert((ino, 0)).1 += 1;
        let attr = Attr { ino, nlink: 1, mode: FileKind::Directory.bits(), ..Attr::default() };
        Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::FOREVER, attr_ttl: Ttl::FOREVER }
    }

    fn lookup(&mut self, dir: Node, name: &Name) -> Result<Entry> {
        let ino = *self.names.get(&(self.inode(dir)?, name.clone())).ok_or(Errno::ENOENT)?;
        Ok(self.entry(ino))
    }

    fn make(&mut self, op: &MkDir) -> Result<Entry> {
        self.made += 1;
        let (place, ino) = ((self.inode(op.dir)?, op.name.clone()), self.made);
        match self.names.insert(place, ino) {
            None => Ok(self.entry(ino)),
            Some(_) => panic!("'{}' is made twice", op.name),
        }
    }

    fn remove(&mut self, dir: Node, name: &Name) -> Result<u64> {
        Ok(self.names.remove(&(self.inode(dir)?, name.clone())).ok_or(Errno::ENOENT)?)
    }

    fn rename(&mut self, op: &Rename) -> Result<()> {
        let ino = self.remove(op.dir, &op.name)?;
        self.names.insert((self.inode(op.to_dir)?, op.to_name.clone()), ino);
        Ok(())
    }

    fn walk(&mut self, mut dir: Node, names: &[Name]) -> Result<Entries> {
        names.iter().map(|name| self.lookup(dir, name).inspect(|entry| dir = entry.node)).collect()
    }

    fn answer(&mut self, request: Request) -> Reply {
        match request {
            Request::Lookup(op) => self.lookup(op.dir, &op.name).into(),
            Request::Walk(op) => self.walk(op.dir, &op.names).into(),
            Request::MkDir(op) => self.make(&op).into(),
            Request::Unlink(op) => self.remove(op.dir, &op.name).map(drop).into(),
            Request::Rename(op) => self.rename(&op).into(),
            Request::GetAttr(op) => {
                let attr = self.inode(op.node).map(|ino| Attr { ino, ..Attr::default() });
                attr.map(|attr| Attrs { attr, ttl: Ttl::FOREVER }).into()
            }
            Request::Forget(Forget { node, count }) => {
                let held = self.held.get_mut(&node).expect("a number that is known");
                held.1 -= count;
                if held.1 == 0 {
                    self.held.remove(&node);
                }
                Reply::Done(())
            }
            Request::SyncFs(_) => Reply::Done(()),
            other => panic!("{other:?} is not asked here"),
        }
    }
}

/// The programs: what they asked, and what they were told.
struct Programs {
    random: fastrand::Rng,
    asked: u64,
    waiting: Vec<(Cx, Request, Receiver<Reply>)>,
    /// Told, but perhaps only just.
    last: Option<(Cx, Request, Reply)>,
    /// Which inode each number has that was told.
    told: BTreeMap<Node, u64>,
}

impl Programs {
    fn request(&mut self) -> Request {
        let some = |random: &mut fastrand::Rng, told: &BTreeMap<Node, u64>| match random.usize(0..=told.len())
        {
            0 => Node::ROOT,
            number => *told.keys().nth(number - 1).expect("one of them"),
        };
        let (random, told) = (&mut self.random, &self.told);
        let name = |number: u64| Name::try_from(format!("n{number}").as_str()).expect("a name");
        let dir = some(random, told);
        let known = name(random.u64(1..=self.asked.max(1)));
        match random.u8(0..10) {
            0..4 => MkDir { dir, name: name(self.asked + 1), mode: 0 }.into(),
            4 => Unlink { dir: Node::ROOT, name: known }.into(),
            5 => {
                let (to_dir, to_name, flags) = (Node::ROOT, name(self.asked + 1), RenameFlags::empty());
                Rename { dir: Node::ROOT, name: known, to_dir, to_name, flags }.into()
            }
            6 | 7 => Lookup { dir, name: known }.into(),
            8 => GetAttr { node: dir, handle: None }.into(),
            _ => SyncFs { node: Node::ROOT }.into(),
        }
    }

    fn next(&mut self) -> (Cx, Request, oneshot::Sender<Reply>) {
        let request = self.request();
        self.asked += 1;
        let slot = (0..).find(|slot| self.waiting.iter().all(|(cx, ..)| cx.slot != *slot)).expect("a slot");
        let cx = Cx { slot, ..Cx::new(2 * self.asked, Credentials::ROOT, "fuse") };
        let (sender, receiver) = oneshot::channel();
        self.waiting.push((cx.clone(), request.clone(), receiver));
        (cx, request, sender)
    }

    fn hear(&mut self) {
        let (told, last) = (&mut self.told, &mut self.last);
        self.waiting.retain_mut(|(cx, request, receiver)| {
            let Ok(Some(reply)) = receiver.try_recv() else { return true };
            if let Reply::Entry(entry) = &reply {
                let before = told.insert(entry.node, entry.attr.ino);
                assert!(before.is_none_or(|ino| ino == entry.attr.ino), "{before:?} is {entry:?}");
            }
            *last = Some((cx.clone(), request.clone(), reply));
            false
        });
    }
}

/// Where a file is, from the root.
fn path(tree: &Tree, ino: u64) -> Option<Vec<Name>> {
    if ino == 1 {
        return Some(Vec::new());
    }
    let ((dir, name), _) = tree.names.iter().find(|(_, one)| **one == ino)?;
    let mut names = path(tree, *dir)?;
    names.push(name.clone());
    Some(names)
}

/// Everything, and the process that has made the mount.
struct World {
    state: State,
    file: Arc<File>,
    records: Records,
    tree: Tree,
    programs: Programs,
}

impl World {
    fn new(seed: u64) -> Self {
        let file = File::from(memfd_create("record", MemfdFlags::CLOEXEC).expect("memory"));
        let records = Records::new(file.try_clone().expect("a descriptor"), 0);
        let random = fastrand::Rng::with_seed(seed);
        let (waiting, told) = (Vec::new(), BTreeMap::new());
        let programs = Programs { random, asked: 0, waiting, last: None, told };
        // Few files: what the server holds is returned to it again and again.
        let state = State::new(Role::Own, 8).expect("memory");
        World { state, file: Arc::new(file), records, tree: Tree::new(), programs }
    }

    /// A server serves by itself, and dies after so many steps.
    fn live(&mut self, steps: u32) {
        let left = self.state.leave().expect("nothing is being done");
        self.records.begin().expect("memory");
        let record = (Arc::clone(&self.file), 0);
        let mut served = Served::going_on(record, left.into()).expect("a state");
        // What the process told that has made the mount was heard.
        self.programs.last = None;
        let mut tasks = Vec::new();
        (0..steps).for_each(|_| self.step(&mut served, &mut tasks));
        drop(served);
        self.follow();
    }

    fn step(&mut self, served: &mut Served, tasks: &mut Vec<Task>) {
        let World { tree, programs, .. } = self;
        if programs.random.bool() && programs.waiting.len() < 5 {
            let (cx, request, sender) = programs.next();
            served.ask(&cx, request, sender).expect("no content");
        } else if !tasks.is_empty() {
            let Task { id, request, only_looks, .. } = take_one(tasks, &mut programs.random);
            let mut reply = tree.answer(request);
            match only_looks {
                true => drop(served.looked_at(id, &mut reply).expect("who waits").send(reply)),
                false => served.replied(id, reply),
            }
        }
        let (next, answered) = served.take_next();
        served.record(true, |_: Duration| false).expect("memory");
        for task in next {
            match task.id {
                Frame::UNANSWERED => drop(tree.answer(task.request)),
                _ => tasks.push(task),
            }
        }
        answered.into_iter().for_each(|(sender, reply)| sender.send(reply).expect("who waits"));
        programs.hear();
        if programs.random.u8(0..8) == 0 {
            self.follow();
        }
    }

    fn follow(&mut self) {
        while let Some(event) = self.records.take().expect("events") {
            self.state.follow(event);
        }
        self.records.consumed().expect("room");
    }

    /// The copy goes on, with another server; what nobody was told is asked again, and so is what somebody may have been told.
    fn go_on(&mut self) {
        let World { state, tree, programs, .. } = self;
        tree.start_again();
        state.take_over();
        state.died(true, &Errno::EIO.into());
        for (node, ino) in &programs.told {
            assert_eq!(state.files.path(*node).ok(), path(tree, *ino), "{node:?}");
        }
        let mut again = std::mem::take(&mut programs.waiting);
        // The kernel asks again when the process dies between telling and being heard; what only looks may be told anew.
        let last = programs.last.take().filter(|(_, request, _)| !matches!(request, Request::GetAttr(_)));
        if let Some((cx, request, reply)) = last {
            let (sender, mut receiver) = oneshot::channel();
            state.take(Ask::new(cx.cred, request, Asker::new(&cx, sender)));
            tell(state.answers());
            assert_eq!(receiver.try_recv(), Ok(Some(reply)));
        }
        for (cx, request, receiver) in &mut again {
            let (sender, fresh) = oneshot::channel();
            *receiver = fresh;
            state.take(Ask::new(cx.cred, request.clone(), Asker::new(cx, sender)));
        }
        programs.waiting = again;
        state.serves = true;
        state.go_on();
        self.work();
        let (state, programs) = (&mut self.state, &mut self.programs);
        programs.hear();
        assert!(programs.waiting.is_empty() && state.is_idle(), "{:?}", programs.waiting);
    }

    /// Does what is to be done, by way of the process that has made the mount.
    fn work(&mut self) {
        while !self.state.outgoing.is_empty() {
            for task in std::mem::take(&mut self.state.outgoing) {
                let reply = self.tree.answer(task.request);
                if task.id != Frame::UNANSWERED {
                    self.state.receive(task.id, reply);
                }
            }
        }
        // What was asked by the process that has died, and not again, has no taker.
        tell(self.state.answers());
    }
}

/// Any, but nothing is returned before all that was asked about it until then.
fn take_one(tasks: &mut Vec<Task>, random: &mut fastrand::Rng) -> Task {
    let chosen = random.usize(0..tasks.len());
    match tasks[chosen].request {
        Request::Forget(_) => tasks.remove(0),
        _ => tasks.remove(chosen),
    }
}

#[test]
fn everything_that_was_asked_happens_once_whenever_the_server_dies() {
    for seed in 0..2000 {
        let mut world = World::new(seed);
        for life in 1..=4 {
            world.live(seed as u32 * life % 150);
            world.go_on();
        }
    }
}

/// The kernel asks again only after the next server has begun: what was left is done by then.
#[test]
fn what_was_left_is_told_by_the_next_server() {
    for seed in 0..500 {
        let mut world = World::new(seed);
        world.live(seed as u32 % 150);
        world.state.take_over();
        world.state.died(true, &Errno::EIO.into());
        world.tree.start_again();
        world.state.serves = true;
        world.state.go_on();
        world.work();
        let left = world.state.leave().expect("all is done");
        world.records.begin().expect("memory");
        let record = (Arc::clone(&world.file), 0);
        let mut served = Served::going_on(record, left.into()).expect("a state");
        let was_taken = |request: &Request| !matches!(request, Request::GetAttr(_));
        for (cx, request, receiver) in &mut world.programs.waiting {
            let (sender, fresh) = oneshot::channel();
            *receiver = fresh;
            served.ask(cx, request.clone(), sender).expect("no content");
            let (tasks, answered) = served.take_next();
            assert!(!was_taken(request) || tasks.is_empty(), "{request:?} is done twice");
            answered.into_iter().for_each(|(sender, reply)| sender.send(reply).expect("who waits"));
            assert!(!was_taken(request) || matches!(receiver.try_recv(), Ok(Some(_))));
        }
    }
}
