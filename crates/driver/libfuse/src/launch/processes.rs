// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a program, and the thread that serves them: their system calls, what they say, how they end.
use outrigger_core::lock;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use outrigger_host::{Confined, named_descriptors, receive_with};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use super::calls::{Calls, Mounted};
use super::init::{self, Plan};
use super::notify::Listener;

/// How much of what a program says is kept, in bytes; the last is the most telling.
const SAID_MAX: usize = 64 << 10;

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Of the first of its processes that failed, else of the one started first.
    pub end: End,
    /// The last 64 KiB of its standard output and standard error.
    pub said: String,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with this exit status.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Not known: the process that watches the program was killed.
    Unknown,
}

impl End {
    /// From the status that wait(2) gives.
    fn from_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit status {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unknown => write!(f, "ended, its exit status is unknown"),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.end, last_output(&self.said))
    }
}

/// What a program said, as the end of a sentence about it.
pub fn last_output(said: &str) -> String {
    match said.trim() {
        "" => " and said nothing".to_owned(),
        said => format!("; it said: {said}"),
    }
}

/// All processes of a started program: itself, what it forked, and the process of ours that is their parent.
///
/// Dropping it kills them, and so does the end of this process, in whatever way that comes.
pub struct Processes(pub(super) Arc<Shared>);

impl Processes {
    /// Whether any of them is left.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.lock().exit.is_none()
    }

    /// Kills them all, until none is left. Returns at once; [`Self::wait`] waits for the end.
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Waits until none is left. `None` when that has not come before the deadline: a process in an uninterruptible
    /// wait of the kernel ends only when that does.
    #[must_use]
    pub fn wait(&self, deadline: Instant) -> Option<Exit> {
        self.0.wait(deadline, |state| state.exit.clone())
    }

    /// What they have said so far, the last 64 KiB.
    #[must_use]
    pub fn said(&self) -> String {
        self.0.lock().said()
    }

    /// A descriptor (pidfd_open(2)) that polls as readable when all have ended.
    ///
    /// When this process is killed, the others end a moment later. A process that starts the program in its place should hold
    /// this descriptor and wait for it first: two of the same program may not bear each other.
    ///
    /// # Errors
    /// Of dup(2).
    pub fn ended(&self) -> io::Result<OwnedFd> {
        let state = self.0.lock();
        state.init.as_ref().ok_or(io::ErrorKind::NotConnected)?.try_clone()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the thread reports.
#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub struct State {
    /// The process that is the parent of all, as a pidfd.
    init: Option<OwnedFd>,
    /// Whether all are to be killed.
    kill: bool,
    said: VecDeque<u8>,
    /// Why the program could not be started.
    pub failed: Option<io::Error>,
    pub mounted: Option<Mounted>,
    pub exit: Option<Exit>,
}

