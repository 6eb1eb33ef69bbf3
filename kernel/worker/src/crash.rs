// SPDX-License-Identifier: GPL-2.0-only
//! The last words of a process whose kernel code touches what is not there.

use crate::{host, log, mapped};
use libc::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// What the handler runs on: the stack of the task may be what is broken.
const STACK: usize = 64 << 10;

/// From here on a fault is written to the log before the process ends.
///
/// # Errors
/// When the host refuses.
pub fn report() -> io::Result<()> {
    let stack = Box::leak(vec![0_u8; STACK].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK };
    // SAFETY: the stack lives for ever and has no other use.
    if unsafe { libc::sigaltstack(&stack, null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeroes is an action without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
        // SAFETY: the handler makes nothing but system calls.
        if unsafe { libc::sigaction(signal, &action, null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes the structure.
    if unsafe { (*info).si_code } <= 0 {
        log::append(b"a signal of another process has ended it\n");
        // SAFETY: as below.
        unsafe { libc::_exit(host::STRUCK) }
    }
    // SAFETY: a signal for a fault has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let mut line = *b"Kernel panic - fault 00 at 0x0000000000000000\n";
    line[21] = b'0' + (signal / 10) as u8;
    line[22] = b'0' + (signal % 10) as u8;
    for (place, digit) in line[29..45].iter_mut().rev().zip(0..) {
        *place = b"0123456789abcdef"[address >> (4 * digit) & 15];
    }
    log::append(&line);
    if signal == libc::SIGBUS && mapped::has(address) {
        log::append(b"Kernel panic - the image has become shorter, or the disk it is on fails (io=mmap)\n");
    }
    // SAFETY: ends the process without running anything more in it.
    unsafe { libc::_exit(host::STOPPED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::process::Command;

    /// How this process is to end.
    const FAULT: &str = "OUTRIGGER_TEST_FAULT";

    fn end(how: &str) {
        report().expect("a handler");
        match how {
            "own" => {
                let nowhere = std::ptr::without_provenance::<u8>(16);
                // SAFETY: nothing is read: no page is there, and the process ends.
                unsafe { nowhere.read_volatile() };
            }
            _ => {
                // SAFETY: a plain system call.
                unsafe { libc::raise(libc::SIGSEGV) };
            }
        }
    }

    #[test]
    fn only_a_fault_of_its_own_is_one_of_the_kernel_code() {
        if let Ok(how) = env::var(FAULT) {
            end(&how);
        }
        for (how, status, words) in [
            ("own", host::STOPPED, "Kernel panic - fault 11 at 0x0000000000000010"),
            ("sent", host::STRUCK, "a signal of another process"),
        ] {
            let mut again = Command::new(env::current_exe().expect("a test program"));
            let name = "crash::tests::only_a_fault_of_its_own_is_one_of_the_kernel_code";
            let output =
                again.args(["--exact", name, "--nocapture"]).env(FAULT, how).output().expect("it runs");
            assert_eq!(output.status.code(), Some(status), "{how}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{how}: {output:?}");
        }
    }
}
