// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side of the process that serves: starts a program in a file system of its own, or has one that runs moved there.

use crate::failed;
use crate::{
    APART, ATTACH, DETACH, EXECUTE, FILTER, GATE, GO, KEEPER, LISTENING, MESSAGE_MAX, MOUNTED, MOVE, NAME,
    STOPS_AT_ALL, STOPS_AT_PATHS, TRACE, TRACE_APART, Tracer, WHOLE,
};
use outrigger_host::{Confined, give_umask_back, receive_with, send_with, take_umask};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::iter;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How long an order about processes may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// Where a tree stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// The absolute path for the program.
    pub path: PathBuf,
    /// The name of the tree in the root that is served.
    pub name: OsString,
}

/// Who is to see the trees.
#[derive(Debug)]
pub enum Start {
    /// A program that is started, with its arguments; not empty.
    Program(Vec<OsString>),
    /// The same; the program's root directory is a tree of its own, in which the directory `empty` is empty, and which has a directory for
    /// each prefix. What stands there cannot be changed.
    Whole {
        /// The directory.
        empty: PathBuf,
        /// The program and its arguments; not empty.
        command: Vec<OsString>,
    },
    /// A process that runs.
    Process(u32),
}

/// What is to be shown, and to whom.
#[derive(Debug)]
pub struct Launch {
    /// Where the trees stand.
    pub prefixes: Vec<Prefix>,
    /// Who is to see them.
    pub start: Start,
}

/// A namespace that waits for its trees.
#[derive(Debug)]
pub struct Launched {
    /// The process that becomes the program, or that prepares a namespace for one that runs, and ends then.
    pub child: Child,
    /// The FUSE device of its mount: of the tree that is the root directory, or else of the trees.
    pub device: OwnedFd,
    /// That of the trees, where a tree is the root directory and there are prefixes.
    pub trees: Option<OwnedFd>,
    /// The number of its connection.
    pub connection: u32,
    /// It waits for this.
    pub waiting: Waiting,
}

/// Which calls of a program are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Those with paths.
    Plain,
    /// The same, but for those by which programs reach local files by themselves.
    Gate,
    /// Also what changes files in other ways, and what might is refused.
    Apart,
}

impl Filter {
    /// All of them.
    const ALL: [Filter; 3] = [Filter::Plain, Filter::Gate, Filter::Apart];

    /// The order to execute a program under it.
    fn order(self) -> &'static str {
        match self {
            Filter::Plain => FILTER,
            Filter::Gate => GATE,
            Filter::Apart => APART,
        }
    }

    /// The order to execute a program that is traced.
    fn order_traced(self) -> &'static str {
        if self == Filter::Apart { TRACE_APART } else { TRACE }
    }

    /// The one that an order is about.
    pub(crate) fn of(order: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|filter| filter.order() == order)
    }
}

/// A program whose system calls with paths are answered by who holds the listener; it waits for that.
#[derive(Debug)]
pub struct Filtered {
    /// The process that becomes the program.
    pub child: Child,
    /// Where its calls come from.
    pub listener: OwnedFd,
    /// It waits for this.
    pub waiting: Waiting,
    /// Whether the filter lets programs reach local files by themselves.
    pub gate: bool,
}

impl Filtered {
    /// Starts the process that becomes the program, and waits until it is under the filter.
    ///
    /// The caller has no other threads that start processes: these would inherit a socket.
    ///
    /// # Errors
    /// A sentence about what this system did not permit.
    pub fn start(command: &[OsString], filter: Filter) -> Result<Self, String> {
        let (mut child, socket) = start(&[], filter.order(), command)?;
        let gate = filter == Filter::Gate;
        match receive_listener(&socket) {
            Ok(listener) => Ok(Filtered { child, listener, waiting: Waiting { socket, moves: None }, gate }),
            Err(why) => {
                // It ends by itself: it has said why.
                let _ = child.wait();
                Err(why)
            }
        }
    }
}

/// A program that this process traces; it waits for that.
#[derive(Debug)]
pub struct Traced {
    /// Where its calls come from, and how it ends.
    pub tracer: Arc<Tracer>,
    /// Its number.
    pub pid: u32,
    /// It waits for this.
    pub waiting: Waiting,
}

