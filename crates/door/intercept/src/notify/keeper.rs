// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that answers calls when the server has died: without anybody who holds the listener, the kernel would know none of them any
//! more, and programs could not even open local files.
//!
//! It is this program under another name, in a session of its own, so that the terminal does not end it, and holds nothing but the listener,
//! a descriptor of the server's process, and the server's list of calls without an answer. While the server lives it waits. Then local files
//! are the kernel's, and everything in trees is `ENOTCONN`, as without the server of a mount: the kernel must not see such a path, because
//! there may be a local directory under the prefix, and the working directory of a program may be one in the mirror, from which nothing
//! is stored in the tree any more.

use super::decode::Asked;
use super::listener::{Call, Listener};
use super::names::{Names, Where};
use super::process::Process;
use super::progress::Progress;
use crate::enter::own;
use crate::failed;
use crate::launch::Prefix;
use outrigger_core::{Errno, Result};
use outrigger_host::Confined;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open, setsid};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// The name this program is started under to be a keeper.
const NAME: &str = "outrigger-keeper";
/// What a tree is called there, in which no file can be found any more.
const TREE: &str = "tree";
/// How many calls may have been interrupted between the last one that was written down and one that was received just before the server
/// died.
const GONE_MAX: u64 = 1024;

/// The process, as the server has it.
pub(crate) struct Keeper(Child);

impl Keeper {
    /// Starts it. Other threads may start processes: these do not inherit its descriptors.
    ///
    /// # Errors
    /// A sentence about what the system refuses.
    pub(crate) fn start(
        listener: &Listener,
        progress: &Progress,
        prefixes: &[Prefix],
        mirror: &Path,
    ) -> std::result::Result<Self, String> {
        let server = pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed("no descriptor"))?;
        let files = [listener.as_fd(), server.as_fd(), progress.as_fd()].map(|file| file.as_raw_fd());
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).args(files.map(|file| file.to_string())).arg(mirror);
        command.args(prefixes.iter().map(|prefix| &prefix.path));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir("/").confined(&files).env_clear();
        // SAFETY: between fork and exec one system call runs, without pointers.
        unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
        command.spawn().map(Keeper).map_err(failed("no process can be started"))
    }

    /// Ends it: no program is left.
    pub(crate) fn end(mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this program was started under this name to be a keeper.
pub fn is_keeper(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// Does what the arguments, after the name, say: waits until the server dies, and answers calls then. Ends when no program is left.
pub fn keep(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(keeping) = Keeping::parse(arguments) else { return ExitCode::FAILURE };
    if keeping.outlives_server() {
        keeping.answer_left();
        keeping.answer();
    }
    ExitCode::SUCCESS
}

/// The process, as it has itself.
struct Keeping {
    listener: Listener,
    server: OwnedFd,
    progress: Progress,
    names: Names,
}

impl Keeping {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut file = || own(arguments.next()?.to_str()?.parse().ok()?);
        let (listener, server, progress) = (file()?, file()?, file()?);
        let mirror = PathBuf::from(arguments.next()?);
        let prefixes = arguments.map(|path| Prefix { path: path.into(), name: TREE.into() });
        let names = Names::new(&prefixes.collect::<Vec<_>>(), None, &mirror).ok()?;
        let progress = Progress::of(progress).ok()?;
        Some(Keeping { listener: Listener::new(listener), server, progress, names })
    }

    /// Waits until the server has died; `false` when the programs have ended before.
    fn outlives_server(&self) -> bool {
        let mut files =
            [PollFd::new(&self.listener, PollFlags::empty()), PollFd::new(&self.server, PollFlags::IN)];
        while poll(&mut files, None) == Err(rustix::io::Errno::INTR) {}
        files[0].revents().is_empty()
    }

    /// Answers what the server had received.
    fn answer_left(&self) {
        self.progress.left().iter().for_each(|call| self.handle(call));
        let Some(newest) = self.progress.newest() else { return };
        // It may have died before it wrote the last one down. The kernel numbers calls in the order in which it passes them on. What the call
        // is, is not known; nothing of it was done.
        for ahead in 1..=GONE_MAX {
            match self.listener.refuse(newest.wrapping_add(ahead), libc::EINTR) {
                // No such call, or none any more.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                // That was it; or this one was not passed on, and so were none after it.
                _ => return,
            }
        }
    }

    /// Answers calls until there are no programs.
    fn answer(&self) {
        loop {
            let mut listener = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut listener, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) if listener[0].revents() == PollFlags::IN => {}
                _ => return,
            }
            match self.listener.receive() {
                Ok(Some(call)) => self.handle(&call),
                Ok(None) if self.listener.ends_within(Duration::ZERO) => return,
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    fn handle(&self, call: &Call) {
        match self.check(call) {
            Ok(()) => self.listener.pass(call),
            Err(error) => self.listener.answer(call, Err(error.errno.0)),
        }
    }

    /// Whether a call concerns local files only.
    ///
    /// # Errors
    /// What it gets otherwise.
    fn check(&self, call: &Call) -> Result<()> {
        let process = Process { thread: call.pid.cast_signed() };
        let request = match Asked::of(call) {
            Ok(Some(request)) => request,
            Err(error) if error.errno == Errno::EPERM => return self.check_unread(call, process),
            // What cannot be read the kernel cannot read either.
            Ok(None) | Err(_) => return Ok(()),
        };
        match request {
            Asked::CurrentDir { .. } => return self.check_open(process, libc::AT_FDCWD),
            Asked::Sync { file, .. } => return self.check_open(process, file),
            _ => {}
        }
        for (at, how) in request.places() {
            match process.find(&self.names, at, how, &|| ())? {
                Where::Local | Where::Fixed(_) => {}
                Where::Beyond(_) | Where::Tree(_) => return Err(Errno::ENOTCONN.into()),
            }
        }
        Ok(())
    }

    /// The same where only ancestors may read the memory of a program (yama(5)), which the keeper is not: the paths are not known. Without a
    /// local directory under a prefix, one that begins at the root leads to no other file than it did.
    fn check_unread(&self, call: &Call, process: Process) -> Result<()> {
        if self.names.covers {
            return Err(Errno::ENOTCONN.into());
        }
        let [first, _, third, ..] = call.data.args.map(|argument| argument as i32);
        [libc::AT_FDCWD, first, third].into_iter().try_for_each(|file| self.check_open(process, file))
    }

    /// Whether a file that a program has open, or its working directory, is a local one.
    fn check_open(&self, process: Process, file: i32) -> Result<()> {
        let is_copy = process.file(file).is_ok_and(|path| self.names.shown(&path).is_some());
        if is_copy { Err(Errno::ENOTCONN.into()) } else { Ok(()) }
    }
}
