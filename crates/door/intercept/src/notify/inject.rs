// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts a process that runs, with all its threads, under the filter: it is stopped and made to ask the kernel for that.

use super::filter::{Told, filter};
use super::listener::{Listener, explained};
use super::source::Source;
use crate::attach::check_alike;
use crate::failed;
use crate::namespace::differing;
use crate::tracee::Tracee;
use nix::errno::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::ThreadNameSpaceType;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// The filter is that of all threads, or of none.
const ALL_THREADS: u64 = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
    | libc::SECCOMP_FILTER_FLAG_TSYNC
    | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
/// The size of `struct sock_fprog`.
const PROGRAM: u64 = 16;

/// A process that was put under the filter.
pub(crate) struct Injected {
    /// Where its calls come from.
    pub(crate) listener: OwnedFd,
    /// The number of the last call that has its answer.
    pub(crate) newest: u64,
}

/// Puts the process under the filter.
///
/// # Errors
/// A sentence about why not; then it is as it was, but that it may not become another user any more.
pub(crate) fn inject(pid: u32) -> Result<Injected, String> {
    let what = format!("process {pid}");
    check_alike(pid)?;
    if differing(pid)?.contains(ThreadNameSpaceType::MOUNT) {
        return Err(format!("{what} has a file system of its own (a container): attach to it from in there"));
    }
    let mut process = Tracee::stop(pid)?;
    // What was so before may have changed until it was stopped.
    check_alike(pid)?;
    // What it opens has to be had before there is no way back.
    let dot = open_dot(&mut process).and_then(|dot| {
        let taken = take(pid, dot);
        process.call(libc::SYS_close, [dot, 0, 0, 0, 0, 0])?;
        taken.map(drop)
    });
    dot.map_err(failed(format_args!("{what}: a file that it has open cannot be taken from it (pidfd_getfd(2); attach as its user, or as the superuser)")))?;
    let listener = install(&mut process).map_err(|errno| match errno {
        Errno::ESRCH => format!("{what}: one of its threads has a filter of its own"),
        Errno::EBUSY | Errno::EINVAL => explained(io::Error::from(errno)),
        errno => failed(format_args!("{what} cannot be put under a filter of system calls"))(errno),
    })?;
    let taken = take(pid, listener);
    let closed = process.call(libc::SYS_close, [listener, 0, 0, 0, 0, 0]);
    let listener = closed.and(taken).map_err(failed(&what))?;
    let newest = probe(&mut process, pid, &listener).map_err(failed(&what))?;
    Ok(Injected { listener, newest })
}

/// Has the process make a call that comes here, which tells from which number on the kernel counts calls: it begins anywhere.
fn probe(process: &mut Tracee, pid: u32, listener: &OwnedFd) -> io::Result<u64> {
    let listener = Listener::new(listener.try_clone()?);
    let (sender, newest) = channel();
    // Only this thread may have the process do something, and it waits for the end of the call meanwhile.
    thread::Builder::new().name("probe".into()).spawn(move || pass_until_probed(&listener, pid, &sender))?;
    match process.call(libc::SYS_access, [0; 6]) {
        Ok(_) | Err(Errno::EFAULT) => newest.recv().map_err(io::Error::other),
        Err(errno) => Err(errno.into()),
    }
}

/// Has the kernel do calls, also those of other threads, up to the one without a path, and sends its number.
fn pass_until_probed(listener: &Listener, pid: u32, sender: &Sender<u64>) {
    while let Ok(received) = listener.receive() {
        let Some(call) = received else { continue };
        listener.pass(&call);
        if (call.pid, call.data.args[0]) == (pid, 0) {
            // One that does not wait for it any more has failed.
            let _ = sender.send(call.id);
            return;
        }
    }
}

/// Has the process open its working directory.
fn open_dot(process: &mut Tracee) -> Result<u64, Errno> {
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    process.call_with(libc::SYS_openat, b".\0", |path| [libc::AT_FDCWD as u64, path, flags, 0, 0, 0])
}

/// What a process has open under a number.
fn take(pid: u32, number: u64) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::ESRCH)?;
    let taken = pidfd_open(pid, PidfdFlags::empty())
        .and_then(|process| pidfd_getfd(process, number as i32, PidfdGetfdFlags::empty()));
    taken.map_err(|error| Errno::from_raw(error.raw_os_error()))
}

/// Has the process install the filter. One that has the privilege for that may become another user also afterwards.
fn install(process: &mut Tracee) -> Result<u64, Errno> {
    let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mut installed = install_with(process, ALL_THREADS | killable);
    if installed == Err(Errno::EACCES) {
        process.call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0])?;
        installed = install_with(process, ALL_THREADS | killable);
    }
    // The flag is not known to kernels before 5.19.
    if installed == Err(Errno::EINVAL) { install_with(process, ALL_THREADS) } else { installed }
}

fn install_with(process: &mut Tracee, flags: u64) -> Result<u64, Errno> {
    let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
    process.call_with_pointers(libc::SYS_seccomp, program, |program| [mode, flags, program, 0, 0, 0])
}

/// The filter as the kernel reads it from this address on.
fn program(address: u64) -> Vec<u8> {
    let instructions = filter(Told::Listener, None);
    let mut bytes = (instructions.len() as u64).to_ne_bytes().to_vec();
    bytes.extend((address + PROGRAM).to_ne_bytes());
    for instruction in instructions {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}
