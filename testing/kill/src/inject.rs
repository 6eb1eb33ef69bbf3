// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deaths at chosen points in the life of one request, for any server: all threads of the server are traced (ptrace(2)),
//! and what they read and write shows the request and its reply.
//!
//! All tracees are released when the tracing thread ends.

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use outrigger_core::wire::{Body, Frame};
use outrigger_proto_fuse::Opcode;
use std::collections::HashSet;
use std::fs;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// When the server of a request dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The request was read, and nothing done.
    Read,
    /// So many steps after that; never, when the steps to the reply are to be counted.
    Step(Unit, Option<u64>),
    /// The reply is about to be written.
    Reply,
    /// The reply was written.
    Replied,
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// An instruction of the thread that read the request.
    Instruction,
    /// The beginning or the end of a system call of any thread.
    SystemCall,
    /// A nanosecond. Kernel code executes too many instructions to step through them.
    Nanosecond,
}

/// How requests reach a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// As messages of the host's kernel, one at a time (fuse(4)).
    Fuse,
    /// As frames of the core's wire protocol, which the process with the kernel code of an image gets.
    Frames,
}

/// Which process is killed, by which signal, and when.
#[derive(Debug, Clone, Copy)]
pub struct Aim<'a> {
    /// The process to kill.
    pub process: rustix::process::Pid,
    /// How it is asked.
    pub language: Language,
    /// The request, by the names of operations with `|` between them.
    pub requests: &'a str,
    /// The moment.
    pub moment: Moment,
    /// By a signal that a program may handle, where the moment allows it, or by the one it cannot.
    pub gently: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caught {
    /// The process was killed.
    pub fired: bool,
    /// The steps from the request to its reply, when they were to be counted and there was a reply.
    pub steps: Option<u64>,
}

/// How long a process may handle the signal it dies of.
const GRACE: Duration = Duration::from_secs(2);
/// How often it is looked for news at once, and how long not after that.
const PROMPT: u32 = 100;
const NAP: Duration = Duration::from_micros(100);
/// A header of a request, and of a reply.
const REQUEST: usize = 40;
const REPLY: usize = 16;
/// How much of a message is looked at, in bytes.
const LOOKED_AT: usize = 64 << 10;

/// Traces the process, calls `ready`, and kills it as soon as the moment has come. Returns when it has ended, or when `over`
/// says that the moment will not come. One that has just ended is not hunted.
///
/// # Errors
/// When the process cannot be traced.
pub fn hunt(aim: Aim<'_>, over: &AtomicBool, ready: impl FnOnce()) -> Result<Caught> {
    let process = Pid::from_raw(aim.process.as_raw_nonzero().get());
    let (stage, caught, begun) = (Stage::Waiting, Caught::default(), Instant::now());
    let mut hunt = Hunt { aim, process, stage, caught, until: None, begun, strike: None };
    match hunt.attach() {
        Err(error) if error.downcast_ref() == Some(&Errno::ESRCH) => return Ok(hunt.caught),
        result => result?,
    }
    ready();
    let mut idle = 0;
    let any = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        match waitpid(None, Some(any)) {
            Ok(WaitStatus::StillAlive) if !hunt.caught.fired && over.load(Ordering::Relaxed) => break,
            Ok(WaitStatus::StillAlive) => {
                hunt.look_at_clock()?;
                idle += 1;
                if idle < PROMPT { thread::yield_now() } else { thread::sleep(NAP) }
            }
            Ok(status) => {
                idle = 0;
                hunt.see(status)?;
            }
            Err(Errno::ECHILD) => break,
            Err(error) => bail!(error),
        }
    }
    Ok(hunt.caught)
}

/// Where the request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// Read by this thread under this number, so many steps ago.
    Served(Pid, u64, u64),
    /// This thread writes the reply.
    Answered(Pid),
}

struct Hunt<'a> {
    aim: Aim<'a>,
    process: Pid,
    stage: Stage,
    caught: Caught,
    /// When a process that was killed gently is killed for good.
    until: Option<Instant>,
    /// When the request was read; and when the process is killed, if that is a matter of time.
    begun: Instant,
    strike: Option<Instant>,
}

