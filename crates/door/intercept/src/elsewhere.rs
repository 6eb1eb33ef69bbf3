// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other processors than x86-64, whose system calls are not known here: no program comes under a filter.

use crate::kept::Kept;
use crate::launch::Prefix;
use crate::urls::Urls;
use outrigger_client::Client;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Programs whose calls are answered: none.
pub enum Notified {}

impl Notified {
    /// Says that there are none.
    ///
    /// # Errors
    /// Always.
    pub fn serve(
        _: Kept,
        _: &[Prefix],
        _: Urls,
        _: Client,
        _: &Path,
        _: PathBuf,
        _: bool,
    ) -> Result<Self, String> {
        Err("system calls are answered on x86-64 only".to_owned())
    }

    /// Whether no program is left.
    pub fn ends_within(&self, _: Duration) -> bool {
        match *self {}
    }

    /// How many calls have come.
    pub fn counts(&self) -> (u64, Option<u64>) {
        match *self {}
    }

    /// Whether trees are shown no more.
    pub fn is_detached(&self) -> bool {
        match *self {}
    }

    /// Shows no trees any more.
    pub fn detach(&self) {
        match *self {}
    }

    /// Whether files are open for writing.
    pub fn is_written(&self) -> bool {
        match *self {}
    }

    /// Ends it.
    pub fn finish(self) -> Vec<String> {
        match self {}
    }
}
