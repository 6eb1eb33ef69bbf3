// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server that dies at any moment, and a copy of its state that goes on: everything that was asked is done once, and every
//! number that was in a reply stays what it was.

mod checkpoints;

use futures_channel::oneshot::{self, Receiver};
use outrigger_core::attr::Attr;
use outrigger_core::ops::{
    Forget, GetAttr, Lookup, MkDir, MkNod, Open, OpenFlags, Read, Release, Rename, RenameFlags, SyncFs,
    TmpFile, Unlink,
};
use outrigger_core::reply::{Attrs, Created, Entries, Entry, Opened, Ttl};
use outrigger_core::wire::Frame;
use outrigger_core::{
    Credentials, Cx, Errno, FileKind, Generation, Handle, LockOwner, Name, Node, Payload, Reply, Request,
    Result,
};
use outrigger_succession::place::{REMOVED, REMOVED_NAME};
use outrigger_succession::record::Records;
use outrigger_succession::{Ask, Requester, Role, Served, State, Task, deliver, silly_name};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// A tree that is changed when a reply is given, and knows files by numbers of its own.
struct Tree {
    names: BTreeMap<(u64, Name), u64>,
    held: HashMap<Node, (u64, u64)>,
    /// Which inodes are regular files, and what is open.
    files: HashSet<u64>,
    open: HashMap<Handle, u64>,
    made: u64,
    numbered: u64,
    /// Whether there is no room to write anything down.
    full: bool,
}

/// The inode of the directory that programs do not see.
const HIDDEN: u64 = u64::MAX;

impl Tree {
    fn new() -> Self {
        let (held, files) = (HashMap::from([(Node::ROOT, (1, 1))]), HashSet::new());
        Tree { names: BTreeMap::new(), held, files, open: HashMap::new(), made: 1, numbered: 1, full: false }
    }

    /// Another process: files keep their inodes, and have no numbers yet; nothing is open, and what has no name is gone.
    fn start_again(&mut self) {
        self.held = HashMap::from([(Node::ROOT, (1, 1))]);
        self.open.clear();
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
        Entry {
            node,
            generation: Generation(0),
            attr: self.attr(ino),
            entry_ttl: Ttl::FOREVER,
            attr_ttl: Ttl::FOREVER,
        }
    }

    fn attr(&self, ino: u64) -> Attr {
        let kind = if self.files.contains(&ino) { FileKind::Regular } else { FileKind::Directory };
        let nlink = self.names.values().filter(|one| **one == ino).count() as u32;
        Attr { ino, nlink, mode: kind.bits(), ..Attr::default() }
    }

    fn lookup(&mut self, dir: Node, name: &Name) -> Result<Entry> {
        if dir == Node::ROOT && name == &removed_name() {
            return Ok(self.entry(HIDDEN));
        }
        let ino = *self.names.get(&(self.inode(dir)?, name.clone())).ok_or(Errno::ENOENT)?;
        Ok(self.entry(ino))
    }

    fn make(&mut self, dir: Node, name: Name, kind: FileKind) -> Result<Entry> {
        self.made += 1;
        let (place, ino) = ((self.inode(dir)?, name), self.made);
        if kind == FileKind::Regular {
            self.files.insert(ino);
        }
        match self.names.insert(place.clone(), ino) {
            None => Ok(self.entry(ino)),
            Some(_) => panic!("'{}' is made twice", place.1),
        }
    }

    /// A file that has no name, or keeps one.
    fn make_nameless(&mut self, kept: Option<Name>) -> Created {
        self.made += 1;
        let ino = self.made;
        self.files.insert(ino);
        kept.map(|kept| self.names.insert((HIDDEN, kept), ino));
        Created { entry: self.entry(ino), opened: self.opened(ino) }
    }

    fn opened(&mut self, ino: u64) -> Opened {
        self.numbered += 1;
        self.open.insert(Handle(self.numbered), ino);
        Opened { handle: Handle(self.numbered), ..Opened::default() }
    }

    fn read(&self, handle: Handle) -> Payload {
        self.open[&handle].to_le_bytes().to_vec().into()
    }

