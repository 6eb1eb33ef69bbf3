// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests in flight: the context each runs in, and how an interrupt finds it.
use crate::interrupt::{is_dying, is_exiting_in, is_interruptible, may_outlive_its_thread};
use outrigger_core::{Cancel, Credentials, Cx, Node, lock};
use outrigger_proto_fuse::{InHeader, UNIQUE_RESEND};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Free slots kept for reuse.
const KEPT: usize = 64;

/// Time for ages: a few milliseconds coarse, but nearly free.
pub(crate) fn coarse_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// The context of one request at a time; reused without an allocation.
pub(crate) struct Slot {
    /// What the service sees.
    pub(crate) cx: Cx,
    live: Arc<Live>,
}

/// What others may see and do while a slot is busy.
#[derive(Debug)]
struct Live {
    /// The request, without the resend mark; zero at rest.
    request: AtomicU64,
    about: Mutex<About>,
}

#[derive(Debug, Clone)]
struct About {
    opcode: u32,
    node: u64,
    pid: u32,
    since: Duration,
    cancel: Cancel,
    /// A signal came that does not end the request; one that does would not be reported any more.
    signalled: bool,
}

/// What became of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// No such request is in flight.
    Unknown,
    /// The program goes on waiting: look after it with [`Slots::cancel_dying`].
    Ignored,
    /// The request is given up.
    Raised,
}

/// A request being worked on, for status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestInFlight {
    pub(crate) request: u64,
    pub(crate) opcode: u32,
    pub(crate) node: Node,
    pub(crate) pid: u32,
    pub(crate) age: Duration,
}

impl About {
    /// `watched`: whether the program may be looked at.
    fn is_given_up(&self, watched: bool) -> bool {
        is_interruptible(self.opcode) || self.cancel.heeds_signals() || (watched && is_dying(self.pid))
    }

    /// Whether it is one of the last requests of a thread of this group of processes.
    fn is_last_in(&self, group: u64) -> bool {
        may_outlive_its_thread(self.opcode) && is_exiting_in(self.pid, group)
    }
}

impl Slot {
    /// Fills the slot with a request.
    pub(crate) fn begin(&mut self, header: &InHeader, deadline: Option<Duration>, appends: bool) {
        let request = header.request_id();
        self.cx.id = request;
        self.cx.cred = Credentials::new(header.uid, header.gid);
        self.cx.origin.pid = header.pid;
        (self.cx.deadline, self.cx.appends) = (deadline, Some(appends));
        let mut about = lock(&self.live.about);
        // Ours and the one in `about`: a third belongs to somebody who still works on an earlier request.
        if self.cx.cancel.is_raised() || self.cx.cancel.holders() > 2 {
            self.cx.cancel = Cancel::default();
            about.cancel = self.cx.cancel.clone();
        }
        self.cx.cancel.heed_signals(false);
        about.opcode = header.opcode;
        about.node = header.nodeid;
        about.pid = header.pid;
        about.since = coarse_now();
        about.signalled = false;
        self.live.request.store(request, Ordering::Release);
    }

    /// Empties the slot.
    pub(crate) fn end(&self) {
        self.live.request.store(0, Ordering::Release);
    }
}

/// Which numbers slots have.
#[derive(Debug, Default)]
struct Numbers {
    /// Given back.
    free: Vec<u32>,
    /// As many were ever in use at once.
    next: u32,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// All slots of a session.
pub(crate) struct Slots {
    /// Whether programs that wait may be looked at.
    watched: bool,
    lives: Mutex<Vec<Arc<Live>>>,
    free: Mutex<Vec<Arc<Slot>>>,
    numbers: Mutex<Numbers>,
}

impl Slots {
    /// No slots yet. `watched`: whether programs that wait may be looked at.
    pub(crate) fn new(watched: bool) -> Self {
        Self { watched, lives: Mutex::default(), free: Mutex::default(), numbers: Mutex::default() }
    }

