// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlines of many requests on one timer: nearly all are answered long before, and a timer of its own would cost each of
//! them more than its answer.

use outrigger_core::{Runtime, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// See the [module](self).
pub(crate) struct Deadlines {
    runtime: Arc<dyn Runtime>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Who waits, by deadline and a number.
    waiting: BTreeMap<(Duration, u64), Waker>,
    next: u64,
    /// When the timer goes off, if one runs.
    timer: Option<Duration>,
}

/// Goes off at a deadline.
pub(crate) struct Alarm {
    deadlines: Arc<Deadlines>,
    at: Duration,
    /// Under which it waits, once it does.
    number: Option<u64>,
}

impl Deadlines {
    /// On the timers and the clock of `runtime`.
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Deadlines { runtime, inner: Mutex::default() })
    }

    /// An alarm that goes off when [`outrigger_core::Clock::monotonic`] has reached `at`.
    pub(crate) fn alarm(self: &Arc<Self>, at: Duration) -> Alarm {
        Alarm { deadlines: Arc::clone(self), at, number: None }
    }

    /// Has the timer go off at `at` or earlier.
    fn wind(self: &Arc<Self>, inner: &mut Inner, at: Duration) {
        if inner.timer.is_some_and(|timer| timer <= at) {
            return;
        }
        inner.timer = Some(at);
        let (sleep, deadlines) = (self.runtime.sleep_until(at), Arc::downgrade(self));
        self.runtime.spawn(Box::pin(async move {
            sleep.await;
            if let Some(this) = Weak::upgrade(&deadlines) {
                this.ring(at);
            }
        }));
    }

    /// The timer that was wound for `at` goes off.
    fn ring(self: &Arc<Self>, at: Duration) {
        let now = self.runtime.monotonic();
        let mut inner = lock(&self.inner);
        if inner.timer != Some(at) {
            // An earlier one has taken its place.
            return;
        }
        inner.timer = None;
        let later = inner.waiting.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut inner.waiting, later);
        if let Some((&(at, _), _)) = inner.waiting.first_key_value() {
            self.wind(&mut inner, at);
        }
        drop(inner);
        due.into_values().for_each(Waker::wake);
    }
}

impl Alarm {
    /// Ready when it has gone off; else it wakes when it does.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.deadlines.runtime.monotonic() >= self.at {
            return Poll::Ready(());
        }
        let mut inner = lock(&self.deadlines.inner);
        let number = *self.number.get_or_insert_with(|| {
            inner.next += 1;
            inner.next
        });
        inner.waiting.insert((self.at, number), context.waker().clone());
        self.deadlines.wind(&mut inner, self.at);
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            lock(&self.deadlines.inner).waiting.remove(&(self.at, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_runtime::Threads;
    use std::future::poll_fn;
    use std::sync::mpsc;

    #[test]
    fn alarms_go_off_in_order_on_one_timer_and_not_when_dropped() {
        let runtime: Arc<dyn Runtime> = Arc::new(Threads::new());
        let deadlines = Deadlines::new(Arc::clone(&runtime));
        let (sender, receiver) = mpsc::channel();
        let now = runtime.monotonic();
        for millis in [60_000, 20, 10] {
            let mut alarm = deadlines.alarm(now + Duration::from_millis(millis));
            let sender = sender.clone();
            crate::life::block_on(poll_fn(|context| {
                assert!(alarm.poll(context).is_pending() || millis < 60_000);
                Poll::Ready(())
            }));
            if millis < 60_000 {
                runtime.spawn(Box::pin(async move {
                    poll_fn(|context| alarm.poll(context)).await;
                    let _ = sender.send(millis);
                }));
            }
        }
        drop(sender);
        let mut order: Vec<u64> = receiver.iter().collect();
        order.sort_unstable();
        assert_eq!(order, [10, 20], "both went off, long before the one that was dropped");
        assert!(lock(&deadlines.inner).waiting.is_empty());
    }
}
