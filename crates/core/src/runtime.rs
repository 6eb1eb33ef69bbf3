// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clock, timers and tasks: what the core itself does not have.
//!
//! The caller that assembles a stack supplies a [`Runtime`]. Tests bring one whose clock and scheduling are decided by a seed.

use crate::attr::Time;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// A boxed future that may run on any thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn monotonic(&self) -> Duration;

    /// Time of day.
    fn wall(&self) -> Time;

    /// Time of day not later than any stamp that the host's file systems give from now on: that of the latest tick of
    /// the kernel's timer (`CLOCK_REALTIME_COARSE`, see clock_gettime(2)), up to 20 ms behind [`Clock::wall`]. A time
    /// from `wall` could not promise that. Clocks without ticks leave it as it is.
    fn coarse_wall(&self) -> Time {
        self.wall()
    }
}

/// Runs tasks.
pub trait Runtime: Clock {
    /// Runs `task` to its end on its own.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Ready once [`Clock::monotonic`] has reached `deadline`.
    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()>;

    /// Runs `body` on the calling thread so that futures polled there find what tasks of this runtime find
    /// (its reactor and timers). Doors call it once on each thread that polls.
    fn enter(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs `body`, then what it spawned and woke, on the calling thread as far as possible: no other thread has to be
    /// woken for a task that the caller has just received something for. A hint: without it everything happens elsewhere.
    /// The caller holds no lock that a task may want.
    fn run_woken(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs `job`, which may block, on a thread that may block.
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>);
}

/// The outcome of `work`; `None` when `deadline` comes first. What is ready at once needs no timer.
pub async fn until<T>(runtime: &dyn Runtime, deadline: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut timer) = (pin!(work), None);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => {
            let timer = timer.get_or_insert_with(|| runtime.sleep_until(deadline));
            timer.as_mut().poll(context).map(|()| None)
        }
    })
    .await
}