impl Traced {
    /// Starts the process that becomes the program, and traces it. `filter` says which of its calls are answered.
    ///
    /// The caller has no other threads that start processes: these would inherit a socket.
    ///
    /// # Errors
    /// A sentence about what this system did not permit.
    pub fn start(command: &[OsString], filter: Filter) -> Result<Self, String> {
        let (mut child, socket) = start(&[], filter.order_traced(), command)?;
        let begun =
            is_filtered(&socket).and_then(|is_filtered| Tracer::start(child.id(), is_filtered, filter));
        match begun {
            Ok(tracer) => Ok(Traced { tracer, pid: child.id(), waiting: Waiting { socket, moves: None } }),
            Err(why) => {
                drop(socket);
                // It ends by itself without the server.
                let _ = child.wait();
                Err(why)
            }
        }
    }
}

/// The wait of a process for its trees.
#[derive(Debug)]
pub struct Waiting {
    socket: OwnedFd,
    /// The process that may have to be moved, and the one whose namespace it is to enter.
    moves: Option<(u32, u32)>,
}

impl Prefix {
    /// Whether a tree can stand there: at a directory, in another tree, or under a name of its own in the root.
    ///
    /// # Errors
    /// A sentence about what to do.
    pub fn check(&self, others: &[Prefix]) -> Result<(), String> {
        let path = &self.path;
        let is_in_another = others.iter().any(|other| other.path != *path && path.starts_with(&other.path));
        let top: PathBuf = path.components().take(2).collect();
        if is_in_another || path.is_dir() || top.symlink_metadata().is_err() {
            return Ok(());
        }
        Err(no_directory(path))
    }
}

/// What to do where a tree cannot stand.
#[must_use]
pub fn no_directory(path: &Path) -> String {
    format!("'{}' is no directory: make one there, or choose a name in the root, as /NAME", path.display())
}

impl Launch {
    /// Starts the process that becomes the program, or that prepares a namespace for one that runs, and waits until it has mounted.
    ///
    /// The caller has no other threads that start processes: these would inherit a socket.
    ///
    /// # Errors
    /// A sentence about what this system did not permit.
    pub fn start(&self) -> Result<Launched, String> {
        let (what, arguments) = match &self.start {
            Start::Program(command) => (EXECUTE, command.clone()),
            Start::Whole { empty, command } => (
                WHOLE,
                iter::once(empty.as_os_str())
                    .chain(command.iter().map(OsString::as_os_str))
                    .map(OsString::from)
                    .collect(),
            ),
            Start::Process(pid) => (ATTACH, vec![pid.to_string().into()]),
        };
        let (mut child, socket) = start(&self.prefixes, what, &arguments)?;
        match receive(&socket) {
            Ok((device, trees, connection)) => {
                let moves = match self.start {
                    Start::Process(pid) => Some((pid, child.id())),
                    _ => None,
                };
                Ok(Launched { child, device, trees, connection, waiting: Waiting { socket, moves } })
            }
            Err(why) => {
                // It ends by itself: it has said why.
                let _ = child.wait();
                Err(why)
            }
        }
    }
}

/// The mount namespace of a process, which others share that it has started.
#[derive(Debug)]
pub struct Namespace(PathBuf);

impl Namespace {
    /// That of a process.
    ///
    /// # Errors
    /// When there is no such process, or it may not be looked at.
    pub fn of(pid: u32) -> io::Result<Self> {
        fs::read_link(format!("/proc/{pid}/ns/mnt")).map(Namespace)
    }

    /// Takes trees away from all programs in a namespace that was made for them: those of a connection, or all. What they have open
    /// stays usable until it is closed. Without programs in it there is no namespace any more.
    ///
    /// # Errors
    /// A sentence about why that cannot be done.
    pub fn detach(&self, connection: Option<u32>) -> Result<(), String> {
        let Some(pid) = self.process().map_err(failed("/proc"))? else { return Ok(()) };
        order(DETACH, &iter::once(pid).chain(connection).collect::<Vec<_>>())
    }

    /// A process that is in it.
    fn process(&self) -> io::Result<Option<u32>> {
        let mut processes =
            fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(processes.find(|&pid| Self::of(pid).is_ok_and(|other| other.0 == self.0)))
    }
}

/// Starts this program again for an order.
fn start(prefixes: &[Prefix], what: &str, arguments: &[OsString]) -> Result<(Child, OwnedFd), String> {
    let (socket, theirs) = pair().map_err(failed("no socket"))?;
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(failed("no socket"))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).arg(theirs.as_raw_fd().to_string()).arg(prefixes.len().to_string());
    for Prefix { path, name } in prefixes {
        command.arg(path).arg(name);
    }
    command.arg(what).args(arguments);
    give_umask_back();
    let child = command.spawn();
    take_umask();
    Ok((child.map_err(failed("no process can be started"))?, socket))
}

