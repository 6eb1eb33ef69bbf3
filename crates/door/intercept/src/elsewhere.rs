// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other processors than x86-64, whose system calls are not known here: no program comes under a filter.

use crate::launch::Prefix;
use crate::urls::Urls;
use outrigger_client::Client;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Programs whose calls are answered: none.
pub enum Notified {}

impl Notified {
    /// Says that there are none.
    ///
    /// # Errors
    /// Always.
    pub fn serve(
        _: OwnedFd,
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

    /// Ends it.
    pub fn finish(self) -> Vec<String> {
        match self {}
    }
}

/// Whether this program was started to be a keeper: never.
pub fn is_keeper(_: &OsStr) -> bool {
    false
}

/// Fails.
pub fn keep(_: impl Iterator<Item = OsString>) -> ExitCode {
    ExitCode::FAILURE
}
