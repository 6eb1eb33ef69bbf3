// SPDX-License-Identifier: MIT OR Apache-2.0
//! The filter of system calls: which ones are answered by the server, as a program for the kernel (classic BPF).
//!
//! It looks at the number and the architecture only, so the kernel remembers which calls it allows, and these cost nothing.

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, sock_filter,
};
use std::ops::RangeInclusive;

/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;
/// The bit of the number of a call of the x32 interface.
const X32: u32 = 0x4000_0000;
/// Where the number stands in `struct seccomp_data`.
const NUMBER: u32 = 0;
/// Where the architecture stands.
const ARCHITECTURE: u32 = 4;
/// What io_uring_setup(2) is in all three. Its requests are not system calls, so that no filter sees them.
const IO_URING_SETUP: u32 = libc::SYS_io_uring_setup as u32;
/// The answer to it: programs do without then.
const NO_SUCH_CALL: u32 = SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// The calls that take a path, or a descriptor about which more is to be known than the kernel does.
const NOTIFIED: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_execve,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_truncate,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_creat,
    libc::SYS_link,
    libc::SYS_unlink,
    libc::SYS_symlink,
    libc::SYS_readlink,
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_mknod,
    libc::SYS_statfs,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_utimes,
    libc::SYS_inotify_add_watch,
    libc::SYS_openat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchownat,
    libc::SYS_futimesat,
    libc::SYS_newfstatat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_readlinkat,
    libc::SYS_fchmodat,
    libc::SYS_faccessat,
    libc::SYS_utimensat,
    libc::SYS_name_to_handle_at,
    libc::SYS_renameat2,
    libc::SYS_execveat,
    libc::SYS_statx,
    libc::SYS_openat2,
    libc::SYS_faccessat2,
    libc::SYS_fchmodat2,
];

/// The filter.
pub(crate) fn filter() -> Vec<sock_filter> {
    let mut numbers: Vec<u32> = NOTIFIED.iter().map(|&number| number as u32).collect();
    numbers.sort_unstable();
    // io_uring is the same number in all; what else programs of other architectures do concerns local files.
    let only_refuse = |number| [refusal(number), vec![give(SECCOMP_RET_ALLOW)]].concat();
    let other = [vec![load(NUMBER)], only_refuse(IO_URING_SETUP)].concat();
    let x32 = only_refuse(X32 | IO_URING_SETUP);
    [
        vec![load(ARCHITECTURE), jump(BPF_JEQ, X86_64, other.len() as u8, 0)],
        other,
        vec![load(NUMBER), jump(BPF_JGE, X32, 0, x32.len() as u8)],
        x32,
        refusal(IO_URING_SETUP),
        search(&runs(&numbers)),
    ]
    .concat()
}

/// Numbers that follow each other.
fn runs(numbers: &[u32]) -> Vec<RangeInclusive<u32>> {
    let mut runs: Vec<RangeInclusive<u32>> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some(run) if run.end() + 1 == number => *run = *run.start()..=number,
            _ => runs.push(number..=number),
        }
    }
    runs
}

/// Tells the server about numbers in these ranges, by halving.
fn search(runs: &[RangeInclusive<u32>]) -> Vec<sock_filter> {
    match runs {
        [] => vec![give(SECCOMP_RET_ALLOW)],
        [run] => vec![
            jump(BPF_JGE, *run.start(), 0, 1),
            jump(BPF_JGT, *run.end(), 0, 1),
            give(SECCOMP_RET_ALLOW),
            give(SECCOMP_RET_USER_NOTIF),
        ],
        _ => {
            let (lower, upper) = runs.split_at(runs.len() / 2);
            let below = search(lower);
            [vec![jump(BPF_JGE, *upper[0].start(), below.len() as u8, 0)], below, search(upper)].concat()
        }
    }
}

/// Refuses a call, as if the kernel did not know it.
fn refusal(number: u32) -> Vec<sock_filter> {
    vec![jump(BPF_JEQ, number, 0, 1), give(NO_SUCH_CALL)]
}

fn load(offset: u32) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
}

fn give(answer: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, answer, 0, 0)
}

/// Goes on after so many instructions, depending on the outcome.
fn jump(condition: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    instruction(BPF_JMP | condition | BPF_K, value, yes, no)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `AUDIT_ARCH_I386` and `AUDIT_ARCH_AARCH64`.
    const OTHERS: [u32; 2] = [0x4000_0003, 0xc000_00b7];

    /// What the kernel would do.
    fn run(architecture: u32, number: u32) -> u32 {
        let program = filter();
        let (mut at, mut value) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let code = u32::from(step.code);
            match code & 7 {
                BPF_LD => value = if step.k == NUMBER { number } else { architecture },
                BPF_RET => return step.k,
                _ => {
                    let holds = match code & 0xf0 {
                        BPF_JEQ => value == step.k,
                        BPF_JGE => value >= step.k,
                        BPF_JGT => value > step.k,
                        other => panic!("{other:x}"),
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
            }
        }
    }

    #[test]
    fn calls_with_paths_are_notified_and_no_others() {
        for number in 0..600 {
            let wanted = match i64::from(number) {
                libc::SYS_io_uring_setup => NO_SUCH_CALL,
                number if NOTIFIED.contains(&number) => SECCOMP_RET_USER_NOTIF,
                _ => SECCOMP_RET_ALLOW,
            };
            assert_eq!(run(X86_64, number), wanted, "call {number}");
        }
    }

    #[test]
    fn io_uring_is_refused_to_all_architectures() {
        let others = OTHERS.map(|other| (other, 0));
        for (architecture, bit) in others.into_iter().chain([(X86_64, X32)]) {
            for number in 0..600 {
                let wanted = if number == IO_URING_SETUP { NO_SUCH_CALL } else { SECCOMP_RET_ALLOW };
                assert_eq!(run(architecture, bit | number), wanted, "call {number} of {architecture:x}");
            }
        }
    }
}
