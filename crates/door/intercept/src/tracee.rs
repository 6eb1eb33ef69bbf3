// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that is stopped for a moment, and made to call the system: ptrace(2), on x86-64.

use crate::failed;
use crate::proc::{ptrace_restriction, status};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;
use std::ffi::{c_int, c_long};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ptr;
use std::time::{Duration, Instant};

/// How long a process may take to stop, and a call that it is made to make. What waits for a device or a server may take longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);
/// How long a stop may stay unseen where the kernel sends no SIGCHLD for it: a process inherits that it ignores this signal.
const UNTOLD: Duration = Duration::from_millis(10);
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The code segment of processes of 64 bits.
const CODE_64: u64 = 0x33;
/// The size of the memory that is mapped for arguments: a path and more.
const PAGES: usize = 8192;
/// All signals.
pub(crate) const ALL: u64 = u64::MAX;
/// What a stop for a system call is marked with (`PTRACE_O_TRACESYSGOOD`).
const AT_CALL: c_int = 0x80;

/// A stopped process. When this is dropped, the process goes on where it was.
pub(crate) struct Tracee {
    pid: Pid,
    /// The address of an instruction that calls the system.
    instruction: u64,
    /// Its registers when it was stopped, and the signals that it blocked then; `None` until these were changed.
    before: Option<(libc::user_regs_struct, u64)>,
    /// A signal that stops the whole process, and came meanwhile.
    stopping: c_int,
}

/// What a traced process stops for.
enum Stop {
    /// As was asked for (`PTRACE_INTERRUPT`), or with the whole process.
    Event,
    /// A system call begins or ends.
    Call,
    /// A signal, which it has not got.
    Signal(c_int),
    /// It has ended.
    End,
}

impl Tracee {
    /// Stops a process. This process, which is for that alone, gets no signals any more: a tracer that ends leaves the other one with
    /// registers that are not its own.
    ///
    /// # Errors
    /// A sentence about why it cannot be stopped, or not be used.
    pub(crate) fn stop(pid: u32) -> Result<Self, String> {
        let what = format!("process {pid}");
        SigSet::all().thread_block().map_err(failed("signals"))?;
        let pid = Pid::from_raw(i32::try_from(pid).map_err(|_| format!("{what}: there is none"))?);
        ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD).map_err(|errno| refused(pid, errno))?;
        let mut tracee = Tracee { pid, instruction: 0, before: None, stopping: 0 };
        ptrace::interrupt(pid).map_err(failed(&what))?;
        tracee.wait_until_stopped().map_err(|errno| match errno {
            Errno::ETIMEDOUT => format!("{what} does not stop: it waits for a device or a server"),
            errno => failed(&what)(errno),
        })?;
        let registers = ptrace::getregs(pid).map_err(failed(&what))?;
        if registers.cs != CODE_64 {
            return Err(format!("{what}: only programs of 64 bits can be attached to"));
        }
        tracee.instruction =
            find_syscall(pid).ok_or_else(|| format!("{what}: it has no code that calls the system"))?;
        tracee.before = Some((registers, mask(pid).map_err(failed(&what))?));
        // Its handlers are not to run in between.
        set_mask(pid, ALL).map_err(failed(&what))?;
        Ok(tracee)
    }

    /// Waits until it has stopped as was asked for. Signals that come first are given to it.
    fn wait_until_stopped(&mut self) -> Result<(), Errno> {
        loop {
            match wait(self.pid)? {
                Stop::Event => return Ok(()),
                Stop::Signal(signal) => go_on(libc::PTRACE_CONT, self.pid, signal)?,
                Stop::Call => go_on(libc::PTRACE_CONT, self.pid, 0)?,
                Stop::End => return Err(Errno::ESRCH),
            }
        }
    }

    /// Has the process call the system.
    ///
    /// # Errors
    /// The error of the call; `ESRCH` when the process has ended; `EFAULT` when it cannot call the system where it was to;
    /// `ETIMEDOUT`.
    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
        let Some((registers, _)) = self.before else { return Err(Errno::ESRCH) };
        ptrace::setregs(self.pid, calling(registers, self.instruction, number, arguments))?;
        // It stops when the call begins, and when it has ended.
        for _ in 0..2 {
            self.go_on_to(|stop| matches!(stop, Stop::Call))?;
        }
        result(self.pid)
    }

    /// Lets the process go on until its next call begins or ends, or until it stops as was asked for before.
    fn go_on_to(&mut self, is_there: impl Fn(&Stop) -> bool) -> Result<(), Errno> {
        loop {
            go_on(libc::PTRACE_SYSCALL, self.pid, 0)?;
            match wait(self.pid)? {
                stop if is_there(&stop) => return Ok(()),
                // It is stopped when it is released. No other signal comes that is blocked.
                Stop::Signal(libc::SIGSTOP) => self.stopping = libc::SIGSTOP,
                Stop::Signal(_) => return Err(Errno::EFAULT),
                Stop::End => return Err(Errno::ESRCH),
                Stop::Event | Stop::Call => {}
            }
        }
    }

    /// Restores the process. It is stopped where signals are delivered: there the kernel begins a call again that was interrupted.
    fn restore(&mut self) -> Result<(), Errno> {
        let Some((registers, mask)) = self.before else { return Ok(()) };
        ptrace::interrupt(self.pid)?;
        self.go_on_to(|stop| matches!(stop, Stop::Event))?;
        ptrace::setregs(self.pid, registers)?;
        set_mask(self.pid, mask)
    }

    /// Has the process call the system with bytes in its memory; `arguments` gets their address.
    ///
    /// # Errors
    /// Those of [`Self::call`], of mapping memory, and of writing to it.
    pub(crate) fn call_with(
        &mut self,
        number: i64,
        bytes: &[u8],
        arguments: impl FnOnce(u64) -> [u64; 6],
    ) -> Result<u64, Errno> {
        self.call_with_pointers(number, |_| bytes.to_vec(), arguments)
    }

    /// The same with bytes that depend on their address, and fit into the memory for arguments.
    ///
    /// # Errors
    /// Those of [`Self::call_with`].
    pub(crate) fn call_with_pointers(
        &mut self,
        number: i64,
        bytes: impl FnOnce(u64) -> Vec<u8>,
        arguments: impl FnOnce(u64) -> [u64; 6],
    ) -> Result<u64, Errno> {
        let length = PAGES as u64;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let address = self.call(libc::SYS_mmap, [0, length, access as u64, kind as u64, u64::MAX, 0])?;
        let result =
            self.write(address, &bytes(address)).and_then(|()| self.call(number, arguments(address)));
        self.call(libc::SYS_munmap, [address, length, 0, 0, 0, 0])?;
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

impl Drop for Tracee {
    fn drop(&mut self) {
        // Of a process that has ended nothing is left to be restored.
        let _ = self.restore();
        let _ = go_on(libc::PTRACE_DETACH, self.pid, self.stopping);
    }
}

/// Why a process cannot be traced.
pub(crate) fn refused(pid: Pid, errno: Errno) -> String {
    let tracer = status(pid, "TracerPid:").unwrap_or_default();
    match errno {
        Errno::ESRCH => format!("process {pid}: there is none"),
        _ if !["", "0"].contains(&&*tracer) => {
            format!("process {pid} is traced by process {tracer} (a debugger, strace): end that first")
        }
        _ => match ptrace_restriction() {
            Some(scope) => format!(
                "process {pid}: {errno} (/proc/sys/kernel/yama/ptrace_scope is {scope}: only a parent, or the superuser, may trace a process)"
            ),
            None => format!("process {pid}: {errno} (it belongs to another user, or has privileges)"),
        },
    }
}

/// Waits until a traced process stops or ends.
fn wait(pid: Pid) -> Result<Stop, Errno> {
    let until = Instant::now() + DEADLINE;
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes to a variable that outlives the call.
        let found = unsafe { libc::waitpid(pid.as_raw(), &raw mut status, libc::__WALL | libc::WNOHANG) };
        match Errno::result(found)? {
            0 if Instant::now() >= until => return Err(Errno::ETIMEDOUT),
            0 => wait_for_child(UNTOLD)?,
            _ if !libc::WIFSTOPPED(status) => return Ok(Stop::End),
            _ if status >> 16 != 0 => return Ok(Stop::Event),
            _ if libc::WSTOPSIG(status) == libc::SIGTRAP | AT_CALL => return Ok(Stop::Call),
            _ => return Ok(Stop::Signal(libc::WSTOPSIG(status))),
        }
    }
}

