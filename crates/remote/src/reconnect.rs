// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a request is made again, and when a server is tried again: one policy for all drivers of servers.

use outrigger_core::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often a request is made again when connections are lost in the middle of it.
pub const REPEATS: u32 = 3;
/// For how long a failure to connect is the answer, before it is tried again.
pub const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The last failure to connect, while it is recent.
#[derive(Debug, Default)]
pub struct Setback(Mutex<Option<(Error, Duration)>>);

impl Setback {
    /// Connecting failed at this moment of [`outrigger_core::Clock::monotonic`].
    pub fn note(&self, error: &Error, now: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((error.clone(), now));
    }

    /// The failure, if it is too recent for another attempt.
    pub fn recent(&self, now: Duration) -> Option<Error> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref()
            .filter(|(_, at)| now.saturating_sub(*at) < AFTER_FAILURE)
            .map(|(error, _)| error.clone())
    }
}
