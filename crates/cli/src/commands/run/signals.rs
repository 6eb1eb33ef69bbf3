// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals to `run`: while the program runs they are passed on to it; afterwards they end the wait for what it has written to be stored.

use super::{POLL, is_in_foreground};
use crate::interrupt::{self, GIVES_UP};
use outrigger_core::Cancel;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Programs that end with the one that was run do so soon; after that it is said that others are waited for.
const SOON: Option<Duration> = Some(Duration::from_secs(1));

/// Whether the program has ended, and whether what it has started is to lose the trees.
#[derive(Default)]
struct Phase {
    ended: AtomicBool,
    stop: AtomicBool,
}

/// Passes signals on to a program.
pub(super) struct Forwarding {
    phase: Arc<Phase>,
    handle: Handle,
    thread: JoinHandle<()>,
}

/// Catches signals, before there is a program to pass them on to.
///
/// # Errors
/// When the system refuses to install a handler.
pub(super) fn caught() -> io::Result<Signals> {
    Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])
}

impl Forwarding {
    /// Passes on those that were caught, and come from now on. As an exiting program takes none, `hurry` is called with those that end programs.
    ///
    /// # Errors
    /// When there is no thread for that.
    pub(super) fn start(
        mut signals: Signals,
        child: u32,
        hurry: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (phase, handle) = (Arc::<Phase>::default(), signals.handle());
        let own = Arc::clone(&phase);
        let forward = move || {
            for signal in signals.forever() {
                if own.ended.load(Ordering::Acquire) {
                    own.stop.store(true, Ordering::Release);
                    return;
                }
                pass_on(signal, child);
                if [SIGINT, SIGQUIT, SIGTERM, SIGHUP].contains(&signal) {
                    hurry();
                }
            }
        };
        let thread = thread::Builder::new().name("signals".into()).spawn(forward)?;
        Ok(Forwarding { phase, handle, thread })
    }

    /// The program has ended: waits until all that it has started has ended, too, or a signal comes. It may be writing, and the
    /// connection ends with the last one. From then on a signal raises `enough`: what is still to be stored is given up. Where no
    /// program is left, it does so before, too.
    ///
    /// # Errors
    /// When the system refuses to install a handler.
    pub(super) fn end(
        self,
        ends_within: impl Fn(Duration) -> bool,
        is_left: impl Fn() -> bool,
        enough: &Cancel,
    ) -> io::Result<()> {
        self.phase.ended.store(true, Ordering::Release);
        let (mut silent, mut programs) = (SOON, true);
        while !ends_within(silent.unwrap_or(POLL)) && !self.phase.stop.load(Ordering::Acquire) {
            if silent.take().is_some() {
                programs = is_left();
                let _ = writeln!(io::stderr(), "outrigger run: {}", waits_for(programs));
            }
        }
        self.handle.close();
        // The thread has nothing to say.
        let _ = self.thread.join();
        if !programs && self.phase.stop.load(Ordering::Acquire) {
            enough.raise();
        }
        interrupt::install(enough, GIVES_UP).map(drop)
    }
}

fn waits_for(programs: bool) -> &'static str {
    match programs {
        true => {
            "programs that it has started still run, and have the trees until they end; Ctrl-C takes these away"
        }
        false => "trees do not take what was written, which is waited for; Ctrl-C gives up",
    }
}

/// Passes a signal on to the program. It gets those of the terminal by itself.
fn pass_on(signal: i32, child: u32) {
    if [SIGINT, SIGQUIT].contains(&signal) && is_in_foreground() {
        return;
    }
    let child = i32::try_from(child).ok().and_then(Pid::from_raw);
    if let (Some(child), Some(signal)) = (child, Signal::from_named_raw(signal)) {
        // It may have ended.
        let _ = kill_process(child, signal);
    }
}
