// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends what hangs, and takes everything away when the run is interrupted.
//!
//! A thread waits for signals and for the deadline of the step at hand. When either comes, it aborts every FUSE
//! connection below the scratch directory, which frees blocked processes, kills the servers, removes the directory
//! and exits.

use crate::priority;
use crate::scratch;
use anyhow::{Context, Result};
use outrigger_core::lock;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

static STEP: Mutex<Option<(Instant, String)>> = Mutex::new(None);
/// Everything is being taken away.
static ENDING: AtomicBool = AtomicBool::new(false);
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(500);

/// Starts watching on behalf of the run that keeps everything below `scratch`.
///
/// # Errors
/// When signals cannot be caught.
pub fn start(scratch: &Path) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals")?;
    let dir = scratch.to_owned();
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end(&dir, 128 + signal);
        }
    });
    let dir: PathBuf = scratch.to_owned();
    thread::spawn(move || {
        loop {
            thread::sleep(TICK);
            let overdue =
                lock(&STEP).as_ref().filter(|(end, _)| *end < Instant::now()).map(|(_, what)| what.clone());
            if let Some(what) = overdue {
                eprintln!("outrigger-bench: {what}: took too long, giving up");
                end(&dir, 1);
            }
        }
    });
    Ok(())
}

fn end(scratch: &Path, status: i32) -> ! {
    ENDING.store(true, Ordering::SeqCst);
    for child in lock(&CHILDREN).drain(..) {
        kill(child, Signal::KILL);
    }
    scratch::sweep(scratch);
    priority::restore();
    std::process::exit(status);
}

/// Does not return while everything is being taken away: errors are a consequence of that then.
pub fn wait_for_the_end() {
    while ENDING.load(Ordering::SeqCst) {
        thread::park();
    }
}

/// Says what the run does now, and how long that may take at most.
pub fn step(what: &str, limit: Duration) {
    *lock(&STEP) = Some((Instant::now() + limit, what.to_owned()));
}

/// Makes the process `child` one that dies with this run.
pub fn adopt(child: u32) {
    lock(&CHILDREN).push(child);
}

/// The process `child` has ended.
pub fn forget(child: u32) {
    lock(&CHILDREN).retain(|known| *known != child);
}

/// Sends `signal` to process `child`, if it still runs.
pub fn kill(child: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
        // One that has ended needs no signal.
        let _ = kill_process(pid, signal);
    }
}
