// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is served far away, in simulated time, and a program that uses it as a kernel would pass on what it does.

use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::{Created, DirentPlus, Entry};
use outrigger_core::{
    Abilities, Answer, BoxFuture, Clock, Credentials, Cx, Errno, Error, FileKind, Handle, HeapKeep, Inline,
    Keep, Layer, LockOwner, Name, Node, Notice, Notify, Op, OpCode, OpSet, Payload, Place, Request, Result,
    Runtime, Service, SetAttrs, SetTime, Stack, Time, ask,
};
use outrigger_door_wire::{Options as Serving, Server};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_wire::{Carrier, Connected, Dial, Options, Wire};
use outrigger_layer_cache::{Cache, Control, Options as Caching};
use outrigger_layer_closesim::CloseSim;
use outrigger_layer_simulate::Simulate;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex, split};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// How long an answer takes.
pub const TRIP: Duration = Duration::from_millis(6);

/// Mode and time of change of what [`User::unpack`] has unpacked.
pub const UNPACKED: (u32, i64) = (0o640, 77);

/// Those of a file.
pub fn mode_and_time(file: &Path) -> (u32, i64) {
    let found = std::fs::metadata(file).expect("a file");
    (found.mode() & 0o7777, found.mtime())
}

/// tokio's time, which tests stop.
pub struct Simulated;

impl Clock for Simulated {
    fn monotonic(&self) -> Duration {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        Instant::now().saturating_duration_since(*BEGIN.get_or_init(Instant::now))
    }
    fn wall(&self) -> Time {
        // The directory is of this machine, whose clock the times of its files are of.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        Time::new(since.as_secs() as i64 + 1000, 0)
    }
}

impl Runtime for Simulated {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        let wait = deadline.saturating_sub(self.monotonic());
        Box::pin(tokio::time::sleep(wait))
    }
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(job);
    }
}

pub fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

/// A directory that is served, and the way there. The directory goes last.
pub struct Site {
    server: Server,
    /// What the way there carries, in bytes a second.
    pub rate: Option<f64>,
    dir: TempDir,
}

/// How a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    Works,
    /// Nothing arrives until it works again.
    Hangs,
    /// Nothing arrives any more, and both ends know.
    IsCut,
}

/// Leads to a site, and carries so many bytes a second.
struct Way(Server, Option<f64>, watch::Receiver<Line>);

struct Silent;

impl Carrier for Silent {
    fn last_words(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(std::future::ready(otherwise))
    }
    fn cut_short(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(std::future::ready(otherwise))
    }
}