    fn unlink(&mut self, op: &Unlink, kept: Option<Name>) -> Result<()> {
        if op.dir == REMOVED {
            self.names.remove(&(HIDDEN, op.name.clone())).expect("a name that was kept");
            return Ok(());
        }
        let ino = self.remove(op.dir, &op.name)?;
        kept.map(|kept| self.names.insert((HIDDEN, kept), ino));
        Ok(())
    }

    fn remove(&mut self, dir: Node, name: &Name) -> Result<u64> {
        Ok(self.names.remove(&(self.inode(dir)?, name.clone())).ok_or(Errno::ENOENT)?)
    }

    fn rename(&mut self, op: &Rename, kept: Option<Name>) -> Result<()> {
        let ino = self.remove(op.dir, &op.name)?;
        let replaced = self.names.insert((self.inode(op.to_dir)?, op.to_name.clone()), ino);
        replaced.zip(kept).map(|(replaced, kept)| self.names.insert((HIDDEN, kept), replaced));
        Ok(())
    }

    fn walk(&mut self, mut dir: Node, names: &[Name]) -> Result<Entries> {
        names.iter().map(|name| self.lookup(dir, name).inspect(|entry| dir = entry.node)).collect()
    }

    fn answer(&mut self, id: u64, request: Request) -> Reply {
        let kept = silly_name(id);
        match request {
            Request::Lookup(op) => self.lookup(op.dir, &op.name).into(),
            Request::Walk(op) => self.walk(op.dir, &op.names).into(),
            Request::MkDir(op) => self.make(op.dir, op.name, FileKind::Directory).into(),
            Request::MkNod(op) => self.make(op.dir, op.name, FileKind::Regular).into(),
            Request::TmpFile(_) => Reply::Created(self.make_nameless(kept)),
            Request::Unlink(op) => self.unlink(&op, kept).into(),
            Request::Rename(op) => self.rename(&op, kept).into(),
            Request::Open(op) => self.inode(op.node).map(|ino| self.opened(ino)).into(),
            Request::Read(op) => Reply::Data(self.read(op.handle)),
            Request::Release(op) => self.open.remove(&op.handle).map(drop).ok_or(Errno::EBADF.into()).into(),
            Request::GetAttr(op) => {
                let attr = self.inode(op.node).map(|ino| self.attr(ino));
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
            Request::SyncFs(_) if self.full => Reply::Error(Errno::ENOSPC.into()),
            Request::SyncFs(_) => Reply::Done(()),
            other => panic!("{other:?} is not asked here"),
        }
    }
}

/// The programs: their requests, and the replies.
struct Programs {
    random: fastrand::Rng,
    asked: u64,
    waiting: Vec<(Cx, Request, Receiver<Reply>)>,
    /// Shown, but perhaps only just.
    last: Option<(Cx, Request, Reply)>,
    /// Which inode each number in a reply has, and of which kind it is.
    shown: BTreeMap<Node, (u64, FileKind)>,
    open: BTreeMap<Handle, Node>,
}

fn removed_name() -> Name {
    Name::try_from(REMOVED_NAME).expect("a name")
}

fn reading(handle: Handle, node: Node) -> Request {
    Read { node, handle, offset: 0, len: 8 }.into()
}

impl Programs {
    /// Any directory that was in a reply.
    fn directory(&mut self) -> Node {
        let shown = self.shown.iter().filter(|(_, (_, kind))| *kind == FileKind::Directory);
        let nodes: Vec<Node> = std::iter::once(Node::ROOT).chain(shown.map(|(node, _)| *node)).collect();
        nodes[self.random.usize(0..nodes.len())]
    }

    /// Whether a request takes a name away. The kernel of programs allows no other one meanwhile in the directory.
    fn takes_names(&self) -> bool {
        let takes = |request: &Request| matches!(request, Request::Unlink(_) | Request::Rename(_));
        self.waiting.iter().any(|(_, request, _)| takes(request))
    }

