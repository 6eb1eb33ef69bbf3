// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many reader threads there are.
//!
//! One reader serves a single program best: it sleeps between two requests, so the kernel wakes it beside the client that waits
//! for it, on a CPU that is awake. A second one is woken for every other request, on a CPU that is not, and one that looks for
//! requests without sleeping (poll(2)) keeps its client away from its own CPU. More are needed when all are stuck inside slow
//! calls, or when several programs ask at once. So the pool starts small, and a monitor thread looks every few
//! milliseconds, only while there are requests, and hires or dismisses.
use outrigger_core::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

/// How often the monitor looks.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without a free reader and without progress until one is hired: longer than a busy machine lets a thread wait
/// for a CPU, usually.
const STUCK: u32 = 3;
/// Ticks without a free reader, while requests of several clients are being served, until one is hired for throughput.
const SATURATED: u32 = 8;
/// Ticks with two readers free until one is dismissed.
const SURPLUS: u32 = 500;
/// Ticks in which one client was served until a reader too many is dismissed.
const SINGLE: u32 = 50;
/// Ticks without a request until the monitor sleeps.
const QUIET: u32 = 50;
/// Ticks between two patrols.
const PATROL: u32 = 25;

/// The reader threads of a session.
pub(crate) struct ReaderPool {
    at_rest: usize,
    limit: usize,
    total: AtomicUsize,
    /// Readers that wait for a request.
    free: AtomicUsize,
    /// Requests taken so far.
    taken: AtomicU64,
    /// Who asked last.
    client: AtomicU32,
    /// Whether requests since the last tick may have come at the same time.
    parallel: AtomicBool,
    /// Readers that shall leave.
    dismissed: AtomicUsize,
    /// Requests that are taken are held.
    paused: AtomicBool,
    /// Readers that hold a request.
    holding: AtomicUsize,
    /// Held while `paused` is reset.
    gate: Mutex<()>,
    /// Signalled then.
    resumed: Condvar,
    dozing: AtomicBool,
    over: AtomicBool,
    monitor: OnceLock<Thread>,
}

impl ReaderPool {
    pub(crate) fn new(at_rest: usize, limit: usize) -> Self {
        Self {
            at_rest,
            limit: limit.max(at_rest),
            total: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            client: AtomicU32::new(0),
            parallel: AtomicBool::new(false),
            dismissed: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            holding: AtomicUsize::new(0),
            gate: Mutex::default(),
            resumed: Condvar::new(),
            dozing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            monitor: OnceLock::new(),
        }
    }

    /// Readers there are.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Relaxed)
    }

    /// Readers there shall be at rest.
    pub(crate) fn at_rest(&self) -> usize {
        self.at_rest
    }

    /// Counts a new reader.
    pub(crate) fn joins(&self) {
        self.total.fetch_add(1, SeqCst);
    }

    /// Counts a reader out; true for the last one.
    pub(crate) fn leaves(&self) -> bool {
        self.total.fetch_sub(1, SeqCst) == 1
    }

    /// A reader is about to wait for a request.
    pub(crate) fn waits(&self) {
        self.free.fetch_add(1, Relaxed);
    }

    /// A reader has taken a request.
    pub(crate) fn takes(&self) {
        self.free.fetch_sub(1, Relaxed);
        // In one order with what the monitor does in `doze`: either it sees this request or this sees that it dozes.
        self.taken.fetch_add(1, SeqCst);
        if self.dozing.load(SeqCst) && self.dozing.swap(false, SeqCst) {
            self.wake();
        }
    }

    /// Has readers hold what they take from now on, until [`ReaderPool::resume`].
    pub(crate) fn pause(&self) {
        self.paused.store(true, SeqCst);
    }

    /// Lets readers go on with what they hold.
    pub(crate) fn resume(&self) {
        let _gate = lock(&self.gate);
        self.paused.store(false, SeqCst);
        self.resumed.notify_all();
    }

    /// Called between [`ReaderPool::takes`] and doing what a request asks for: returns when it may be done.
    pub(crate) fn hold_while_paused(&self) {
        if self.paused.load(SeqCst) {
            self.hold();
        }
    }

    #[cold]
    fn hold(&self) {
        self.holding.fetch_add(1, SeqCst);
        let waited = self.resumed.wait_while(lock(&self.gate), |()| self.paused.load(SeqCst));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.holding.fetch_sub(1, SeqCst);
    }

    /// While paused: whether no reader is doing what a request asks for.
    pub(crate) fn all_wait(&self) -> bool {
        // In one order with `takes` and `hold_while_paused`: either this sees a reader that is not free, or that reader sees the
        // pause.
        self.taken.load(SeqCst);
        self.free.load(Relaxed) + self.holding.load(SeqCst) >= self.total()
    }

    /// Notes for which thread a reader serves a request. A thread waits for one answer at a time, unless the request is
    /// one of several the kernel sends at once.
    pub(crate) fn serves(&self, client: u32, several: bool) {
        if several || self.client.load(Relaxed) != client {
            self.client.store(client, Relaxed);
            self.parallel.store(true, Relaxed);
        }
    }

    /// Whether the asking reader shall leave.
    pub(crate) fn is_dismissed(&self) -> bool {
        self.dismissed.load(Relaxed) != 0
            && self.dismissed.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1)).is_ok()
    }

    /// Ends the monitor.
    pub(crate) fn finish(&self) {
        self.over.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.monitor.get() {
            thread.unpark();
        }
    }

    /// Runs the monitor; `hire` starts a reader, `cancel_dying` looks after interrupted requests and is called every
    /// [`PATROL`] ticks as long as it says that there are any.
    pub(crate) fn watch(&self, hire: impl Fn(), cancel_dying: impl Fn() -> bool) {
        let _ = self.monitor.set(thread::current());
        let mut look = Look::default();
        let mut tick = 0u32;
        let mut cancelling = false;
        while !self.over.load(SeqCst) {
            tick = tick.wrapping_add(1);
            if tick.is_multiple_of(PATROL) {
                cancelling = cancel_dying();
            }
            // An interrupt is a request too, so at least one cancel_dying follows it before all is quiet.
            if look.quiet >= QUIET && !cancelling {
                self.doze(look.taken);
                look = Look { taken: self.taken.load(Relaxed), ..Look::default() };
            }
            thread::park_timeout(TICK);
            let parallel = self.parallel.swap(false, Relaxed);
            match look.update(self.taken.load(Relaxed), self.free.load(Relaxed), parallel) {
                Advice::Hire if self.total() < self.limit => hire(),
                Advice::Dismiss if self.total() > self.at_rest => {
                    self.dismissed.fetch_add(1, SeqCst);
                }
                _ => {}
            }
        }
    }

    /// Sleeps until the next request; returns at once when one came since `taken` was read.
    fn doze(&self, taken: u64) {
        self.dozing.store(true, SeqCst);
        while self.dozing.load(SeqCst) && self.taken.load(SeqCst) == taken && !self.over.load(SeqCst) {
            thread::park();
        }
        self.dozing.store(false, SeqCst);
    }
}

