// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that hold their thread. A tree that answers on the caller's thread (`Inline` of the core) may wait for a disk, or for ever.
//!
//! The threads of the runtime are few, so the last of them is not given to such a call: another thread takes its other tasks over
//! first. That costs microseconds, and is needed only while all others are at work on calls.
//!
//! A thread that is held may be the one that would have waited for the network next, while the others sleep. A watch that sees no
//! call end for a while wakes one of them. It sleeps, too, while there are no calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// How often it is looked whether calls end.
const TICK: Duration = Duration::from_millis(5);

/// What is at work on calls.
#[derive(Debug)]
pub struct Inside {
    threads: AtomicUsize,
    /// How many pieces of work have ended.
    ended: AtomicU64,
    /// How many threads the runtime has; none where no other could take tasks over.
    workers: Option<usize>,
    watch: OnceLock<Thread>,
    is_watch_asleep: AtomicBool,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.wake_watch();
    }
}

/// One thread less when it is dropped, however the work ends.
struct Leaves<'a>(&'a Inside);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, SeqCst);
        self.0.ended.fetch_add(1, SeqCst);
    }
}

impl Inside {
    /// For calls in the tokio runtime that this is called in.
    pub fn new() -> Arc<Self> {
        let runtime = Handle::current();
        let has_several = runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
        let inside = Arc::new(Inside {
            threads: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            workers: has_several.then(|| runtime.metrics().num_workers()),
            watch: OnceLock::new(),
            is_watch_asleep: AtomicBool::new(false),
        });
        let watched = Arc::downgrade(&inside);
        let watch = thread::Builder::new().name("door-watch".into()).spawn(move || watch(&watched, &runtime));
        // Without it a call that holds its thread can delay others, and nothing else is different.
        if let Ok(watch) = watch {
            let _ = inside.watch.set(watch.thread().clone());
        }
        inside
    }

    /// Does a piece of work that may hold this thread.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let others = self.threads.fetch_add(1, SeqCst);
        let _leaves = Leaves(self);
        if self.is_watch_asleep.load(SeqCst) {
            self.wake_watch();
        }
        match self.workers.is_some_and(|workers| others + 1 >= workers) {
            true => block_in_place(work),
            false => work(),
        }
    }

    fn wake_watch(&self) {
        self.is_watch_asleep.store(false, SeqCst);
        self.watch.get().inspect(|watch| watch.unpark());
    }
}

/// An answer that is `failure` when working on it panics: other requests of the connection go on. Its work is counted, since it may hold
/// its thread.
pub struct Caught<T, F> {
    answer: Pin<Box<dyn Future<Output = T> + Send>>,
    failure: F,
    inside: Arc<Inside>,
}

impl<T, F: Fn() -> T + Unpin> Caught<T, F> {
    /// The outcome of `answer`, or `failure`.
    pub fn new(answer: impl Future<Output = T> + Send + 'static, inside: Arc<Inside>, failure: F) -> Self {
        Caught { answer: Box::pin(answer), failure, inside }
    }
}

impl<T, F: Fn() -> T + Unpin> Future for Caught<T, F> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Caught { answer, failure, inside } = self.get_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| inside.run(|| answer.as_mut().poll(context))));
        polled.unwrap_or_else(|_| {
            tracing::error!("working on a call panicked");
            Poll::Ready(failure())
        })
    }
}

/// Wakes a thread of the runtime when calls do not end.
fn watch(watched: &Weak<Inside>, runtime: &Handle) {
    let mut before = 0;
    loop {
        thread::sleep(TICK);
        let Some(inside) = watched.upgrade() else { return };
        let ended = inside.ended.load(SeqCst);
        let is_still = std::mem::replace(&mut before, ended) == ended;
        match (is_still, inside.threads.load(SeqCst)) {
            (false, _) => {}
            (true, 1..) => drop(runtime.spawn(async {})),
            (true, 0) => {
                inside.is_watch_asleep.store(true, SeqCst);
                // A call that has begun before this store does not wake the watch.
                let has_begun = inside.threads.load(SeqCst) > 0;
                drop(inside);
                if !has_begun {
                    thread::park();
                }
            }
        }
    }
}