    /// A file that has a name, while no request takes one away.
    fn file(&mut self, tree: &Tree) -> Option<Node> {
        if self.takes_names() {
            return None;
        }
        let named = |ino: &u64| path(tree, *ino).is_some_and(|path| path[0] != removed_name());
        let shown = self.shown.iter().filter(|(_, (ino, kind))| *kind == FileKind::Regular && named(ino));
        let nodes: Vec<Node> = shown.map(|(node, _)| *node).collect();
        (!nodes.is_empty()).then(|| nodes[self.random.usize(0..nodes.len())])
    }

    /// An open file without a read in progress.
    fn handle(&mut self) -> Option<(Handle, Node)> {
        let open = &self.open;
        let is_read = |handle: &Handle| {
            self.waiting.iter().any(|(_, request, _)| *request == reading(*handle, open[handle]))
        };
        let free: Vec<Handle> = open.keys().copied().filter(|handle| !is_read(handle)).collect();
        let handle = (!free.is_empty()).then(|| free[self.random.usize(0..free.len())])?;
        Some((handle, open[&handle]))
    }

    fn request(&mut self, tree: &Tree) -> Request {
        let name = |number: u64| Name::try_from(format!("n{number}").as_str()).expect("a name");
        let dir = self.directory();
        let (known, fresh) = (name(self.random.u64(1..=self.asked.max(1))), name(self.asked + 1));
        match self.random.u8(0..18) {
            0..3 => MkDir { dir, name: fresh, mode: 0, umask: 0, initial: None }.into(),
            3..5 => MkNod { dir: Node::ROOT, name: fresh, mode: 0, umask: 0, rdev: 0, initial: None }.into(),
            5 => TmpFile { dir, mode: 0, umask: 0, flags: OpenFlags::READ_WRITE }.into(),
            6 | 7 if !self.takes_names() => Unlink { dir: Node::ROOT, name: known }.into(),
            8 if !self.takes_names() => {
                let there = tree.names.keys().filter(|(dir, _)| *dir == 1).map(|(_, name)| name.clone());
                let there: Vec<Name> = there.chain([fresh]).collect();
                let to_name = there[self.random.usize(0..there.len())].clone();
                let (dir, to_dir, flags) = (Node::ROOT, Node::ROOT, RenameFlags::empty());
                Rename { dir, name: known, to_dir, to_name, flags }.into()
            }
            9 => Lookup { dir, name: known }.into(),
            10..13 if let Some(node) = self.file(tree) => Open { node, flags: OpenFlags::READ_WRITE }.into(),
            13 | 14 if let Some((handle, node)) = self.handle() => {
                self.open.remove(&handle);
                releasing(handle, node)
            }
            15 | 16 if let Some((handle, node)) = self.handle() => reading(handle, node),
            17 => SyncFs { node: Node::ROOT }.into(),
            _ => GetAttr { node: dir, handle: None }.into(),
        }
    }

    fn next(&mut self, tree: &Tree) -> (Cx, Request, oneshot::Sender<Reply>) {
        let request = self.request(tree);
        self.asked += 1;
        let slot = (0..).find(|slot| self.waiting.iter().all(|(cx, ..)| cx.slot != *slot)).expect("a slot");
        let cx = Cx { slot, ..Cx::new(2 * self.asked, Credentials::ROOT, "fuse") };
        let (sender, receiver) = oneshot::channel();
        self.waiting.push((cx.clone(), request.clone(), receiver));
        (cx, request, sender)
    }

    /// Asks the process that serves.
    fn ask(&mut self, state: &mut State, request: Request) {
        self.asked += 1;
        let (sender, receiver) = oneshot::channel();
        let cx = Cx::new(2 * self.asked, Credentials::ROOT, "fuse");
        state.take(Ask::new(cx.cred.clone(), request.clone(), Requester::new(&cx, sender)));
        self.waiting.push((cx, request, receiver));
    }

