// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process between us and the program: all that the program starts becomes its descendant, and ends with it.
//!
//! A FUSE program forks: to daemonise, for fusermount, for ssh. A process group does not hold them together, since
//! setsid(2) leaves it. A child subreaper does: a process that loses its parent becomes a child of this process, which so
//! learns of every end, and can kill until none is left. It does that on SIGTERM, and the kernel sends it SIGTERM
//! when the thread that made it ends, however that happens (`PR_SET_PDEATHSIG`).
//!
//! It is a fork of a process that may have had threads, and never executes another program: it makes system calls and
//! nothing else, no allocation, no lock.
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal, WaitOptions};

use super::filter;

/// What both processes need to know; made before the fork.
pub struct Plan {
    /// The filter for the program.
    pub filter: Vec<libc::sock_filter>,
    /// Where the listener is sent first, and the wait status of the program at the end.
    pub control: OwnedFd,
    /// The empty directory to remove at the end.
    pub placeholder: Option<CString>,
    /// Whether the program stays in the session of the terminal.
    pub terminal: bool,
    /// The process that must be our parent.
    pub parent: Option<Pid>,
}

/// Splits the calling process, a fresh child, in two. Returns in the one that is to execute the program, under the
/// filter; the other one is its parent and never returns.
pub fn split(plan: &Plan) -> io::Result<()> {
    let before = block_all_signals();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    if rustix::process::getppid() != plan.parent {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    match fork()? {
        None => become_program(plan, &before),
        Some(program) => watch(plan, program),
    }
}

/// The child that executes the program.
fn become_program(plan: &Plan, signals: &libc::sigset_t) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if !plan.terminal {
        rustix::process::setsid()?;
    }
    // SAFETY: the set was filled by the same call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals, std::ptr::null_mut()) };
    let listener = filter::install(&plan.filter)?;
    let descriptors = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let byte = [io::IoSlice::new(&[0])];
    rustix::net::sendmsg(&plan.control, &byte, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The parent: waits until all descendants have ended, and kills them when asked to.
fn watch(plan: &Plan, program: Pid) -> ! {
    const CONTROL: i32 = 0;
    // The terminal's signals are for the program.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"fuse-init");
    keep_only(&plan.control, CONTROL);
    let status = supervise(program);
    if let Some(placeholder) = &plan.placeholder {
        let _ = rustix::fs::unlinkat(rustix::fs::CWD, placeholder.as_c_str(), AtFlags::REMOVEDIR);
    }
    let status = status.to_ne_bytes();
    // SAFETY: sends four bytes of our own, then ends without running what the parent registered for its exit.
    unsafe {
        libc::send(CONTROL, status.as_ptr().cast(), status.len(), libc::MSG_NOSIGNAL);
        libc::_exit(0)
    }
}

/// Waits for every descendant. The wait status of the first that failed by itself, else that of the program; `SIGKILL`
/// when a daemon was left for us to kill.
fn supervise(program: Pid) -> i32 {
    let (mut main, mut failed, mut killed, mut killing) = (0, None, 0, false);
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let raw = status.as_raw();
                if pid == program {
                    main = raw;
                }
                // One that crashed may be still on its way out when we begin to kill.
                match killing && raw == libc::SIGKILL {
                    true => killed = raw,
                    false if raw != 0 => drop(failed.get_or_insert(raw)),
                    false => {}
                }
            }
            Ok(None) => {
                // A process that has lost a killed parent is our child by now.
                if killing {
                    kill_children();
                }
                killing |= next_signal() == libc::SIGTERM;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return failed.unwrap_or(if main == 0 { killed } else { main }),
        }
    }
}

/// Kills every child there is now.
fn kill_children() {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(list) = rustix::fs::open(c"/proc/thread-self/children", flags, Mode::empty()) else { return };
    let (mut buffer, mut pid) = ([0u8; 512], 0);
    while let Ok(length @ 1..) = rustix::io::read(&list, &mut buffer) {
        for byte in &buffer[..length] {
            if byte.is_ascii_digit() {
                pid = pid * 10 + i32::from(byte - b'0');
            } else if let Some(child) = Pid::from_raw(std::mem::take(&mut pid)) {
                let _ = rustix::process::kill_process(child, Signal::KILL);
            }
        }
    }
}

fn block_all_signals() -> libc::sigset_t {
    // SAFETY: the calls fill both sets and keep no pointer. A child whose end is ignored could not be waited for.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        before
    }
}

/// Waits for SIGTERM or SIGCHLD, which are blocked.
fn next_signal() -> i32 {
    // SAFETY: the set is initialised before use; no information beside the number is asked for.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigwaitinfo(&raw const set, std::ptr::null_mut())
    }
}

/// Moves a descriptor to this number and closes all others: what they refer to must not live on through us.
fn keep_only(descriptor: &OwnedFd, number: i32) {
    // SAFETY: nothing in this process uses any other descriptor from here on, nor closes one.
    unsafe {
        libc::dup2(descriptor.as_raw_fd(), number);
        libc::syscall(libc::SYS_close_range, number + 1, u32::MAX, 0);
    }
}

/// fork(2) as the bare system call: the library's version may take locks that a thread of the first parent held.
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: without flags but the signal of its end the child is a copy; both go on with system calls only.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        0 => Ok(None),
        pid if pid > 0 => Ok(Pid::from_raw(pid as i32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this kernel can list the children of a process (`CONFIG_PROC_CHILDREN`).
pub fn can_list_children() -> bool {
    rustix::fs::access(c"/proc/thread-self/children", rustix::fs::Access::READ_OK).is_ok()
}

/// The path as C wants it.
pub fn c_path(path: &std::path::Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
