// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seccomp filter: which system calls of the program wait for our answer.
//!
//! A filter sees numbers only, no memory. So that programs pay little, only those openings wait that look like one of
//! `/dev/fuse` (for reading and writing, without other flags), or like the probe of go-fuse (for reading, without any
//! flag), and are not relative to a directory. Programs of today say `O_CLOEXEC`, and one that opens a file of its own
//! with the flags of an OPEN says `O_LARGEFILE`, which the kernel puts into all of them.
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::sock_filter;

/// `AUDIT_ARCH_*` of linux/audit.h: the machine with its word size and byte order.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the launcher knows the system calls of x86_64 and aarch64 only");

/// Numbers from here belong to the x32 ABI, which shares its architecture with x86_64; none exist elsewhere.
const X32: u32 = 0x4000_0000;

/// `FUSE_DEV_IOC_CLONE` of linux/fuse.h: another reader of the same connection.
pub const CLONE: u32 = 0x8004_E500;

/// An argument of a system call: its place, the bits that count, and the value these must have.
type Condition = (u32, u32, u32);

/// The kernel's `O_LARGEFILE`: C libraries of 64-bit systems define it as 0, but some programs set it.
#[cfg(target_arch = "x86_64")]
const LARGE_FILE: u32 = 0o100_000;
#[cfg(target_arch = "aarch64")]
const LARGE_FILE: u32 = 0o400_000;

const READ_WRITE: u32 = libc::O_RDWR as u32;
const OTHER_FLAGS: u32 = !(libc::O_CLOEXEC as u32 | LARGE_FILE);
const NO_DIRECTORY: Condition = (0, u32::MAX, libc::AT_FDCWD as u32);

/// The system calls that wait, when all conditions of a line hold.
const WAITING: &[(libc::c_long, &[Condition])] = &[
    (libc::SYS_mount, &[]),
    (libc::SYS_umount2, &[]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, &[(1, OTHER_FLAGS, READ_WRITE)]),
    (libc::SYS_openat, &[NO_DIRECTORY, (2, OTHER_FLAGS, READ_WRITE)]),
    (libc::SYS_openat, &[NO_DIRECTORY, (2, u32::MAX, libc::O_RDONLY as u32)]),
    (libc::SYS_openat2, &[NO_DIRECTORY]),
    (libc::SYS_ioctl, &[(1, u32::MAX, CLONE)]),
];

/// The system calls that fail, with their error, when all conditions hold.
const REFUSED: &[(libc::c_long, &[Condition], i32)] = &[
    // The new way to mount: libfuse then falls back to mount(2).
    (libc::SYS_fsopen, &[], libc::ENOSYS),
    (libc::SYS_splice, &[], libc::EINVAL),
    (libc::SYS_fcntl, &[(1, u32::MAX, libc::F_SETPIPE_SZ as u32)], libc::EPERM),
];

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Offsets in `struct seccomp_data`; both machines store the low half of an argument first.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const ARGUMENTS: u32 = 16;

const fn step(code: u32, value: u32) -> sock_filter {
    jump(code, value, 0, 0)
}

/// Goes `then` steps further when the comparison holds, `otherwise` steps when not.
const fn jump(code: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: then, jf: otherwise, k: value }
}

/// The program of the filter.
///
/// Other machines' system calls do not exist for the program.
pub fn filter() -> Vec<sock_filter> {
    let mut steps = vec![
        step(LOAD, MACHINE),
        jump(IF_EQUAL, ARCHITECTURE, 1, 0),
        step(RETURN, ABSENT),
        step(LOAD, NUMBER),
        jump(IF_AT_LEAST, X32, 0, 1),
        step(RETURN, ABSENT),
    ];
    for (number, conditions, errno) in REFUSED {
        add(&mut steps, *number, conditions, libc::SECCOMP_RET_ERRNO | *errno as u32);
    }
    for (number, conditions) in WAITING {
        add(&mut steps, *number, conditions, libc::SECCOMP_RET_USER_NOTIF);
    }
    steps.push(step(RETURN, libc::SECCOMP_RET_ALLOW));
    steps
}