/// What the monitor remembers from tick to tick.
#[derive(Debug, Default)]
struct Look {
    taken: u64,
    /// Ticks in a row without a request while a reader is free.
    quiet: u32,
    /// Ticks in a row without a free reader and without a request taken.
    stuck: u32,
    /// Ticks in a row without a free reader and with several clients.
    saturated: u32,
    /// Ticks in a row with two readers free.
    surplus: u32,
    /// Ticks with requests of one client only, since there was none or several.
    single: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Advice {
    Nothing,
    Hire,
    Dismiss,
}

impl Look {
    fn update(&mut self, taken: u64, free: usize, parallel: bool) -> Advice {
        let moved = taken != self.taken;
        self.taken = taken;
        self.quiet = if moved || free == 0 { 0 } else { self.quiet + 1 };
        self.saturated = if free == 0 && parallel { self.saturated + 1 } else { 0 };
        self.surplus = if free >= 2 { self.surplus + 1 } else { 0 };
        self.single = if moved && !parallel { self.single + 1 } else { 0 };
        self.stuck = if free == 0 && !moved { self.stuck + 1 } else { 0 };
        if self.stuck >= STUCK || self.saturated >= SATURATED {
            (self.stuck, self.saturated, self.single) = (0, 0, 0);
            Advice::Hire
        } else if self.surplus >= SURPLUS || self.single >= SINGLE {
            (self.surplus, self.single) = (0, 0);
            Advice::Dismiss
        } else {
            Advice::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuck_readers_get_help_and_surplus_ones_leave() {
        let mut look = Look { taken: 5, ..Look::default() };
        assert_eq!(look.update(6, 0, true), Advice::Nothing, "busy but moving");
        let advice: Vec<Advice> = (0..STUCK).map(|_| look.update(6, 0, false)).collect();
        assert_eq!(advice, [Advice::Nothing, Advice::Nothing, Advice::Hire], "stuck");
        assert_eq!(look.update(7, 1, true), Advice::Nothing);
        let mut look = Look::default();
        let mut hired = |parallel| {
            (1..=u64::from(SATURATED)).filter(|tick| look.update(*tick, 0, parallel) == Advice::Hire).count()
        };
        assert_eq!(hired(false), 0, "one client at a time needs one reader");
        assert_eq!(hired(true), 1, "saturated");
        let mut look = Look::default();
        let dismissed = (0..SURPLUS).filter(|_| look.update(0, 2, true) == Advice::Dismiss).count();
        assert_eq!(dismissed, 1);
        assert!(look.quiet >= QUIET, "nothing was taken");
        let mut look = Look::default();
        let dismissed =
            (1..=u64::from(SINGLE)).filter(|taken| look.update(*taken, 1, false) == Advice::Dismiss).count();
        assert_eq!(dismissed, 1, "one client does not need the second");
    }

    #[test]
    fn what_is_taken_in_a_pause_is_held_until_it_ends() {
        let pool = ReaderPool::new(1, 4);
        pool.joins();
        assert!(!pool.all_wait(), "it starts");
        pool.waits();
        assert!(pool.all_wait());
        pool.takes();
        assert!(!pool.all_wait(), "it has a request");
        pool.hold_while_paused();
        pool.pause();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                pool.hold_while_paused();
                done.store(true, SeqCst);
            });
            while !pool.all_wait() {
                thread::yield_now();
            }
            assert!(!done.load(SeqCst));
            pool.resume();
        });
        assert!(done.load(SeqCst));
    }

    #[test]
    fn one_dismissal_lets_one_reader_go() {
        let pool = ReaderPool::new(1, 4);
        assert!(!pool.is_dismissed());
        pool.dismissed.store(1, SeqCst);
        assert!(pool.is_dismissed());
        assert!(!pool.is_dismissed());
    }
}