/// Waits for SIGCHLD, which is blocked, but no longer than this.
fn wait_for_child(limit: Duration) -> Result<(), Errno> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    let limit = TimeSpec::from_duration(limit);
    // SAFETY: both structures outlive the call, and the kernel may be given no place for what it knows of the signal.
    let came = unsafe { libc::sigtimedwait(signals.as_ref(), ptr::null_mut(), limit.as_ref()) };
    match Errno::result(came) {
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The registers with which a stopped process makes a call, at the address of an instruction `syscall`.
pub(crate) fn calling(
    before: libc::user_regs_struct,
    instruction: u64,
    number: i64,
    [rdi, rsi, rdx, r10, r8, r9]: [u64; 6],
) -> libc::user_regs_struct {
    libc::user_regs_struct {
        rax: number as u64,
        // The kernel does not restart the call that was interrupted.
        orig_rax: u64::MAX,
        rip: instruction,
        rdi,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        ..before
    }
}

/// What a call came to that has just ended.
///
/// # Errors
/// The error of the call; `ESRCH` when the process has ended.
pub(crate) fn result(pid: Pid) -> Result<u64, Errno> {
    match ptrace::getregs(pid)?.rax.cast_signed() {
        error @ -4095..0 => Err(Errno::from_raw(-error as i32)),
        result => Ok(result.cast_unsigned()),
    }
}

/// Lets a stopped process go on in some way, with a signal or with 0.
pub(crate) fn go_on(how: libc::c_uint, pid: Pid, signal: c_int) -> Result<(), Errno> {
    // SAFETY: these requests take numbers and no addresses.
    let result = unsafe { libc::ptrace(how, pid.as_raw(), 0, c_long::from(signal)) };
    Errno::result(result).map(drop)
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
pub(crate) fn mask(pid: Pid) -> Result<u64, Errno> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes eight bytes, the size that is given, to a variable of that size which outlives the call.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, pid.as_raw(), size_of::<u64>(), &raw mut mask) };
    Errno::result(result).map(|_| mask)
}

/// Has a stopped process block these signals.
pub(crate) fn set_mask(pid: Pid, mask: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads eight bytes, the size that is given, from a variable of that size which outlives the call.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, pid.as_raw(), size_of::<u64>(), &raw const mask) };
    Errno::result(result).map(drop)
}
