// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who asks, until when, and whether still: the context that travels beside each request.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The context of one request. Doors make it; it is never part of a message's arguments.
#[derive(Debug, Clone)]
pub struct Cx {
    /// Assigned by the door, unique while the request lives; the tag in journals and traces.
    pub id: u64,
    /// A small number that no other request in flight at the door has. The door gives it to another request only when
    /// the reply to this one was delivered, so what is noted under it may then be overwritten.
    /// [`Cx::NO_SLOT`] when no door has asked, but a layer by itself.
    pub slot: u32,
    /// On whose behalf the operation happens.
    pub cred: Credentials,
    /// Which program asked.
    pub origin: Origin,
    /// When the answer stops being useful, on the clock of [`crate::Clock::monotonic`]; `None` for never.
    pub deadline: Option<Duration>,
    /// Raised when the program no longer wants the answer.
    pub cancel: Cancel,
    /// Whether requests of the same caller follow before this one is waited for. A driver that sends requests somewhere
    /// may send them together; it must when one of the answers is polled.
    pub more: bool,
}

/// User and group a request acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
}

impl Credentials {
    /// The superuser.
    pub const ROOT: Credentials = Credentials { uid: 0, gid: 0 };
}

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The door's name, as in `fuse`.
    pub door: &'static str,
    /// The process that asked; 0 when unknown or when the kernel itself asks.
    pub pid: u32,
}

impl Cx {
    /// The slot of requests that a layer makes by itself: nobody sends them again.
    pub const NO_SLOT: u32 = u32::MAX;

    /// A context without deadline for request `id` of `door`.
    pub fn new(id: u64, cred: Credentials, door: &'static str) -> Self {
        let origin = Origin { door, pid: 0 };
        Cx { id, slot: 0, cred, origin, deadline: None, cancel: Cancel::default(), more: false }
    }
}

/// A request to stop, shared between the door that raises it and whoever works on the request.
///
/// A driver that has changed nothing yet may answer `EINTR`; a started change is always finished.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    raised: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Cancel {
    /// Asks to stop; wakes everyone who waits in [`Cancel::raised`].
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether stopping was asked for.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    /// Waits until stopping is asked for.
    pub fn raised(&self) -> Raised<'_> {
        Raised(self)
    }

    /// Forgets who waits in [`Cancel::raised`]: for a door whose request has ended, which reuses the token.
    pub fn forget_waiting(&self) {
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// How many clones of this token exist, itself included; exact only while nobody clones or drops one.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Makes the token as new when nobody else holds it, so that a door can reuse it without an allocation.
    /// Otherwise puts a new one in its place.
    pub fn renew(&mut self) {
        match Arc::get_mut(&mut self.0) {
            Some(flag) => {
                *flag.raised.get_mut() = false;
                flag.wakers.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
            }
            None => *self = Cancel::default(),
        }
    }
}

/// Ready once the token is raised; see [`Cancel::raised`].
#[derive(Debug)]
pub struct Raised<'a>(&'a Cancel);

impl Future for Raised<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let flag = &self.0.0;
        let mut wakers = flag.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: `raise` stores first and takes the wakers after, so none can be missed.
        if flag.raised.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[test]
    fn raising_wakes_and_renewing_forgets() {
        let mut token = Cancel::default();
        let copy = token.clone();
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut wait = pin!(copy.raised());
            assert!(wait.as_mut().poll(&mut context).is_pending());
            token.raise();
            assert!(wait.as_mut().poll(&mut context).is_ready());
        }
        token.renew();
        assert!(!token.is_raised() && copy.is_raised(), "a shared token is replaced, not cleared");
    }
}
