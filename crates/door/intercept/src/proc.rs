// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel says about processes in /proc (proc(5)).

use std::fmt::Display;
use std::fs;
use std::io;
use std::str::FromStr;

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

/// A field of /proc/PID/stat by its number (proc_pid_stat(5)), from the third one on: the second one may hold anything.
pub(crate) fn stat_field<T: FromStr>(pid: impl Display, number: usize) -> Option<T> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&text[end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}