impl Hunt<'_> {
    /// Traces every thread, also new ones, and handles each stop.
    fn attach(&mut self) -> Result<()> {
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE;
        self.seize_first(options)?;
        ptrace::interrupt(self.process)?;
        let (mut traced, mut moving) = (HashSet::from([self.process]), HashSet::from([self.process]));
        loop {
            let before = traced.len();
            for task in fs::read_dir(format!("/proc/{}/task", self.process))? {
                let thread = Pid::from_raw(task?.file_name().to_string_lossy().parse()?);
                if !traced.insert(thread) {
                    continue;
                }
                match ptrace::seize(thread, options).and_then(|()| ptrace::interrupt(thread)) {
                    Ok(()) => drop(moving.insert(thread)),
                    // It has ended, or was traced from its beginning.
                    Err(Errno::ESRCH | Errno::EPERM) => {}
                    Err(error) => bail!(error),
                }
            }
            if traced.len() == before {
                break;
            }
        }
        while !moving.is_empty() {
            let status = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD))?;
            status.pid().map(|thread| moving.remove(&thread));
            self.see(status)?;
        }
        Ok(())
    }

    /// A thread that traced before is joined a moment before the kernel takes its tracees, all at once, from it.
    fn seize_first(&self, options: Options) -> Result<()> {
        let until = Instant::now() + GRACE;
        loop {
            match ptrace::seize(self.process, options) {
                Err(Errno::EPERM) if Instant::now() < until => thread::yield_now(),
                result => return Ok(result?),
            }
        }
    }

    fn see(&mut self, status: WaitStatus) -> Result<()> {
        match status {
            WaitStatus::PtraceSyscall(thread) => self.at_system_call(thread),
            WaitStatus::Stopped(thread, Signal::SIGTRAP) if self.is_stepping(thread) => self.at_step(thread),
            WaitStatus::Stopped(thread, signal) => self.resume(thread, Some(signal)),
            WaitStatus::PtraceEvent(thread, ..) => self.resume(thread, None),
            _ => Ok(()),
        }
    }

    /// Whether instructions of this thread are counted.
    fn is_stepping(&self, thread: Pid) -> bool {
        let by_instruction = matches!(self.aim.moment, Moment::Step(Unit::Instruction, _));
        by_instruction && !self.caught.fired && matches!(self.stage, Stage::Served(one, ..) if one == thread)
    }

    fn resume(&self, thread: Pid, signal: Option<Signal>) -> Result<()> {
        let resumed = if self.is_stepping(thread) {
            ptrace::step(thread, signal)
        } else if self.caught.fired {
            ptrace::cont(thread, signal)
        } else {
            ptrace::syscall(thread, signal)
        };
        // A thread that was killed meanwhile reports that soon.
        resumed.or_else(|error| if error == Errno::ESRCH { Ok(()) } else { bail!(error) })
    }

    fn at_system_call(&mut self, thread: Pid) -> Result<()> {
        if self.caught.fired {
            return self.resume(thread, None);
        }
        // A thread that was killed from outside cannot be read.
        let Ok(call) = Call::of(thread) else { return self.resume(thread, None) };
        match self.stage {
            Stage::Waiting => {
                let received = call.received(thread);
                let meant = |message| self.aim.language.request(&message, self.aim.requests);
                if let Some(unique) = received.and_then(meant) {
                    self.stage = Stage::Served(thread, unique, 0);
                    self.begun = Instant::now();
                    match self.aim.moment {
                        Moment::Read => return self.fire(thread, call),
                        Moment::Step(Unit::Nanosecond, Some(wanted)) => {
                            self.strike = Some(self.begun + Duration::from_nanos(wanted));
                        }
                        _ => {}
                    }
                }
            }
            Stage::Served(_, unique, steps)
                if call.has_begun() && self.replies(call, call.number, thread, unique) =>
            {
                let by_time = matches!(self.aim.moment, Moment::Step(Unit::Nanosecond, _));
                let took = || self.begun.elapsed().as_nanos() as u64;
                self.caught.steps = Some(if by_time { took() } else { steps });
                self.stage = Stage::Answered(thread);
                if self.aim.moment == Moment::Reply || matches!(self.aim.moment, Moment::Step(_, Some(_))) {
                    return self.fire(thread, call);
                }
            }
            Stage::Served(reader, unique, steps)
                if matches!(self.aim.moment, Moment::Step(Unit::SystemCall, _)) =>
            {
                self.stage = Stage::Served(reader, unique, steps + 1);
                if self.aim.moment == Moment::Step(Unit::SystemCall, Some(steps + 1)) {
                    return self.fire(thread, call);
                }
            }
            Stage::Answered(writer) if writer == thread && self.aim.moment == Moment::Replied => {
                return self.fire(thread, call);
            }
            Stage::Served(..) | Stage::Answered(_) => {}
        }
        self.resume(thread, None)
    }

    /// After an instruction of the thread that serves. A request with fewer steps than wanted dies before its reply: left
    /// to itself the thread would be stepped through all that it does later.
    fn at_step(&mut self, thread: Pid) -> Result<()> {
        let Stage::Served(_, unique, steps) = self.stage else { return self.resume(thread, None) };
        self.stage = Stage::Served(thread, unique, steps + 1);
        // A thread that was killed from outside cannot be read.
        let Ok(call) = Call::of(thread) else { return self.resume(thread, None) };
        let Moment::Step(_, wanted) = self.aim.moment else { return self.resume(thread, None) };
        // The number of a call that is about to begin is where its result will be.
        let replies = call.is_next(thread) && self.replies(call, call.result, thread, unique);
        if wanted == Some(steps + 1) || (replies && wanted.is_some()) {
            return self.fire(thread, call);
        }
        if replies {
            self.caught.steps = Some(steps + 1);
            self.stage = Stage::Answered(thread);
        }
        self.resume(thread, None)
    }

    /// Kills the process when it is time to.
    fn look_at_clock(&mut self) -> Result<()> {
        let has_come = |time: Option<Instant>| time.is_some_and(|time| Instant::now() >= time);
        if has_come(self.until) {
            kill(self.process, Signal::SIGKILL)?;
        }
        if !self.caught.fired && has_come(self.strike) {
            self.caught.fired = true;
            self.until = self.aim.gently.then(|| Instant::now() + GRACE);
            kill(self.process, if self.aim.gently { Signal::SIGSEGV } else { Signal::SIGKILL })?;
        }
        Ok(())
    }

    /// Whether a call, as the system call of that number, sends the reply to the request of this number.
    fn replies(&self, call: Call, number: i64, thread: Pid, unique: u64) -> bool {
        call.sent(number, thread).is_some_and(|message| self.aim.language.is_reply(&message, unique))
    }

    /// Kills the process, of which this thread is stopped. A system call that was about to begin never does: it dies by the
    /// signal that no program blocks.
    fn fire(&mut self, thread: Pid, call: Call) -> Result<()> {
        self.caught.fired = true;
        if !self.aim.gently || call.has_begun() {
            return Ok(kill(self.process, Signal::SIGKILL)?);
        }
        self.until = Some(Instant::now() + GRACE);
        Ok(ptrace::cont(thread, Signal::SIGSEGV)?)
    }
}

