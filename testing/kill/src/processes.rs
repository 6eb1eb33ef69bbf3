// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other processes, as /proc shows them.

use anyhow::{Context, Result};
pub use outrigger_remote::processes::{children, descendants};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

/// How often a process is stopped to see whether it waits.
const MOST_STOPS: u32 = 10_000;

/// The processes that were given this argument.
pub fn with_argument(argument: &str) -> Vec<Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let given = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|word| word == argument.as_bytes())
    };
    numbers.filter(given).collect()
}

/// The name and the state of a process; `Z` has ended and was not waited for.
pub fn name_and_state(pid: Pid) -> Option<(String, char)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (head, tail) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    Some((name.to_owned(), tail.chars().next()?))
}

/// Resident kilobytes of a process.
///
/// # Errors
/// When there is no such process.
pub fn resident(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

/// Waits so long for the end of processes. Whether all have ended.
pub fn wait(pids: &[Pid], within: Duration) -> bool {
    let open = |pid: &Pid| pidfd_open(*pid, PidfdFlags::empty()).ok();
    pids.iter().filter_map(open).all(|process| ends(&process, within))
}

fn ends(process: &OwnedFd, within: Duration) -> bool {
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Ends a process by a signal while it waits for a request, and waits for its end. False when it never did,
/// or had ended.
pub fn end_between_requests(pid: Pid, signal: Signal) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    for _ in 0..MOST_STOPS {
        let waits = stop(pid) && waits(pid);
        // It is out of read(2) while it is stopped, so the first thing it does when continued is to die.
        let sent = waits && pidfd_send_signal(&process, signal).is_ok();
        if kill_process(pid, Signal::CONT).is_err() && !sent {
            return false;
        }
        if sent {
            return see_end(pid, &process);
        }
        thread::yield_now();
    }
    false
}

/// Stops a process. False when it has ended.
fn stop(pid: Pid) -> bool {
    if kill_process(pid, Signal::STOP).is_err() {
        return false;
    }
    loop {
        match name_and_state(pid) {
            Some((_, 'T')) => return true,
            None | Some((_, 'Z' | 'X')) => return false,
            _ => thread::yield_now(),
        }
    }
}

/// Whether a stopped process waits for requests: a thread is in read(2), as requests are read, while stores are read and written at
/// offsets; and no other thread does anything.
fn waits(pid: Pid) -> bool {
    const IDLE: [i64; 5] =
        [libc::SYS_read, libc::SYS_futex, libc::SYS_nanosleep, libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    let calls: Vec<Option<i64>> = tasks
        .map(|task| fs::read_to_string(task.path().join("syscall")).ok()?.split(' ').next()?.parse().ok())
        .collect();
    calls.contains(&Some(libc::SYS_read))
        && calls.iter().all(|call| call.is_some_and(|number| IDLE.contains(&number)))
}

/// Sends a signal that ends, and waits until it has. False when the process had ended before.
pub fn end(pid: Pid, signal: Signal) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    if ends(&process, Duration::ZERO) || pidfd_send_signal(&process, signal).is_err() {
        return false;
    }
    see_end(pid, &process)
}

/// Waits for the end of a process that was sent a signal.
fn see_end(pid: Pid, process: &OwnedFd) -> bool {
    // A program may handle all signals but one.
    if !ends(process, Duration::from_secs(1)) {
        let _ = kill_process(pid, Signal::KILL);
        ends(process, Duration::from_secs(10));
    }
    true
}
