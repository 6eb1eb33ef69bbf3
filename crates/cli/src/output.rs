// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output of the commands that print much: buffered, in order with messages, ended by Ctrl-C.

use crate::commands::output_failed;
use crate::context::Context;
use crate::interrupt;
use crate::status::{Failure, Status};
use outrigger_core::{Errno, Error};
use serde::Serialize;
use serde_json::json;
use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write, stdout};
use std::sync::OnceLock;

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

/// The first error of [`announce`].
static UNSAID: OnceLock<Error> = OnceLock::new();

/// The command whose messages are records (`--json`).
static RECORDS_OF: OnceLock<&'static str> = OnceLock::new();

/// From here on messages of `command` are records.
pub fn speak_json(command: &'static str) {
    // There is one command in a process.
    let _ = RECORDS_OF.set(command);
}

/// A JSON object as one line, which controls no terminal, with its end.
pub fn record(object: &impl Serialize) -> String {
    // Strings, numbers and lists of them always serialize.
    let json = serde_json::to_string(object).unwrap_or_default();
    let mut line = String::with_capacity(json.len() + 1);
    for char in json.chars() {
        match char.is_control() {
            true => line.push_str(&format!("\\u{:04x}", u32::from(char))),
            false => line.push(char),
        }
    }
    line.push('\n');
    line
}

/// Prints a line about what was done. The work goes on when that fails: [`unsaid`] keeps the reason.
pub fn announce(line: fmt::Arguments<'_>) {
    match RECORDS_OF.get() {
        Some(command) => announce_record(&json!({ "command": command, "message": line.to_string() })),
        None => say(&format!("{line}\n")),
    }
}

/// As [`announce`], of what was done as a JSON object.
pub fn announce_record(object: &impl Serialize) {
    say(&record(object));
}

fn say(line: &str) {
    if let Err(error) = stdout().write_all(line.as_bytes()) {
        let _ = UNSAID.set(error.into());
    }
}

/// Why not everything could be printed, if that is so.
pub fn unsaid() -> Option<&'static Error> {
    UNSAID.get()
}

/// A line on standard error; when that cannot be written there is nowhere left to say so.
pub fn warn(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", Harmless(line));
}

/// A message of a command on standard error.
pub fn complain(command: &str, status: Status, message: impl fmt::Display) {
    if RECORDS_OF.get().is_none() {
        return warn(format_args!("outrigger {command}: {message}"));
    }
    let what = if status == Status::Success { "warning" } else { "error" };
    let line = record(&json!({ "command": command, what: message.to_string() }));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// A message without what would control a terminal: such characters as octal escapes, but for ends of lines and tabs.
struct Harmless<T>(T);

impl<T: fmt::Display> fmt::Display for Harmless<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        text.chars().try_for_each(|char| match char {
            '\n' | '\t' => f.write_char(char),
            _ if char.is_control() => {
                char.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(f, "\\{byte:03o}"))
            }
            _ => f.write_char(char),
        })
    }
}

/// `text` as it may be written to a terminal: what would control it is replaced by `?`, as GNU find does; ends of lines and
/// tabs, too, unless `lines` says that they are ours.
pub fn shown_on_terminal(text: &[u8], lines: bool) -> Vec<u8> {
    let mut out = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        let safe =
            |char: char| if char.is_control() && !(lines && "\n\t".contains(char)) { '?' } else { char };
        out.extend(chunk.valid().chars().map(safe));
        out.extend(chunk.invalid().iter().map(|_| '?'));
    }
    out.into_bytes()
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
    /// When nobody reads any more, or the user asked to stop.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.proceed()?;
        self.writer.write_all(bytes).map_err(failed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_and_no_name_controls_a_terminal() {
        assert_eq!(Harmless("a\x1b[31m\u{9b}b\tc\nd").to_string(), "a\\033[31m\\302\\233b\tc\nd");
        assert_eq!(shown_on_terminal(b"a\x1b\xc2\x9b\x9b\xc3\xa4\n\t", false), "a???\u{e4}??".as_bytes());
        assert_eq!(shown_on_terminal(b"a\x07\n\tb", true), b"a?\n\tb");
    }
}
