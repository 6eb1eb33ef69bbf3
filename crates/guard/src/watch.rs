// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper's look at the journal of its workers.

use crate::keeper::wall;
use crate::region::Mapping;
use crate::state::State;
use outrigger_core::Time;
use outrigger_layer_journal as journal;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The journal, once a worker has made it. Reading allocates nothing.
pub(crate) struct Watch(journal::Watch);

impl Watch {
    /// `None` when there is no journal yet, or a worker that died had only begun to make it.
    pub(crate) fn open(state: &State) -> Option<Self> {
        let (number, _) = state.region(journal::REGION)?;
        // SAFETY: regions stay open under their number.
        let region = Mapping::of(unsafe { BorrowedFd::borrow_raw(number) }).ok()?;
        journal::Watch::open(Arc::new(region)).ok().map(Watch)
    }

    /// Requests answered since there is a journal.
    pub(crate) fn answered(&self) -> u64 {
        self.0.counts().answered
    }

    /// The oldest request and for how long it has been worked on.
    pub(crate) fn oldest(&self) -> Option<(u64, Duration)> {
        let now = wall();
        let now = Time::new((now / 1_000_000_000).cast_signed(), (now % 1_000_000_000) as u32);
        self.0.oldest(now).map(|request| (request.id, request.age))
    }
}
