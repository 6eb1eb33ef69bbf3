// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a worker and this process tell each other beside requests: see `kernel/worker/src/control.rs`.

use crate::worker::CONTROL;
use outrigger_succession::place::{CHANGE, CHANGES, CHECKPOINTS, CLOCK, RING};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Seconds and nanoseconds since 1970.
pub(crate) type Stamp = [u64; 2];

/// Changes happen now.
const NOW: Stamp = [u64::MAX; 2];

/// The file that every worker of a mount gets.
pub(crate) struct Control(File);

impl Control {
    /// A new one, for the first worker.
    pub(crate) fn new(log: &File) -> io::Result<Self> {
        let control = Control(log.try_clone()?);
        control.put(NOW, CLOCK)?;
        Ok(control)
    }

    fn get(&self, place: u64) -> io::Result<[u64; 2]> {
        let mut bytes = [0; 16];
        match self.0.read_exact_at(&mut bytes, CONTROL + place) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok([0, 8].map(|at| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))),
        }
    }

    fn put(&self, numbers: [u64; 2], place: u64) -> io::Result<()> {
        self.0.write_all_at(numbers.map(u64::to_le_bytes).as_flattened(), CONTROL + place)
    }

    /// How many checkpoints there were.
    pub(crate) fn checkpoints(&self) -> io::Result<u64> {
        Ok(self.get(CHECKPOINTS)?[0])
    }

    /// When the change with this number happened.
    pub(crate) fn stamp(&self, change: u64) -> io::Result<Stamp> {
        self.get(RING + change % CHANGES * CHANGE)
    }

    /// When the next change is to happen; none from now on means now.
    pub(crate) fn set_clock(&self, stamp: Option<Stamp>) -> io::Result<()> {
        self.put(stamp.unwrap_or(NOW), CLOCK)
    }
}
