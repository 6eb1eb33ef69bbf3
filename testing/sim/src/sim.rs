// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime: a clock that moves only when the simulation says so and a scheduler that follows a seed.

use outrigger_core::{BoxFuture, Clock, Runtime, Time, lock};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// How many of the latest events a failure shows.
const EVENTS_KEPT: usize = 40;
/// The longest time one step of a task takes on the simulated clock, in nanoseconds.
const STEP_NANOS: u64 = 10_000;

/// A deterministic runtime.
pub struct Sim {
    seed: u64,
    world: Arc<Mutex<World>>,
    ready: Arc<Mutex<Ready>>,
}

struct World {
    now: Duration,
    random: fastrand::Rng,
    tasks: HashMap<u64, Task>,
    next_task: u64,
    timers: BinaryHeap<Reverse<Timer>>,
    next_timer: u64,
    digest: u64,
    events: VecDeque<String>,
}

/// Tasks that asked to be polled; apart from the world, so that a waker needs no other lock.
#[derive(Default)]
struct Ready {
    queue: Vec<u64>,
    queued: HashSet<u64>,
}

impl Ready {
    fn add(&mut self, task: u64) {
        if self.queued.insert(task) {
            self.queue.push(task);
        }
    }

    fn take(&mut self, place: usize) -> u64 {
        let task = self.queue.swap_remove(place);
        self.queued.remove(&task);
        task
    }
}

struct Task {
    future: BoxFuture<'static, ()>,
    // One for the task's whole life, so that futures recognise it.
    waker: Waker,
}

struct TaskWaker {
    task: u64,
    ready: Arc<Mutex<Ready>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.ready).add(self.task);
    }
}

struct Timer {
    at: Duration,
    number: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Sim {
    /// A runtime whose every decision follows from `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        let world = World {
            now: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
            tasks: HashMap::new(),
            next_task: 0,
            timers: BinaryHeap::new(),
            next_timer: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            events: VecDeque::new(),
        };
        Arc::new(Sim { seed, world: Arc::new(Mutex::new(world)), ready: Arc::default() })
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A random number below `bound`, which must not be 0.
    pub fn below(&self, bound: u64) -> u64 {
        lock(&self.world).random.u64(..bound)
    }

    /// Writes an event into the log, with the simulated time.
    pub fn log(&self, event: impl Into<String>) {
        lock(&self.world).log(event.into());
    }

    /// A number that differs, with near certainty, when two runs differ in any event, its time or its order.
    pub fn digest(&self) -> u64 {
        lock(&self.world).digest
    }

    /// The latest events, oldest first.
    pub fn events(&self) -> Vec<String> {
        lock(&self.world).events.iter().cloned().collect()
    }

    /// Runs tasks until none can continue, letting time pass as they need.
    ///
    /// Returns how many tasks are left waiting for something that never happens.
    pub fn run(&self) -> usize {
        while self.step() || self.pass_time() {}
        lock(&self.world).tasks.len()
    }

    /// Runs `future` as a task together with all others.
    ///
    /// # Panics
    /// When nothing is left to run and the future has not ended: a deadlock.
    pub fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        self.spawn(Box::pin(async move {
            let value = future.await;
            *lock(&place) = Some(value);
        }));
        while lock(&result).is_none() && (self.step() || self.pass_time()) {}
        let value = lock(&result).take();
        value.unwrap_or_else(|| panic!("deadlock: the future waits for something that never happens"))
    }

    /// Polls one ready task, chosen at random; `false` when none is ready.
    fn step(&self) -> bool {
        let (number, task) = {
            let mut world = lock(&self.world);
            let mut ready = lock(&self.ready);
            if ready.queue.is_empty() {
                return false;
            }
            let chosen = world.random.usize(..ready.queue.len());
            let number = ready.take(chosen);
            let took = world.random.u64(..STEP_NANOS);
            world.now += Duration::from_nanos(took);
            world.mix(&number.to_le_bytes());
            (number, world.tasks.remove(&number))
        };
        // A task that ended may still have been woken.
        let Some(mut task) = task else { return true };
        if task.future.as_mut().poll(&mut Context::from_waker(&task.waker)).is_pending() {
            lock(&self.world).tasks.insert(number, task);
        }
        true
    }

    /// Moves the clock to the next timer and wakes what waits for it; `false` when there is none.
    fn pass_time(&self) -> bool {
        let waker = {
            let mut world = lock(&self.world);
            let Some(Reverse(timer)) = world.timers.pop() else { return false };
            world.now = world.now.max(timer.at);
            timer.waker
        };
        waker.wake();
        true
    }
}

impl World {
    fn log(&mut self, event: String) {
        let line = format!("{:>12.6} {event}", self.now.as_secs_f64());
        self.mix(line.as_bytes());
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(line);
    }

    /// Adds to the digest (FNV-1a, 64 bits).
    fn mix(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl Clock for Sim {
    fn monotonic(&self) -> Duration {
        lock(&self.world).now
    }

    fn wall(&self) -> Time {
        let now = self.monotonic();
        Time::new(1_000_000_000 + now.as_secs() as i64, now.subsec_nanos())
    }
}

impl Runtime for Sim {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let mut world = lock(&self.world);
        let number = world.next_task;
        world.next_task += 1;
        let waker = Waker::from(Arc::new(TaskWaker { task: number, ready: Arc::clone(&self.ready) }));
        world.tasks.insert(number, Task { future, waker });
        lock(&self.ready).add(number);
    }

    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { at: deadline, world: Arc::clone(&self.world), waker: None })
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.spawn(Box::pin(async move { job() }));
    }
}

/// Ready once the simulated clock has reached `at`.
struct Sleep {
    at: Duration,
    world: Arc<Mutex<World>>,
    /// The waker that is registered.
    waker: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut world = lock(&self.world);
        if world.now >= self.at {
            return Poll::Ready(());
        }
        let registered = self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if !registered {
            let number = world.next_timer;
            world.next_timer += 1;
            world.timers.push(Reverse(Timer { at: self.at, number, waker: context.waker().clone() }));
            drop(world);
            self.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten tasks that sleep, log and start others.
    fn busy(seed: u64) -> (u64, Vec<String>) {
        let sim = Sim::new(seed);
        for task in 0..10_u32 {
            let own = Arc::clone(&sim);
            sim.spawn(Box::pin(async move {
                let pause = Duration::from_micros(own.below(100));
                own.sleep_until(own.monotonic() + pause).await;
                own.log(format!("task {task}"));
                let inner = Arc::clone(&own);
                own.spawn_blocking(Box::new(move || inner.log(format!("job of {task}"))));
            }));
        }
        assert_eq!(sim.run(), 0);
        (sim.digest(), sim.events())
    }

    #[test]
    fn the_same_seed_gives_the_same_run_and_another_seed_another() {
        for seed in 0..20 {
            assert_eq!(busy(seed), busy(seed), "seed {seed}");
        }
        assert_ne!(busy(1).1, busy(2).1);
    }

    #[test]
    fn time_passes_only_to_the_next_timer() {
        let sim = Sim::new(3);
        let own = Arc::clone(&sim);
        let woken = sim.block_on(async move {
            own.sleep_until(Duration::from_secs(3600)).await;
            own.monotonic()
        });
        assert!(woken >= Duration::from_secs(3600) && woken < Duration::from_secs(3601));
    }

    #[test]
    fn tasks_that_wait_for_ever_are_counted() {
        let sim = Sim::new(0);
        sim.spawn(Box::pin(std::future::pending()));
        assert_eq!(sim.run(), 1);
    }
}
