// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where calls of programs come from, and how they are answered: by a filter of the kernel (`listener.rs`), or by tracing (`trace/`).

use libc::seccomp_notif;
use nix::errno::Errno;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A call that waits.
pub(crate) type Call = seccomp_notif;

/// Why a process can be given no files.
pub(crate) enum Refused {
    /// It was killed.
    Gone,
    /// It does not see where they are.
    Root,
    /// It has no memory for their paths.
    Memory(Errno),
    /// It may do less than this process, which has opened them.
    Privileges,
}

/// Where calls come from.
pub(crate) trait Source: Send + Sync {
    /// Waits for a call; `None` when it is gone again, or no program is left.
    ///
    /// # Errors
    /// No more calls can come.
    fn receive(&self) -> io::Result<Option<Call>>;

    /// Whether the process still waits, so that what was read of it was its own.
    fn waits(&self, call: &Call) -> bool;

    /// Has the kernel do the call as it is.
    fn pass(&self, call: &Call);

    /// Answers with a number, or an error.
    fn answer(&self, call: &Call, result: Result<i64, i32>);

    /// Gives the process a descriptor, which is the answer. The descriptor here is closed before the process goes on: otherwise the file
    /// would seem to be open for writing after the process has closed it.
    fn give(&self, call: &Call, file: OwnedFd, close_on_exec: bool);

    /// Puts a directory that was opened once more in the place of the one that the process has open under this number, or has that one
    /// stand where this one stands; its call goes on waiting.
    ///
    /// # Errors
    /// Those of the system.
    fn replace(&self, call: &Call, number: i32, file: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<()>;

    /// Whether the process of a call can be given files of this directory, where it has room for them. With `changes`, files are changed before:
    /// then none may be kept from it.
    ///
    /// # Errors
    /// Why not.
    fn can_give(&self, call: &Call, dir: &Path, changes: bool) -> Result<(), Refused>;

    /// Has the process make the call with `bytes` in its memory ([`slot`](super::redirect::slot)), and arguments that are places in them.
    ///
    /// # Errors
    /// Why it cannot be made to; then the call still waits, unless the program is gone.
    fn redirect(
        self: Arc<Self>,
        call: &Call,
        bytes: Vec<u8>,
        arguments: Vec<(usize, u64)>,
    ) -> Result<(), Errno>;

    /// Whether a call that was redirected comes here once more.
    fn comes_again(&self) -> bool;

    /// Whether no process is left whose calls come; waits so long for that.
    fn ends_within(&self, limit: Duration) -> bool;
}
