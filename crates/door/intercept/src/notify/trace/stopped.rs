// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread of a program that stops where a call begins: it can be made to make other calls before.

use crate::notify::memory::Memory;
use crate::notify::redirect::{AT_CALL, SYSCALL, changed, is_mapped, map_by, next_stop, slot, system_call};
use crate::tracee::{ALL, go_on, mask, result, set_mask};
use libc::{ptrace_syscall_info, user_regs_struct};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;
use rustix::fs::{CWD, OFlags, fcntl_getfl, readlinkat};
use std::ffi::CString;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The number of getpid(2) in the 32-bit interface of x86.
const GETPID_32: u64 = 20;
/// `AUDIT_ARCH_I386`.
const I386: u32 = 0x4000_0003;

/// Such a thread.
pub(super) struct Stopped {
    pub(super) pid: Pid,
    /// Its registers when it stopped.
    pub(super) before: user_regs_struct,
    /// The interface of its call.
    pub(super) architecture: u32,
    /// No filter has seen the call yet: the number −1 would be one to them.
    pub(super) is_before_filters: bool,
    /// The whole process was stopped while it made other calls.
    pub(super) stops_with_group: bool,
}

/// How a program opens a file that this process has open.
#[derive(Clone, Copy)]
pub(super) struct Handed {
    pub(super) close_on_exec: bool,
    /// Its path leads over no symbolic link, if it is opened for writing: behind one might be a file that is not to be changed.
    pub(super) takes_no_link: bool,
}

/// The path of an open file.
pub(super) fn path_of(file: BorrowedFd<'_>) -> Result<CString, Errno> {
    readlinkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new()).map_err(errno)
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
    /// Maps the memory for arguments, unless it is there.
    ///
    /// # Errors
    /// Those of mmap(2); `ENOMEM` when there is something else; `ENOEXEC` when it is another program now.
    pub(super) fn prepare(&mut self) -> Result<(), Errno> {
        let memory = Memory(self.pid.as_raw());
        if is_mapped(memory) {
            return Ok(());
        }
        self.without_signals(|stopped| map_by(memory, |arguments| stopped.call(libc::SYS_mmap, arguments)))
    }

    /// Writes to the memory for arguments of this thread.
    ///
    /// # Errors
    /// Those of [`Self::prepare`].
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.prepare()?;
        let written = Memory(self.pid.as_raw()).write(slot(self.pid.as_raw()), bytes);
        written.map_err(|error| Errno::from_raw(error.errno.0))
    }

    /// Whether it still stops where its call begins. Another thread may have executed a program since, which goes on under its number.
    pub(super) fn is_there(&self) -> bool {
        call_of(self.pid).is_ok_and(|info| {
            let begins = [libc::PTRACE_SYSCALL_INFO_ENTRY, libc::PTRACE_SYSCALL_INFO_SECCOMP];
            begins.contains(&info.op) && info.instruction_pointer == self.before.rip
        })
    }

    /// Has it open a file that this process has open, as that is open.
    ///
    /// # Errors
    /// Those of [`Self::write`], and of looking at the file.
    pub(super) fn open(&mut self, file: BorrowedFd<'_>, how: Handed) -> Result<(), Errno> {
        let path = path_of(file)?;
        // That this process follows no link is none of the program's business.
        let flags = fcntl_getfl(file).map_err(errno)? - OFlags::NOFOLLOW;
        let word = u64::from(flags.bits()) | if how.close_on_exec { libc::O_CLOEXEC as u64 } else { 0 };
        // The mode of a new file, which is none, stands between.
        let mut bytes = [word, 0, libc::RESOLVE_NO_SYMLINKS].map(u64::to_ne_bytes).concat();
        let (start, size) = (slot(self.pid.as_raw()), bytes.len() as u64);
        bytes.extend_from_slice(path.as_bytes_with_nul());
        self.write(&bytes)?;
        let by_path = user_regs_struct { rdi: libc::AT_FDCWD as u64, rsi: start + size, ..self.before };
        // Few filters of programs permit openat2(2).
        let takes_no_link = how.takes_no_link && flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let registers = match takes_no_link {
            true => user_regs_struct { orig_rax: libc::SYS_openat2 as u64, rdx: start, r10: size, ..by_path },
            false => user_regs_struct { orig_rax: libc::SYS_openat as u64, rdx: word, r10: 0, ..by_path },
        };
        ptrace::setregs(self.pid, registers)
    }

    /// Has it go to a place in a file that it has open.
    ///
    /// # Errors
    /// Those of lseek(2); `ENOEXEC` when it is another program now.
    pub(super) fn seek(&mut self, file: i32, place: u64) -> Result<(), Errno> {
        let arguments = [i64::from(file).cast_unsigned(), place, libc::SEEK_SET as u64, 0, 0, 0];
        self.without_signals(|stopped| stopped.call(libc::SYS_lseek, arguments)).map(drop)
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
        self.is_before_filters = true;
        self.go_to_call()?;
        result
    }

    /// Lets it go on until a call begins or ends.
    ///
    /// # Errors
    /// `ENOEXEC` when it is another program now, and `ESRCH` when it was killed.
    fn go_to_call(&mut self) -> Result<(), Errno> {
        let mut signal = 0;
        loop {
            go_on(libc::PTRACE_SYSCALL, self.pid, signal)?;
            let status = next_stop(self.pid)?;
            signal = 0;
            match (status >> 8, status & 0xff) {
                (0, AT_CALL) => return Ok(()),
                // All signals are blocked that can be.
                (0, other) => signal = other,
                (libc::PTRACE_EVENT_EXEC, _) => return Err(Errno::ENOEXEC),
                (libc::PTRACE_EVENT_STOP, stop) if stop != libc::SIGTRAP => self.stops_with_group = true,
                _ => {}
            }
        }
    }

    /// The arguments of its call.
    pub(super) fn arguments(&self) -> [u64; 6] {
        let user_regs_struct { rdi, rsi, rdx, r10, r8, r9, .. } = self.before;
        [rdi, rsi, rdx, r10, r8, r9]
    }

    /// Has it take this for what its call came to. Answers whether it makes a call nevertheless (getpid(2), which few filters forbid), so that
    /// this has to be put in where that ends.
    ///
    /// # Errors
    /// `ESRCH` when it was killed.
    pub(super) fn answer(&self, value: i64) -> Result<bool, Errno> {
        let getpid = if self.architecture == I386 { GETPID_32 } else { libc::SYS_getpid as u64 };
        let skips = if self.is_before_filters { getpid } else { u64::MAX };
        let registers = user_regs_struct { orig_rax: skips, rax: value.cast_unsigned(), ..self.before };
        ptrace::setregs(self.pid, registers).map(|()| self.is_before_filters)
    }

    /// Has it make its call with other arguments.
    ///
    /// # Errors
    /// `ESRCH` when it was killed.
    pub(super) fn change(&self, arguments: &[(usize, u64)]) -> Result<(), Errno> {
        ptrace::setregs(self.pid, changed(self.before, arguments))
    }
}

/// Has a thread whose call has ended with a wrong file close that, and begin its call again with these registers.
///
/// # Errors
/// `ESRCH` when it was killed.
pub(super) fn close_and_repeat(
    pid: Pid,
    file: u64,
    now: user_regs_struct,
    again: user_regs_struct,
) -> Result<(), Errno> {
    let signals = mask(pid)?;
    set_mask(pid, ALL)?;
    let closed = system_call(pid, now, libc::SYS_close, [file, 0, 0, 0, 0, 0]);
    ptrace::setregs(pid, again)?;
    set_mask(pid, signals)?;
    closed.map(drop)
}

pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
