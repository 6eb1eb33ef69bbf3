// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages: what was done, what went wrong, as text or as records.

use crate::interrupt;
use crate::status::{Failure, Status};
use outrigger_core::{Errno, Error};
use serde::Serialize;
use serde_json::json;
use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::io::{self, Write, stdout};
use std::sync::OnceLock;

/// Why something failed, in the words of coreutils. The reason a driver gives follows, unless it says the same.
pub fn why(error: &Error) -> impl fmt::Display + '_ {
    let reason = error.reason.as_deref().filter(|reason| !says_the_same(reason, error.errno));
    fmt::from_fn(move |f| match reason {
        Some(reason) => write!(f, "{}: {reason}", error.errno),
        None => write!(f, "{}", error.errno),
    })
}

/// Whether a reason, as of a server, is the name of the error, or a part of it.
fn says_the_same(reason: &str, errno: Errno) -> bool {
    let (name, reason) = (errno.to_string().to_lowercase(), reason.trim_end_matches('.').to_lowercase());
    name.contains(&reason) || reason.ends_with(&name)
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

/// Prints a line about what was done. A failure does not end the work: [`unsaid`] returns it.
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

/// The first error of printing, if any.
pub fn unsaid() -> Option<&'static Error> {
    UNSAID.get()
}

/// Prints a line on standard error, and ignores errors.
pub fn warn(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", Harmless(line));
}

/// Prints the error in a command line as a record, without the usage and advice that clap adds.
pub fn usage_record(command: &str, text: &str) {
    let command = if command.is_empty() { "outrigger" } else { command };
    let _ = io::stderr()
        .write_all(record(&json!({ "command": command, "error": without_advice(text) })).as_bytes());
}

/// One line of what clap prints, without the usage and where to find help.
fn without_advice(text: &str) -> String {
    let text = ["\n\nUsage:", "\n\nFor more information"]
        .iter()
        .fold(text, |text, end| text.split_once(end).map_or(text, |(before, _)| before));
    let text = text.strip_prefix("error: ").unwrap_or(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A message of a command on standard error.
fn complain(command: &str, status: Status, message: impl fmt::Display) {
    if RECORDS_OF.get().is_none() {
        return warn(format_args!("outrigger {command}: {message}"));
    }
    let what = if status == Status::Success { "warning" } else { "error" };
    let line = record(&json!({ "command": command, what: message.to_string() }));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// What a command says went wrong, and how badly it did.
pub struct Report {
    command: &'static str,
    status: Cell<Status>,
}

impl Report {
    /// Nothing went wrong yet with this command.
    pub fn new(command: &'static str) -> Self {
        Report { command, status: Cell::new(Status::Success) }
    }

    /// The command's name.
    pub fn command(&self) -> &'static str {
        self.command
    }

    /// Prints an error on standard error, and remembers its status.
    pub fn complain(&self, status: Status, message: impl fmt::Display) {
        complain(self.command, status, message);
        self.fail(status);
    }

    /// Remembers a status without printing anything.
    pub fn fail(&self, status: Status) {
        self.status.set(self.status.get().max(status));
    }

    /// The worst status so far.
    pub fn status(&self) -> Status {
        self.status.get()
    }
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

/// Ends a command whose reader has closed the pipe; for a filter that is no failure.
pub fn output_failed(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        interrupt::reader_gone();
    }
    Failure::new(format!("write error: {}", Error::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_unless_it_is_the_name_of_the_error() {
        let said = |reason: &str| why(&Errno::ENOENT.because(reason)).to_string();
        for same in ["No such file", "no such file or directory.", "550 No such file or directory."] {
            assert_eq!(said(same), "No such file or directory");
        }
        assert_eq!(said("no export 'x'"), "No such file or directory: no export 'x'");
    }

    #[test]
    fn no_message_and_no_name_controls_a_terminal() {
        assert_eq!(Harmless("a\x1b[31m\u{9b}b\tc\nd").to_string(), "a\\033[31m\\302\\233b\tc\nd");
        assert_eq!(shown_on_terminal(b"a\x1b\xc2\x9b\x9b\xc3\xa4\n\t", false), "a???\u{e4}??".as_bytes());
        assert_eq!(shown_on_terminal(b"a\x07\n\tb", true), b"a?\n\tb");
    }
}
