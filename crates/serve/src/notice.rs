// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages about clients that are refused: seldom enough that a client cannot fill a log.

use outrigger_core::lock;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One message of a kind in so long.
const PERIOD: Duration = Duration::from_secs(5);

/// A kind of message.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<(Option<Instant>, u64)>);

/// How many messages were left out since the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct More(u64);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, "; and {count} more"),
        }
    }
}

impl Seldom {
    /// Whether a message is due now. One that is not is counted.
    pub fn due(&self) -> Option<More> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<More> {
        let mut state = lock(&self.0);
        let (last, missed) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < PERIOD) {
            *missed += 1;
            return None;
        }
        *last = Some(now);
        Some(More(std::mem::take(missed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_seldom_and_count_those_left_out() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.due_at(start), Some(More(0)));
        assert_eq!(seldom.due_at(start + PERIOD / 2), None);
        assert_eq!(seldom.due_at(start + PERIOD / 3), None);
        assert_eq!(
            seldom.due_at(start + PERIOD).map(|more| more.to_string()),
            Some("; and 2 more".to_owned())
        );
        assert_eq!(seldom.due_at(start + PERIOD * 2).map(|more| more.to_string()), Some(String::new()));
    }
}