    fn hear(&mut self) {
        let mut heard = Vec::new();
        self.waiting.retain_mut(|(cx, request, receiver)| {
            let Ok(Some(reply)) = receiver.try_recv() else { return true };
            heard.push((cx.clone(), request.clone(), reply));
            false
        });
        for (cx, request, reply) in heard {
            match (&request, &reply) {
                (_, Reply::Entry(entry)) => self.learn(entry),
                (_, Reply::Created(Created { entry, opened })) => {
                    assert_eq!(entry.attr.nlink, 0);
                    self.learn(entry);
                    self.open.insert(opened.handle, entry.node);
                }
                (Request::Open(op), Reply::Opened(opened)) => drop(self.open.insert(opened.handle, op.node)),
                (Request::Read(op), reply) => {
                    let content = self.shown[&op.node].0.to_le_bytes().to_vec();
                    assert_eq!(reply, &Reply::Data(content.into()), "{op:?}");
                }
                _ => {}
            }
            self.last = Some((cx, request, reply));
        }
    }

    fn learn(&mut self, entry: &Entry) {
        let now = (entry.attr.ino, entry.attr.kind());
        let before = self.shown.insert(entry.node, now);
        assert!(before.is_none_or(|before| before == now), "{before:?} is {entry:?}");
    }
}

fn releasing(handle: Handle, node: Node) -> Request {
    let (flags, owner, flock_release) = (OpenFlags::READ_WRITE, LockOwner(0), false);
    Release { node, handle, flags, owner, flock_release }.into()
}

/// Where a file is, from the root.
fn path(tree: &Tree, ino: u64) -> Option<Vec<Name>> {
    match ino {
        1 => return Some(Vec::new()),
        HIDDEN => return Some(vec![removed_name()]),
        _ => {}
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
        let (waiting, shown, open) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let programs = Programs { random, asked: 0, waiting, last: None, shown, open };
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
        // The replies of the process that has made the mount have arrived.
        self.programs.last = None;
        let mut tasks = Vec::new();
        (0..steps).for_each(|_| self.step(&mut served, &mut tasks));
        drop(served);
        self.follow();
    }

    fn step(&mut self, served: &mut Served, tasks: &mut Vec<Task>) {
        let World { tree, programs, .. } = self;
        if programs.random.bool() && programs.waiting.len() < 5 {
            let (cx, request, sender) = programs.next(tree);
            served.ask(&cx, request, sender).expect("no content");
        } else if !tasks.is_empty() {
            let Task { id, request, only_looks, .. } = take_one(tasks, &mut programs.random);
            let mut reply = tree.answer(id, request);
            match only_looks {
                true => drop(served.looked_at(id, &mut reply).expect("who waits").send(reply)),
                false => served.replied(id, reply),
            }
        }
        let (next, answered) = served.take_next();
        served.record(true, |_: Duration| false).expect("memory");
        for task in next {
            match task.id {
                Frame::UNANSWERED => drop(tree.answer(task.id, task.request)),
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

    /// The copy goes on, with another server; requests without a reply are sent again, and so are those whose reply may not have arrived.
    fn go_on(&mut self) {
        let World { state, tree, programs, .. } = self;
        tree.start_again();
        state.take_over();
        state.died(true, &Errno::EIO.into());
        for (node, (ino, _)) in &programs.shown {
            assert_eq!(state.files.path(*node).ok(), path(tree, *ino), "{node:?}");
        }
        let mut again = std::mem::take(&mut programs.waiting);
        // The kernel sends a request again when the process dies before the reply arrives; what only looks may get another one.
        let last = programs
            .last
            .take()
            .filter(|(_, request, _)| !matches!(request, Request::GetAttr(_) | Request::Read(_)));
        if let Some((cx, request, reply)) = last {
            let (sender, mut receiver) = oneshot::channel();
            state.take(Ask::new(cx.cred.clone(), request, Requester::new(&cx, sender)));
            deliver(state.answers());
            assert_eq!(receiver.try_recv(), Ok(Some(reply)));
        }
        for (cx, request, receiver) in &mut again {
            let (sender, fresh) = oneshot::channel();
            *receiver = fresh;
            state.take(Ask::new(cx.cred.clone(), request.clone(), Requester::new(cx, sender)));
        }
        programs.waiting = again;
        for (handle, node) in programs.open.clone() {
            programs.ask(state, reading(handle, node));
        }
        state.serves = true;
        state.go_on();
        self.finish();
    }

    /// All that was asked is done, by way of the process that has made the mount.
    fn finish(&mut self) {
        self.work();
        self.programs.hear();
        let (state, waiting) = (&self.state, &self.programs.waiting);
        assert!(waiting.is_empty() && state.is_idle(), "{waiting:?}");
    }

    /// Everything is closed: no file keeps a name that it has lost.
    fn close(&mut self) {
        for (handle, node) in std::mem::take(&mut self.programs.open) {
            self.programs.ask(&mut self.state, releasing(handle, node));
        }
        self.finish();
        assert!(self.tree.names.keys().all(|(dir, _)| *dir != HIDDEN), "{:?}", self.tree.names);
    }

    /// Does what is to be done, by way of the process that has made the mount.
    fn work(&mut self) {
        while !self.state.outgoing.is_empty() {
            for task in std::mem::take(&mut self.state.outgoing) {
                let reply = self.tree.answer(task.id, task.request);
                if task.id != Frame::UNANSWERED {
                    self.state.receive(task.id, reply);
                }
            }
        }
        // What was asked by the process that has died, and not again, has no taker.
        deliver(self.state.answers());
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
        world.close();
    }
}

/// The kernel asks again only after the next server has begun: what was left is done by then.
#[test]
fn what_was_left_is_answered_by_the_next_server() {
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
        let was_taken = |request: &Request| !matches!(request, Request::GetAttr(_) | Request::Read(_));
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

/// What a server is asked to do for a request, one at a time.
fn done(served: &mut Served, tree: &mut Tree, request: Request) -> (Reply, Vec<(u64, Request)>) {
    let (sender, mut receiver) = oneshot::channel();
    let cx = Cx::new(2, Credentials::ROOT, "fuse");
    served.ask(&cx, request, sender).expect("no content");
    let mut asked = Vec::new();
    loop {
        let (tasks, answered) = served.take_next();
        answered.into_iter().for_each(|(sender, reply)| sender.send(reply).expect("who waits"));
        if tasks.is_empty() {
            return (receiver.try_recv().expect("a sender").expect("a reply"), asked);
        }
        for Task { id, request, .. } in tasks {
            asked.push((id, request.clone()));
            assert!(asked.len() < 100, "the same is asked for ever");
            let reply = tree.answer(id, request);
            served.replied(id, reply);
        }
    }
}

#[test]
fn only_files_that_are_open_keep_names_and_one_request_more_removes_them() {
    let World { mut state, file, mut records, mut tree, .. } = World::new(0);
    let left = state.leave().expect("nothing is being done");
    records.begin().expect("memory");
    let mut served = Served::going_on((file, 0), left.into()).expect("a state");
    let name = |text: &str| Name::try_from(text).expect("a name");
    let made = MkNod { dir: Node::ROOT, name: name("file"), mode: 0, umask: 0, rdev: 0, initial: None };
    let unlink = Unlink { dir: Node::ROOT, name: name("file") };
    for closes_first in [true, false] {
        let (Reply::Entry(Entry { node, .. }), _) = done(&mut served, &mut tree, made.clone().into()) else {
            panic!("no file")
        };
        let open = Open { node, flags: OpenFlags::READ_WRITE };
        let (Reply::Opened(Opened { handle, .. }), _) = done(&mut served, &mut tree, open.into()) else {
            panic!("not open")
        };
        let mut last = [releasing(handle, node), unlink.clone().into()];
        if !closes_first {
            last.reverse();
        }
        let asked = last.map(|request| done(&mut served, &mut tree, request).1).concat();
        let kept: Vec<Name> = asked.iter().filter_map(|(id, _)| silly_name(*id)).collect();
        let removed = asked.iter().filter_map(|(_, request)| match request {
            Request::Unlink(op) if op.dir == REMOVED => Some(op.name.clone()),
            _ => None,
        });
        assert_eq!(removed.collect::<Vec<_>>(), kept);
        let expected = if closes_first { (2, 0) } else { (3, 1) };
        assert_eq!((asked.len(), kept.len()), expected, "{asked:?}");
    }
}
