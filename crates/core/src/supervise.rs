// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is done about servers that die: when the next one is started, when that is given up, and which request is what kills.
//!
//! Whatever serves a tree may die and is replaced: the worker of a mount, a FUSE program, the kernel's code, a driver that is a
//! program. There is one policy for all of them, without a clock and without processes.
//!
//! * **Attempts.** Failures in a row are counted: servers that die before they have done anything, and starts that fail.
//! * **Back-off.** The first of them are followed by a start at once, the others by one after a pause, each twice as long as the one
//!   before.
//! * **Hold.** After so many, and so long, starts are given up. Requests fail then; a server is tried again some time later if
//!   a program still needs it.
//! * **Poison.** A request at work at three deaths is what kills, and is refused. After two it is asked alone, which spares
//!   those beside it.

use std::time::{Duration, SystemTime};

/// A request at work at so many deaths is refused.
const POISON: u32 = 3;
/// At so many it is asked alone.
const SUSPICIOUS: u32 = 2;
/// A request that was lost so often is refused, whatever the cause.
const LOST: u32 = 16;

/// The first pause before a start.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Once starts are given up, for so long none is made.
pub const GIVEN_UP_FOR: Duration = Duration::from_secs(5);

/// What is known of a request that was lost with its server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suspect {
    strikes: u32,
    losses: u32,
}

impl Suspect {
    /// One that was at work at so many deaths, as was noted.
    pub const fn of(strikes: u32) -> Self {
        Suspect { strikes, losses: strikes }
    }

    /// The server has died. It may be guilty if the server had got it, and no other process has killed the server.
    pub fn lost(&mut self, may_be_guilty: bool) {
        self.losses += 1;
        self.strikes += u32::from(may_be_guilty);
    }

    /// At how many deaths it was at work.
    pub const fn strikes(self) -> u32 {
        self.strikes
    }

    /// Whether it is to be asked alone.
    pub const fn is_suspicious(self) -> bool {
        self.strikes >= SUSPICIOUS
    }

    /// Whether it is to be refused.
    pub const fn is_poisonous(self) -> bool {
        self.strikes >= POISON || self.losses >= LOST
    }
}

/// How a server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// When that was noticed.
    pub at: SystemTime,
    /// In words.
    pub reason: String,
}

/// What became of the servers of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// How many were started.
    pub started: u64,
    /// How many have died.
    pub deaths: u64,
    /// How the last of them did.
    pub last_death: Option<Death>,
    /// How long it took from a death to serving again, oldest first; of the latest ones.
    pub recovery_times: Vec<Duration>,
}

/// So many recoveries are remembered.
const RECOVERIES: usize = 1000;

impl History {
    /// A server has died, and the next one serves after so long.
    pub fn recovered(&mut self, death: Death, after: Duration) {
        self.started += 1;
        self.deaths += 1;
        if self.recovery_times.len() >= RECOVERIES {
            self.recovery_times.remove(0);
        }
        self.recovery_times.push(after);
        self.last_death = Some(death);
    }

    /// Adds what became of the servers of another part of the tree.
    pub fn add(&mut self, other: History) {
        self.started += other.started;
        self.deaths += other.deaths;
        self.last_death =
            self.last_death.take().into_iter().chain(other.last_death).max_by_key(|death| death.at);
        self.recovery_times.extend(other.recovery_times);
    }
}

/// How patient a [`Supervisor`] is.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// So many failures in a row are followed by a start at once.
    pub at_once: u32,
    /// After so many in a row starts are given up,
    pub attempts: u32,
    /// but not before the first of them is so long ago.
    pub hold: Duration,
    /// What has lived for so long has not failed when it dies.
    pub settled: Duration,
}

impl Policy {
    /// The same, with the time for which the user wants the tree to be held.
    pub const fn held(self, hold: Duration) -> Self {
        Policy { hold, ..self }
    }
}

/// Counts what has failed. Times are of any clock that only goes forward.
#[derive(Debug)]
pub struct Supervisor {
    policy: Policy,
    failures: u32,
    /// When the first of the failures in a row was.
    since: Duration,
    /// When the server that serves was started.
    started: Option<Duration>,
    /// Until when no start is made.
    given_up: Option<Duration>,
}

impl Supervisor {
    /// Of servers none of which has failed yet.
    pub const fn new(policy: Policy) -> Self {
        Supervisor { policy, failures: 0, since: Duration::ZERO, started: None, given_up: None }
    }

    /// A server has been started at `now`.
    pub fn started(&mut self, now: Duration) {
        (self.started, self.given_up) = (Some(now), None);
    }