    /// Gives up what exiting threads of a group of processes wait for.
    pub(crate) fn cancel_last(&self, group: u64) {
        for live in lock(&self.lives).iter() {
            let about = lock(&live.about);
            if live.request.load(Ordering::Acquire) != 0 && about.is_last_in(group) {
                about.cancel.raise();
            }
        }
    }

    /// A free slot.
    pub(crate) fn take(&self) -> Arc<Slot> {
        if let Some(slot) = lock(&self.free).pop() {
            return slot;
        }
        let slot = lock(&self.numbers).take();
        let cx = Cx { slot, ..Cx::new(0, Credentials::ROOT, "fuse") };
        let about = About {
            opcode: 0,
            node: 0,
            pid: 0,
            since: Duration::ZERO,
            cancel: cx.cancel.clone(),
            signalled: false,
        };
        let live = Arc::new(Live { request: AtomicU64::new(0), about: Mutex::new(about) });
        lock(&self.lives).push(Arc::clone(&live));
        Arc::new(Slot { cx, live })
    }

    /// Takes a slot back.
    pub(crate) fn give(&self, slot: Arc<Slot>) {
        slot.end();
        // Or one token would collect the wakers of all requests there ever were.
        if slot.cx.cancel.holders() <= 2 {
            slot.cx.cancel.forget_waiting();
        }
        let mut free = lock(&self.free);
        if free.len() < KEPT {
            free.push(slot);
        } else {
            drop(free);
            lock(&self.numbers).free.push(slot.cx.slot);
            lock(&self.lives).retain(|live| !Arc::ptr_eq(live, &slot.live));
        }
    }

    /// Handles the interruption of a request.
    pub(crate) fn interrupt(&self, unique: u64) -> Interrupted {
        let request = unique & !UNIQUE_RESEND;
        for live in lock(&self.lives).iter() {
            if live.request.load(Ordering::Acquire) != request {
                continue;
            }
            // The slot takes this lock to begin its next request, which therefore cannot be hit by mistake.
            let mut about = lock(&live.about);
            if live.request.load(Ordering::Acquire) == request {
                if about.is_given_up(self.watched) {
                    about.cancel.raise();
                    return Interrupted::Raised;
                }
                about.signalled = true;
                return Interrupted::Ignored;
            }
        }
        Interrupted::Unknown
    }

    /// Gives up requests whose programs have begun to die after an ignored signal, or which are the last of a dying
    /// program, and those that have come to heed signals only after theirs. True while there are programs to look after.
    pub(crate) fn cancel_dying(&self) -> bool {
        let mut waiting = false;
        for live in lock(&self.lives).iter() {
            let about = lock(&live.about);
            let is_last = self.watched && may_outlive_its_thread(about.opcode);
            if !(about.signalled || is_last)
                || about.cancel.is_raised()
                || live.request.load(Ordering::Acquire) == 0
            {
                continue;
            }
            if about.is_given_up(self.watched) {
                about.cancel.raise();
            } else {
                waiting = true;
            }
        }
        waiting
    }

    /// Every request in flight, oldest first.
    pub(crate) fn in_flight(&self) -> Vec<RequestInFlight> {
        let now = coarse_now();
        let mut all: Vec<RequestInFlight> = lock(&self.lives)
            .iter()
            .filter_map(|live| {
                let about = lock(&live.about);
                let request = live.request.load(Ordering::Acquire);
                (request != 0).then(|| RequestInFlight {
                    request,
                    opcode: about.opcode,
                    node: Node(about.node),
                    pid: about.pid,
                    age: now.saturating_sub(about.since),
                })
            })
            .collect();
        all.sort_by_key(|sighting| std::cmp::Reverse(sighting.age));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Wake, Waker};

    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    fn header(unique: u64) -> InHeader {
        // A request that any signal interrupts.
        let opcode = outrigger_proto_fuse::Opcode::Setlkw as u32;
        InHeader { unique, opcode, nodeid: 3, pid: std::process::id(), ..InHeader::default() }
    }

