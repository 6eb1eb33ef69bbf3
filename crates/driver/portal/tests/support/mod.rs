// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree of the driver, asked as a door asks.
#![allow(dead_code, reason = "each test program uses its own part")]

use outrigger_core::ops::{
    Create, Forget, GetAttr, Lookup, Open, OpenFlags, Poll, Read, ReadDir, Release, SetAttr, Write,
};
use outrigger_core::registry::{AtEnd, Site};
use outrigger_core::{
    Cancel, Credentials, Cx, Errno, Handle, LockOwner, Name, Node, Notice, Notify, Op, Payload, Result,
    Runtime, Serve, Service, SetAttrs, ask,
};
use outrigger_driver_portal::{Options, Portal};
use outrigger_runtime::Threads;
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub const READ: OpenFlags = OpenFlags::empty();
pub const WRITE: OpenFlags = OpenFlags::WRITE_ONLY;
pub const READ_WRITE: OpenFlags = OpenFlags::READ_WRITE;
pub const EMPTIED: OpenFlags = OpenFlags::WRITE_ONLY.union(OpenFlags::TRUNC);
pub const NONBLOCK: OpenFlags = OpenFlags::NONBLOCK;

/// No condition takes longer to hold.
const DEADLINE: Duration = Duration::from_secs(30);

/// An open file.
pub type Open1 = (Node, Handle);

/// The errno of what failed.
///
/// # Panics
/// When it has not.
pub fn errno<T>(result: Result<T>) -> Errno {
    result.err().expect("it fails").errno
}

/// The port of a server that sends this to its first client, and closes.
pub fn sends(content: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(&content).expect("taken");
    });
    port
}

struct Told(Mutex<mpsc::Sender<u64>>);

impl Notify for Told {
    fn notify(&self, notice: Notice) {
        if let Notice::Wake { key } = notice {
            let _ = self.0.lock().expect("no panic").send(key);
        }
    }
}

/// The tree, and what it stands on.
pub struct Tree {
    service: Arc<dyn Service>,
    _runtime: Arc<dyn Runtime>,
    woken: Mutex<mpsc::Receiver<u64>>,
    at_end: AtEnd,
}

impl Tree {
    pub fn usual() -> Self {
        Tree::of("", &[])
    }

    pub fn with(config: &str) -> Self {
        Tree::options(config, &[])
    }

