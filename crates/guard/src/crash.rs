// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a worker that crashed: noted by its last instructions, read by its successor.
//!
//! The handler runs in a thread whose memory may be in any state, so it only copies words: registers and the top of the
//! stack. The successor was cloned from the same keeper and has the same code at the same addresses, so it can say which
//! functions the words on that stack lead back to.

use crate::seat::Seat;
use crate::state::{STACK_WORDS, State};
use std::fs;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// A crash that was not reported yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The signal.
    pub signal: i32,
    /// The address whose use was the fault, where the signal tells one.
    pub fault: u64,
    /// The request the thread was working on.
    pub request: Option<u64>,
    /// Where the thread was, and every word of its stack that is the address of code, innermost first. Some of them may
    /// be left over from calls that had returned.
    pub frames: Vec<u64>,
}

/// What the handler needs.
struct Recorder {
    state: State,
    current: OnceLock<fn() -> Option<u64>>,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// The recording has begun, or is complete.
const RECORDING: u64 = 2;
const RECORDED: u64 = 1;

/// The signals of a program that has gone wrong.
const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// Catches crashes of this process from now on.
pub(crate) fn install(state: &State) {
    if RECORDER.set(Recorder { state: state.clone(), current: OnceLock::new() }).is_err() {
        return;
    }
    for signal in SIGNALS {
        // SAFETY: a zeroed action is valid. The handler restores the default before it runs, so a fault in it ends the
        // process; it runs on the alternate stack that the standard library gives every thread.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = record as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND | libc::SA_NODEFER;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// Notes the crash, then lets the signal end the process.
extern "C" fn record(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if let Some(recorder) = RECORDER.get() {
        note(recorder, signal, info, context);
    }
    // SAFETY: takes no pointers. The default action is in force again; a signal that another process sent, unlike a fault, would
    // not be repeated when we return.
    unsafe { libc::raise(signal) };
}

fn note(recorder: &Recorder, signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let state = &recorder.state;
    if state.words().crashed().atomic().compare_exchange(0, RECORDING, AcqRel, Acquire).is_err() {
        return;
    }
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO.
    let (fault, (instruction, stack)) = unsafe { ((*info).si_addr() as u64, registers(&*context.cast())) };
    let request = recorder.current.get().and_then(|current| current());
    state.words().culprit().set(request.map_or(0, |request| request + 1));
    state.words().signal().set(signal as u64);
    state.words().fault().set(fault);
    state.words().instruction().set(instruction);
    state.words().stack_pointer().set(stack);
    let local = libc::iovec {
        iov_base: ptr::from_ref(state.words().stack().at(0).atomic()).cast_mut().cast(),
        iov_len: STACK_WORDS * 8,
    };
    let remote = libc::iovec { iov_base: stack as *mut libc::c_void, iov_len: STACK_WORDS * 8 };
    // SAFETY: the kernel checks the source; the destination is STACK_WORDS words of the shared region.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    state.words().stack_len().set(u64::try_from(copied).unwrap_or(0) / 8);
    state.words().crashed().set(RECORDED);
}

/// Program counter and stack pointer.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> (u64, u64) {
    let registers = &context.uc_mcontext.gregs;
    (registers[libc::REG_RIP as usize] as u64, registers[libc::REG_RSP as usize] as u64)
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> (u64, u64) {
    (context.uc_mcontext.pc, context.uc_mcontext.sp)
}

impl Seat {
    /// Tells crash reports which request a thread is working on. `current` is called in a signal handler.
    pub fn watch_requests(&self, current: fn() -> Option<u64>) {
        if let Some(recorder) = RECORDER.get() {
            // Set once: the first one stays.
            let _ = recorder.current.set(current);
        }
    }

    /// How the worker before this one crashed, if it did and its successors have not reported it.
    pub fn take_crash(&self) -> Option<Crash> {
        let state = self.state();
        if state.words().crashed().get() == 0 {
            return None;
        }
        let len = state.words().stack_len().get() as usize;
        let stack = state.words().stack().iter().take(len).map(|word| word.get());
        let code = code_ranges();
        let is_code = |word: &u64| code.iter().any(|range| range.contains(word));
        let crash = Crash {
            signal: state.words().signal().get() as i32,
            fault: state.words().fault().get(),
            request: state.words().culprit().get().checked_sub(1),
            frames: std::iter::once(state.words().instruction().get()).chain(stack.filter(is_code)).collect(),
        };
        state.words().crashed().set(0);
        Some(crash)
    }
}

/// Where this process has code (proc_pid_maps(5)).
pub(crate) fn code_ranges() -> Vec<std::ops::Range<u64>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let range = |line: &str| {
        let (addresses, rest) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let executable = rest.as_bytes().get(2) == Some(&b'x');
        let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
        executable.then_some(range)
    };
    maps.lines().filter_map(range).collect()
}
