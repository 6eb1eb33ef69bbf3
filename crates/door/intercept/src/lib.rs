// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts one program, with all that it starts, into a file system of its own, in which trees stand under names that others do not see;
//! the program is started for that, or runs already (Alexandrov et al., *Ufo: A Personal Global File System Based on User-Level Extensions to the Operating System*, 1998).
//!
//! | module | what it holds |
//! |---|---|
//! | `launch.rs` | the side of the process that serves: starts the program, and gets the FUSE device of its mount |
//! | `enter.rs` | the side of the process that becomes the program: enters the namespace, mounts, executes it |
//! | `given.rs` | what that gets from who started it, and could get by it past the tree |
//! | `attach.rs` | prepares a namespace for a process that runs, or adds to the one that it has |
//! | `mover.rs` | has a process that runs enter a namespace |
//! | `kept.rs` | calls of a program that another process goes on to answer when the server is gone |
//! | `tracee.rs` | a process that is stopped, and made to call the system |
//! | `notify/` | the other mechanism: answers to system calls |
//! | `namespace.rs` | mount namespaces: a new one, and that of another process |
//! | `root.rs` | a root directory with additional names |
//! | `whole.rs` | a tree that is the root directory |
//! | `urls.rs` | URLs as names of files |
//! | `proc.rs` | what /proc says about a process |
//! | `mountpoints.rs` | a layer: directories for trees, in a root that does not have them |
//! | `one_user.rs` | a layer: what a user namespace with one user can show |
//!
//! The mechanism is a mount namespace, for users without privileges below a user namespace of their own: system calls of the program
//! cost what they always do, and the kernel resolves every form of a path. See `docs/design/0027-run.md`. Where the system permits
//! none, system calls are answered: `docs/design/0029-seccomp.md`.

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "outrigger-door-intercept is for x86-64: which system calls a program makes, and how its registers are changed, is known of that processor only"
);

mod attach;
mod enter;
mod given;
mod kept;
mod launch;
mod mountpoints;
mod mover;
mod namespace;
mod notify;
mod one_user;
mod proc;
mod root;
mod tracee;
mod urls;
mod whole;

pub use enter::{is_enter, run};
pub use kept::{Kept, detach_kept};
pub use launch::{
    Filter, Filtered, Launch, Launched, Namespace, Prefix, Start, Traced, Waiting, no_directory,
};
pub use mountpoints::Mountpoints;
pub use namespace::not_seen;
pub use notify::{Apart, Caught, Notified, Tracer, View};
pub use one_user::OneUser;
pub use urls::{Scheme, Url, Urls};

use outrigger_core::Error;
use std::fmt::Display;
use std::io;

/// The name this program is started under to become the program of the user.
const NAME: &str = "outrigger-enter";
/// The same for the process that keeps a listener: it is seen for longer.
const KEEPER: &str = "outrigger-keep";
/// The order to execute a program.
const EXECUTE: &str = "execute";
/// The order to execute a program whose root directory is a tree.
const WHOLE: &str = "whole";
/// The order to execute a program whose system calls the server answers.
const FILTER: &str = "filter";
/// The same, if the program may reach local files by itself.
const GATE: &str = "gate";
/// The same, if its changes of local files are kept apart.
const APART: &str = "apart";
/// The order to execute a program that the server traces.
const TRACE: &str = "trace";
/// The same where changes of local files are kept apart.
const TRACE_APART: &str = "trace-apart";
/// The order to prepare a namespace for a process.
const ATTACH: &str = "attach";
/// The order to have a process enter a namespace.
const MOVE: &str = "move";
/// The order to put a process under a filter, and keep its listener.
const INJECT: &str = "inject";
/// The order to keep the listener of a program.
const KEEP: &str = "keep";
/// The order to take trees away from a process.
const DETACH: &str = "detach";
/// What the server says when the trees answer.
const GO: &[u8] = b"go";
/// What comes with the FUSE device; the number of the connection stands behind it.
const MOUNTED: &str = "mounted ";
/// What comes with the descriptor from which its calls are received.
const LISTENING: &[u8] = b"listening";
/// What a process says that waits to be traced: it stops at calls with paths, or at all calls.
const STOPS_AT_PATHS: &[u8] = b"paths";
const STOPS_AT_ALL: &[u8] = b"all";
/// The exit status where the program was not executed, as env(1) and timeout(1) have it.
pub const NOT_STARTED: u8 = 125;
/// The exit status where it is there, and cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// The exit status where there is no such program.
const NOT_FOUND: u8 = 127;
/// The longest message about what failed, in bytes.
const MESSAGE_MAX: usize = 4096;

/// Said after a panic, whose message stands on standard error.
const DEFECT: &str = "a defect of outrigger: please report it with the lines before this one";

/// A sentence about what failed, from an error of the system.
fn failed<E: Into<io::Error>>(what: impl Display) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {}", Error::from(error.into()))
}