impl State {
    /// As text that does nothing to a terminal: the program may pass on what strangers wrote.
    pub fn said(&self) -> String {
        let (old, new) = self.said.as_slices();
        let harmless =
            |c: char| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c };
        String::from_utf8_lossy(&[old, new].concat()).chars().map(harmless).collect()
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until this gives something, or the deadline has come.
    pub fn wait<T>(&self, deadline: Instant, mut until: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(found) = until(&mut state) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn kill(&self) {
        let mut state = self.lock();
        state.kill = true;
        if let Some(init) = &state.init {
            // Fails when it has ended already.
            let _ = pidfd_send_signal(init, Signal::TERM);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// What the thread starts with.
pub struct Job {
    pub command: Command,
    pub plan: Plan,
    pub calls: Calls,
    /// Our end of the control socket.
    pub control: OwnedFd,
    /// The reading end of the pipe that is standard output and standard error of the program.
    pub output: io::PipeReader,
    pub shared: Arc<Shared>,
}

impl Job {
    /// Starts the program, serves it, and returns when all its processes have ended.
    ///
    /// Must have a thread of its own: its end is what ends the processes.
    pub fn run(self) {
        let Self { mut command, plan, calls, control, output, shared } = self;
        let terminal = plan.terminal;
        command.confined(&named_descriptors(command.get_args().map(OsStr::to_owned).collect::<Vec<_>>()));
        // SAFETY: `split` makes system calls only, as the child of a process with threads must; what it uses was made
        // before the fork.
        unsafe { command.pre_exec(move || init::split(&plan)) };
        let spawned = command.spawn();
        // The writing end of the pipe and the other end of the control socket are in here.
        drop(command);
        let watched = spawned.and_then(|mut child| {
            let pid = Pid::from_raw(child.id() as i32).ok_or(io::ErrorKind::InvalidData)?;
            watch(pid, &control).inspect_err(|_| {
                let _ = rustix::process::kill_process(pid, Signal::TERM);
                let _ = child.wait();
            })
        });
        let (init, copy, listener) = match watched {
            Ok(watched) => watched,
            Err(error) => return shared.change(|state| state.failed = Some(error)),
        };
        shared.change(|state| state.init = Some(copy));
        if shared.lock().kill {
            shared.kill();
        }
        let mut serving = Serving { calls, output, terminal, shared, init, listener: Some(listener) };
        serving.until_all_ended();
        serving.finish(&control);
    }
}

/// The pidfd of the parent of all, twice, and the listener it has sent.
fn watch(pid: Pid, control: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd, Listener)> {
    let init = pidfd_open(pid, PidfdFlags::empty())?;
    let copy = init.try_clone()?;
    let (_, mut descriptors) = receive_with(control, &mut [0], RecvFlags::DONTWAIT)?;
    let listener = descriptors.pop().ok_or(io::ErrorKind::InvalidData)?;
    Ok((init, copy, Listener::new(listener)))
}

/// The wait status that the parent of all sends as its last deed.
fn receive_end(control: &OwnedFd) -> End {
    let mut status = [0; 4];
    match rustix::net::recv(control, &mut status, RecvFlags::DONTWAIT) {
        Ok((4, _)) => End::from_status(i32::from_ne_bytes(status)),
        _ => End::Unknown,
    }
}

struct Serving {
    calls: Calls,
    output: io::PipeReader,
    terminal: bool,
    shared: Arc<Shared>,
    init: OwnedFd,
    listener: Option<Listener>,
}

impl Serving {
    fn until_all_ended(&mut self) {
        let mut output_open = true;
        loop {
            let [ended, output, listener] = match self.wait(output_open) {
                Ok(events) => events,
                // Nothing that is left can be served.
                Err(_) => return self.shared.kill(),
            };
            if !output.is_empty() {
                output_open = self.listen();
            }
            if listener.contains(PollFlags::IN) {
                self.serve();
            } else if !listener.is_empty() {
                // No process is under the filter any more.
                self.listener = None;
            }
            if !ended.is_empty() {
                return;
            }
        }
    }

    /// Waits for the end of all, for output and for system calls.
    fn wait(&self, output_open: bool) -> io::Result<[PollFlags; 3]> {
        let mut descriptors = vec![PollFd::new(&self.init, PollFlags::IN)];
        if output_open {
            descriptors.push(PollFd::new(&self.output, PollFlags::IN));
        }
        if let Some(listener) = &self.listener {
            descriptors.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        rustix::io::retry_on_intr(|| poll(&mut descriptors, None))?;
        let mut events = descriptors.iter().map(PollFd::revents);
        let mut next =
            |present| if present { events.next().unwrap_or(PollFlags::empty()) } else { PollFlags::empty() };
        Ok([next(true), next(output_open), next(self.listener.is_some())])
    }

    /// Answers one system call.
    fn serve(&mut self) {
        let Some(listener) = &self.listener else { return };
        match listener.receive() {
            Ok(Some(waiting)) => {
                let before = self.calls.mounted.is_some();
                self.calls.serve(&waiting);
                if let (false, Some((mounted, _))) = (before, &self.calls.mounted) {
                    self.shared.change(|state| state.mounted = Some(mounted.clone()));
                }
            }
            Ok(None) => {}
            Err(_) => self.listener = None,
        }
    }

    /// Keeps what the program says, and shows it on a terminal until it has mounted: it may ask for a password there.
    /// False when there is nothing.
    fn listen(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let Ok(length @ 1..) = self.output.read(&mut buffer) else { return false };
        if self.terminal && self.calls.mounted.is_none() {
            let _ = io::stderr().write_all(&buffer[..length]);
        }
        let said = &mut self.shared.lock().said;
        said.extend(&buffer[..length]);
        let surplus = said.len().saturating_sub(SAID_MAX);
        said.drain(..surplus);
        true
    }

    /// Takes what was said last, and how it ended.
    fn finish(&mut self, control: &OwnedFd) {
        while self.listen() {}
        // A thread that waits for any child of this process may have been faster.
        let _ = waitid(WaitId::PidFd(self.init.as_fd()), WaitIdOptions::EXITED);
        let end = receive_end(control);
        self.shared.change(|state| state.exit = Some(Exit { end, said: state.said() }));
    }
}
