// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client at the other end of a long line.

use outrigger_core::ops::*;
use outrigger_core::reply::{Attrs, DirentPlus, DirentsPlus, Entry, OpenHow};
use outrigger_core::{
    Abilities, Answer, Clock, Credentials, Cx, Errno, FileKind, Handle, Inline, Layer, LockOwner, Name, Node,
    Notice, Notify, Op, OpCode, Parallel, Payload, Place, Recalled, Reply, Request, Result, Runtime, Service,
    Stack, Traverse, Visit, ask,
};
use outrigger_driver_mem::{Mem, Options as MemOptions};
use outrigger_layer_cache::{Cache, Control, OnDisk, Options};
use outrigger_sim::Sim;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long a request takes to the tree and back.
const ROUND_TRIP: Duration = Duration::from_millis(5);
/// Small pieces of a listing, in bytes: a few names.
const PIECE: u32 = 600;

/// A long line: counts what passes, and takes its time.
#[derive(Clone)]
pub struct Line {
    sim: Arc<Sim>,
    passed: Arc<Mutex<BTreeMap<OpCode, u64>>>,
    /// Whether requests overtake each other.
    wanders: Arc<AtomicBool>,
    /// The operation that is held back, after so many more requests.
    stalled: Arc<Mutex<Option<(OpCode, u64)>>>,
    /// Whether listings come in small pieces.
    trickles: Arc<AtomicBool>,
    /// What numbers for handles are counted with.
    opened: Arc<AtomicU64>,
    /// One of so many writes fails at the other end, if any.
    fails: Arc<AtomicU64>,
    /// Requests of this kind fail at the other end.
    refused: Arc<Mutex<Option<OpCode>>>,
    /// What arrived at the other end, in this order.
    arrived: Arc<Mutex<Vec<OpCode>>>,
    /// Whether the tree supports async create; and the pending creates, with the error of those that fail.
    async_create: Arc<AtomicBool>,
    foretold: Arc<Mutex<BTreeMap<Handle, Option<Errno>>>>,
    /// Whether it announces that it has nothing to do when a descriptor is closed.
    needs_no_flush: Arc<AtomicBool>,
    /// Whether it announces that it reads ahead by itself.
    streams: Arc<AtomicBool>,
    /// Where notices go.
    above: Arc<OnceLock<Arc<dyn Notify>>>,
}

impl Layer for Line {
    fn place(&self) -> Place {
        Place::anywhere("line")
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        let foretells = self.async_create.load(Ordering::Relaxed);
        let reads = if self.streams.load(Ordering::Relaxed) { 1 } else { 16 };
        let parallel = Parallel { reads, listings: 64 };
        Abilities { async_create: foretells, recalls: true, parallel, ..below }
    }

    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        let _ = self.above.set(Arc::clone(&above));
        above
    }

    /// The other end is not asked: the line looks there without counting that.
    fn recall(&self, next: &Arc<dyn Service>, dir: Node, text: &Name, kind: FileKind) -> Result<Recalled> {
        let cx = Cx::new(1, Credentials::ROOT, "test");
        let Answer::Ready(reply) = next.call(&cx, Lookup { dir, name: text.clone() }.into()) else {
            return Err(Errno::EIO.into());
        };
        let Entry { node, generation, attr, .. } = Lookup::result(reply)?;
        if attr.kind() == kind {
            Ok(Recalled { node, generation, ino: attr.ino })
        } else {
            Err(Errno::ESTALE.into())
        }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if let Request::Create(op) = &request
            && op.flags.contains(OpenFlags::ASYNC_CREATE)
            && self.async_create.load(Ordering::Relaxed)
        {
            let op = Create { flags: op.flags - OpenFlags::ASYNC_CREATE, ..op.clone() };
            return Answer::later(self.foretell(next, cx, op));
        }
        // Forgets do not cross the line: drivers count references on this side.
        if matches!(request, Request::Forget(_) | Request::Locate(_)) {
            return next.call(cx, request);
        }
        *self.passed.lock().expect("the count").entry(request.op()).or_default() += 1;
        let way = || match self.wanders.load(Ordering::Relaxed) {
            true => ROUND_TRIP * self.sim.below(10) as u32 / 10,
            false => ROUND_TRIP / 2,
        };
        Answer::later(async move {
            while !self.lets_through(request.op()) {
                self.sim.sleep_until(self.sim.monotonic() + ROUND_TRIP).await;
            }
            if let (Request::ReadDirPlus(op), true) = (&mut request, self.trickles.load(Ordering::Relaxed)) {
                op.size = op.size.min(PIECE);
            }
            self.sim.sleep_until(self.sim.monotonic() + way()).await;
            self.arrived.lock().expect("the list").push(request.op());
            if let Some(errno) = self.refusal(&request) {
                self.sim.sleep_until(self.sim.monotonic() + way()).await;
                return Reply::Error(errno.into());
            }
            request.traverse(&mut Unnumbered);
            let odds = self.fails.load(Ordering::Relaxed);
            let mut reply = match request {
                Request::Write(_) if odds > 0 && self.sim.below(odds) == 0 => {
                    Reply::Error(Errno::ENOSPC.into())
                }
                request if *self.refused.lock().expect("what is refused") == Some(request.op()) => {
                    Reply::Error(Errno::ENOSPC.into())
                }
                request => next.call(cx, request).await,
            };
            self.number(&mut reply);
            self.sim.sleep_until(self.sim.monotonic() + way()).await;
            reply
        })
    }
}