/// Starts this program again for an order about processes, and waits until it has done it. Other threads may start processes: these do not
/// inherit the socket, which is the standard input.
fn order(what: &str, processes: &[u32]) -> Result<(), String> {
    let (socket, theirs) = pair().map_err(failed("no socket"))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(DEADLINE)).map_err(failed("no socket"))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).args(["0", "0", what]).args(processes.iter().map(u32::to_string)).stdin(theirs);
    let mut child = command.spawn().map_err(failed("no process can be started"))?;
    drop(command);
    let ended = end(&socket);
    // One that takes longer ends by itself: it may hold a process that must not be left as it is then.
    let _ = if ended.is_ok() { child.wait().map(Some) } else { child.try_wait() };
    ended
}

/// Starts this program again for an order about a process; the socket is its standard input. It stays when this process is gone, so it
/// has nothing else of it. Other threads may start processes: these do not inherit the socket.
pub(crate) fn order_with_socket(what: &str, pid: u32, socket: OwnedFd) -> Result<(), String> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(KEEPER).args(["0", "0", what, &pid.to_string()]).stdin(socket);
    command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").confined(&[]).env_clear();
    command.spawn().map(drop).map_err(failed("no process can be started"))
}

/// Waits until a process has done what it was started for: it closes the socket then.
fn end(socket: &OwnedFd) -> Result<(), String> {
    let mut message = [0; MESSAGE_MAX];
    match receive_with(socket, &mut message, RecvFlags::empty()) {
        Ok((0, _)) => Ok(()),
        Ok((length, _)) => Err(String::from_utf8_lossy(&message[..length]).into_owned()),
        Err(error) => Err(failed("the process")(error)),
    }
}

impl Waiting {
    /// The trees answer: the program is executed, or the process moved. Waits until that has happened.
    ///
    /// # Errors
    /// A sentence about why it was not; a process that was to become a program ends.
    pub fn go(self) -> Result<(), String> {
        send_with(&self.socket, GO, &[]).map_err(failed("the process"))?;
        match (end(&self.socket), self.moves) {
            (Err(said), Some((pid, namespace))) if said == MOVE => order(MOVE, &[pid, namespace]),
            (ended, _) => ended,
        }
    }
}

/// Two ends of a connection that keeps messages apart, the second one for a process that is started.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Receives the device, a second one if there is one, and the number of the first one's connection.
fn receive(socket: &OwnedFd) -> Result<(OwnedFd, Option<OwnedFd>, u32), String> {
    let mut message = [0; MESSAGE_MAX];
    let (length, files) =
        receive_with(socket, &mut message, RecvFlags::empty()).map_err(failed("the process"))?;
    let said = String::from_utf8_lossy(&message[..length]).into_owned();
    let connection = said.strip_prefix(MOUNTED).and_then(|number| number.parse().ok());
    let mut files = files.into_iter();
    match (files.next(), connection) {
        (Some(device), Some(connection)) => Ok((device, files.next(), connection)),
        _ if said.is_empty() => Err("the process ended before it had mounted".to_owned()),
        _ => Err(said),
    }
}

/// Receives the descriptor from which calls come.
fn receive_listener(socket: &OwnedFd) -> Result<OwnedFd, String> {
    let mut message = [0; MESSAGE_MAX];
    let (length, mut files) =
        receive_with(socket, &mut message, RecvFlags::empty()).map_err(failed("the process"))?;
    match files.pop() {
        Some(listener) if &message[..length] == LISTENING => Ok(listener),
        _ if length == 0 => Err("the process ended before it had a filter".to_owned()),
        _ => Err(String::from_utf8_lossy(&message[..length]).into_owned()),
    }
}

/// Waits until a process can be traced, and answers whether it will stop at calls with paths only.
fn is_filtered(socket: &OwnedFd) -> Result<bool, String> {
    let mut message = [0; MESSAGE_MAX];
    let (length, _) =
        receive_with(socket, &mut message, RecvFlags::empty()).map_err(failed("the process"))?;
    match &message[..length] {
        STOPS_AT_PATHS => Ok(true),
        STOPS_AT_ALL => Ok(false),
        [] => Err("the process ended before it could be traced".to_owned()),
        why => Err(String::from_utf8_lossy(why).into_owned()),
    }
}
