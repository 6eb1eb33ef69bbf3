// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all threads of one copy share: options, reports, progress.

use super::options::{Deref, Options};
use super::target::shown_below;
use crate::descent::LOOP;
use crate::progress::Progress;
use crate::say::quoted;
use crate::status::Status;
use outrigger_client::{Inode, Unreadable};
use outrigger_core::{Cancel, Errno, Error, lock};
use std::fmt;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a file whose content is a stream is not opened.
pub const STREAM: &str =
    "opening it connects or starts a program, which is done for files that are named only";

/// Shared by the walker and the threads that copy files.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) progress: Progress,
    pub(super) cancel: Cancel,
    /// The file mode creation mask.
    pub(super) umask: u32,
    messages: Mutex<Vec<(Status, String)>>,
    failures: AtomicU64,
}

impl Shared {
    pub(super) fn new(options: Options, progress: Progress, cancel: Cancel, umask: u32) -> Self {
        let (messages, failures) = (Mutex::default(), AtomicU64::new(0));
        Shared { options, progress, cancel, umask, messages, failures }
    }

    /// Something failed; the walker will tell the user.
    pub(super) fn complain(&self, message: impl fmt::Display) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.lock().push((Status::Minor, message.to_string()));
    }

    /// Says that a directory is one of those that it is in: by a symbolic link that is followed, or as the server shows it.
    pub(super) fn complain_of_loop(&self, name: &[u8]) {
        match self.options.deref {
            Deref::Always => {
                self.complain(format_args!("cannot copy cyclic symbolic link {}", quoted(name)));
            }
            _ => self.cannot("cannot copy", name, &Errno::ELOOP.because(LOOP)),
        }
    }

    /// As [`Shared::complain`], in the words of coreutils: "cannot create directory 'x': File exists". An
    /// interruption is not worth a line.
    pub(super) fn cannot(&self, what: &str, name: &[u8], error: &Error) {
        if self.interrupted(error) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        } else {
            self.complain(format_args!("{what} {}: {error}", quoted(name)));
        }
    }

    /// Reports an attribute that the target does not have. As with GNU's, that is no failure of `mv`, which would not get anything
    /// to a tree that cannot hold all; whatever else went wrong is.
    pub(super) fn not_kept(&self, what: &str, name: &[u8], error: &Error) {
        match self.options.moving && is_refusal(error) {
            true => self.remark(format!("{what} {}: {error}", quoted(name))),
            false => self.cannot(what, name, error),
        }
    }

    /// Reports what of the source directory `from` cannot be copied.
    pub(super) fn missed(&self, from: &[u8], Unreadable { name, error }: &Unreadable) {
        match name {
            Some(name) => self.cannot("cannot stat", &shown_below(from, name), error),
            None => self.cannot("error reading directory", from, error),
        }
    }

    /// Whether what was found in a directory is a stream, which is opened only when the user has named it; says so.
    pub(super) fn omits(&self, source: &Inode, from: &[u8]) -> bool {
        let is_stream = source.opens_stream();
        if is_stream {
            self.complain(format_args!("omitting {}: {STREAM}", quoted(from)));
        }
        is_stream
    }

    /// Whether `error` is how the user's Ctrl-C shows.
    pub(super) fn interrupted(&self, error: &Error) -> bool {
        error.errno == Errno::EINTR && self.cancel.is_raised()
    }

    /// A remark that is no failure.
    pub(super) fn remark(&self, message: String) {
        self.lock().push((Status::Success, message));
    }

    /// Writes a line to standard output.
    pub(super) fn say(&self, line: String) {
        let write = || {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}")
        };
        if let Err(error) = self.progress.aside(write) {
            if error.kind() == io::ErrorKind::BrokenPipe {
                self.cancel.raise();
            }
            self.complain(format_args!("write error: {error}"));
        }
    }

    /// How many things failed so far.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Takes the messages that were not shown yet.
    pub(super) fn take_messages(&self) -> Vec<(Status, String)> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Status, String)>> {
        lock(&self.messages)
    }
}

/// Whether a tree says that it does not have such an attribute, or does not let the user set it.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error.errno, Errno::EPERM | Errno::EOPNOTSUPP)
}
