// SPDX-License-Identifier: MIT OR Apache-2.0
//! Showing trees to a process that runs, and taking them away again.
//!
//! A process that shares the file system of this one enters a namespace that is made for it: all is prepared before it is touched, and
//! it enters that by one call, or stays where it was. A process in a namespace of this program's gets more trees there.

use crate::failed;
use crate::launch::Prefix;
use crate::namespace::{differing, isolate, join};
use crate::proc::status;
use crate::root::{self, Root};
use rustix::process::geteuid;
use rustix::thread::ThreadNameSpaceType;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How a process gets trees.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// It enters a namespace that is made for it.
    Moved,
    /// It is in a namespace of ours.
    There(u32),
}

impl Target {
    /// Looks at a process.
    ///
    /// # Errors
    /// A sentence about why it cannot be attached to.
    pub(crate) fn new(pid: u32) -> Result<Self, String> {
        if !differing(pid)?.contains(ThreadNameSpaceType::MOUNT) {
            return check(pid).map(|()| Target::Moved);
        }
        match root::is_ours(pid) {
            true => Ok(Target::There(pid)),
            false => Err(format!(
                "process {pid} has a file system of its own (a container, or `run --cow`): attach to it from in there"
            )),
        }
    }

    /// Prepares a namespace, and enters it.
    pub(crate) fn enter(self, prefixes: &[Prefix]) -> Result<Root, String> {
        match self {
            Target::Moved => {
                isolate()?;
                Root::make(prefixes)
            }
            Target::There(pid) => {
                join(pid)?;
                Root::again(prefixes)
            }
        }
    }
}

/// Whether a process can be moved, as far as that is known before it is tried.
pub(crate) fn check(pid: u32) -> Result<(), String> {
    let what = format!("process {pid}");
    let threads = field(pid, "Threads:")?;
    if threads != "1" {
        return Err(format!(
            "{what} has {threads} threads, and Linux has only a process with one enter a namespace: start the program with `outrigger run`"
        ));
    }
    check_alike(pid)
}

/// A line of the status of a process ([`status`]).
fn field(pid: u32, name: &str) -> Result<String, String> {
    status(pid, name).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("there is no process {pid}"),
        _ => failed(format_args!("process {pid}"))(error),
    })
}

/// Whether a process is one of this user, in the file system of this process, and without a filter of its own.
pub(crate) fn check_alike(pid: u32) -> Result<(), String> {
    let what = format!("process {pid}");
    if field(pid, "State:")?.starts_with(['Z', 'X']) {
        return Err(format!("{what} has ended, or its first thread has"));
    }
    let users = field(pid, "Uid:")?;
    let user = users.split_whitespace().nth(1).unwrap_or_default();
    if user != geteuid().as_raw().to_string() {
        return Err(format!("{what} is one of user {user}: attach to it as that user"));
    }
    if field(pid, "Seccomp:")? != "0" {
        return Err(format!(
            "{what} has a filter of system calls (seccomp), which may end it for what attaching takes"
        ));
    }
    if identity(format!("/proc/{pid}/root")) != identity("/") {
        return Err(format!("{what} has another root directory (chroot)"));
    }
    Ok(())
}

/// Which file a path leads to: the numbers of its file system and of its inode.
pub(crate) fn identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Takes the trees of a process away, those of a FUSE connection or all; programs that have files of them open keep these until they
/// close them.
///
/// # Errors
/// A sentence about what cannot be done.
pub(crate) fn detach(pid: u32, connection: Option<u32>) -> Result<(), String> {
    if !differing(pid)?.contains(ThreadNameSpaceType::MOUNT) || !root::is_ours(pid) {
        return Err("nothing is attached to it".to_owned());
    }
    join(pid)?;
    root::clear(connection)
}
