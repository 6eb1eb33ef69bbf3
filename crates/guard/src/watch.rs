// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking at a worker's journal from outside.

use crate::state::State;
use std::time::Duration;

pub(crate) struct Watch;
impl Watch {
    pub(crate) fn open(_: &State) -> Option<Self> {
        None
    }
    pub(crate) fn answered(&self) -> u64 {
        0
    }
    pub(crate) fn oldest(&self) -> Option<Duration> {
        None
    }
}
