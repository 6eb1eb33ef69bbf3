// SPDX-License-Identifier: MIT OR Apache-2.0
//! Points in time at which something stops being fresh.

use outrigger_core::Clock;
use outrigger_core::reply::Ttl;
use std::time::Duration;

/// Milliseconds on the clock that never goes back ([`Clock::monotonic`]), from [`BEFORE`] on; the largest one never comes.
pub(crate) type Moment = u64;

/// So many milliseconds passed before that clock began: what a former process asked has a moment as well. A hundred years.
const BEFORE: Moment = 100 * 365 * 24 * 3600 * 1000;

/// The present moment.
pub(crate) fn now(clock: &(impl Clock + ?Sized)) -> Moment {
    BEFORE + clock.monotonic().as_millis() as Moment
}

/// The moment `period` after `now`.
pub(crate) fn after(now: Moment, period: Duration) -> Moment {
    now.saturating_add(u64::try_from(period.as_millis()).unwrap_or(Moment::MAX))
}

/// How long it is from `now` to `until`, as the TTL of a door.
pub(crate) fn ttl(now: Moment, until: Moment) -> Ttl {
    if until == Moment::MAX {
        return Ttl::FOREVER;
    }
    Ttl(u32::try_from(until.saturating_sub(now)).unwrap_or(u32::MAX))
}
