// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel says about processes in /proc (proc(5)).

use std::fmt::Display;
use std::fs;
use std::io;

/// The value in the line of /proc/PID/status that begins with `name`; empty where there is no such line.
///
/// # Errors
/// `ENOENT` or `ESRCH` when there is no such process.
pub(crate) fn status(pid: impl Display, name: &str) -> io::Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    Ok(value.unwrap_or_default().trim().to_owned())
}

/// The value of `kernel.yama.ptrace_scope`, if it forbids processes of a user to trace each other.
pub(crate) fn ptrace_restriction() -> Option<String> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    Some(scope.trim().to_owned()).filter(|scope| !["", "0"].contains(&&**scope))
}