    #[test]
    fn an_interrupt_reaches_its_request_only() {
        let slots = Slots::new(true);
        let (mut one, mut two) = (slots.take(), slots.take());
        Arc::get_mut(&mut one).unwrap().begin(&header(10), None, false);
        Arc::get_mut(&mut two).unwrap().begin(&header(12 | UNIQUE_RESEND), None, false);
        assert_eq!(slots.interrupt(14), Interrupted::Unknown);
        assert_eq!(slots.interrupt(12 | UNIQUE_RESEND), Interrupted::Raised);
        assert!(two.cx.cancel.is_raised() && !one.cx.cancel.is_raised());
        assert_eq!(slots.in_flight().len(), 2);
        slots.give(two);
        assert_eq!(slots.interrupt(12), Interrupted::Unknown);
        let mut again = slots.take();
        Arc::get_mut(&mut again).unwrap().begin(&header(16), None, false);
        assert!(!again.cx.cancel.is_raised(), "a raised token is not reused");
    }

    #[test]
    fn a_kept_token_is_not_reused() {
        let slots = Slots::new(true);
        let mut slot = slots.take();
        Arc::get_mut(&mut slot).unwrap().begin(&header(2), None, false);
        let kept = slot.cx.cancel.clone();
        Arc::get_mut(&mut slot).unwrap().begin(&header(4), None, false);
        assert_eq!(slots.interrupt(4), Interrupted::Raised);
        assert!(!kept.is_raised());
    }

    #[test]
    fn a_token_forgets_the_requests_it_was_used_for() {
        let slots = Slots::new(true);
        let task = Arc::new(Nothing);
        for request in 1..4 {
            let mut slot = slots.take();
            Arc::get_mut(&mut slot).unwrap().begin(&header(2 * request), None, false);
            let waker = Waker::from(Arc::clone(&task));
            let waits = pin!(slot.cx.cancel.raised()).poll(&mut Context::from_waker(&waker));
            assert!(waits.is_pending());
            slots.give(slot);
        }
        assert_eq!(Arc::strong_count(&task), 1);
    }

    #[test]
    fn any_signal_ends_a_request_that_heeds_them_also_one_that_came_before_it_did() {
        for watched in [true, false] {
            let slots = Slots::new(watched);
            let mut slot = slots.take();
            let read = InHeader { opcode: outrigger_proto_fuse::Opcode::Read as u32, ..header(2) };
            Arc::get_mut(&mut slot).unwrap().begin(&read, None, false);
            slot.cx.cancel.heed_signals(true);
            assert_eq!(slots.interrupt(2), Interrupted::Raised);
            Arc::get_mut(&mut slot).unwrap().begin(&read, None, false);
            assert_eq!(
                slots.interrupt(2),
                Interrupted::Ignored,
                "another request, which does not heed them yet"
            );
            slot.cx.cancel.heed_signals(true);
            slots.cancel_dying();
            assert!(slot.cx.cancel.is_raised());
        }
    }

    #[test]
    fn a_signal_to_a_living_program_is_remembered_until_it_dies() {
        let slots = Slots::new(true);
        let mut slot = slots.take();
        let read = InHeader { opcode: outrigger_proto_fuse::Opcode::Read as u32, ..header(2) };
        Arc::get_mut(&mut slot).unwrap().begin(&read, None, false);
        assert_eq!(slots.interrupt(2), Interrupted::Ignored);
        assert!(slots.cancel_dying() && !slot.cx.cancel.is_raised());
        Arc::get_mut(&mut slot).unwrap().begin(&InHeader { pid: u32::MAX, ..read }, None, false);
        assert!(!slots.cancel_dying(), "a new request was not signalled");
        lock(&slot.live.about).signalled = true;
        assert!(!slots.cancel_dying() && slot.cx.cancel.is_raised());
    }
}
