// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bounded number of connections to one server, each used by one request at a time.

use crate::fault::Fault;
use crate::reconnect::Outage;
use outrigger_core::{Errno, Result, lock};
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// How often those who wait look whether an idle transfer can be ended for them.
const LOOK: Duration = Duration::from_millis(50);
/// For so long there are fewer connections after the server had too much to do.
const NARROW: Duration = Duration::from_secs(60);

/// Connections of one kind.
#[derive(Debug)]
pub struct Pool<C> {
    idle: Mutex<Vec<C>>,
    permits: Arc<Semaphore>,
    most: usize,
    narrowed: Mutex<Narrowed>,
    outage: Outage,
}

/// How many connections are not used for a while.
#[derive(Debug, Default)]
struct Narrowed {
    /// These are still in use.
    due: usize,
    gone: usize,
    until: Option<Instant>,
}

/// A connection in use. Dropping it closes it, unless [`Lease::give_back`] is called.
#[derive(Debug)]
pub struct Lease<C> {
    pool: Arc<Pool<C>>,
    connection: Option<C>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<C> Pool<C> {
    /// At most `most` connections, to a server that a former process had one to, if it `was_there`.
    pub fn new(most: usize, was_there: bool) -> Arc<Self> {
        let outage = if was_there { Outage::after_takeover() } else { Outage::default() };
        let permits = Arc::new(Semaphore::new(most));
        Arc::new(Pool { idle: Mutex::default(), permits, most, narrowed: Mutex::default(), outage })
    }

    /// The server had too much to do: for a minute there is one connection less, but at least one.
    pub fn narrow(&self) {
        let mut narrowed = lock(&self.narrowed);
        narrowed.until = Some(Instant::now() + NARROW);
        if narrowed.due + narrowed.gone + 1 < self.most {
            narrowed.due += 1;
        }
    }

    fn widen(&self) {
        let mut narrowed = lock(&self.narrowed);
        if narrowed.until.is_some_and(|until| until <= Instant::now()) {
            self.permits.add_permits(narrowed.gone);
            *narrowed = Narrowed::default();
        }
    }

    /// A connection: an idle one that is `usable`, else one that `dial` makes, as [`Outage::connect`] has it. When all are in use,
    /// `reclaim` may end a use that waits for nothing; whether it did.
    ///
    /// # Errors
    /// `ETIMEDOUT` when none becomes free within `limit`, and those of `dial`.
    pub async fn lease<F: Future<Output = Result<C>>>(
        self: &Arc<Self>,
        limit: Duration,
        usable: impl Fn(&mut C) -> bool,
        reclaim: impl Fn() -> bool,
        dial: impl Fn() -> F,
    ) -> Result<Lease<C>> {
        let until = Instant::now() + limit;
        let permit = loop {
            self.widen();
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                break permit;
            }
            if reclaim() {
                continue;
            }
            if let Ok(Ok(permit)) = timeout(LOOK, Arc::clone(&self.permits).acquire_owned()).await {
                break permit;
            }
            if Instant::now() > until {
                let (most, seconds) = (self.most, limit.as_secs_f32());
                let why = format!("all {most} connections were busy for {seconds} s");
                return Err(Errno::ETIMEDOUT.because(why));
            }
        };
        loop {
            let idle = lock(&self.idle).pop();
            let connection = match idle {
                Some(mut idle) => match usable(&mut idle) {
                    true => idle,
                    false => continue,
                },
                None => self.outage.connect(limit, &dial).await?,
            };
            return Ok(Lease { pool: Arc::clone(self), connection: Some(connection), permit: Some(permit) });
        }
    }
}

impl<C> Lease<C> {
    /// The connection is ready for the next request.
    pub fn give_back(mut self) {
        let connection = self.connection.take();
        lock(&self.pool.idle).extend(connection);
    }

    /// Gives the connection back after a request with this outcome, if that leaves it in order: a server that refuses something has
    /// answered.
    ///
    /// # Errors
    /// Those of `outcome`.
    pub fn after<T, R>(self, outcome: Result<T, Fault<R>>) -> Result<T, Fault<R>> {
        if matches!(outcome, Ok(_) | Err(Fault::Refused(_))) {
            self.give_back();
        }
        outcome
    }
}

impl<C> Drop for Lease<C> {
    fn drop(&mut self) {
        let mut narrowed = lock(&self.pool.narrowed);
        if narrowed.due > 0 {
            (narrowed.due, narrowed.gone) = (narrowed.due - 1, narrowed.gone + 1);
            self.permit.take().into_iter().for_each(OwnedSemaphorePermit::forget);
        }
    }
}

impl<C> Deref for Lease<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("a lease has its connection until it ends")
    }
}

impl<C> DerefMut for Lease<C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("a lease has its connection until it ends")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[tokio::test]
    async fn a_connection_goes_on_after_a_refusal_and_not_after_a_loss() {
        let (pool, made) = (Pool::new(1, false), AtomicU32::new(0));
        let dial = || async { Ok(made.fetch_add(1, Relaxed)) };
        for (outcome, dialed) in [
            (Ok(()), 1),
            (Err(Fault::Refused(())), 1),
            (Err(Fault::Lost(Errno::EIO.into())), 1),
            (Err(Fault::Known(Errno::EPROTO.into())), 2),
            (Ok(()), 3),
        ] {
            let lease = pool.lease(Duration::from_secs(5), |_| true, || false, dial).await.expect("one");
            let is_ok = outcome.is_ok();
            assert_eq!(lease.after(outcome).is_ok(), is_ok);
            assert_eq!(made.load(Relaxed), dialed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_with_too_much_to_do_has_fewer_connections_for_a_minute_and_at_least_one() {
        let (pool, limit) = (Pool::new(3, false), Duration::from_secs(5));
        let lease = || pool.lease(limit, |()| true, || false, || async { Ok(()) });
        let all = [lease().await, lease().await, lease().await].map(|lease| lease.expect("one of three"));
        (0..9).for_each(|_| pool.narrow());
        all.into_iter().for_each(Lease::give_back);
        let one = lease().await.expect("the last one");
        assert_eq!(lease().await.expect_err("it is in use").errno, Errno::ETIMEDOUT);
        tokio::time::sleep(NARROW).await;
        let others = (lease().await.expect("another one"), lease().await.expect("another one"));
        assert_eq!(lease().await.expect_err("these are all").errno, Errno::ETIMEDOUT);
        drop((one, others));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_bounded_used_again_and_reclaimed() {
        let (pool, made) = (Pool::new(1, false), AtomicU32::new(0));
        let limit = Duration::from_secs(5);
        let dial = || async { Ok(made.fetch_add(1, Relaxed)) };
        let first = pool.lease(limit, |_| true, || false, dial).await.expect("the first one");
        let busy = pool.lease(limit, |_| true, || false, dial).await.expect_err("it is in use");
        assert_eq!(busy.errno, Errno::ETIMEDOUT);
        first.give_back();
        let held = Mutex::new(Some(pool.lease(limit, |_| true, || false, dial).await.expect("the same")));
        assert_eq!(made.load(Relaxed), 1);
        let reclaim = || held.lock().expect("no panic").take().is_some();
        let second = pool.lease(limit, |_| true, reclaim, dial).await.expect("another one");
        assert_eq!(*second, 1);
        second.give_back();
        let third = pool.lease(limit, |_| false, || false, dial).await.expect("a usable one");
        assert_eq!(*third, 2);
    }
}
