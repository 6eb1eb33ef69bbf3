// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees for a program without a namespace and without FUSE: its system calls with paths are answered by the server
//! (`SECCOMP_RET_USER_NOTIF`). See `docs/design/0029-seccomp.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | `apart/` | local files whose changes are kept apart |
//! | `gate/` | code by which programs reach local files without the server |
//! | `caught.rs`, `source.rs` | where calls come from: a filter, or a tracer |
//! | `trace/` | calls of programs that are traced (ptrace) |
//! | `filter.rs` | which calls are answered, as a program for the kernel |
//! | `listener.rs` | installing it, receiving calls and answering them |
//! | `inject.rs` | the same for a process that runs |
//! | `process.rs`, `memory.rs` | the process that waits |
//! | `decode.rs` | what a call asks for |
//! | `names.rs`, `walk.rs` | which file a path leads to |
//! | `server.rs`, `turns.rs` | the threads that answer, and which part answers what |
//! | `keeper.rs`, `progress.rs` | the process that answers when the server has died, and what it has to know for that |
//! | `answers.rs`, `open.rs`, `changes.rs`, `execute.rs` | the answers |
//! | `redirect.rs` | having a program begin a call again with other arguments (ptrace) |
//! | `mirror.rs`, `content.rs`, `contents.rs` | copies of files, of which programs get descriptors |
//! | `unsaved.rs` | keeping content that no tree takes |
//! | `place.rs` | the directory of these copies |
//!
//! Words with a narrow meaning here:
//!
//! | word | meaning |
//! |---|---|
//! | `Apart` | local files whose changes go to an overlay (`run --cow`) |
//! | `Answered` | of a call: its result comes from the server, or has been sent already; the kernel does not do it |
//! | `Caught` | how calls reach the server: by a filter or by a tracer |
//! | `Told` | which of both the filter tells of a call |
//! | `Worn` | attributes that a file shows in place of its own: a copy in an overlay those of the real file |
//! | `Given` | for a tracer: a file that the server has open until the program has opened it, too |
//! | `Kept` | calls with a keeper, which answers them when the server is gone |
//! | `kept` | of content: copied to the directory `unsaved`, as the tree did not take it |

mod answers;
mod apart;
mod caught;
mod changes;
mod content;
mod contents;
mod decode;
mod execute;
mod filter;
mod gate;
mod inject;
mod keeper;
mod listener;
mod memory;
mod mirror;
mod names;
mod open;
mod place;
mod process;
mod progress;
mod redirect;
mod server;
mod source;
mod trace;
mod turns;
mod unsaved;
mod walk;

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

pub use apart::Apart;
pub use caught::Caught;
pub(crate) use inject::{Injected, inject};
pub(crate) use keeper::keep;
pub(crate) use listener::{give_up_privileges, install, install_for_tracer};
pub use server::{Notified, View};
pub use trace::Tracer;

/// What takes longer is said.
const SOON: Duration = Duration::from_secs(2);

/// The command that answers calls.
static COMMAND: OnceLock<&str> = OnceLock::new();

/// Writes a line to standard error. An error of that is ignored: there is no other place for it.
fn say(what: impl Display) {
    let command = COMMAND.get().unwrap_or(&"run");
    let _ = writeln!(io::stderr(), "outrigger {command}: {what}");
}

/// A path as messages have it: names make no lines, and control no terminal.
pub(crate) fn shown(path: &[u8]) -> String {
    let mut shown = String::with_capacity(path.len());
    for char in String::from_utf8_lossy(path).chars() {
        match char.is_control() {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
    }
    shown
}

/// Does something, and says what is waited for if that takes long.
fn telling<T>(waits: impl FnOnce() -> String + Send, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        // Its end wakes the thread.
        let (_ends, end) = mpsc::channel::<()>();
        let tell = move || {
            if end.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                say(waits());
            }
        };
        // Without a thread nothing is said.
        let _ = thread::Builder::new().name("telling".into()).spawn_scoped(scope, tell);
        work()
    })
}
