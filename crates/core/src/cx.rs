// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller, the deadline and the cancel token: the context that travels beside each request.

use crate::mutex::lock;
use crate::ops::OpenFlags;
use crate::wcc::Wcc;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
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
    /// Raised when the program no longer wants the answer; see [`Cancel::heed_signals`].
    pub cancel: Cancel,
    /// Whether requests of the same caller follow before this one is waited for. A driver that sends requests somewhere
    /// may send them together; it must when one of the answers is polled.
    pub more_to_follow: bool,
    /// Whether no program waits for the answer yet: what others wait for may go first.
    pub ahead: bool,
    /// Whether attributes are asked anew, whatever a cache of this process knows. Protocols do not carry it: a cache at another machine answers
    /// as it does to others.
    pub fresh: bool,
    /// Whether the bytes of a write go to the end of the file, whatever its offset (`O_APPEND`), where the door knows that of each write:
    /// fcntl(2) changes it while the file is open. Otherwise it is what the file was opened with: see [`Cx::writes_at_end`].
    pub appends: Option<bool>,
    /// Where the driver is to put attributes around the change; `None` where the caller has no use for them.
    pub wcc: Option<Arc<Wcc>>,
}

/// User and groups a request acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups, where the door knows them.
    pub groups: Groups,
}

impl Credentials {
    /// The superuser.
    pub const ROOT: Credentials = Credentials::new(0, 0);

    /// This user and group; supplementary groups are not known.
    pub const fn new(uid: u32, gid: u32) -> Self {
        Credentials { uid, gid, groups: Groups::UNKNOWN }
    }

    /// Whether they are known to include the group `gid` (path_resolution(7)).
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.known().is_some_and(|groups| groups.contains(&gid))
    }
}

/// Supplementary groups of a caller (credentials(7)). A clone shares the list: a request costs no allocation for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups(Option<Arc<[u32]>>);

impl Groups {
    /// The door does not say: the FUSE protocol, for one, has no field for them.
    pub const UNKNOWN: Groups = Groups(None);

    /// Exactly these.
    pub fn of(groups: &[u32]) -> Self {
        Groups(Some(groups.into()))
    }

    /// The groups, unless they are unknown.
    pub fn known(&self) -> Option<&[u32]> {
        self.0.as_deref()
    }
}

/// Where a request came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The door's name, as in `fuse`.
    pub door: &'static str,
    /// The process that asked; 0 when unknown or when the kernel itself asks.
    pub pid: u32,
    /// The client at the other end of a connection; `None` for programs of this machine.
    pub peer: Option<Arc<Peer>>,
}

/// A client of a door that serves a network. A clone of [`Origin`] shares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its address, as the door prints it: `192.0.2.7:812`, or the path of a UNIX socket.
    pub address: String,
    /// Tells apart connections, or clients that identify themselves, for as long as the door runs.
    pub session: u64,
}

impl Cx {
    /// For what is asked because of this request and is no part of it, as giving back what its reply hands out: neither its deadline
    /// nor its cancellation applies.
    pub fn aside(&self) -> Self {
        Cx { slot: Cx::NO_SLOT, ..Cx::new(self.id, self.cred.clone(), self.origin.door) }
    }

    /// The slot of requests that a layer makes by itself: they are never sent again.
    pub const NO_SLOT: u32 = u32::MAX;

    /// A context without deadline for request `id` of `door`.
    pub fn new(id: u64, cred: Credentials, door: &'static str) -> Self {
        let origin = Origin { door, pid: 0, peer: None };
        Cx {
            id,
            slot: 0,
            cred,
            origin,
            deadline: None,
            cancel: Cancel::default(),
            more_to_follow: false,
            ahead: false,
            fresh: false,
            appends: None,
            wcc: None,
        }
    }

    /// Whether a write through a file that was opened with these flags goes to its end. Bytes of a cache have their places.
    pub fn writes_at_end(&self, opened: OpenFlags, cached: bool) -> bool {
        !cached && self.appends.unwrap_or(opened.contains(OpenFlags::APPEND))
    }
}

/// A request to stop, shared between the door that raises it and the code that works on the request.
///
/// A driver that has changed nothing yet may answer `EINTR`; a started change is always finished.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    raised: AtomicBool,
    heeds_signals: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Cancel {
    /// Asks to stop; wakes all that wait in [`Cancel::raised`].
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *lock(&self.0.wakers));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether stopping was asked for.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    /// Says whether any signal to the program raises the token. Programs expect no `EINTR` from files, so that a door raises it only for a
    /// program that is dying, unless a driver asks for more: where a request waits for a peer for as long as that takes, as reading from
    /// a pipe does. Such a driver answers by itself as soon as the token is raised; its reply is waited for, and what it has received
    /// is not lost.
    pub fn heed_signals(&self, heeds: bool) {
        self.0.heeds_signals.store(heeds, Ordering::Release);
    }

    /// Whether any signal to the program raises the token.
    pub fn heeds_signals(&self) -> bool {
        self.0.heeds_signals.load(Ordering::Acquire)
    }

    /// Waits until stopping is asked for.
    pub fn raised(&self) -> Raised<'_> {
        Raised(self)
    }

    /// The outcome of `work`; `None` when stopping is asked for before that.
    pub async fn unless_raised<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, mut raised) = (pin!(work), pin!(self.raised()));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending => raised.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Forgets what waits in [`Cancel::raised`]: for a door whose request has ended, which reuses the token.
    pub fn forget_waiting(&self) {
        lock(&self.0.wakers).clear();
    }

    /// How many clones of this token exist, itself included; exact only while no other thread clones or drops one.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Makes the token as new when it has no other holder, so that a door can reuse it without an allocation.
    /// Otherwise puts a new one in its place.
    pub fn renew(&mut self) {
        match Arc::get_mut(&mut self.0) {
            Some(flag) => {
                *flag.raised.get_mut() = false;
                *flag.heeds_signals.get_mut() = false;
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
        let mut wakers = lock(&flag.wakers);
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
    use std::future::{pending, ready};

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
        assert_eq!(pin!(copy.unless_raised(pending::<()>())).poll(&mut context), Poll::Ready(None));
        assert_eq!(pin!(copy.unless_raised(ready(7))).poll(&mut context), Poll::Ready(Some(7)), "it is done");
        token.renew();
        assert!(!token.is_raised() && copy.is_raised(), "a shared token is replaced, not cleared");
    }
}