    /// It was seen at `now` that it has died, or that one could not be started. `has_served`: it is known to have done something
    /// before.
    pub fn failed(&mut self, now: Duration, has_served: bool) {
        let lived = self.started.take().map(|started| now.saturating_sub(started));
        if has_served || lived.is_some_and(|lived| lived >= self.policy.settled) {
            self.failures = 0;
        }
        if self.failures == 0 {
            self.since = now;
        }
        self.failures = self.failures.saturating_add(1);
        let held = now.saturating_sub(self.since) >= self.policy.hold;
        let is_over = self.failures >= self.policy.attempts && held;
        self.given_up = is_over.then(|| now.saturating_add(GIVEN_UP_FOR));
    }

    /// Forgets what has failed: what is started from now on is another server.
    pub fn forgive(&mut self) {
        *self = Supervisor::new(self.policy);
    }

    /// Whether something has failed since a server came to anything.
    pub fn has_failed(&self) -> bool {
        self.failures > 1
    }

    /// Whether no start is made at `now`.
    pub fn is_given_up(&self, now: Duration) -> bool {
        self.given_up.is_some_and(|until| now < until)
    }

    /// Whether a server was started whose end was not reported yet.
    pub fn serves(&self) -> bool {
        self.started.is_some()
    }

    /// How long to wait before the next start.
    pub fn pause(&self) -> Duration {
        if self.given_up.is_some() {
            return Duration::ZERO;
        }
        match self.failures.checked_sub(self.policy.at_once + 1) {
            Some(doublings) => (FIRST_PAUSE * 2_u32.pow(doublings.min(5))).min(LONGEST_PAUSE),
            None => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy =
        Policy { at_once: 2, attempts: 4, hold: Duration::from_secs(10), settled: Duration::from_secs(1) };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn starts_become_rarer_and_are_given_up_for_a_while() {
        let mut supervisor = Supervisor::new(POLICY);
        let pauses: Vec<u128> = (0..8)
            .map(|_| {
                supervisor.failed(millis(0), false);
                supervisor.pause().as_millis()
            })
            .collect();
        assert_eq!(pauses, [0, 0, 50, 100, 200, 400, 800, 1000]);
        assert!(!supervisor.is_given_up(millis(0)), "it is held for a while");
        supervisor.failed(millis(10_000), false);
        assert!(supervisor.is_given_up(millis(10_000)) && supervisor.is_given_up(millis(14_999)));
        assert!(!supervisor.is_given_up(millis(15_000)), "somebody needs it again");
        assert!(supervisor.pause().is_zero(), "there was a longer one");
        supervisor.failed(millis(15_000), false);
        assert!(supervisor.is_given_up(millis(15_001)), "one start was tried");
        supervisor.forgive();
        assert!(!supervisor.is_given_up(millis(15_001)) && supervisor.pause().is_zero());
    }

    #[test]
    fn few_failures_are_not_given_up_however_long_they_take() {
        let mut supervisor = Supervisor::new(POLICY);
        for at in [0, 20_000, 40_000] {
            supervisor.failed(millis(at), false);
            assert!(!supervisor.is_given_up(millis(at)), "{at}");
        }
        supervisor.failed(millis(60_000), false);
        assert!(supervisor.is_given_up(millis(60_000)));
    }

    #[test]
    fn what_has_lived_or_served_begins_anew() {
        for (has_served, lives) in [(false, 1000), (true, 1)] {
            let mut supervisor = Supervisor::new(POLICY);
            for _ in 0..100 {
                supervisor.started(millis(0));
                supervisor.failed(millis(lives), has_served);
                assert!(supervisor.pause().is_zero() && !supervisor.has_failed());
            }
        }
        let mut supervisor = Supervisor::new(POLICY);
        for _ in 0..9 {
            supervisor.started(millis(0));
            supervisor.failed(millis(999), false);
        }
        assert_eq!(supervisor.pause(), LONGEST_PAUSE, "what dies at once has failed");
    }

    #[test]
    fn a_request_is_refused_after_three_deaths_that_may_be_its_own() {
        let mut suspect = Suspect::default();
        let judge = |suspect: Suspect| (suspect.strikes(), suspect.is_suspicious(), suspect.is_poisonous());
        suspect.lost(false);
        suspect.lost(true);
        assert_eq!(judge(suspect), (1, false, false));
        suspect.lost(true);
        assert_eq!(judge(suspect), (2, true, false));
        suspect.lost(true);
        assert_eq!(judge(suspect), (3, true, true));
        assert!(Suspect::of(3).is_poisonous() && !Suspect::of(2).is_poisonous());
        let mut innocent = Suspect::default();
        (0..LOST - 1).for_each(|_| innocent.lost(false));
        assert!(!innocent.is_poisonous());
        innocent.lost(false);
        assert!(innocent.is_poisonous(), "no request waits for ever");
    }
}
