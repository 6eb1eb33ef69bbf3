// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing stays, however the program ends.

use anyhow::Result;
use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;

/// What is mounted below a directory: the mountpoint, and the number of the connection when it is FUSE.
pub fn mounts_below(dir: &Path) -> Vec<(PathBuf, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (device, mountpoint) = (fields.next()?, PathBuf::from(fields.nth(1)?));
        let minor = device.split_once(':')?.1.to_owned();
        mountpoint.starts_with(dir).then_some((mountpoint, minor))
    });
    mounts.collect()
}

/// Ends the FUSE connections of every mount below a directory: what waits for an answer gets an error.
pub fn abort(dir: &Path) {
    for (_, minor) in mounts_below(dir) {
        // What is no FUSE mount has no such file.
        let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
    }
}

/// Takes away every mount below a directory, whatever state it is in.
pub fn release(dir: &Path) {
    abort(dir);
    for (mountpoint, _) in mounts_below(dir) {
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
