// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C: the first asks the command to stop and to tidy up, the second ends it at once.

use outrigger_core::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Ends, and so becomes readable, with the first signal.
static WAKE: OnceLock<OwnedFd> = OnceLock::new();

/// The signal that asked the command to stop, if any did.
#[derive(Debug, Clone, Default)]
pub struct Caught(Arc<AtomicI32>);

impl Caught {
    /// The exit status of a program ended by that signal, as a shell shows it: 130 for Ctrl-C.
    pub fn exit_status(&self) -> Option<u8> {
        match self.0.load(Ordering::Acquire) {
            0 => None,
            signal => u8::try_from(128 + signal).ok(),
        }
    }
}

/// The signals that ask a command to stop.
pub const STOPS: &[i32] = &[SIGINT, SIGTERM, SIGHUP];
/// Those that ask it to give up what a program has written: the end of a terminal does not.
pub const GIVES_UP: &[i32] = &[SIGINT, SIGTERM];

/// Raises `cancel` at the first of these signals; another one has its default effect, whatever the program is waiting for.
///
/// # Errors
/// When the system refuses to install a handler or to start the thread that waits for signals.
pub fn install(cancel: &Cancel, which: &[i32]) -> io::Result<Caught> {
    let asked = Arc::new(AtomicBool::new(false));
    for &signal in which {
        // In this order: the first signal only arms what the next one finds armed.
        flag::register_conditional_default(signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
    }
    let mut signals = Signals::new(which)?;
    let (caught, cancel) = (Caught::default(), cancel.clone());
    let first = caught.clone();
    let (wake, asleep) = pipe_with(PipeFlags::CLOEXEC)?;
    // A second installation keeps the first pipe, whose end has the same meaning.
    drop(WAKE.set(wake));
    thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            first.0.store(signal, Ordering::Release);
            cancel.raise();
            drop(asleep);
        }
    })?;
    Ok(caught)
}

/// What came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// It can be read, or has ended.
    Readable,
    /// A signal.
    Interrupted,
    /// The end of the time.
    InVain,
}

/// Waits until `input` can be read or has ended; `false` when a signal came first.
///
/// # Errors
/// As poll(2).
pub fn wait_readable(input: impl AsFd) -> io::Result<bool> {
    Ok(wait_until(input, None)? == Waited::Readable)
}

/// The same for at most `patience`.
///
/// # Errors
/// As poll(2).
pub fn wait_readable_for(input: impl AsFd, patience: Duration) -> io::Result<Waited> {
    wait_until(input, Instant::now().checked_add(patience))
}

fn wait_until(input: impl AsFd, end: Option<Instant>) -> io::Result<Waited> {
    let wake = WAKE.get().map(|wake| PollFd::new(wake, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = [PollFd::new(&input, PollFlags::IN)].into_iter().chain(wake).collect();
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        // A time too long for the system is no bound.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(0) => return Ok(Waited::InVain),
            Ok(_) if fds.get(1).is_some_and(|wake| !wake.revents().is_empty()) => {
                return Ok(Waited::Interrupted);
            }
            Ok(_) => return Ok(Waited::Readable),
        }
    }
}

/// Ends the program by SIGPIPE, as a program without a handler ends when its reader has closed the pipe.
pub fn reader_gone() {
    // The status cannot be had otherwise; if even that fails, the caller's error report remains.
    drop(emulate_default_handler(SIGPIPE));
}
