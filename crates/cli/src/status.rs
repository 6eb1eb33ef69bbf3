// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a command ends.

use outrigger_core::Error;
use std::fmt;
use std::process::ExitCode;

/// How a command ended, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// All went well.
    Success,
    /// Something went wrong with one of several things, or the answer is "no".
    Minor,
    /// The command could not do its job.
    Serious,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(status as u8)
    }
}

/// Why a command could not do its job: one sentence naming what was tried and on what.
#[derive(Debug)]
pub struct Failure {
    /// The sentence.
    pub message: String,
    /// How serious it is.
    pub status: Status,
}

impl Failure {
    /// A failure that ends the command with status 1.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), status: Status::Minor }
    }

    /// The same with status 2: wrong usage, or nothing could be done at all.
    pub fn serious(message: impl Into<String>) -> Self {
        Failure { message: message.into(), status: Status::Serious }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(error.to_string())
    }
}
