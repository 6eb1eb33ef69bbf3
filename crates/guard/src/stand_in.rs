// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts that end by unmounting only.
//!
//! A FUSE connection ends with its last descriptor, and programs get errors then. The NFS client of the kernel waits for a server
//! for ever: such a mount must never be without a process that answers, if only with errors.

use outrigger_core::supervise::Policy;
use std::time::Duration;

/// A worker that stands in for those that were given up ends with this status when one of them is to be tried again.
pub const TRY_AGAIN: i32 = 75;

/// A worker that ends with this status is not replaced by another one: that only has to stand in for it.
pub const GIVE_UP: i32 = 76;

/// What becomes of a mount that ends by unmounting only. Its workers note that with [`Seat::ending`](crate::Seat::ending) before
/// they end. Any other end of one is a death, and once workers are given up, one is started that stands in for them
/// ([`Seat::stands_in`](crate::Seat::stands_in)).
#[derive(Debug, Clone, Copy)]
pub struct StandIn {
    /// Whether workers that die are replaced before that.
    pub restarts: bool,
}

/// A worker that has served for so long has not failed when it dies.
const SETTLED: Duration = Duration::from_secs(10);

impl StandIn {
    /// The policy for the workers of such a mount, by that for others.
    pub(crate) fn policy(self, others: Policy) -> Policy {
        match self.restarts {
            true => Policy { settled: SETTLED, ..others },
            false => Policy { at_once: 0, attempts: 1, hold: Duration::ZERO, settled: Duration::MAX },
        }
    }
}