/// Adds what decides about one system call.
fn add(steps: &mut Vec<sock_filter>, number: libc::c_long, conditions: &[Condition], verdict: u32) {
    let mut left = 3 * conditions.len() as u8 + 1;
    steps.push(step(LOAD, NUMBER));
    steps.push(jump(IF_EQUAL, number as u32, 0, left));
    for (argument, mask, value) in conditions {
        left -= 3;
        steps.push(step(LOAD, ARGUMENTS + 8 * argument));
        steps.push(step(AND, *mask));
        steps.push(jump(IF_EQUAL, *value, 0, left));
    }
    steps.push(step(RETURN, verdict));
}

/// Puts the calling thread and all it starts under the filter, for good, and gives the listener that is asked.
///
/// Only system calls: a forked child may call it.
///
/// # Errors
/// `EBUSY` when a listener exists already, because this process was itself started under one; `EINVAL` when the kernel
/// has no user notification.
pub fn install(filter: &[sock_filter]) -> io::Result<OwnedFd> {
    rustix::thread::set_no_new_privs(true)?;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // A call that waits killably is not restarted by the signals of its own process (Linux 5.19).
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    seccomp(listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program).or_else(|error| {
        if error.raw_os_error() == Some(libc::EINVAL) { seccomp(listener, &program) } else { Err(error) }
    })
}

fn seccomp(flags: libc::c_ulong, program: &libc::sock_fprog) -> io::Result<OwnedFd> {
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the program during the call, and it is alive and as long as it says.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const *program) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does, for the instructions it uses.
    fn verdict(machine: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [number.to_le_bytes(), machine.to_le_bytes()].concat();
        data.extend([0; 8]);
        arguments.iter().for_each(|argument| data.extend(argument.to_le_bytes()));
        let (steps, mut at, mut value) = (filter(), 0, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = steps[at];
            at += 1;
            let go = |holds| usize::from(if holds { jt } else { jf });
            match u32::from(code) {
                LOAD => value = u32::from_le_bytes(data[k as usize..][..4].try_into().unwrap()),
                AND => value &= k,
                IF_EQUAL => at += go(value == k),
                IF_AT_LEAST => at += go(value >= k),
                RETURN => return k,
                _ => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn what_waits() {
        let (allow, wait) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_USER_NOTIF);
        let here = libc::AT_FDCWD as u64;
        let read_write = libc::O_RDWR as u64;
        let cases: &[(libc::c_long, [u64; 3], u32)] = &[
            (libc::SYS_mount, [0; 3], wait),
            (libc::SYS_umount2, [0; 3], wait),
            (libc::SYS_fsopen, [0; 3], ABSENT),
            (libc::SYS_read, [0; 3], allow),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_open, [0, read_write | libc::O_CLOEXEC as u64, 0], wait),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_open, [0, libc::O_RDONLY as u64, 0], allow),
            (libc::SYS_openat, [here, 0, read_write | u64::from(LARGE_FILE)], wait),
            (libc::SYS_openat, [here, 0, 0], wait),
            (libc::SYS_openat, [here, 0, u64::from(LARGE_FILE)], allow),
            (libc::SYS_openat, [5, 0, 0], allow),
            (libc::SYS_openat, [here, 0, libc::O_CLOEXEC as u64], allow),
            (libc::SYS_openat, [here & 0xFFFF_FFFF, 0, read_write], wait),
            (libc::SYS_openat, [here, 0, read_write | libc::O_CREAT as u64], allow),
            (libc::SYS_openat, [5, 0, read_write], allow),
            (libc::SYS_openat2, [here, 0, 0], wait),
            (libc::SYS_openat2, [5, 0, 0], allow),
            (libc::SYS_ioctl, [3, u64::from(CLONE), 0], wait),
            (libc::SYS_ioctl, [3, 0x5401, 0], allow),
            (libc::SYS_splice, [3, 0, 4], libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
            (
                libc::SYS_fcntl,
                [3, libc::F_SETPIPE_SZ as u64, 1 << 20],
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            ),
            (libc::SYS_fcntl, [3, libc::F_GETPIPE_SZ as u64, 0], allow),
        ];
        for (number, [a, b, c], expected) in cases {
            let arguments = [*a, *b, *c, 0, 0, 0];
            assert_eq!(
                verdict(ARCHITECTURE, *number as u32, arguments),
                *expected,
                "{number} {arguments:x?}"
            );
        }
        assert_eq!(verdict(ARCHITECTURE, X32 | libc::SYS_mount as u32, [0; 6]), ABSENT);
        assert_eq!(verdict(0x4000_0003, libc::SYS_mount as u32, [0; 6]), ABSENT);
    }
}