    pub fn options(config: &str, options: &[(&str, &str)]) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), config).expect("written");
        Tree::of(file.path().to_str().expect("text"), options)
    }

    fn of(file: &str, given: &[(&str, &str)]) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(Threads::new());
        let mut options = Options::default();
        given.iter().for_each(|(key, value)| options.set(key, value).expect(key));
        let at_end = AtEnd::default();
        let site = Site { may_start_programs: true, at_end: Some(&at_end), ..Site::new(&runtime) };
        let service: Arc<dyn Service> = Arc::new(Serve(Portal::open(file, options, &site).expect("a tree")));
        let (sender, receiver) = mpsc::channel();
        service.attach(Arc::new(Told(Mutex::new(sender))));
        Tree { service, _runtime: runtime, woken: Mutex::new(receiver), at_end }
    }

    pub fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        asked(&self.service, Cancel::default(), op)
    }

    fn aside<O: Op + Send + 'static>(&self, op: O) -> (JoinHandle<Result<O::Out>>, Cancel)
    where
        O::Out: Send,
    {
        let (service, cancel) = (Arc::clone(&self.service), Cancel::default());
        let raised = cancel.clone();
        (thread::spawn(move || asked(&service, raised, op)), cancel)
    }

    pub fn look(&self, path: &str) -> Result<Node> {
        path.split('/')
            .try_fold(Node::ROOT, |dir, name| Ok(self.ask(Lookup { dir, name: Name::try_from(name)? })?.node))
    }

    pub fn attr(&self, node: Node) -> Result<()> {
        self.ask(GetAttr { node, handle: None }).map(drop)
    }

    pub fn open(&self, path: &str, flags: OpenFlags) -> Result<Open1> {
        let node = self.look(path)?;
        Ok((node, self.ask(Open { node, flags })?.handle))
    }

    pub fn opening(&self, path: &str) -> (JoinHandle<Result<()>>, Cancel) {
        let node = self.look(path).expect(path);
        let (thread, cancel) = self.aside(Open { node, flags: READ });
        (thread::spawn(move || thread.join().expect("no panic").map(drop)), cancel)
    }

    pub fn create(&self, name: &str) -> Result<()> {
        let (dir, name) = (Node::ROOT, Name::try_from(name)?);
        self.ask(Create { dir, name, mode: 0o600, umask: 0, flags: WRITE, initial: None }).map(drop)
    }

    pub fn read(&self, (node, handle): Open1, len: u32) -> Result<Vec<u8>> {
        Ok(self.ask(Read { node, handle, offset: 0, len })?.into_bytes()?.to_vec())
    }

    pub fn read_all(&self, file: Open1) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            match self.read(file, 1 << 20)? {
                piece if piece.is_empty() => return Ok(all),
                piece => all.extend(piece),
            }
        }
    }

    /// A read on another thread.
    pub fn reading(&self, file: Open1) -> JoinHandle<Result<Vec<u8>>> {
        self.cancellable(file).0
    }

    pub fn cancellable(&self, (node, handle): Open1) -> (JoinHandle<Result<Vec<u8>>>, Cancel) {
        let (thread, cancel) = self.aside(Read { node, handle, offset: 0, len: 100 });
        (thread::spawn(move || Ok(thread.join().expect("no panic")?.into_bytes()?.to_vec())), cancel)
    }

    pub fn read_unless(&self, (node, handle): Open1, cancel: Cancel) -> Result<Vec<u8>> {
        let read = asked(&self.service, cancel, Read { node, handle, offset: 0, len: 100 })?;
        Ok(read.into_bytes()?.to_vec())
    }

    /// What a process does before it ends.
    pub fn end(&self) {
        self.at_end.run();
    }

    pub fn write(&self, (node, handle): Open1, data: &'static [u8]) -> Result<u64> {
        let data = Payload::Bytes(data.into());
        Ok(self.ask(Write { node, handle, offset: 0, data, cached: false, kill_setid: false })?.0)
    }

    pub fn release(&self, (node, handle): Open1) {
        let op = Release { node, handle, flags: READ, owner: LockOwner(0), flock_release: false };
        self.ask(op).expect("it is closed");
    }

    pub fn truncate(&self, path: &str, size: u64) -> Result<()> {
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.ask(SetAttr { node: self.look(path)?, handle: None, attrs }).map(drop)
    }

    pub fn poll(&self, (node, handle): Open1, events: u32, key: Option<u64>) -> Result<u32> {
        Ok(self.ask(Poll { node, handle, events, key })?.0)
    }

    /// The key of the next notice that something can be read.
    pub fn woken(&self) -> u64 {
        self.woken.lock().expect("no panic").recv_timeout(DEADLINE).expect("a notice")
    }

    pub fn list(&self, node: Node) -> Vec<String> {
        let listed =
            self.ask(ReadDir { node, handle: Handle::NONE, cookie: 0, size: 4096 }).expect("a listing");
        listed.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
    }

    pub fn forget(&self, node: Node, count: u64) {
        self.ask(Forget { node, count }).expect("never fails");
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// When it never does.
    pub fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < DEADLINE, "never: {what}");
            thread::yield_now();
        }
    }
}

/// As a client asks, whose threads are none of the runtime.
fn asked<O: Op>(service: &Arc<dyn Service>, cancel: Cancel, op: O) -> Result<O::Out> {
    let cx = Cx { cancel, ..Cx::new(1, Credentials::ROOT, "test") };
    let waker = std::task::Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut work = Box::pin(ask(&**service, &cx, op));
    loop {
        match work.as_mut().poll(&mut context) {
            std::task::Poll::Ready(done) => return done,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