/// Handles as they were before they were given numbers.
struct Unnumbered;

impl Visit for Unnumbered {
    fn handle(&mut self, handle: &mut Handle) {
        handle.0 &= (1 << 40) - 1;
    }
}

/// A door that caches nothing.
struct Deaf;

impl Notify for Deaf {
    fn notify(&self, _: Notice) {}
}

impl Line {
    /// Gives each open file a handle of its own, as servers do.
    fn number(&self, reply: &mut Reply) {
        let opened = match reply {
            Reply::Opened(opened) => opened,
            Reply::Created(created) => &mut created.opened,
            _ => return,
        };
        opened.handle.0 |= self.opened.fetch_add(1 << 40, Ordering::Relaxed);
        if self.needs_no_flush.load(Ordering::Relaxed) {
            opened.how |= OpenHow::NO_FLUSH;
        }
    }

    /// Handles an async create: makes the file at the other end, and answers that it is pending. Where creates fail, removes it
    /// again.
    async fn foretell(&self, next: &Arc<dyn Service>, cx: &Cx, op: Create) -> Reply {
        let (dir, name) = (op.dir, op.name.clone());
        let mut reply = next.call(cx, op.into()).await;
        self.number(&mut reply);
        let Reply::Created(created) = &mut reply else { return reply };
        created.opened.how |= OpenHow::PENDING_CREATE;
        let refused = *self.refused.lock().expect("what is refused") == Some(OpCode::Create);
        if refused {
            next.call(cx, Unlink { dir, name }.into()).await;
        }
        let outcome = refused.then_some(Errno::EDQUOT);
        self.foretold.lock().expect("what was foretold").insert(created.opened.handle, outcome);
        reply
    }

    /// The error of a request whose handle is that of a failed create.
    fn refusal(&self, request: &Request) -> Option<Errno> {
        let handle = match request {
            Request::GetAttr(op) => op.handle?,
            Request::Write(op) => op.handle,
            Request::FSync(op) => op.handle,
            _ => return None,
        };
        *self.foretold.lock().expect("what was foretold").get(&handle)?
    }

    fn lets_through(&self, op: OpCode) -> bool {
        match &mut *self.stalled.lock().expect("what is stalled") {
            Some((stalled, 0)) => *stalled != op,
            Some((stalled, left)) if *stalled == op => {
                *left -= 1;
                true
            }
            _ => true,
        }
    }
}

/// A tree that several clients use.
pub fn shared_tree(sim: &Arc<Sim>) -> Arc<dyn Service> {
    let options = MemOptions { size: 256 << 20, inodes: 100_000, ..MemOptions::default() };
    Arc::new(Inline::new(Mem::new(options, sim.clone()), sim.clone()))
}

/// A client at the other end of a line.
pub struct Client {
    pub sim: Arc<Sim>,
    pub top: Arc<dyn Service>,
    pub control: Control,
    /// The other end of the line.
    pub tree: Arc<dyn Service>,
    line: Line,
}

impl Client {
    pub fn new(sim: &Arc<Sim>, tree: &Arc<dyn Service>, options: &[(&str, &str)]) -> Self {
        Client::with(sim, tree, options, OnDisk::default())
    }

    /// One that keeps something on disk.
    pub fn with(sim: &Arc<Sim>, tree: &Arc<dyn Service>, options: &[(&str, &str)], disk: OnDisk) -> Self {
        let mut chosen = Options::default();
        options.iter().for_each(|(key, value)| chosen.set(key, value).expect("a good option"));
        Client::over(sim, tree, Cache::with_disk(&chosen, sim.clone(), disk))
    }

    /// One with this cache.
    pub fn over(sim: &Arc<Sim>, tree: &Arc<dyn Service>, cache: Cache) -> Self {
        let line = Line {
            sim: sim.clone(),
            passed: Arc::default(),
            wanders: Arc::default(),
            stalled: Arc::default(),
            trickles: Arc::default(),
            opened: Arc::default(),
            fails: Arc::default(),
            needs_no_flush: Arc::default(),
            refused: Arc::default(),
            arrived: Arc::default(),
            async_create: Arc::default(),
            foretold: Arc::default(),
            streams: Arc::default(),
            above: Arc::default(),
        };
        let control = cache.control();
        let stack = Stack::new(tree.clone()).push(line.clone()).and_then(|stack| stack.push(cache));
        let top = stack.expect("any order is good").service();
        Client { sim: sim.clone(), top, control, tree: tree.clone(), line }
    }

