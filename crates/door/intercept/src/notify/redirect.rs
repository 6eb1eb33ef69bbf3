// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has a program do what the server cannot do for it, on a file of the mirror: execute it, and change to it.
//!
//! The call that waits is answered, and the program stopped before it sees the answer. It gets a page with other arguments, and begins
//! the call again with these. A register with an address stays changed where execve(2) fails; the system call was one of a function whose
//! caller does not expect its arguments back.

use super::listener::{Call, Listener};
use super::memory::Memory;
use crate::tracee::{go_on, mask, set_mask};
use libc::{c_int, user_regs_struct};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use std::sync::Arc;
use std::thread;

/// Where programs have the page: far from everything that Linux maps by itself.
const SCRATCH: u64 = 0x2ea0_0000_0000;
/// Threads that share memory use different pieces of it at the same time.
const SLOTS: u64 = 64;
/// The size of a piece: a path and the arguments of an interpreter.
pub(crate) const SLOT: u64 = 16 << 10;
/// What stands at its beginning, so that no memory of the program is taken for it.
const MARK: &[u8; 8] = b"outrigr1";
/// The length of the instruction `syscall`.
const SYSCALL: u64 = 2;
/// All signals.
const ALL: u64 = u64::MAX;
/// A stop for a system call (`PTRACE_O_TRACESYSGOOD`).
const AT_CALL: c_int = libc::SIGTRAP | 0x80;

/// Where the new arguments of a thread stand in its memory.
pub(crate) fn slot(thread: i32) -> u64 {
    SCRATCH + SLOT * (1 + u64::from(thread.unsigned_abs()) % SLOTS)
}

/// Begins the call again with `bytes` in the thread's memory ([`slot`]), and arguments that are places in them.
///
/// # Errors
/// Why the program cannot be stopped; then the call still waits, unless the program is gone.
pub(crate) fn redirect(
    listener: &Arc<Listener>,
    call: Call,
    bytes: Vec<u8>,
    arguments: Vec<(usize, u64)>,
) -> Result<(), Errno> {
    let listener = Arc::clone(listener);
    // What a thread traces is released when it ends, whatever has happened.
    let work = move || {
        let pid = Pid::from_raw(call.pid.cast_signed());
        ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD)?;
        ptrace::interrupt(pid)?;
        listener.answer(&call, Err(libc::EIO));
        let again = again(pid, &call, &bytes, &arguments);
        go_on(libc::PTRACE_DETACH, pid, 0).and(again.or_else(|errno| {
            // The program has its answer.
            if errno == Errno::ESRCH { Ok(()) } else { Err(errno) }
        }))
    };
    let thread = thread::Builder::new().name("redirect".into()).spawn(work).map_err(|_| Errno::EAGAIN)?;
    thread.join().unwrap_or(Err(Errno::EIO))
}

/// Changes the registers of a process that stops where its call has ended.
fn again(pid: Pid, call: &Call, bytes: &[u8], arguments: &[(usize, u64)]) -> Result<(), Errno> {
    wait(pid, |status| status >> 8 == libc::PTRACE_EVENT_STOP)?;
    let before = ptrace::getregs(pid)?;
    let signals = mask(pid)?;
    // Their handlers are not to run in between.
    set_mask(pid, ALL)?;
    let mapped = map(pid, before);
    set_mask(pid, signals)?;
    let written = mapped.and_then(|()| {
        let written = Memory(pid.as_raw()).write(slot(pid.as_raw()), bytes);
        written.map_err(|error| Errno::from_raw(error.errno.0))
    });
    let mut registers = before;
    if written.is_ok() {
        registers.rip = before.rip - SYSCALL;
        registers.rax = call.data.nr as u64;
        for &(index, value) in arguments {
            let register = match index {
                0 => &mut registers.rdi,
                1 => &mut registers.rsi,
                2 => &mut registers.rdx,
                _ => &mut registers.r10,
            };
            *register = value;
        }
    }
    // No call is begun again by the kernel.
    registers.orig_rax = u64::MAX;
    ptrace::setregs(pid, registers)?;
    written
}

/// Maps the memory for arguments, unless it is there.
fn map(pid: Pid, before: user_regs_struct) -> Result<(), Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let registers = user_regs_struct {
        rax: libc::SYS_mmap as u64,
        orig_rax: u64::MAX,
        rip: before.rip - SYSCALL,
        rdi: SCRATCH,
        rsi: SLOT * (1 + SLOTS),
        rdx: access as u64,
        r10: kind as u64,
        r8: u64::MAX,
        r9: 0,
        ..before
    };
    ptrace::setregs(pid, registers)?;
    for _ in 0..2 {
        go_on(libc::PTRACE_SYSCALL, pid, 0)?;
        wait(pid, |status| status == AT_CALL)?;
    }
    let memory = Memory(pid.as_raw());
    let result = ptrace::getregs(pid)?.rax.cast_signed();
    let is_ours = match -result {
        0.. if result == -i64::from(libc::EEXIST) => memory.read(SCRATCH).is_ok_and(|mark| &mark == MARK),
        1..=4095 => return Err(Errno::from_raw(-result as i32)),
        _ => result.cast_unsigned() == SCRATCH && memory.write(SCRATCH, MARK).is_ok(),
    };
    if is_ours { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Waits until a traced thread stops like that. A child of this process that ends is left for who waits for it.
fn wait(pid: Pid, is_it: impl Fn(c_int) -> bool) -> Result<(), Errno> {
    loop {
        // SAFETY: a structure of numbers.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let what = libc::WSTOPPED | libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: the kernel writes to a variable that outlives the call.
        let result = unsafe { libc::waitid(libc::P_PID, pid.as_raw().unsigned_abs(), &raw mut found, what) };
        match Errno::result(result) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return Err(Errno::ESRCH),
            Err(errno) => return Err(errno),
        }
        // SAFETY: waitid(2) has filled in the fields for a child.
        if is_it(unsafe { found.si_status() }) {
            return Ok(());
        }
        go_on(libc::PTRACE_SYSCALL, pid, 0)?;
    }
}
