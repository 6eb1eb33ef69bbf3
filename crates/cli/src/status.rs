// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a command ends.

use outrigger_core::{Errno, Error};
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

/// Which exit statuses a command has. 0 is success for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exits {
    /// As most commands of coreutils(1), and find(1).
    Plain,
    /// As ls(1).
    Listing,
    /// As tree(1).
    Drawing,
    /// As diff(1).
    Comparison,
    /// That of the program that is run, as env(1).
    Program,
    /// Of commands that exist here only.
    Own,
}

impl Exits {
    /// The exit status of a command that ended like this.
    pub fn code(self, status: Status) -> ExitCode {
        ExitCode::from(match (self, status) {
            (_, Status::Success) => 0,
            (Exits::Program, _) => outrigger_door_intercept::NOT_STARTED,
            (Exits::Listing | Exits::Drawing | Exits::Comparison, Status::Serious) => 2,
            (_, Status::Minor | Status::Serious) => 1,
        })
    }

    /// The exit status for a command line that cannot be understood.
    pub fn usage(self) -> ExitCode {
        ExitCode::from(match self {
            Exits::Plain => 1,
            Exits::Program => outrigger_door_intercept::NOT_STARTED,
            _ => 2,
        })
    }

    /// What each exit status means, for the manual.
    pub fn meanings(self) -> &'static [(u8, &'static str)] {
        match self {
            Exits::Plain => &[
                (0, "Everything was done."),
                (1, "Something could not be done, as a message says, or the command line is wrong."),
            ],
            Exits::Listing => &[
                (0, "Everything was listed."),
                (1, "Something below a LOCATION could not be read."),
                (2, "A LOCATION could not be opened, or the command line is wrong."),
            ],
            Exits::Drawing => &[
                (0, "Everything was shown."),
                (2, "Something could not be read, or the command line is wrong."),
            ],
            Exits::Comparison => &[
                (0, "No difference was found."),
                (1, "Differences were found."),
                (2, "Something could not be read, or the command line is wrong."),
            ],
            Exits::Program => &[
                (125, "COMMAND was not run, or what it has written is lost, as a message says."),
                (126, "COMMAND cannot be executed."),
                (127, "There is no COMMAND."),
            ],
            Exits::Own => &[
                (0, "Everything was done."),
                (1, "Something could not be done, as a message says."),
                (2, "The command line is wrong."),
            ],
        }
    }
}

/// Why a command could not do its job: one sentence naming what was tried and on what.
#[derive(Debug)]
pub struct Failure {
    /// The sentence.
    pub message: String,
    /// How serious it is.
    pub status: Status,
    /// What a program would get for it, where that is known.
    pub errno: Option<Errno>,
}

impl Failure {
    /// The same, with these words behind the sentence.
    pub fn and(mut self, words: &str) -> Self {
        self.message.push_str(words);
        self
    }

    /// A failure in one of several things.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), status: Status::Minor, errno: None }
    }

    /// A failure because of which nothing could be done at all.
    pub fn serious(message: impl Into<String>) -> Self {
        Failure { message: message.into(), status: Status::Serious, errno: None }
    }

    /// The same, because of an error with this number.
    pub fn with(self, errno: Errno) -> Self {
        Failure { errno: Some(errno), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(error.to_string()).with(error.errno)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.errno.unwrap_or(Errno::EIO).because(failure.message)
    }
}
