// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which interrupted requests are really given up.
//!
//! The kernel reports any signal to a program that waits for a request, and only the first one. But programs do not
//! expect `EINTR` from operations on files, while timers, child processes and the preemption of language runtimes
//! send signals all the time. So a request is given up when the program is dying (killed, or by Ctrl-C), when it
//! waits for a lock, which fcntl(2) lets signals interrupt, and when its driver says that it waits for a peer
//! ([`Cancel::heed_signals`](outrigger_core::Cancel::heed_signals)), as read(2) does that for a pipe or a socket.
use outrigger_proto_fuse::Opcode;
use std::fs;

/// Bit of SIGKILL in a signal mask. The kernel adds it to every thread of a process that a fatal signal ends.
const KILL: u64 = 1 << (libc::SIGKILL - 1);
/// Among the flags in /proc/PID/stat: the thread is on its way out (PF_EXITING of the kernel).
const EXITING: u64 = 4;
/// The signal in an exit code, as in wait(2).
const SIGNAL: u64 = 0x7f;

/// Whether a signal of any kind ends a request of this kind, whatever the driver does.
pub(crate) fn is_interruptible(opcode: u32) -> bool {
    opcode == Opcode::Setlkw as u32
}

/// Whether a request may be the last thing its thread does. The kernel closes the files of a dying program and waits
/// for the answers, but interrupts nothing any more.
pub(crate) fn may_outlive_its_thread(opcode: u32) -> bool {
    opcode == Opcode::Flush as u32
}

/// Whether the thread is ended by a signal, or gone. A thread we cannot see, with number zero, counts as alive.
pub(crate) fn is_dying(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    let about = |file: &str| fs::read_to_string(format!("/proc/{thread}/{file}"));
    match about("status") {
        // The other file cannot be read while a program begins in the thread, which closes files first, and may wait for us.
        Ok(status) => {
            let ends = || !has_memory(&status) && about("stat").is_ok_and(|stat| was_killed(&stat));
            has_kill(&status) || ends()
        }
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether the thread is exiting, by a signal or by itself, in a process of this group.
pub(crate) fn is_exiting_in(thread: u32, group: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| !has_memory(&status)) && group_of(thread) == Some(group)
}

/// The group of a process or a thread (setpgid(2)); 0 is one of another namespace.
pub(crate) fn group_of(process: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?, 5)
}

/// Whether the thread has memory: one that is exiting gives that back before it closes its files (proc_pid_status(5)).
fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
}

/// Looks for SIGKILL among the pending signals of the thread and of its process (proc_pid_status(5)).
fn has_kill(status: &str) -> bool {
    ["SigPnd:", "ShdPnd:"].iter().any(|field| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & KILL != 0)
    })
}

/// Whether the thread is exiting because of a signal, from flags and exit code (proc_pid_stat(5)). One that ends by
/// itself waits for its files like any other.
fn was_killed(stat: &str) -> bool {
    field(stat, 9).is_some_and(|flags| flags & EXITING != 0)
        && field(stat, 52).is_some_and(|code| code & SIGNAL != 0)
}

/// A number of /proc/PID/stat, of which the state is the third field (proc_pid_stat(5)).
fn field(stat: &str, number: usize) -> Option<u64> {
    // The name in parentheses may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_ended_by_a_signal_is_told_from_one_that_ends_by_itself() {
        let stat = |name: &str, flags: u64, code: u64| {
            let between = "0 ".repeat(42);
            format!("7 ({name}) D 1 2 3 4 5 {flags} {between}{code}\n")
        };
        assert!(was_killed(&stat("cat", 0x40_0104, 2)));
        assert!(was_killed(&stat("c) D 1 (t", 4, 9)));
        assert!(!was_killed(&stat("cat", 0x40_0100, 9)), "alive");
        assert!(!was_killed(&stat("cat", 4, 0)) && !was_killed(&stat("cat", 4, 0x100)), "exit(0), exit(1)");
        assert!(!was_killed("") && !was_killed("7 (cat) D 1"));
    }

    #[test]
    fn a_thread_that_is_exiting_has_no_memory() {
        let own = fs::read_to_string("/proc/self/status").expect("the status");
        assert!(has_memory(&own) && !has_memory("Name:\tcat\nState:\tD (disk sleep)\nThreads:\t1\n"));
        let group = group_of(std::process::id()).expect("the group");
        assert!(!is_exiting_in(std::process::id(), group), "alive");
    }

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