/// A system call of a stopped thread.
#[derive(Debug, Clone, Copy)]
struct Call {
    number: i64,
    arguments: [u64; 3],
    result: i64,
    /// Where the thread is.
    instruction: u64,
}

impl Call {
    #[cfg(target_arch = "x86_64")]
    fn of(thread: Pid) -> Result<Self> {
        let registers = ptrace::getregs(thread)?;
        Ok(Call {
            number: registers.orig_rax as i64,
            arguments: [registers.rdi, registers.rsi, registers.rdx],
            result: registers.rax as i64,
            instruction: registers.rip,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of(_: Pid) -> Result<Self> {
        bail!("the registers of this processor are not known")
    }

    /// Whether it has begun and not ended (the kernel puts this where the result will be).
    fn has_begun(&self) -> bool {
        self.result == -i64::from(libc::ENOSYS)
    }

    /// Whether the next instruction is `syscall`.
    fn is_next(&self, thread: Pid) -> bool {
        read::<2>(thread, self.instruction).is_some_and(|code| code == [0x0f, 0x05])
    }

    /// What it has received.
    fn received(&self, thread: Pid) -> Option<Message> {
        let length = u64::try_from(self.result).ok().filter(|&length| length > 0)?;
        let buffer = match self.number {
            libc::SYS_read | libc::SYS_recvfrom => self.arguments[1],
            libc::SYS_readv => piece(thread, self.arguments[1])?.0,
            libc::SYS_recvmsg => first_piece(thread, self.arguments[1])?.0,
            _ => return None,
        };
        Message::of(thread, buffer, length)
    }

    /// What it sends as the system call of that number, up to the end of its first piece of memory.
    fn sent(&self, number: i64, thread: Pid) -> Option<Message> {
        let (buffer, length) = match number {
            libc::SYS_write | libc::SYS_sendto => (self.arguments[1], self.arguments[2]),
            libc::SYS_writev | libc::SYS_vmsplice => piece(thread, self.arguments[1])?,
            libc::SYS_sendmsg => first_piece(thread, self.arguments[1])?,
            _ => return None,
        };
        Message::of(thread, buffer, length)
    }
}

/// Something a process has received, or is about to send.
struct Message {
    /// In bytes.
    length: u64,
    /// How it begins.
    bytes: Vec<u8>,
}

impl Message {
    fn of(thread: Pid, address: u64, length: u64) -> Option<Self> {
        let mut bytes = vec![0; LOOKED_AT.min(length as usize)];
        let remote = [RemoteIoVec { base: address as usize, len: bytes.len() }];
        let read = process_vm_readv(thread, &mut [IoSliceMut::new(&mut bytes)], &remote).ok()?;
        (read == bytes.len()).then_some(Message { length, bytes })
    }

    /// The frames that are in it as a whole.
    fn frames(&self) -> impl Iterator<Item = Frame> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
            let frame = rest.get(4..4 + length)?;
            rest = &rest[4 + length..];
            Frame::decode(frame.to_vec().into()).ok()
        })
    }
}

