// SPDX-License-Identifier: MIT OR Apache-2.0
//! A state as bytes, for the process of the worker: that serves by itself from then on, and this one has a copy.

use super::{Role, State};
use crate::files::Files;
use crate::log::Log;
use outrigger_core::wire::Input;
use outrigger_core::{Result, Wire};

impl State {
    /// The state as bytes for [`State::restored`], from where on this one is a [copy](Role::Copied). `None` while anything is
    /// asked, waits, or is to be sent.
    pub fn leave(&mut self) -> Option<Vec<u8>> {
        let can = self.is_idle() && self.outgoing.is_empty() && self.answered.is_empty();
        if !can || !self.serves || self.failed.is_some() || self.ending || self.is_copied() {
            return None;
        }
        let mut saved = Vec::new();
        self.files.put(&mut saved);
        self.log.counted().put(&mut saved);
        self.undelivered.put(&mut saved);
        (self.next_query, self.next_change).put(&mut saved);
        self.role = Role::Copied;
        Some(saved)
    }

    /// What another process has left.
    ///
    /// # Errors
    /// `EPROTO` when it is something else.
    pub fn restored(role: Role, mut saved: Input) -> Result<Self> {
        let saved = &mut saved;
        let files = Files::restored(saved)?;
        let (log, undelivered) = (Log::restored(files.most(), Wire::get(saved)?), Wire::get(saved)?);
        let (next_query, next_change) = Wire::get(saved)?;
        Ok(State { log, files, undelivered, next_query, next_change, ..State::new(role, 0)? })
    }
}
