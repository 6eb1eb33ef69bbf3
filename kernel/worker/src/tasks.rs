// SPDX-License-Identifier: GPL-2.0-only
//! What the door needs beside the kernel: tasks that wait for answers, the time, and a thread for what may block.
//!
//! A task is polled by whichever thread has just run the kernel, for that is what tasks wait for. Where no thread is about
//! to do so, a bell is rung.

use outrigger_core::{BoxFuture, Clock, Runtime, Time, lock};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

type Job = Box<dyn FnOnce() + Send>;

/// No thread is woken to wake the kernel so little sooner.
const SLACK: Duration = Duration::from_millis(1);

/// See the [module](self).
pub struct Tasks {
    begun: Instant,
    ready: Mutex<VecDeque<Arc<Task>>>,
    /// How many threads will look for what is ready before they do anything else.
    present: AtomicUsize,
    alarm: Mutex<Alarm>,
    changed: Condvar,
    jobs: Sender<Job>,
}

/// What the thread that keeps the time waits for. Moments are times since the beginning.
#[derive(Default)]
struct Alarm {
    /// When the kernel wants to run.
    kernel: Option<Duration>,
    /// Who sleeps until when.
    sleepers: BTreeMap<(Duration, u64), Waker>,
    slept: u64,
    /// Something is ready, and no other thread looks.
    rung: bool,
    /// When that thread will look next.
    next: Option<Duration>,
}

impl Tasks {
    /// No tasks yet; starts the thread for what may block.
    ///
    /// # Errors
    /// When the host has no thread left.
    pub fn start() -> io::Result<Arc<Self>> {
        let (jobs, to_do) = mpsc::channel::<Job>();
        thread::Builder::new().name("jobs".into()).spawn(move || to_do.iter().for_each(|job| job()))?;
        Ok(Arc::new(Tasks {
            begun: Instant::now(),
            ready: Mutex::default(),
            present: AtomicUsize::new(0),
            alarm: Mutex::default(),
            changed: Condvar::new(),
            jobs,
        }))
    }

    /// Does `body`, then polls what is ready.
    pub fn attend(&self, body: impl FnOnce()) {
        self.present.fetch_add(1, SeqCst);
        body();
        loop {
            while let Some(task) = self.next_ready() {
                task.run();
            }
            self.present.fetch_sub(1, SeqCst);
            // A thread that added something before that has not rung.
            if lock(&self.ready).is_empty() {
                return;
            }
            self.present.fetch_add(1, SeqCst);
        }
    }

    fn next_ready(&self) -> Option<Arc<Task>> {
        lock(&self.ready).pop_front()
    }

    fn stand_in_line(&self, task: Arc<Task>) {
        lock(&self.ready).push_back(task);
        if self.present.load(SeqCst) == 0 {
            lock(&self.alarm).rung = true;
            self.changed.notify_one();
        }
    }

    /// The kernel wants to run after this time; not at all if that is none.
    pub fn wake_kernel_after(&self, wait: Option<Duration>) {
        let mut alarm = lock(&self.alarm);
        alarm.kernel = wait.map(|wait| self.begun.elapsed().saturating_add(wait));
        let is_sooner = |at: Duration| alarm.next.is_none_or(|next| at + SLACK < next);
        if alarm.kernel.is_some_and(is_sooner) {
            self.changed.notify_one();
        }
    }

    /// Waits for the moment the kernel waits for, or until something is ready that no thread looks for.
    pub fn wait_for_time(&self) {
        let mut alarm = lock(&self.alarm);
        loop {
            let now = self.begun.elapsed();
            let later = alarm.sleepers.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut alarm.sleepers, later);
            let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
            if std::mem::take(&mut alarm.rung) || is_due(alarm.kernel) || !due.is_empty() {
                alarm.kernel = alarm.kernel.filter(|&at| at > now);
                drop(alarm);
                due.into_values().for_each(Waker::wake);
                return;
            }
            let first = alarm.sleepers.keys().next().map(|(at, _)| *at);
            alarm.next = alarm.kernel.into_iter().chain(first).min();
            alarm = match alarm.next {
                None => self.changed.wait(alarm).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let wait = self.changed.wait_timeout(alarm, at - now);
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            alarm.next = Some(Duration::ZERO);
        }
    }

    fn wake_at(&self, at: Duration, waker: Waker) {
        let mut alarm = lock(&self.alarm);
        alarm.slept += 1;
        let number = alarm.slept;
        alarm.sleepers.insert((at, number), waker);
        self.changed.notify_one();
    }
}

/// Waits to be woken.
const IDLE: u8 = 0;
/// Is in line to be polled.
const IN_LINE: u8 = 1;
/// Is being polled.
const RUNNING: u8 = 2;
/// Was woken while it was being polled.
const AGAIN: u8 = 3;

struct Task {
    state: AtomicU8,
    /// None once it is ready.
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    tasks: Arc<Tasks>,
}

impl Task {
    /// Polls once. Only the thread that took the task out of the queue does.
    fn run(self: Arc<Self>) {
        self.state.store(RUNNING, SeqCst);
        let waker = Waker::from(Arc::clone(&self));
        let mut future = lock(&self.future);
        let Some(pending) = &mut *future else { return };
        if pending.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            *future = None;
            return;
        }
        drop(future);
        if self.state.compare_exchange(RUNNING, IDLE, SeqCst, SeqCst).is_err() {
            self.state.store(IN_LINE, SeqCst);
            Arc::clone(&self.tasks).stand_in_line(self);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let next = |state| match state {
            IDLE => Some(IN_LINE),
            RUNNING => Some(AGAIN),
            _ => None,
        };
        if self.state.fetch_update(SeqCst, SeqCst, next) == Ok(IDLE) {
            Arc::clone(&self.tasks).stand_in_line(self);
        }
    }
}

/// The tasks as a door sees them.
#[derive(Clone)]
pub struct Doorside(pub Arc<Tasks>);

impl Clock for Doorside {
    fn monotonic(&self) -> Duration {
        self.0.begun.elapsed()
    }

    fn wall(&self) -> Time {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time::new(since.as_secs() as i64, since.subsec_nanos())
    }
}

impl Runtime for Doorside {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let tasks = Arc::clone(&self.0);
        let (state, future) = (AtomicU8::new(IN_LINE), Mutex::new(Some(task)));
        self.0.stand_in_line(Arc::new(Task { state, future, tasks }));
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        let tasks = Arc::clone(&self.0);
        Box::pin(std::future::poll_fn(move |context| {
            if tasks.begun.elapsed() >= deadline {
                return Poll::Ready(());
            }
            tasks.wake_at(deadline, context.waker().clone());
            Poll::Pending
        }))
    }

    fn run_woken(&self, body: &mut dyn FnMut()) {
        self.0.attend(body);
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        // The thread never ends.
        drop(self.0.jobs.send(job));
    }
}
