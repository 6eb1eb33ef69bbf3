// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals of a keeper.

use std::ptr;
use std::time::Duration;

/// The signal of a worker to its keeper: the mount is there, the worker has taken it over, or another program is to go on.
pub(crate) const READY_SIGNAL: i32 = libc::SIGUSR1;
/// The signals that a keeper waits for.
pub(crate) const AWAITED: &[i32] = &[READY_SIGNAL, libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
/// All of them but SIGHUP.
pub(crate) const ENDING: &[i32] = &[READY_SIGNAL, libc::SIGCHLD, libc::SIGTERM, libc::SIGINT];
/// Those that are not passed on.
pub(crate) const OWN: &[i32] = &[READY_SIGNAL, libc::SIGCHLD];

/// A set of signals.
fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid place for sigemptyset to fill; signal numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Blocks the signals of a keeper in this thread, and gives what was blocked before.
pub(crate) fn block_signals() -> libc::sigset_t {
    let mut former = set_of(AWAITED);
    let set = former;
    // SAFETY: both sets are initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut former) };
    former
}

/// Blocks what [`block_signals`] has given.
pub(crate) fn restore_signals(former: &libc::sigset_t) {
    // SAFETY: the set is initialised, the old mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, former, ptr::null_mut()) };
}

/// What a worker begins with.
pub(crate) fn unblock_signals() {
    let set = set_of(AWAITED);
    // SAFETY: as above.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
}

/// Has a blocked signal wait once more.
pub(crate) fn stay_pending(signal: i32) {
    // SAFETY: takes no pointers.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Waits for one of these signals, at most this long.
pub(crate) fn next_signal(signals: &[i32], timeout: Duration) -> Option<i32> {
    let set = set_of(signals);
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: both are initialised; no information about the signal is asked for.
    let signal = unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const timeout) };
    (signal > 0).then_some(signal)
}

/// Has a signal call `handler`.
pub(crate) fn on_signal(signal: i32, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: a zeroed action is valid; the handler only stores to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}
