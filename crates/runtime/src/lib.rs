// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's [`Runtime`] on tokio, for programs that assemble a stack.
//!
//! tokio starts with the first task, so a command that needs no task pays for no thread.
//! Blocking jobs run on tokio's blocking threads: at most [`BLOCKING_THREADS`] at once, more wait in line.
//! Tasks are polled by the thread that wakes them where that thread has said so ([`Runtime::run_woken`]), else by tokio.
#![forbid(unsafe_code)]

mod task;

use outrigger_core::{BoxFuture, Clock, Runtime, Time};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Handle};

/// The most blocking jobs that run at once.
pub const BLOCKING_THREADS: usize = 64;
/// The same for a server, whose calls may hold a thread each.
pub const SERVER_THREADS: usize = 1024;
/// Threads for tasks that a server has at least.
const SERVER_WORKERS: usize = 4;

/// A runtime on real threads and the host's clocks.
#[derive(Debug)]
pub struct Threads {
    started: Instant,
    serves: AtomicBool,
    tokio: OnceLock<tokio::runtime::Runtime>,
}

impl Default for Threads {
    fn default() -> Self {
        Threads { started: Instant::now(), serves: AtomicBool::new(false), tokio: OnceLock::new() }
    }
}

impl Threads {
    /// A runtime that starts its threads when the first task or job arrives.
    pub fn new() -> Self {
        Self::default()
    }

    /// It is to be that of a server, whose tasks may hold the threads they run on for long. Called before the first task or job.
    pub fn serve(&self) {
        self.serves.store(true, Ordering::Relaxed);
    }

    /// The tokio runtime below it, for code that opens sockets and child processes.
    ///
    /// # Panics
    /// When the system refuses to start a thread or an epoll instance: nothing could be served then.
    pub fn handle(&self) -> &Handle {
        self.tokio
            .get_or_init(|| {
                start(self.serves.load(Ordering::Relaxed))
                    .expect("the system refused to start the runtime's threads")
            })
            .handle()
    }
}

fn start(serves: bool) -> io::Result<tokio::runtime::Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all().thread_name("outrigger").max_blocking_threads(BLOCKING_THREADS);
    if serves {
        let processors = available_parallelism().map_or(1, NonZero::get);
        builder.worker_threads(processors.max(SERVER_WORKERS)).max_blocking_threads(SERVER_THREADS);
    }
    builder.build()
}

impl Clock for Threads {
    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    fn wall(&self) -> Time {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Time::new(since.as_secs() as i64, since.subsec_nanos()),
            Err(_) => Time::default(),
        }
    }

    fn coarse_wall(&self) -> Time {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Time::new(now.tv_sec, now.tv_nsec as u32)
    }
}

impl Runtime for Threads {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        task::start(self.handle(), task);
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        // Beyond the end of the clock is never.
        let Some(at) = self.started.checked_add(deadline) else { return Box::pin(std::future::pending()) };
        let _guard = self.handle().enter();
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn enter(&self, body: &mut dyn FnMut()) {
        let _guard = self.handle().enter();
        body();
    }

    fn run_woken(&self, body: &mut dyn FnMut()) {
        task::run_woken(body);
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.handle().spawn_blocking(job);
    }
}

impl Drop for Threads {
    /// Does not wait for blocking jobs: one that hangs must not keep the process alive.
    fn drop(&mut self) {
        if let Some(tokio) = self.tokio.take() {
            tokio.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_deadline_beyond_the_clock_never_comes() {
        let threads = Threads::new();
        let mut never = threads.sleep_until(Duration::MAX);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(never.as_mut().poll(&mut context).is_pending());
    }

    #[test]
    fn a_file_is_born_at_the_coarse_time_or_later_and_the_fine_time_is_never_behind() {
        let threads = Threads::new();
        let dir = tempfile::tempdir().unwrap();
        for number in 0..2000 {
            let (coarse, fine) = (threads.coarse_wall(), threads.wall());
            let path = dir.path().join(number.to_string());
            let made = std::fs::File::create(path).and_then(|file| file.metadata()).unwrap();
            let made = made.modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
            let made = Time::new(made.as_secs() as i64, made.subsec_nanos());
            assert!(coarse <= fine && coarse <= made, "{coarse:?} {fine:?} {made:?}");
        }
    }

    #[test]
    fn tasks_jobs_and_timers_run() {
        let threads = Threads::new();
        let (sender, receiver) = mpsc::channel();
        let timer = threads.sleep_until(threads.monotonic());
        let from_task = sender.clone();
        threads.spawn(Box::pin(async move {
            timer.await;
            let _ = from_task.send("task");
        }));
        threads.spawn_blocking(Box::new(move || {
            let _ = sender.send("job");
        }));
        let mut done: Vec<&str> = receiver.iter().collect();
        done.sort_unstable();
        assert_eq!(done, ["job", "task"]);
    }
}
