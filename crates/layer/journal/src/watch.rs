// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a journal from beside it: for status, and for a watchdog in another process.

use crate::book::Parts;
use crate::entry::{State, Words, nanos};
use outrigger_core::{OpCode, Region, Result, Time};
use std::sync::Arc;
use std::time::Duration;

/// A journal that another process writes. Reading allocates nothing and never waits.
#[derive(Clone)]
pub struct Watch(Parts);

/// A request being worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// The request's id.
    pub id: u64,
    /// Its operation.
    pub op: OpCode,
    /// For how long, by the time of day: a clock that is set shows here.
    pub age: Duration,
}

/// What a journal counted since its region was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests answered.
    pub answered: u64,
    /// Entries that a process found when it took over.
    pub carried: u64,
    /// Recorded replies that were answered to a request that came again.
    pub replayed: u64,
    /// Changes that came again and were judged by the state of the tree.
    pub redone: u64,
    /// Requests passed on without an entry, because their slot has none.
    pub unjournalled: u64,
    /// How many times a process took over from another.
    pub takeovers: u64,
}

impl Watch {
    /// Reads the journal in `region`.
    ///
    /// # Errors
    /// `EUCLEAN` when it holds none, `EPROTO` when that is of another version.
    pub fn open(region: Arc<dyn Region>) -> Result<Self> {
        Parts::look(region).map(Watch)
    }

    /// Reads a journal of this process.
    pub(crate) fn of(parts: &Parts) -> Self {
        Watch(parts.clone())
    }

    /// The request that is being worked on for the longest at `now`, which comes from
    /// [`Clock::coarse_wall`](outrigger_core::Clock::coarse_wall). Locks that wait are left out: they may.
    pub fn oldest(&self, now: Time) -> Option<InFlight> {
        let busy = self
            .0
            .entries()
            .filter_map(Words::glance)
            .filter(|entry| entry.state != State::Replied && !entry.patient);
        let oldest = busy.min_by_key(|entry| entry.began)?;
        let age = nanos(now).saturating_sub(oldest.began);
        let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
        Some(InFlight { id: oldest.id, op: oldest.op, age })
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.0.counts()
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.counts()).finish()
    }
}
