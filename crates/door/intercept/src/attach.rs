// SPDX-License-Identifier: MIT OR Apache-2.0
//! Showing trees to a process that runs, and taking them away again.
//!
//! A process that shares the file system of this one enters a namespace that is made for it: all is prepared before it is stopped, and
//! it moves there in one call, or stays where it was. A process in a namespace of this program's gets more trees there.

use crate::failed;
use crate::launch::Prefix;
use crate::namespace::{differing, isolate, join};
use crate::root::{self, Root};
use crate::tracee::{Stopped, Tracee};
use nix::errno::Errno;
use rustix::process::geteuid;
use rustix::thread::ThreadNameSpaceType;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of the structures of capset(2).
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// What capset(2) gets: the version, the process itself, and three sets of 64 capabilities, all empty.
const NO_CAPABILITIES: [u32; 8] = [CAPABILITY_VERSION, 0, 0, 0, 0, 0, 0, 0];
/// Where the sets begin in that, in bytes.
const SETS: u64 = 8;

/// How a process gets trees.
pub(crate) enum Target {
    /// It enters a namespace that is made for it.
    Moved(Moved),
    /// It is in a namespace of ours.
    There { pid: u32 },
}

/// A process that is to enter a namespace. What is known of it here cannot be asked any more from within a user namespace.
pub(crate) struct Moved {
    pid: u32,
    tracee: Tracee,
    /// Its working directory, and which one that is.
    here: PathBuf,
    identity: Option<Identity>,
    /// Its user namespace.
    users: PathBuf,
}

/// Which file it is: the numbers of its file system and of its inode.
type Identity = (u64, u64);

impl Target {
    /// Looks at a process.
    ///
    /// # Errors
    /// A sentence about why it cannot be attached to.
    pub(crate) fn new(pid: u32) -> Result<Self, String> {
        let what = format!("process {pid}");
        if differing(pid)?.contains(ThreadNameSpaceType::MOUNT) {
            return match root::is_ours(pid) {
                true => Ok(Target::There { pid }),
                false => Err(format!(
                    "{what} has a file system of its own (a container, for example): start outrigger in there"
                )),
            };
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(failed(&what))?;
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default()
        };
        let user = field("Uid:").split_whitespace().nth(1).unwrap_or_default().to_owned();
        if user != geteuid().as_raw().to_string() {
            return Err(format!("{what} is one of user {user}: attach to it as that user"));
        }
        let threads = field("Threads:");
        if threads != "1" {
            return Err(format!(
                "{what} has {threads} threads, and Linux has only a process with one enter a namespace: start the program with `outrigger run`"
            ));
        }
        let tracee = Tracee::seize(pid)?;
        if identity(format!("/proc/{pid}/root")) != identity("/") {
            return Err(format!("{what} has another root directory (chroot)"));
        }
        let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).map_err(failed(&what));
        let (here, users) = (link("cwd")?, link("ns/user")?);
        let identity = identity(format!("/proc/{pid}/cwd"));
        Ok(Target::Moved(Moved { pid, tracee, here, identity, users }))
    }

    /// Prepares a namespace, and enters it.
    pub(crate) fn enter(&self, prefixes: &[Prefix]) -> Result<Root, String> {
        match self {
            Target::Moved(_) => {
                isolate()?;
                Root::make(prefixes)
            }
            Target::There { pid } => {
                join(*pid)?;
                Root::again(prefixes)
            }
        }
    }

    /// Has the process enter the namespace, in which this one is.
    pub(crate) fn finish(self) -> Result<(), String> {
        let Target::Moved(Moved { pid, mut tracee, here, identity: there, users }) = self else {
            return Ok(());
        };
        let is_there = there.is_some() && identity(&here) == there;
        let ours = fs::read_link("/proc/self/ns/user").map_err(failed("/proc/self/ns"))?;
        let process = tracee.stop()?;
        let moved = follow(&process, users != ours, is_there.then_some(&here));
        moved.map_err(failed(format_args!("process {pid} cannot enter the namespace")))
    }
}

/// Has a process enter the namespace of this one, without the capabilities that this gives. Its working directory stays: by its path
/// where that leads there, otherwise as it is.
fn follow(process: &Stopped<'_>, user_namespace: bool, here: Option<&PathBuf>) -> Result<(), Errno> {
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    let current = libc::AT_FDCWD as u64;
    let dot = process.call_with(libc::SYS_openat, b".\0", |path| [current, path, flags, 0, 0, 0])?;
    let close = |file| process.call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
    let entered = enter_ours(process, user_namespace);
    let result = entered.and_then(|()| {
        if user_namespace {
            let bytes: Vec<u8> = NO_CAPABILITIES.iter().flat_map(|word| word.to_ne_bytes()).collect();
            process.call_with(libc::SYS_capset, &bytes, |header| [header, header + SETS, 0, 0, 0, 0])?;
        }
        match here {
            Some(here) => {
                let path = [here.as_os_str().as_bytes(), b"\0"].concat();
                process.call_with(libc::SYS_chdir, &path, |path| [path, 0, 0, 0, 0, 0])
            }
            None => process.call(libc::SYS_fchdir, [dot, 0, 0, 0, 0, 0]),
        }
    });
    close(dot)?;
    result.map(drop)
}

/// Has a process enter the namespaces of this one.
fn enter_ours(process: &Stopped<'_>, user_namespace: bool) -> Result<(), Errno> {
    let user = if user_namespace { libc::CLONE_NEWUSER } else { 0 };
    let us = u64::from(std::process::id());
    let file = process.call(libc::SYS_pidfd_open, [us, 0, 0, 0, 0, 0])?;
    let kinds = (libc::CLONE_NEWNS | user) as u64;
    let entered = process.call(libc::SYS_setns, [file, kinds, 0, 0, 0, 0]);
    process.call(libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
    entered.map(drop)
}

/// Which file a path leads to.
fn identity(path: impl AsRef<Path>) -> Option<Identity> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Takes the trees of a process away, those of a FUSE connection or all; programs that have files of them open keep these until they close them.
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
