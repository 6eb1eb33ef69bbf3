// SPDX-License-Identifier: MIT OR Apache-2.0
//! Going on as another program: what is executed, and what that finds.

use crate::manager;
use crate::signals::{block_signals, restore_signals};
use crate::state::State;
use outrigger_core::{Errno, Error, Result};
use std::env::ArgsOs;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;

/// Names, in the environment of a keeper that takes over, the descriptor of the state.
const STATE: &str = "OUTRIGGER_KEEPER_STATE";

/// Whether this process takes over from a keeper that ran another program.
pub fn takes_over() -> bool {
    std::env::var_os(STATE).is_some()
}

/// The state a keeper before us left in the environment or in the service manager's store.
pub(crate) fn inherited() -> Result<Option<State>> {
    let named = std::env::var_os(STATE);
    let number = match &named {
        Some(text) => Some(text.to_str().and_then(|text| text.parse().ok()).filter(|&number| number > 2)),
        None => manager::restore().map(Some),
    };
    let unfit = |why: &str| {
        let text = named.as_deref().unwrap_or_default().display();
        Errno::EINVAL
            .because(format!("{STATE}={text} in the environment, which only `outrigger upgrade` sets: {why}"))
    };
    let Some(number) = number else { return Ok(None) };
    let number: RawFd = number.ok_or_else(|| unfit("not the number of a descriptor"))?;
    // SAFETY: takes no pointers; a number that is not open is an error without effect.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(unfit("no such descriptor is open"));
    }
    // SAFETY: the keeper before us, which was this process, left this descriptor to us under this number.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    State::open(fd).map(Some)
}

/// Executes `program` in this process with our command line, to go on as the keeper of what `state` describes; relative paths on
/// the command line begin at `directory`. Other threads end at that instant. Returns only when that is impossible.
pub(crate) fn become_keeper(state: &State, program: &Path, directory: &Path) -> Error {
    let fails = |what: &str, path: &Path, error: io::Error| {
        let Error { errno, .. } = Error::from(error);
        errno.because(format!("cannot {what} {}: {}", path.display(), Error::from(errno)))
    };
    if let Err(error) = std::env::set_current_dir(directory) {
        return fails("return to", directory, error);
    }
    for number in state.held() {
        stays_open(number, true);
    }
    // A signal that comes now is for the new program, which waits for it.
    let former = block_signals();
    outrigger_host::give_umask_back();
    let error = execute(program, std::env::args_os(), state.fd());
    outrigger_host::take_umask();
    restore_signals(&former);
    for number in state.held() {
        stays_open(number, false);
    }
    fails("execute", program, error)
}

/// execve(2) with the descriptor of the state named in the environment. Blocked signals stay blocked, which
/// [`std::process::Command`] would let through: a keeper waits for them.
fn execute(program: &Path, arguments: ArgsOs, state: BorrowedFd<'_>) -> io::Error {
    let variables = std::env::vars_os().filter(|(name, _)| name != STATE);
    let ours = (OsString::from(STATE), state.as_raw_fd().to_string().into());
    let variables =
        variables.chain([ours]).map(|(name, value)| [name, "=".into(), value].into_iter().collect());
    let c_strings = |list: &mut dyn Iterator<Item = OsString>| {
        list.filter_map(|one| CString::new(one.into_vec()).ok()).collect::<Vec<CString>>()
    };
    let pointers = |list: &[CString]| {
        list.iter().map(|one| one.as_ptr()).chain([ptr::null()]).collect::<Vec<*const libc::c_char>>()
    };
    let Ok(program) = CString::new(program.as_os_str().as_bytes()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let (arguments, variables) =
        (c_strings(&mut arguments.into_iter()), c_strings(&mut variables.into_iter()));
    // SAFETY: the lists are of NUL-terminated strings and end with a null pointer; all live until the call returns.
    unsafe { libc::execve(program.as_ptr(), pointers(&arguments).as_ptr(), pointers(&variables).as_ptr()) };
    io::Error::last_os_error()
}

/// Whether a descriptor survives execve(2).
fn stays_open(number: RawFd, stays: bool) {
    let flags = if stays { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: takes no pointers; a number that is not open is an error without effect.
    unsafe { libc::fcntl(number, libc::F_SETFD, flags) };
}
