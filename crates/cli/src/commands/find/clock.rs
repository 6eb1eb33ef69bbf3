// SPDX-License-Identifier: MIT OR Apache-2.0
//! The times of a file, as the tests of `find` and its formats name them.

use outrigger_core::{Attr, Time};

/// One of the times of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// When it was read last.
    Accessed,
    /// When it was made.
    Born,
    /// When its attributes changed.
    Changed,
    /// When its content changed.
    Modified,
}

impl Clock {
    /// The clock a letter of `-newerXY` or `-printf` names.
    pub fn of_letter(letter: u8) -> Option<Clock> {
        match letter {
            b'a' | b'A' => Some(Clock::Accessed),
            b'B' => Some(Clock::Born),
            b'c' | b'C' => Some(Clock::Changed),
            b'm' | b't' | b'T' => Some(Clock::Modified),
            _ => None,
        }
    }

    /// Its time, when the tree knows it.
    pub fn of(self, attr: &Attr) -> Option<Time> {
        match self {
            Clock::Accessed => Some(attr.atime),
            Clock::Born => attr.btime,
            Clock::Changed => Some(attr.ctime),
            Clock::Modified => Some(attr.mtime),
        }
    }
}