/// Carries bytes that are under way for half a trip, so many a second.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    rate: Option<f64>,
    mut line: watch::Receiver<Line>,
) {
    let mut state = line.clone();
    let (sender, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        let mut carried = Instant::now();
        while let Some((at, piece)) = pieces.recv().await {
            let takes = rate.map_or(0.0, |rate| piece.len() as f64 / rate);
            carried = carried.max(at) + Duration::from_secs_f64(takes);
            sleep_until(carried + TRIP / 2).await;
            let moves = line.wait_for(|line| *line != Line::Hangs).await;
            if moves.is_ok_and(|line| *line == Line::IsCut) {
                break;
            }
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    let mut piece = vec![0; 2 << 10];
    loop {
        let cut = state.wait_for(|line| *line == Line::IsCut);
        let count = tokio::select! {
            Ok(count @ 1..) = from.read(&mut piece) => count,
            Ok(_) = cut => return,
            else => return,
        };
        if sender.send((Instant::now(), piece[..count].to_vec())).is_err() {
            return;
        }
    }
}

impl Dial for Way {
    fn dial(&self) -> BoxFuture<'_, Result<Connected>> {
        let ((near, middle), (far, door)) = (duplex(1 << 20), duplex(1 << 20));
        let ((from_near, to_near), (from_far, to_far)) = (split(middle), split(far));
        tokio::spawn(carry(from_near, to_far, self.1, self.2.clone()));
        tokio::spawn(carry(from_far, to_near, self.1, self.2.clone()));
        let server = self.0.clone();
        tokio::spawn(async move {
            let (reader, writer) = split(door);
            let _ = server.serve_stream(reader, writer, "a test").await;
        });
        let (reader, writer) = split(near);
        let connected =
            Connected { reader: Box::new(reader), writer: Box::new(writer), carrier: Box::new(Silent) };
        Box::pin(std::future::ready(Ok(connected)))
    }

    fn shown(&self) -> String {
        "test".into()
    }
}

/// Hides other operations of a tree.
struct Only(OpSet);

impl Layer for Only {
    fn place(&self) -> Place {
        Place::anywhere("only")
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        if self.0.has(request.op()) { next.call(cx, request) } else { Answer::error(Errno::ENOSYS) }
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { ops: below.ops.without(OpSet::all().without(self.0)), ..below }
    }
}

impl Site {
    pub fn new() -> Self {
        Site::with(OpSet::all())
    }

    /// A directory of which no other operations than these are served.
    pub fn with(ops: OpSet) -> Self {
        let (dir, runtime) = (tempfile::tempdir().expect("a directory"), Arc::new(Simulated));
        let local = Local::open(dir.path(), LocalOptions::default()).expect("a tree");
        let opens = CloseSim::new(Default::default(), runtime.clone());
        let driver = Arc::new(Inline::new(local, runtime.clone()));
        let stack = Stack::new(driver)
            .push(Only(ops))
            .expect("a place")
            .push(Simulate::new())
            .expect("a place")
            .push(opens);
        let service = stack.expect("a place").service();
        let release = "test".into();
        let server = Server::new(Serving { service, runtime, release, one_user: None, directory: None });
        Site { server: server.expect("served"), rate: None, dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A program at the other end of the way, above the cache that mounts have.
    pub async fn user(&self, caching: &[(&str, &str)]) -> User {
        let mut chosen = Caching::default();
        caching.iter().for_each(|(key, value)| chosen.set(key, value).expect("an option"));
        let cache = Cache::new(&chosen, Arc::new(Simulated));
        let control = cache.control();
        let (wire, line) = self.wire(None).await;
        let tree = Stack::new(Arc::new(wire)).push(cache).expect("a place").service();
        tree.attach(Arc::new(Kernel));
        User { control: Some(control), ..User::of(tree, line) }
    }

    /// One that has no cache.
    pub async fn direct(&self) -> User {
        let (wire, line) = self.wire(None).await;
        User::of(Arc::new(wire), line)
    }

    /// One that has no cache, and goes on where another one was that had the same memory.
    pub async fn kept(&self, keep: &Arc<HeapKeep>) -> User {
        let (wire, line) = self.wire(Some(Arc::clone(keep) as Arc<dyn Keep>)).await;
        User::of(Arc::new(wire), line)
    }

    async fn wire(&self, keep: Option<Arc<dyn Keep>>) -> (Wire, watch::Sender<Line>) {
        let (line, state) = watch::channel(Line::Works);
        let to = Box::new(Way(self.server.clone(), self.rate, state));
        let wire = Wire::over(to, Options::default(), Arc::new(Simulated), keep).await.expect("connected");
        (wire, line)
    }
}

/// One that caches nothing.
struct Kernel;

impl Notify for Kernel {
    fn notify(&self, _: Notice) {}
}

/// A program that uses the tree.
#[derive(Clone)]
pub struct User {
    tree: Arc<dyn Service>,
    pub control: Option<Control>,
    pub line: watch::Sender<Line>,
    cx: Cx,
}

impl User {
    fn of(tree: Arc<dyn Service>, line: watch::Sender<Line>) -> Self {
        let cred = Credentials::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        User { tree, control: None, line, cx: Cx::new(1, cred, "test") }
    }

    pub async fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        ask(&*self.tree, &self.cx, op).await
    }

    pub async fn lookup(&self, dir: Node, file: &str) -> Result<Entry> {
        self.ask(Lookup { dir, name: name(file) }).await
    }

    pub async fn list(&self, node: Node) -> Result<Vec<DirentPlus>> {
        let opens = self.tree.abilities().ops.has(OpCode::OpenDir);
        let handle = if opens { self.ask(OpenDir { node }).await?.handle } else { Handle::NONE };
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let piece = self.ask(ReadDirPlus { node, handle, cookie, size: 64 << 10 }).await?;
            cookie = piece.entries.last().map_or(cookie, |last| last.cookie);
            all.extend(piece.entries);
            if piece.eof {
                if opens {
                    self.ask(ReleaseDir { node, handle }).await?;
                }
                return Ok(all);
            }
        }
    }

    /// What `ls -lR` does: every directory after the one before it. How many names there are.
    pub async fn list_all(&self, root: Node) -> Result<usize> {
        let (mut todo, mut names) = (vec![root], 0);
        while let Some(dir) = todo.pop() {
            let entries = self.list(dir).await?;
            names += entries.len();
            let dirs = entries.iter().filter(|entry| entry.entry.attr.kind() == FileKind::Directory);
            todo.extend(dirs.map(|dir| dir.entry.node).collect::<Vec<_>>().into_iter().rev());
        }
        Ok(names)
    }

    pub async fn open(&self, node: Node, flags: OpenFlags) -> Result<Handle> {
        Ok(self.ask(Open { node, flags }).await?.handle)
    }

    pub async fn read_at(&self, node: Node, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        self.ask(Read { node, handle, offset, len }).await?.into_bytes()
    }

    pub async fn write_at(&self, node: Node, handle: Handle, offset: u64, data: Bytes) -> Result<()> {
        let data = Payload::Bytes(data);
        self.ask(Write { node, handle, offset, data, cached: false, kill_setid: false }).await.map(drop)
    }

    pub async fn create(&self, dir: Node, file: &str, flags: OpenFlags) -> Result<Created> {
        let name = name(file);
        self.ask(Create { dir, name, mode: 0o644, umask: 0, flags, initial: None }).await
    }

    /// What close(2) of the only descriptor does; the error is what it returns.
    pub async fn close(&self, node: Node, handle: Handle, flags: OpenFlags) -> Result<()> {
        let owner = LockOwner(0);
        let flushed = self.ask(Flush { node, handle, owner }).await;
        // As of a kernel: the program does not wait for it.
        let user = self.clone();
        tokio::spawn(async move {
            user.ask(Release { node, handle, flags, owner, flock_release: false }).await.expect("closed");
        });
        flushed
    }

    /// What tar(1) does with a file that it unpacks.
    pub async fn unpack(&self, dir: Node, file: &str, content: &[u8]) -> Result<()> {
        let flags = OpenFlags::WRITE_ONLY | OpenFlags::EXCL;
        assert_eq!(self.lookup(dir, file).await.map_err(|error| error.errno), Err(Errno::ENOENT));
        let made = self.create(dir, file, flags).await?;
        let (node, handle) = (made.entry.node, made.opened.handle);
        self.write_at(node, handle, 0, Bytes::copy_from_slice(content)).await?;
        let (mode, mtime) = UNPACKED;
        let mtime = Some(SetTime::To(Time::new(mtime, 0)));
        let times = SetAttrs { mtime, atime: mtime, ..SetAttrs::default() };
        for attrs in [times, SetAttrs { mode: Some(mode), ..SetAttrs::default() }] {
            self.ask(SetAttr { node, handle: Some(handle), attrs }).await?;
        }
        self.close(node, handle, flags).await
    }

    pub async fn mkdir(&self, dir: Node, file: &str) -> Result<Entry> {
        self.ask(MkDir { dir, name: name(file), mode: 0o755, umask: 0, initial: None }).await
    }
}
