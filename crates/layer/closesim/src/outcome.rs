// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of work that several callers may wait for, or none.

use outrigger_core::gate::Gate;
use outrigger_core::{Errno, Result, lock};
use std::sync::Mutex;

/// Set once.
pub(crate) struct Outcome<T> {
    value: Mutex<Option<Result<T>>>,
    gate: Gate,
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        Outcome { value: Mutex::default(), gate: Gate::default() }
    }
}

impl<T: Clone + Send> Outcome<T> {
    /// Whether it is there.
    pub(crate) fn is_set(&self) -> bool {
        lock(&self.value).is_some()
    }

    /// Sets it, unless it is there, and wakes all that wait.
    pub(crate) fn set(&self, value: Result<T>) {
        lock(&self.value).get_or_insert(value);
        self.gate.open();
    }

    /// Waits for it.
    pub(crate) fn wait(&self) -> impl Future<Output = Result<T>> + Send {
        self.gate.wait(|| lock(&self.value).clone())
    }
}

/// What comes of work that was given up, or failed by a defect.
pub(crate) fn unfinished<T>() -> Result<T> {
    Err(Errno::EIO.because("the task that opens or closes a file ended before its work"))
}
