// SPDX-License-Identifier: MIT OR Apache-2.0
//! A raised priority for this program and all it starts, so that what else the machine does decides less.

use rustix::process::setpriority_process;
use std::fs;

const RAISED: i32 = -15;
/// The priority of the session as a whole, where the kernel groups processes by session: see sched(7). Without it the
/// nice value counts among the processes of one session only.
const SESSION: &str = "/proc/self/autogroup";

/// Raises it; the servers inherit this. Says so when it cannot.
pub fn raise() {
    if let Err(error) = setpriority_process(None, RAISED) {
        eprintln!("outrigger-bench: cannot raise the priority: {error}");
    }
    set_session(RAISED);
}

/// Gives the session its usual priority back: it outlives this program.
pub fn restore() {
    set_session(0);
}

fn set_session(nice: i32) {
    // A kernel that does not group sessions has no such file, and needs none.
    let _ = fs::write(SESSION, nice.to_string());
}
