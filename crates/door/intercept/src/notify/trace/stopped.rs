// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread of a program that stops where a call begins: it can be made to make other calls before.

use crate::notify::memory::Memory;
use crate::notify::redirect::{MARK, SCRATCH, SLOT, SLOTS, SYSCALL, changed, slot};
use crate::tracee::{AT_CALL, go_on, mask, result, set_mask};
use libc::{c_int, ptrace_syscall_info, user_regs_struct};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;
use rustix::fs::{AtFlags, CWD, fstat, statat};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

/// All signals.
const ALL: u64 = u64::MAX;

/// Such a thread.
pub(super) struct Stopped {
    pub(super) pid: Pid,
    /// Its registers when it stopped.
    pub(super) before: user_regs_struct,
    /// Whether it has made other calls since: then it is at the very beginning of its call, before any filter has seen that.
    pub(super) is_anew: bool,
}

/// What a thread stops at, for a system call.
pub(super) fn call_of(pid: Pid) -> Result<ptrace_syscall_info, Errno> {
    let mut info = MaybeUninit::<ptrace_syscall_info>::zeroed();
    let size = size_of::<ptrace_syscall_info>();
    // SAFETY: the kernel writes no more than the size that is given, to a structure that outlives the call.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid.as_raw(), size, info.as_mut_ptr()) };
    // SAFETY: a structure of numbers, which was all zero.
    Errno::result(result).map(|_| unsafe { info.assume_init() })
}

impl Stopped {
    /// Maps the memory for arguments, unless it is there, and writes to that of this thread.
    ///
    /// # Errors
    /// Those of mmap(2); `ENOMEM` when there is something else.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let memory = Memory(self.pid.as_raw());
        if !memory.read(SCRATCH).is_ok_and(|mark| &mark == MARK) {
            let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            let kind =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            let arguments = [SCRATCH, SLOT * (1 + SLOTS), access, kind as u64, u64::MAX, 0];
            match self.without_signals(|stopped| stopped.call(libc::SYS_mmap, arguments)) {
                Ok(SCRATCH) => memory.write(SCRATCH, MARK).map_err(|error| Errno::from_raw(error.errno.0))?,
                // Another thread came first.
                Err(Errno::EEXIST) if memory.read(SCRATCH).is_ok_and(|mark| &mark == MARK) => {}
                Ok(_) | Err(Errno::EEXIST) => return Err(Errno::ENOMEM),
                Err(errno) => return Err(errno),
            }
        }
        memory.write(slot(self.pid.as_raw()), bytes).map_err(|error| Errno::from_raw(error.errno.0))
    }

    /// Has it open a file of this process, under the lowest number that is free.
    ///
    /// # Errors
    /// `EMFILE`, for which two numbers have to be free; `EACCES` when it may not have files of this process.
    pub(super) fn open(&mut self, file: BorrowedFd<'_>, close_on_exec: bool) -> Result<u64, Errno> {
        self.without_signals(|stopped| stopped.take(file, close_on_exec))
    }

    /// Closes no descriptor of the file: that would end all locks that the process has on it (fcntl_locking(2)).
    fn take(&mut self, file: BorrowedFd<'_>, close_on_exec: bool) -> Result<u64, Errno> {
        let server = self.call(libc::SYS_pidfd_open, [u64::from(std::process::id()), 0, 0, 0, 0, 0])?;
        let moved = self.fcntl(server, libc::F_DUPFD_CLOEXEC, server + 1);
        self.close(server)?;
        // No number is left.
        let server = moved.map_err(|errno| if errno == Errno::EINVAL { Errno::EMFILE } else { errno })?;
        let number = file.as_raw_fd() as u64;
        let taken = self.call(libc::SYS_pidfd_getfd, [server, number, 0, 0, 0, 0]);
        self.close(server)?;
        match taken {
            // In its own namespace of processes, the number of this process is that of another one.
            Ok(taken) if !self.has(taken, file) => self.close(taken).and(Err(Errno::EACCES)),
            Ok(taken) if !close_on_exec => self.fcntl(taken, libc::F_SETFD, 0).map(|_| taken),
            Err(Errno::EPERM) => Err(Errno::EACCES),
            taken => taken,
        }
    }

    fn fcntl(&mut self, file: u64, what: c_int, value: u64) -> Result<u64, Errno> {
        self.call(libc::SYS_fcntl, [file, what as u64, value, 0, 0, 0])
    }

    fn close(&mut self, file: u64) -> Result<u64, Errno> {
        self.call(libc::SYS_close, [file, 0, 0, 0, 0, 0])
    }

    /// Whether it has opened this file under a number.
    fn has(&self, number: u64, file: BorrowedFd<'_>) -> bool {
        let there = statat(CWD, format!("/proc/{}/fd/{number}", self.pid), AtFlags::empty());
        fstat(file)
            .and_then(|here| there.map(|there| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)))
            == Ok(true)
    }

    /// Does something to it while no handler of a signal can run in it.
    fn without_signals<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Errno>) -> Result<T, Errno> {
        let signals = mask(self.pid)?;
        set_mask(self.pid, ALL)?;
        let done = work(self);
        set_mask(self.pid, signals)?;
        done
    }

    /// Has it make another call, and stop at the beginning of its own one again.
    fn call(&mut self, number: i64, [rdi, rsi, rdx, r10, r8, r9]: [u64; 6]) -> Result<u64, Errno> {
        let registers =
            user_regs_struct { orig_rax: number as u64, rdi, rsi, rdx, r10, r8, r9, ..self.before };
        ptrace::setregs(self.pid, registers)?;
        self.go_to_call()?;
        let result = result(self.pid);
        let again = user_regs_struct {
            rax: self.before.orig_rax,
            rip: self.before.rip - SYSCALL,
            orig_rax: u64::MAX,
            ..self.before
        };
        ptrace::setregs(self.pid, again)?;
        self.is_anew = true;
        self.go_to_call()?;
        result
    }

    /// Lets it go on until a call begins or ends.
    fn go_to_call(&self) -> Result<(), Errno> {
        let mut signal = 0;
        loop {
            go_on(libc::PTRACE_SYSCALL, self.pid, signal)?;
            let status = next_stop(self.pid)?;
            if status == libc::SIGTRAP | AT_CALL {
                return Ok(());
            }
            // All others are blocked.
            signal = if status == libc::SIGSTOP { status } else { 0 };
        }
    }

    /// The arguments of its call.
    pub(super) fn arguments(&self) -> [u64; 6] {
        let user_regs_struct { rdi, rsi, rdx, r10, r8, r9, .. } = self.before;
        [rdi, rsi, rdx, r10, r8, r9]
    }

    /// Has it take this for what its call came to. It goes on as `how` says; whether it has to stop where the call ends.
    ///
    /// # Errors
    /// `ESRCH` when it was killed.
    pub(super) fn answer(&self, value: i64) -> Result<bool, Errno> {
        let skips = if self.is_anew { libc::SYS_getpid as u64 } else { u64::MAX };
        let registers = user_regs_struct { orig_rax: skips, rax: value.cast_unsigned(), ..self.before };
        ptrace::setregs(self.pid, registers).map(|()| self.is_anew)
    }

    /// Has it make its call with other arguments.
    ///
    /// # Errors
    /// `ESRCH` when it was killed.
    pub(super) fn change(&self, arguments: &[(usize, u64)]) -> Result<(), Errno> {
        ptrace::setregs(self.pid, changed(self.before, arguments))
    }
}

/// Waits until a thread stops, and answers how. One that ends is left for who waits for that.
fn next_stop(pid: Pid) -> Result<c_int, Errno> {
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
