// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that is stopped for a moment, and made to call the system: ptrace(2), on x86-64.

use crate::failed;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::ffi::c_long;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::thread;
use std::time::{Duration, Instant};

/// How long a process may take to stop. One that waits for a device or a server without being interruptible does not.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How often it is looked whether it has stopped.
const POLL: Duration = Duration::from_micros(100);
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The code segment of processes of 64 bits.
const CODE_64: u64 = 0x33;
/// The size of a page, which is mapped for arguments in memory.
const PAGE: usize = 4096;
/// All signals.
const ALL: u64 = u64::MAX;

/// A process that is traced, and goes on meanwhile.
pub(crate) struct Tracee {
    pid: Pid,
    /// The address of an instruction that calls the system.
    instruction: u64,
}

/// A stopped process. When this is dropped, the process goes on where it was.
pub(crate) struct Stopped<'a> {
    pid: Pid,
    instruction: u64,
    /// Its registers when it was stopped.
    registers: libc::user_regs_struct,
    /// The signals that it blocked then.
    mask: u64,
    tracee: PhantomData<&'a mut Tracee>,
}

impl Tracee {
    /// Begins to trace a process. The caller may not be permitted to do that any more when it has entered a user namespace.
    ///
    /// # Errors
    /// A sentence about why it cannot be traced.
    pub(crate) fn seize(pid: u32) -> Result<Self, String> {
        let gone = || format!("process {pid}: there is none");
        let pid = Pid::from_raw(i32::try_from(pid).map_err(|_| gone())?);
        ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD).map_err(|errno| refused(pid, errno))?;
        // From here on it is released in the end.
        let mut tracee = Tracee { pid, instruction: 0 };
        let found = find_syscall(pid);
        tracee.instruction =
            found.ok_or_else(|| format!("process {pid}: it has no code that calls the system"))?;
        Ok(tracee)
    }

    /// Stops it.
    ///
    /// # Errors
    /// A sentence about why it does not stop, or cannot be used.
    pub(crate) fn stop(&mut self) -> Result<Stopped<'_>, String> {
        let Tracee { pid, instruction } = *self;
        let what = format_args!("process {pid}");
        ptrace::interrupt(pid).map_err(failed(what))?;
        wait_for_stop(pid)?;
        let registers = ptrace::getregs(pid).map_err(failed(what))?;
        let mask = mask(pid).map_err(failed(what))?;
        let stopped = Stopped { pid, instruction, registers, mask, tracee: PhantomData };
        if registers.cs != CODE_64 {
            return Err(format!("{what}: only programs of 64 bits can be attached to"));
        }
        // Its handlers are not to run in between.
        set_mask(pid, ALL).map_err(failed(what))?;
        Ok(stopped)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // A process that goes on is not released; one that has ended need not be.
        let stops = ptrace::interrupt(self.pid).is_ok() && wait_for_stop(self.pid).is_ok();
        if stops {
            let _ = ptrace::detach(self.pid, None);
        }
    }
}

impl Stopped<'_> {
    /// Has the process call the system.
    ///
    /// # Errors
    /// The error of the call, or that the process has ended (`ESRCH`).
    pub(crate) fn call(&self, number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let registers = libc::user_regs_struct {
            rax: number as u64,
            // The call that was interrupted is not begun again here.
            orig_rax: u64::MAX,
            rip: self.instruction,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.registers
        };
        ptrace::setregs(self.pid, registers)?;
        // It stops when the call begins, and when it has ended.
        for _ in 0..2 {
            self.go_on_to(|status| matches!(status, WaitStatus::PtraceSyscall(_)))?;
        }
        let result = ptrace::getregs(self.pid)?.rax as i64;
        if (-4095..0).contains(&result) { Err(Errno::from_raw(-result as i32)) } else { Ok(result as u64) }
    }

    /// Lets the process go on until its next call begins or ends, or until it stops as was asked for before.
    fn go_on_to(&self, is_there: impl Fn(WaitStatus) -> bool) -> Result<(), Errno> {
        loop {
            ptrace::syscall(self.pid, None)?;
            match waitpid(self.pid, Some(WaitPidFlag::__WALL))? {
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(Errno::ESRCH),
                status if is_there(status) => return Ok(()),
                // A stop of the whole process, which goes on when it is released.
                _ => {}
            }
        }
    }

    /// Restores the process. It is stopped where signals are delivered: there the kernel begins a call again that was interrupted.
    fn restore(&self) -> Result<(), Errno> {
        ptrace::interrupt(self.pid)?;
        self.go_on_to(|status| matches!(status, WaitStatus::PtraceEvent(..)))?;
        ptrace::setregs(self.pid, self.registers)?;
        set_mask(self.pid, self.mask)
    }

    /// Has the process call the system with bytes in its memory; `arguments` gets their address.
    ///
    /// # Errors
    /// Those of [`Self::call`], of mapping memory, and of writing to it.
    pub(crate) fn call_with(
        &self,
        number: i64,
        bytes: &[u8],
        arguments: impl FnOnce(u64) -> [u64; 6],
    ) -> Result<u64, Errno> {
        let length = bytes.len().next_multiple_of(PAGE);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let address =
            self.call(libc::SYS_mmap, [0, length as u64, access as u64, kind as u64, u64::MAX, 0])?;
        let result = self.write(address, bytes).and_then(|()| self.call(number, arguments(address)));
        self.call(libc::SYS_munmap, [address, length as u64, 0, 0, 0, 0])?;
        result
    }

    /// Writes to its memory, from the beginning of a page on.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        for (number, piece) in bytes.chunks(size_of::<c_long>()).enumerate() {
            let mut word = [0; size_of::<c_long>()];
            word[..piece.len()].copy_from_slice(piece);
            let at = address as usize + number * size_of::<c_long>();
            ptrace::write(self.pid, at as *mut _, c_long::from_ne_bytes(word))?;
        }
        Ok(())
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // Of a process that has ended nothing is left to be restored.
        let _ = self.restore();
        let _ = ptrace::cont(self.pid, None);
    }
}

