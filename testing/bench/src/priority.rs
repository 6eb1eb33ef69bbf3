// SPDX-License-Identifier: MIT OR Apache-2.0
//! A raised priority for this program and all it starts, so that what else the machine does decides less.

use rustix::process::setpriority_process;
use std::fs;
use std::path::{Path, PathBuf};

const RAISED: i32 = -15;
/// The priority of the session as a whole, where the kernel groups processes by session: see sched(7). Without it the
/// nice value counts among the processes of one session only.
const SESSION: &str = "autogroup";

/// Raises it; the servers inherit this. Says so when it cannot.
pub fn raise() {
    if let Err(error) = setpriority_process(None, RAISED) {
        eprintln!("outrigger-bench: cannot raise the priority: {error}");
    }
    set_session(Path::new("/proc/self"), RAISED);
}

/// Raises the sessions that the process `server` and what it has started have made for themselves.
pub fn raise_sessions(server: u32) {
    let process = PathBuf::from(format!("/proc/{server}"));
    set_session(&process, RAISED);
    for task in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).for_each(raise_sessions);
    }
}

/// Gives the session its usual priority back: it outlives this program.
pub fn restore() {
    set_session(Path::new("/proc/self"), 0);
}

fn set_session(process: &Path, nice: i32) {
    // A kernel that does not group sessions has no such file, and needs none.
    let _ = fs::write(process.join(SESSION), nice.to_string());
}
