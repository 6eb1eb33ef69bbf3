// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output of the commands that print much: buffered, in order with messages, ended by Ctrl-C.

use crate::commands::output_failed;
use crate::context::Context;
use crate::interrupt;
use crate::status::{Failure, Status};
use outrigger_core::{Errno, Error};
use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write, stdout};

/// Why something failed, in the words of coreutils. The reason a driver gives follows, unless the name in front of
/// it says as much.
pub fn why(error: &Error) -> impl fmt::Display + '_ {
    let told =
        [Errno::ENOENT, Errno::ENOTDIR, Errno::EACCES, Errno::ELOOP, Errno::EISDIR, Errno::ENAMETOOLONG];
    let reason = error.reason.as_deref().filter(|_| !told.contains(&error.errno));
    fmt::from_fn(move |f| match reason {
        Some(reason) => write!(f, "{}: {reason}", error.errno),
        None => write!(f, "{}", error.errno),
    })
}

/// Ends the program quietly when its reader has gone, as `head` does.
fn failed(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        interrupt::reader_gone();
    }
    output_failed(error)
}

/// Buffered standard output of a command.
pub struct Output<'c> {
    context: &'c Context,
    writer: BufWriter<StdoutLock<'static>>,
}

impl<'c> Output<'c> {
    /// Takes standard output.
    pub fn new(context: &'c Context) -> Self {
        Output { context, writer: BufWriter::with_capacity(64 << 10, stdout().lock()) }
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// When nobody reads any more, or the user asked to stop.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.proceed()?;
        self.writer.write_all(bytes).map_err(failed)
    }

    /// Fails once the user asked to stop.
    ///
    /// # Errors
    /// That the command was interrupted.
    pub fn proceed(&self) -> Result<(), Failure> {
        if self.context.cancel.is_raised() { Err(Failure::new("interrupted")) } else { Ok(()) }
    }

    /// Reports an error after everything written before it.
    pub fn complain(&mut self, status: Status, message: impl fmt::Display) {
        // A failure to write shows again when the command flushes in the end.
        let _ = self.writer.flush();
        if !self.context.cancel.is_raised() {
            self.context.complain(status, message);
        }
    }

    /// Remembers without a word how badly something went wrong.
    pub fn fail(&self, status: Status) {
        self.context.fail(status);
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// When nobody reads any more.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(failed)
    }
}
