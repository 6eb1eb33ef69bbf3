// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starting a program in a file system of its own.

use crate::failed;
use crate::{GO, MESSAGE_MAX, MOUNTED, NAME};
use outrigger_host::{give_umask_back, receive_with, send_with, take_umask};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

/// Where a tree stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// The absolute path for the program.
    pub path: PathBuf,
    /// The name of the tree in the root that is served.
    pub name: OsString,
}

/// What is to be started.
#[derive(Debug)]
pub struct Launch {
    /// Where the trees stand.
    pub prefixes: Vec<Prefix>,
    /// The tree is the whole root directory, in which this directory is empty; there are no prefixes.
    pub whole: Option<PathBuf>,
    /// The program and its arguments; not empty.
    pub command: Vec<OsString>,
}

/// A program that waits for its trees.
#[derive(Debug)]
pub struct Launched {
    /// The process.
    pub child: Child,
    /// The FUSE device of its mount.
    pub device: OwnedFd,
    /// It waits for this.
    pub waiting: Waiting,
}

/// The wait of a program for its trees.
#[derive(Debug)]
pub struct Waiting(OwnedFd);

impl Launch {
    /// Starts the process that becomes the program, and waits until it has mounted.
    ///
    /// The caller has no other threads that start processes: these would inherit a socket.
    ///
    /// # Errors
    /// A sentence about what this system did not permit.
    pub fn start(&self) -> Result<Launched, String> {
        let (socket, theirs) = pair().map_err(failed("no socket"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(theirs.as_raw_fd().to_string()).arg(self.prefixes.len().to_string());
        command.arg(if self.whole.is_some() { "1" } else { "0" }).args(&self.whole);
        for Prefix { path, name } in &self.prefixes {
            command.arg(path).arg(name);
        }
        command.args(&self.command);
        give_umask_back();
        let child = command.spawn();
        take_umask();
        let mut child = child.map_err(failed("no process can be started"))?;
        drop(theirs);
        match receive(&socket) {
            Ok(device) => Ok(Launched { child, device, waiting: Waiting(socket) }),
            Err(why) => {
                // It ends by itself: it has said why.
                let _ = child.wait();
                Err(why)
            }
        }
    }
}

impl Waiting {
    /// The trees answer: the program is executed. Waits until that has happened.
    ///
    /// # Errors
    /// A sentence about why it was not; the process ends.
    pub fn go(self) -> Result<(), String> {
        send_with(&self.0, GO, &[]).map_err(failed("the program"))?;
        let mut message = [0; MESSAGE_MAX];
        match receive_with(&self.0, &mut message, RecvFlags::empty()) {
            // execve(2) has closed the socket.
            Ok((0, _)) => Ok(()),
            Ok((length, _)) => Err(String::from_utf8_lossy(&message[..length]).into_owned()),
            Err(error) => Err(failed("the program")(error)),
        }
    }
}

/// Two ends of a connection that keeps messages apart, the second one for a process that is started.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    fcntl_setfd(&ends.1, FdFlags::empty())?;
    Ok(ends)
}

/// Receives the device.
fn receive(socket: &OwnedFd) -> Result<OwnedFd, String> {
    let mut message = [0; MESSAGE_MAX];
    let (length, mut files) =
        receive_with(socket, &mut message, RecvFlags::empty()).map_err(failed("the program"))?;
    match files.pop() {
        Some(device) if &message[..length] == MOUNTED => Ok(device),
        _ if length == 0 => Err("the process ended before it had mounted".to_owned()),
        _ => Err(String::from_utf8_lossy(&message[..length]).into_owned()),
    }
}