/// Why a process cannot be traced.
fn refused(pid: Pid, errno: Errno) -> String {
    let read = |file: String| fs::read_to_string(file).unwrap_or_default();
    let status = read(format!("/proc/{pid}/status"));
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    let scope = read("/proc/sys/kernel/yama/ptrace_scope".to_owned());
    match errno {
        Errno::ESRCH => format!("process {pid}: there is none"),
        _ if tracer != "0" => {
            format!("process {pid} is traced by process {tracer} (a debugger, strace): end that first")
        }
        _ if !["", "0"].contains(&scope.trim()) => format!(
            "process {pid}: {errno} (/proc/sys/kernel/yama/ptrace_scope is {}: only a parent, or the superuser, may trace a process)",
            scope.trim()
        ),
        _ => format!("process {pid}: {errno} (it belongs to another user, or has privileges)"),
    }
}

/// Waits until a process has stopped.
fn wait_for_stop(pid: Pid) -> Result<(), String> {
    let until = Instant::now() + STOP_DEADLINE;
    loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < until => thread::sleep(POLL),
            Ok(WaitStatus::StillAlive) => {
                return Err(format!("process {pid} does not stop: it waits for a device or a server"));
            }
            Ok(WaitStatus::PtraceEvent(..)) => return Ok(()),
            // A signal came first: it is given to the process, which stops after that.
            Ok(WaitStatus::Stopped(_, signal)) => {
                ptrace::cont(pid, signal).map_err(failed(format_args!("process {pid}")))?
            }
            Ok(_) => return Err(format!("process {pid} has ended")),
            Err(errno) => return Err(failed(format_args!("process {pid}"))(errno)),
        }
    }
}

/// Finds an instruction in the code of a process that calls the system. The page of the kernel that all programs have is looked at first.
fn find_syscall(pid: Pid) -> Option<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let is_code = |line: &&str| {
        line.split(' ').nth(1).is_some_and(|access| access.starts_with("r-x"))
            && !line.ends_with("[vsyscall]")
    };
    let mut code: Vec<&str> = maps.lines().filter(is_code).collect();
    code.sort_by_key(|line| !line.ends_with("[vdso]"));
    code.into_iter().find_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        let mut bytes = Vec::new();
        memory.seek(SeekFrom::Start(from)).ok()?;
        memory.by_ref().take(to - from).read_to_end(&mut bytes).ok()?;
        let at = bytes.windows(SYSCALL.len()).position(|window| window == SYSCALL)?;
        Some(from + at as u64)
    })
}

/// The signals that a stopped process blocks.
fn mask(pid: Pid) -> Result<u64, Errno> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes eight bytes, the size that is given, to a variable of that size which outlives the call.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, pid.as_raw(), size_of::<u64>(), &raw mut mask) };
    Errno::result(result).map(|_| mask)
}

/// Sets them.
fn set_mask(pid: Pid, mask: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads eight bytes, the size that is given, from a variable of that size which outlives the call.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, pid.as_raw(), size_of::<u64>(), &raw const mask) };
    Errno::result(result).map(drop)
}
