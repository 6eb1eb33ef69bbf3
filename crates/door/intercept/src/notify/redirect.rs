// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has a program do what the server cannot do for it, on a file of the mirror: execute it, and change to it.
//!
//! The call that waits is answered, and the program stopped before it sees the answer. It gets a page with other arguments, and begins
//! the call again with these. A register with an address stays changed where execve(2) fails; the system call was one of a function whose
//! caller does not expect its arguments back.

use super::listener::Listener;
use super::memory::Memory;
use super::source::{Call, Source};
use crate::proc::stat_field;
use crate::tracee::{ALL, DEADLINE, calling, go_on, mask, result, set_mask};
use libc::{c_int, user_regs_struct};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Where programs have the page: far from everything that Linux maps by itself.
const SCRATCH: u64 = 0x2ea0_0000_0000;
/// Threads that share memory use different pieces of it at the same time.
const SLOTS: u64 = 4096;
/// The size of a piece: a path and the arguments of an interpreter.
pub(crate) const SLOT: u64 = 16 << 10;
/// What stands at its beginning, so that no memory of the program is taken for it.
const MARK: &[u8; 8] = b"outrigr1";
/// The length of the instruction `syscall`.
pub(crate) const SYSCALL: u64 = 2;
/// A stop for a system call (`PTRACE_O_TRACESYSGOOD`).
pub(crate) const AT_CALL: c_int = libc::SIGTRAP | 0x80;

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
    while_stopped(
        listener,
        call,
        |_| Ok(()),
        move |pid, before, ()| {
            map(pid, before)?;
            let written = Memory(pid.as_raw()).write(slot(pid.as_raw()), &bytes);
            written.map_err(|error| Errno::from_raw(error.errno.0))?;
            Ok(changed(again(before, &call), &arguments))
        },
    )
}

/// Registers with other arguments of a call.
pub(crate) fn changed(mut registers: user_regs_struct, arguments: &[(usize, u64)]) -> user_regs_struct {
    for &(index, value) in arguments {
        let register = match index {
            0 => &mut registers.rdi,
            1 => &mut registers.rsi,
            2 => &mut registers.rdx,
            _ => &mut registers.r10,
        };
        *register = value;
    }
    registers
}

/// Stops the thread where its call has ended, and does something with it, which answers the registers it goes on with. It gets what was
/// prepared while the call still waited, in a process that can be stopped.
///
/// # Errors
/// Why the program cannot be stopped; then the call still waits, unless the program is gone. Or the error of `work`, or `ETIMEDOUT` where
/// the program does not stop in time, as in a group that is frozen: then the call has failed with `EIO`.
pub(crate) fn while_stopped<T>(
    listener: &Arc<Listener>,
    call: Call,
    prepare: impl FnOnce(&Listener) -> Result<T, Errno> + Send + 'static,
    work: impl FnOnce(Pid, user_regs_struct, T) -> Result<user_regs_struct, Errno> + Send + 'static,
) -> Result<(), Errno> {
    let listener = Arc::clone(listener);
    let (sender, outcome) = channel();
    let is_claimed = Arc::new(AtomicBool::new(false));
    let claim = Arc::clone(&is_claimed);
    // What a thread traces is released when it ends, whatever has happened.
    let trace = move || {
        let pid = Pid::from_raw(call.pid.cast_signed());
        follow(call.pid);
        ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD)?;
        let prepared = prepare(&listener)?;
        ptrace::interrupt(pid)?;
        listener.answer(&call, Err(libc::EIO));
        let changed = change(pid, |registers| match claim.swap(true, Ordering::AcqRel) {
            false => work(pid, registers, prepared),
            true => Err(Errno::ETIMEDOUT),
        });
        go_on(libc::PTRACE_DETACH, pid, 0).and(changed.or_else(|errno| {
            // The program has its answer.
            if errno == Errno::ESRCH { Ok(()) } else { Err(errno) }
        }))
    };
    let trace = move || {
        // One that does not wait any more has given up.
        let _ = sender.send(trace());
    };
    let thread = thread::Builder::new().name("redirect".into()).spawn(trace).map_err(|_| Errno::EAGAIN)?;
    let done = within(DEADLINE, &outcome, &is_claimed)?;
    // It is about to end; until then the program has a tracer.
    let _ = thread.join();
    done
}

/// What a thread sends that changes a program, once it has claimed that; a thread that has not by then is kept from it.
///
/// # Errors
/// `ETIMEDOUT`; `EIO` when the thread has panicked.
fn within<T>(limit: Duration, outcome: &Receiver<T>, is_claimed: &AtomicBool) -> Result<T, Errno> {
    let mut received = outcome.recv_timeout(limit);
    if received.is_err() && is_claimed.swap(true, Ordering::AcqRel) {
        // The program has stopped, and is being changed.
        received = outcome.recv_timeout(limit);
    }
    received.map_err(|error| match error {
        RecvTimeoutError::Timeout => Errno::ETIMEDOUT,
        RecvTimeoutError::Disconnected => Errno::EIO,
    })
}

