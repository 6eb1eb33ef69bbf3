// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the mount tests share: a mount that cannot outlive its test, and a runtime.
#![allow(dead_code, reason = "each test binary uses a part of this")]

pub mod tree;

use outrigger_core::{BoxFuture, Clock, Runtime, Service, Time};
use outrigger_door_fuse::{Force, Options, Session, abort};
use outrigger_host::MountEntry;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// No test takes longer; a mount that is still there then is cut off, so that nothing stays blocked in the kernel.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A thread for each task.
pub struct Threads(Instant);

pub fn runtime() -> Arc<dyn Runtime> {
    Arc::new(Threads(Instant::now()))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on(mut task: BoxFuture<'static, ()>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        thread::park();
    }
}

impl Clock for Threads {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
    fn wall(&self) -> Time {
        Time::default()
    }
}

impl Runtime for Threads {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        thread::spawn(move || block_on(task));
    }
    fn sleep_until(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        thread::spawn(job);
    }
}

/// Ready when the flag's sender says so or is gone.
pub struct Gate(pub mpsc::Receiver<()>);

impl Future for Gate {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.0.try_recv() {
            Err(mpsc::TryRecvError::Empty) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

/// Says loudly when a test cannot run here.
pub fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let device = Path::new("/dev/fuse").exists();
    if !(root && device) {
        eprintln!("SKIPPED: mount tests need root and /dev/fuse (root: {root}, device: {device})");
    }
    root && device
}

/// A mount with a service, removed at the end whatever happens.
pub struct Fixture {
    pub session: Session,
    pub dir: PathBuf,
    _temp: tempfile::TempDir,
    _over: mpsc::Sender<()>,
}

impl Fixture {
    pub fn new(service: Arc<dyn Service>, options: &str) -> Self {
        let (options, others) = Options::parse(options).unwrap();
        assert!(others.is_empty(), "{others:?}");
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let session = Session::mount(&dir, service, runtime(), options).unwrap();
        let over = watchdog(&dir);
        session.wait_ready(DEADLINE).unwrap();
        Self { session, dir, _temp: temp, _over: over }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Requests of this operation so far.
    pub fn count(&self, op: &str) -> u64 {
        self.session.status().counts.iter().find(|count| count.op == op).map_or(0, |count| count.requests)
    }

    /// Waits for a request in flight.
    pub fn wait_in_flight(&self, op: &str) {
        within(|| self.session.status().in_flight.iter().any(|request| request.op == op));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Err(error) = self.session.stop(Force::Abort, Duration::from_secs(5)) {
            eprintln!("{error}");
        }
    }
}

/// Cuts the mount at `dir` off after [`DEADLINE`] unless the sender is dropped before.
pub fn watchdog(dir: &Path) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel::<()>();
    let dir = dir.to_owned();
    thread::spawn(move || {
        if receiver.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout)
            && let Ok(Some(entry)) = MountEntry::at(&dir)
        {
            eprintln!("the test takes too long: cutting off {dir:?}");
            abort(&entry);
        }
    });
    sender
}

/// Waits until a condition holds.
///
/// # Panics
/// After [`DEADLINE`].
pub fn within(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "the condition never came true");
        thread::yield_now();
    }
}

/// Runs something that might block for ever on a thread of its own.
///
/// # Panics
/// When it panics or takes longer than [`DEADLINE`].
pub fn limited<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(job());
    });
    receiver.recv_timeout(DEADLINE).expect("the operation neither succeeded nor failed")
}
