// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's side of a filter: calls that wait for an answer (seccomp_unotify(2)).

use super::filter::{Told, filter, filter_apart, filter_traced};
use super::gate;
use super::redirect::redirect;
use super::source::{Call, Refused, Source};
use crate::failed;
use crate::launch::Filter;
use libc::{seccomp_notif_addfd, seccomp_notif_resp, sock_filter, sock_fprog};
use nix::errno::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{c_int, c_ulong};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: the server runs where the program was, which spares both a wait for another processor.
const SYNC_WAKE_UP: u64 = 1;

/// Where the kernel passes calls on.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

/// Puts this process, and all that it will start, under the filter. Programs that would become another user do not any more.
///
/// # Errors
/// A sentence about what the kernel does not permit.
pub(crate) fn install(kind: Filter) -> Result<OwnedFd, String> {
    give_up_privileges()?;
    // With the second flag a signal does not interrupt a call that is being answered: else programs with many signals never get on.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let mut instructions = match kind {
        Filter::Plain => filter(Told::Listener, None),
        Filter::Gate => filter(Told::Listener, Some(gate::allowed())),
        Filter::Apart => filter_apart(Told::Listener),
    };
    let installed =
        set(&mut instructions, flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV).or_else(|error| {
            match error.raw_os_error() {
                Some(libc::EINVAL) => set(&mut instructions, flags),
                _ => Err(error),
            }
        });
    let number = installed.map_err(explained)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The same where calls stop for the process that traces this one.
///
/// # Errors
/// A sentence about what the kernel does not permit.
pub(crate) fn install_for_tracer(kind: Filter) -> Result<(), String> {
    give_up_privileges()?;
    set(&mut filter_traced(kind), 0).map(drop).map_err(explained)
}

/// Programs that would become another user do not, from here on.
///
/// # Errors
/// A sentence about what the kernel does not permit.
pub(crate) fn give_up_privileges() -> Result<(), String> {
    // SAFETY: the request takes numbers.
    let denied = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if denied == 0 { Ok(()) } else { Err(failed("no_new_privs")(io::Error::last_os_error())) }
}

/// Why the kernel refuses the filter.
pub(crate) fn explained(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => "the calls of this program are answered by another one already (it was started by `outrigger run --via seccomp`, or in a container of that kind), and Linux permits one".to_owned(),
        Some(libc::EINVAL) => "the kernel has no notifications of system calls (seccomp; Linux 5.5)".to_owned(),
        _ => failed("a filter of system calls (seccomp)")(error),
    }
}

/// Installs the filter, and answers what the kernel does: the number of a descriptor where that is asked for.
fn set(instructions: &mut [sock_filter], flags: c_ulong) -> io::Result<c_int> {
    let program = sock_fprog { len: instructions.len() as u16, filter: instructions.as_mut_ptr() };
    // SAFETY: the program and its instructions outlive the call, which only reads them.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    let number = c_int::try_from(result).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

impl Listener {
    /// What the process under the filter has sent.
    pub(crate) fn new(file: OwnedFd) -> Self {
        let listener = Listener(file);
        // SAFETY: the request takes a number. Older kernels refuse it, and are slower.
        unsafe { libc::ioctl(listener.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
        listener
    }

    /// Answers a call of which only the number is known with an error.
    ///
    /// # Errors
    /// `ENOENT` when there is no such call, `EINPROGRESS` when the server has not received it yet.
    pub(crate) fn refuse(&self, id: u64, errno: c_int) -> io::Result<()> {
        let mut answer = seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer).map(drop)
    }

    /// Opens a file for the process, whose call goes on waiting, and answers the number.
    pub(crate) fn lend(&self, call: &Call, file: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<c_int> {
        self.add(call, file, close_on_exec, None)
    }

    /// The same, under this number if one is given.
    fn add(
        &self,
        call: &Call,
        file: BorrowedFd<'_>,
        close_on_exec: bool,
        number: Option<i32>,
    ) -> io::Result<c_int> {
        let addition = seccomp_notif_addfd {
            id: call.id,
            flags: if number.is_some() { libc::SECCOMP_ADDFD_FLAG_SETFD as u32 } else { 0 },
            srcfd: file.as_raw_fd() as u32,
            newfd: number.unwrap_or(0).cast_unsigned(),
            newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, (&raw const addition).cast_mut())
    }

    /// Sends an answer. Where that fails the process was killed.
    fn send(&self, mut answer: seccomp_notif_resp) {
        let _ = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
    }

    fn ioctl<T>(&self, request: c_ulong, structure: *mut T) -> io::Result<c_int> {
        debug_assert!(!ptr::eq(structure, ptr::null()));
        // SAFETY: each caller passes the request's own structure, which outlives the call.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, structure) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }
}

impl Source for Listener {
    fn receive(&self) -> io::Result<Option<Call>> {
        // SAFETY: a structure of numbers; the kernel wants it to be zero.
        let mut call: Call = unsafe { mem::zeroed() };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) {
            Ok(_) => Ok(Some(call)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn waits(&self, call: &Call) -> bool {
        let id = call.id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, (&raw const id).cast_mut()).is_ok()
    }

    fn pass(&self, call: &Call) {
        self.send(seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        });
    }

    fn answer(&self, call: &Call, result: Result<i64, i32>) {
        let (val, error) = result.map_or_else(|errno| (0, -errno), |value| (value, 0));
        self.send(seccomp_notif_resp { id: call.id, val, error, flags: 0 });
    }

    fn give(&self, call: &Call, file: OwnedFd, close_on_exec: bool) {
        let given = self.lend(call, file.as_fd(), close_on_exec);
        drop(file);
        // It may have no room for one (EMFILE), or be gone.
        self.answer(call, given.map(i64::from).map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE)));
    }

    fn replace(&self, call: &Call, number: i32, file: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<()> {
        self.add(call, file, close_on_exec, Some(number)).map(drop)
    }

    fn can_give(&self, _: &Call, _: &Path, _: bool) -> Result<(), Refused> {
        Ok(())
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        let mut file = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut file, Some(&limit)).is_ok_and(|count| count > 0)
    }

    fn redirect(
        self: Arc<Self>,
        call: &Call,
        bytes: Vec<u8>,
        arguments: Vec<(usize, u64)>,
    ) -> Result<(), Errno> {
        redirect(&self, *call, bytes, arguments)
    }

    fn comes_again(&self) -> bool {
        true
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
