// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names in messages, and questions to the user, as coreutils has them.

use crate::context::{Context, Place};
use crate::format::quote::{Quoting, Style};
use crate::status::{Failure, Status};
use outrigger_client::Inode;
use outrigger_core::Node;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::LazyLock;

static SHELL: LazyLock<Quoting> = LazyLock::new(|| Quoting::new(Style::ShellEscapeAlways));
static LOCALE: LazyLock<Quoting> = LazyLock::new(|| Quoting::new(Style::Locale));

/// A file name in quotes from which a shell would read it back: `'a b'`, `"it's"`, `'a'$'\n''b'`.
pub fn quoted(name: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(&SHELL.quote(name.as_ref())).into_owned()
}

/// As [`quoted`], for an operand of the command line.
pub fn operand(name: &OsStr) -> String {
    quoted(name.as_bytes())
}

/// A word in the quotes of the locale.
pub fn word(text: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(&LOCALE.quote(text.as_ref())).into_owned()
}

/// A command line that cannot be meant: says why, and where to read more.
pub fn usage(command: &str, problem: impl AsRef<str>) -> Failure {
    Failure::new(format!("{}\nTry 'outrigger {command} --help' for more information.", problem.as_ref()))
}

/// The place a LOCATION names; `None` when its tree cannot be opened, which is reported, so that the command can
/// continue with the next operand.
pub fn place(context: &Context, text: &OsStr) -> Option<Place> {
    context.place(text).map_err(|failure| context.complain(failure.status, failure)).ok()
}

/// Refuses to change everything on the host, and says how it would be possible.
pub fn refuses_root(context: &Context, inode: &Inode, name: &[u8]) -> bool {
    let refuses = inode.node() == Node::ROOT && inode.client().abilities().driver == "local";
    if refuses {
        let name = quoted(name);
        context.complain(Status::Minor, format_args!("it is dangerous to operate recursively on {name}"));
        context.complain(Status::Minor, "use --no-preserve-root to override this failsafe");
    }
    refuses
}

/// Asks `question` on standard error and reads a line from standard input. Only an answer that begins with `y` or
/// `Y` agrees; no answer at all does not.
pub fn agrees(command: &str, question: &str) -> bool {
    let mut err = io::stderr().lock();
    // Ask even if standard error cannot be written: the answer decides.
    drop(write!(err, "outrigger {command}: {question}? "));
    drop(err.flush());
    let mut answer = String::new();
    match io::stdin().read_line(&mut answer) {
        Ok(_) => answer.starts_with(['y', 'Y']),
        Err(_) => false,
    }
}