    pub fn ask<O: Op + Send + 'static>(&self, op: O) -> Result<O::Out>
    where
        O::Out: Send + 'static,
    {
        let top = self.top.clone();
        self.sim.block_on(async move { ask(&*top, &Cx::new(1, Credentials::ROOT, "test"), op).await })
    }

    /// From now on requests overtake each other.
    pub fn wander(&self) {
        self.line.wanders.store(true, Ordering::Relaxed);
    }

    /// Enables async create. To be called before any request.
    pub fn foretell(&self) {
        self.line.async_create.store(true, Ordering::Relaxed);
    }

    /// The tree announces that content comes as one stream. To be called before any request.
    pub fn stream(&self) {
        self.line.streams.store(true, Ordering::Relaxed);
    }

    /// From now on listings come in small pieces.
    pub fn trickle(&self) {
        self.line.trickles.store(true, Ordering::Relaxed);
    }

    /// From now on one of so many writes fails, all with 1, none with 0.
    pub fn fail_writes(&self, odds: u64) {
        self.line.fails.store(odds, Ordering::Relaxed);
    }

    /// From now on the tree announces that it has nothing to do when a descriptor is closed.
    pub fn need_no_flush(&self) {
        self.line.needs_no_flush.store(true, Ordering::Relaxed);
    }

    /// From now on requests of this kind fail.
    pub fn fail(&self, op: OpCode) {
        *self.line.refused.lock().expect("what is refused") = Some(op);
    }

    /// The tree says something unasked.
    pub fn notified(&self, notice: Notice) {
        self.top.attach(Arc::new(Deaf));
        self.line.above.get().expect("attached above").notify(notice);
    }

    /// What arrived at the other end since the last call, in order.
    pub fn arrived(&self) -> Vec<OpCode> {
        std::mem::take(&mut *self.line.arrived.lock().expect("the list"))
    }

    /// From now on requests of this kind do not arrive, after so many more of them.
    pub fn stall(&self, op: OpCode, after: u64) {
        *self.line.stalled.lock().expect("what is stalled") = Some((op, after));
    }

    /// Releases the requests that were held back.
    pub fn go_on(&self) {
        *self.line.stalled.lock().expect("what is stalled") = None;
    }

    /// How many requests passed the line since the last call.
    pub fn passed(&self) -> u64 {
        std::mem::take(&mut *self.line.passed.lock().expect("the count")).into_values().sum()
    }

    /// How many of them had this operation; they still count.
    pub fn count(&self, op: OpCode) -> u64 {
        self.line.passed.lock().expect("the count").get(&op).copied().unwrap_or(0)
    }

    /// The present moment.
    pub fn elapsed(&self) -> Duration {
        self.sim.monotonic()
    }

    pub fn lookup(&self, dir: Node, text: &str) -> Result<Entry> {
        self.ask(Lookup { dir, name: name(text) })
    }

    pub fn make(&self, dir: Node, text: &str, content: &'static [u8]) -> Entry {
        let flags = OpenFlags::READ_WRITE;
        let made = self
            .ask(Create { dir, name: name(text), mode: 0o644, umask: 0, flags, initial: None })
            .expect("a new file");
        self.write(made.entry.node, made.opened.handle, content);
        self.close(made.entry.node, made.opened.handle, flags);
        made.entry
    }

    pub fn write(&self, node: Node, handle: Handle, content: &'static [u8]) {
        let data = Payload::Bytes(content.into());
        let write = Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
        assert_eq!(self.ask(write).expect("written").0, content.len() as u64);
    }

    pub fn close(&self, node: Node, handle: Handle, flags: OpenFlags) {
        let owner = LockOwner(1);
        self.ask(Flush { node, handle, owner }).expect("flushed");
        self.ask(Release { node, handle, flags, owner, flock_release: false }).expect("released");
    }

    pub fn mkdir(&self, dir: Node, text: &str) -> Node {
        self.ask(MkDir { dir, name: name(text), mode: 0o755, umask: 0, initial: None })
            .expect("a new directory")
            .node
    }

    /// All of a directory with attributes, as a kernel lists it.
    pub fn list(&self, node: Node) -> Result<Vec<DirentPlus>> {
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

    pub fn everything(&self) -> BTreeMap<String, (u64, u32, u32)> {
        let mut all = BTreeMap::new();
        self.list_all(Node::ROOT, "", &mut all);
        all
    }
}

pub fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

pub fn pass_time(sim: &Arc<Sim>, period: Duration) {
    let own = sim.clone();
    sim.block_on(async move { own.sleep_until(own.monotonic() + period).await });
}

/// A tree of `dirs` directories with `files` files each, made long ago.
pub fn old_tree(sim: &Arc<Sim>, dirs: usize, files: usize) -> Arc<dyn Service> {
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
