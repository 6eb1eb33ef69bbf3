// SPDX-License-Identifier: MIT OR Apache-2.0
//! How workers died, in words.

use crate::state::State;

/// How the last worker died, in words.
pub(crate) fn last(state: &State) -> String {
    words(state.words().last_death().get() as i32, state.words().hung().get() != 0)
}

/// How a process ended with this status of waitpid(2), or that it hung.
pub(crate) fn words(status: i32, hung: bool) -> String {
    if hung {
        return "it hung and was replaced".to_owned();
    }
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let name = match signal {
            libc::SIGSEGV => "SIGSEGV",
            libc::SIGABRT => "SIGABRT",
            libc::SIGBUS => "SIGBUS",
            libc::SIGILL => "SIGILL",
            libc::SIGFPE => "SIGFPE",
            libc::SIGKILL => "SIGKILL",
            libc::SIGSYS => "SIGSYS",
            _ => return format!("signal {signal}"),
        };
        return name.to_owned();
    }
    format!("exit status {}", libc::WEXITSTATUS(status))
}
