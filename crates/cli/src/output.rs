// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output of the commands that print much: buffered, in order with messages, ended by Ctrl-C.

use crate::context::Context;
use crate::messages::{output_failed, shown_on_terminal};
use crate::status::{Failure, Status};
use std::fmt;
use std::io::{BufWriter, IsTerminal, StdoutLock, Write, stdout};

/// Buffered standard output of a command.
pub struct Output<'c> {
    context: &'c Context,
    writer: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl<'c> Output<'c> {
    /// Takes standard output.
    pub fn new(context: &'c Context) -> Self {
        let terminal = stdout().is_terminal();
        Output { context, writer: BufWriter::with_capacity(64 << 10, stdout().lock()), terminal }
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// When the reader has closed standard output, or the user has interrupted the command.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.proceed()?;
        self.writer.write_all(bytes).map_err(output_failed)
    }

    /// Writes lines with names that a terminal shows, and that never control it.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn lines(&mut self, text: &[u8]) -> Result<(), Failure> {
        if self.terminal { self.write(&shown_on_terminal(text, true)) } else { self.write(text) }
    }

    /// Writes `text`, of which names are a part, and the end of the line: on a terminal it is one, whatever the names are.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn line(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.name(text.as_ref())?;
        self.write(b"\n")
    }

    /// Writes a name, which is a part of one line on a terminal.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn name(&mut self, name: &[u8]) -> Result<(), Failure> {
        if self.terminal { self.write(&shown_on_terminal(name, false)) } else { self.write(name) }
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
        // An error shows again when the command flushes in the end.
        let _ = self.writer.flush();
        if !self.context.cancel.is_raised() {
            self.context.complain(status, message);
        }
    }

    /// Remembers a status without printing anything.
    pub fn fail(&self, status: Status) {
        self.context.fail(status);
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// When the reader has closed standard output.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(output_failed)
    }
}