/// Has this thread run where the other one was: each waits while the other one runs, and waking another processor takes longer than
/// everything else.
fn follow(thread: u32) {
    if let Some(processor) = processor(thread) {
        let mut set = CpuSet::new();
        set.set(processor);
        // It may run anywhere.
        let _ = sched_setaffinity(None, &set);
    }
}

/// The processor that a thread was on.
fn processor(thread: u32) -> Option<usize> {
    stat_field(thread, 39).filter(|&processor| processor < CpuSet::MAX_CPU)
}

/// Changes a process that stops where its call has ended.
fn change(
    pid: Pid,
    work: impl FnOnce(user_regs_struct) -> Result<user_regs_struct, Errno>,
) -> Result<(), Errno> {
    wait(pid, |status| status >> 8 == libc::PTRACE_EVENT_STOP)?;
    let before = ptrace::getregs(pid)?;
    let signals = mask(pid)?;
    // Their handlers are not to run in between.
    set_mask(pid, ALL)?;
    let changed = work(before);
    set_mask(pid, signals)?;
    // No call is begun again by the kernel.
    let registers = user_regs_struct { orig_rax: u64::MAX, ..*changed.as_ref().unwrap_or(&before) };
    ptrace::setregs(pid, registers)?;
    changed.map(drop)
}

/// The registers with which a call begins again.
pub(crate) fn again(before: user_regs_struct, call: &Call) -> user_regs_struct {
    user_regs_struct { rip: before.rip - SYSCALL, rax: call.data.nr as u64, ..before }
}

/// Maps the memory for arguments, unless it is there.
fn map(pid: Pid, before: user_regs_struct) -> Result<(), Errno> {
    map_by(Memory(pid.as_raw()), |arguments| system_call(pid, before, libc::SYS_mmap, arguments))
}

/// The same by a way to call mmap(2).
///
/// # Errors
/// Those of mmap(2); `ENOMEM` when there is something else.
pub(crate) fn map_by(memory: Memory, mmap: impl FnOnce([u64; 6]) -> Result<u64, Errno>) -> Result<(), Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let is_ours = match mmap([SCRATCH, SLOT * (1 + SLOTS), access as u64, kind as u64, u64::MAX, 0]) {
        Err(Errno::EEXIST) => is_mapped(memory),
        mapped => mapped? == SCRATCH && memory.write(SCRATCH, MARK).is_ok(),
    };
    if is_ours { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Whether the memory for arguments is there.
pub(crate) fn is_mapped(memory: Memory) -> bool {
    memory.read(SCRATCH).is_ok_and(|mark| &mark == MARK)
}

/// Has a process that stops where its call has ended make another one.
///
/// # Errors
/// The error of the call; `ESRCH` when the process has ended.
pub(crate) fn system_call(
    pid: Pid,
    before: user_regs_struct,
    number: i64,
    arguments: [u64; 6],
) -> Result<u64, Errno> {
    ptrace::setregs(pid, calling(before, before.rip - SYSCALL, number, arguments))?;
    for _ in 0..2 {
        go_on(libc::PTRACE_SYSCALL, pid, 0)?;
        wait(pid, |status| status == AT_CALL)?;
    }
    result(pid)
}

/// Waits until a traced thread stops like that.
fn wait(pid: Pid, is_it: impl Fn(c_int) -> bool) -> Result<(), Errno> {
    while !is_it(next_stop(pid)?) {
        go_on(libc::PTRACE_SYSCALL, pid, 0)?;
    }
    Ok(())
}

/// Waits until a traced thread stops, and answers how. A child of this process that ends is left for who waits for it.
///
/// # Errors
/// `ESRCH` when it has ended.
pub(crate) fn next_stop(pid: Pid) -> Result<c_int, Errno> {
    loop {
        // SAFETY: a structure of numbers.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let what = libc::WSTOPPED | libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: the kernel writes to a variable that outlives the call.
        let result = unsafe { libc::waitid(libc::P_PID, pid.as_raw().unsigned_abs(), &raw mut found, what) };
        match Errno::result(result) {
            // SAFETY: waitid(2) has filled in the fields for a child.
            Ok(_) => return Ok(unsafe { found.si_status() }),
            Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return Err(Errno::ESRCH),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_stop_is_given_up_and_not_changed_later() {
        let (sender, outcome) = channel::<()>();
        let is_claimed = AtomicBool::new(false);
        assert_eq!(within(Duration::ZERO, &outcome, &is_claimed), Err(Errno::ETIMEDOUT));
        assert!(is_claimed.load(Ordering::Acquire), "who comes too late finds it claimed");
        sender.send(()).unwrap();
        assert_eq!(within(Duration::ZERO, &outcome, &is_claimed), Ok(()));
        drop(sender);
        assert_eq!(within(Duration::ZERO, &outcome, &is_claimed), Err(Errno::EIO));
    }
}
