// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controlling terminal (tty(4)).

use std::fs::File;
use std::os::fd::AsRawFd;

/// Gives up the controlling terminal, so that neither this process nor one that it starts can ask at it. Ctrl-C still reaches this
/// process, whose group the terminal keeps. The leader of a session keeps its terminal: without it the session would end.
pub fn ask_no_one() {
    // SAFETY: neither call has an argument that matters or an effect. rustix's getsid takes no answer of 0, which is the kernel's
    // where the leader is outside of this process's PID namespace.
    if unsafe { libc::getsid(0) == libc::getpid() } {
        return;
    }
    if let Ok(terminal) = File::open("/dev/tty") {
        // SAFETY: the request takes no argument, and the descriptor is open.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    }
}
