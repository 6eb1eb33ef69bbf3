// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of requests and replies: a bound for all connections, of which each has a share.
//!
//! A request of a few kilobytes is not counted: how many there are is bounded. One connection that takes no replies holds its share; when
//! the rest is used up, too, every connection can still have one at a time.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What all connections hold, in units of [`UNIT`] bytes: 256 MiB.
const ALL: usize = 256 << 10;
/// What one holds: 32 MiB.
const EACH: usize = 32 << 10;
const UNIT: usize = 1 << 10;
/// Bytes of a call that is not counted.
const SMALL: usize = 16 << 10;

/// The memory of all connections.
#[derive(Debug)]
pub struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Self {
        Budget(Arc::new(Semaphore::new(ALL)))
    }
}

/// What one connection may have of it.
#[derive(Debug)]
pub struct Share {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
    /// For the one call that needs nothing of the budget.
    one: Arc<Semaphore>,
}

/// Memory for a call, until this is dropped.
#[derive(Debug, Default)]
pub struct Claim(#[expect(dead_code, reason = "held for what its drop does")] Vec<OwnedSemaphorePermit>);

impl Share {
    /// That of a connection.
    pub fn of(budget: &Budget) -> Self {
        let [own, one] = [EACH, 1].map(|count| Arc::new(Semaphore::new(count)));
        Share { all: budget.0.clone(), own, one }
    }

    /// Waits until there is memory for a call that takes `bytes`, with its reply.
    pub async fn claim(&self, bytes: usize) -> Claim {
        if bytes <= SMALL {
            return Claim::default();
        }
        let units = bytes.div_ceil(UNIT).min(EACH) as u32;
        // None of the semaphores is ever closed.
        let permits = tokio::select! {
            biased;
            permits = self.shared(units) => permits,
            permit = self.one.clone().acquire_owned() => vec![permit],
        };
        Claim(permits.into_iter().flatten().collect())
    }

    async fn shared(&self, units: u32) -> Vec<Result<OwnedSemaphorePermit, tokio::sync::AcquireError>> {
        // Its own first: a connection that has used that up is not in the way of others.
        let own = self.own.clone().acquire_many_owned(units).await;
        vec![own, self.all.clone().acquire_many_owned(units).await]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    const MIB: usize = 1 << 20;

    /// What is had without waiting.
    fn at_once(share: &Share, bytes: usize) -> Option<Claim> {
        let mut claim = Box::pin(share.claim(bytes));
        match claim.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(claim) => Some(claim),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_connection_has_its_share_and_all_together_have_the_budget() {
        let budget = Budget::default();
        let connections: Vec<Share> = (0..20).map(|_| Share::of(&budget)).collect();
        let taken =
            |share: &Share| -> Vec<Claim> { std::iter::from_fn(|| at_once(share, MIB)).take(1000).collect() };
        let first = taken(&connections[0]);
        assert_eq!(first.len(), 33, "32 MiB, and one call more");
        let rest: Vec<Vec<Claim>> = connections[1..].iter().map(taken).collect();
        assert_eq!(first.len() + rest.iter().map(Vec::len).sum::<usize>(), 256 + 20);
        let late = Share::of(&budget);
        let only = at_once(&late, MIB);
        assert!(only.is_some() && at_once(&late, MIB).is_none(), "one call at a time");
        drop(only);
        assert!(at_once(&late, MIB).is_some());
        drop(first);
        assert_eq!(taken(&late).len(), 33, "what was given back is had again");
    }

    #[test]
    fn small_calls_are_not_counted() {
        let (budget, mut claims) = (Budget::default(), Vec::new());
        let share = Share::of(&budget);
        claims.extend((0..100_000).map(|_| at_once(&share, SMALL).expect("free")));
        assert_eq!(share.own.available_permits(), EACH);
    }
}
