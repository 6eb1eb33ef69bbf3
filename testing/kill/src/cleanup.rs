// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removes mounts and files, however the program ends.

use anyhow::Result;
use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;

/// The mountpoints below a directory.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mountpoints = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    mountpoints.filter(|mountpoint| mountpoint.starts_with(dir)).collect()
}

/// Ends the FUSE connections of every mount below a directory: what waits for an answer gets an error.
pub fn abort(dir: &Path) {
    for mountpoint in mounts_below(dir) {
        // A busy mount stays, but its connection ends.
        let _ = unmount(&mountpoint, UnmountFlags::FORCE);
    }
}

/// Takes away every mount below a directory, whatever state it is in.
pub fn release(dir: &Path) {
    abort(dir);
    for mountpoint in mounts_below(dir) {
        let _ = unmount(&mountpoint, UnmountFlags::DETACH);
    }
}

/// On a signal that ends, everything below `dir` is taken away first.
pub fn on_signals(dir: PathBuf) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            release(&dir);
            let _ = fs::remove_dir_all(&dir);
            process::exit(128 + signal);
        }
    });
    Ok(())
}
