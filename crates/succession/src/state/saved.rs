// SPDX-License-Identifier: MIT OR Apache-2.0
//! A state as bytes, for the process of the worker: that serves by itself from then on, and this one has a copy.

use super::{Role, State};
use crate::files::Files;
use crate::log::Log;
use crate::undelivered::Undelivered;
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
        self.files.save(&mut saved);
        self.log.save(&mut saved);
        self.undelivered.save(&mut saved);
        self.next_query.put(&mut saved);
        self.next_change.put(&mut saved);
        self.role = Role::Copied;
        Some(saved)
    }

    /// What another process has left.
    ///
    /// # Errors
    /// `EPROTO` and `EUCLEAN` when it is something else.
    pub fn restored(role: Role, mut saved: Input) -> Result<Self> {
        let saved = &mut saved;
        let files = Files::restored(saved)?;
        Ok(State {
            log: Log::restored(files.most(), saved)?,
            files,
            undelivered: Undelivered::restored(saved)?,
            next_query: u64::get(saved)?,
            next_change: u64::get(saved)?,
            ..State::new(role, 0)?
        })
    }
}
