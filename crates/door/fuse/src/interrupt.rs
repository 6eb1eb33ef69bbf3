// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which interrupted requests are really given up.
//!
//! The kernel reports any signal to a program that waits for a request, and only the first one. But programs do not
//! expect `EINTR` from operations on files, while timers, child processes and the preemption of language runtimes
//! send signals all the time. So a request is given up when the program is dying (killed, or by Ctrl-C), and when it
//! waits for a lock, which fcntl(2) lets signals interrupt.
use outrigger_proto_fuse::Opcode;
use std::fs;

/// Bit of SIGKILL in a signal mask. The kernel adds it to every thread of a process that a fatal signal ends.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// Whether a signal of any kind ends this request.
pub(crate) fn is_interruptible(opcode: u32) -> bool {
    opcode == Opcode::Setlkw as u32
}

/// Whether the thread is about to end or gone. A thread we cannot see, with number zero, counts as alive.
pub(crate) fn is_dying(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    match fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => has_kill(&status),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Looks for SIGKILL among the pending signals of the thread and of its process (proc_pid_status(5)).
fn has_kill(status: &str) -> bool {
    ["SigPnd:", "ShdPnd:"].iter().any(|field| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & KILL != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_kills_are_seen() {
        let status = |own: &str, shared: &str| format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        for (own, shared, expected) in [
            ("0000000000000000", "0000000000000000", false),
            ("0000000000000100", "0000000000000000", true),
            ("0000000000000000", "0000000000000100", true),
            ("0000000000002002", "fffffffffffffeff", false),
            ("", "x", false),
        ] {
            assert_eq!(has_kill(&status(own, shared)), expected, "{own} {shared}");
        }
        assert!(!is_dying(std::process::id()) && !is_dying(0));
        assert!(is_dying(u32::MAX), "a thread that cannot exist is gone");
    }
}