impl Language {
    /// The number of the first request in a message that has one of these names.
    fn request(self, message: &Message, names: &str) -> Option<u64> {
        let is_meant = |name: &str| names.split('|').any(|one| one == name.trim_end_matches('2'));
        match self {
            Language::Fuse => {
                let header = message.bytes.first_chunk::<REQUEST>()?;
                let name = Opcode::from_u32(word(header).wrapping_shr(32) as u32).map_or("", Opcode::name);
                let is_whole = word(header) as u32 == message.length as u32;
                (is_whole && is_meant(name)).then(|| word(&header[8..]))
            }
            Language::Frames => message.frames().find_map(|frame| match frame.body {
                Body::Request { request, .. } => is_meant(request.op().name()).then_some(frame.id),
                _ => None,
            }),
        }
    }

    /// Whether a message answers the request of this number.
    fn is_reply(self, message: &Message, unique: u64) -> bool {
        match self {
            Language::Fuse => message.bytes.len() >= REPLY && word(&message.bytes[8..]) == unique,
            Language::Frames => message.frames().any(|frame| frame.id == unique),
        }
    }
}

/// Where the first piece of memory of a message is (`struct msghdr`), and how long.
fn first_piece(thread: Pid, message: u64) -> Option<(u64, u64)> {
    piece(thread, word(&read::<8>(thread, message + 16)?))
}

/// Where a piece of memory is (`struct iovec`), and how long.
fn piece(thread: Pid, at: u64) -> Option<(u64, u64)> {
    read::<16>(thread, at).map(|bytes| (word(&bytes), word(&bytes[8..])))
}

fn read<const N: usize>(thread: Pid, address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let remote = [RemoteIoVec { base: address as usize, len: N }];
    let len = process_vm_readv(thread, &mut [IoSliceMut::new(&mut bytes)], &remote).ok()?;
    (len == N).then_some(bytes)
}

/// The first eight bytes, as a number.
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}
