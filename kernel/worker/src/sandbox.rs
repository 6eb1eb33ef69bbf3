// SPDX-License-Identifier: GPL-2.0-only
//! What this process may still do once it reads an image that nobody vouches for: next to nothing.

use std::io;

/// `struct landlock_ruleset_attr` of the first version (see landlock(7)).
#[repr(C)]
struct Ruleset {
    handled_access_fs: u64,
}

/// Every access to files that the first version of Landlock knows.
const EVERY_ACCESS: u64 = (1 << 13) - 1;

/// The system calls that serving needs, for the descriptors that are open already.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_poll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_sendto,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// What an image needs beyond these that is no plain file.
const GROWING: &[libc::c_long] = &[libc::SYS_ftruncate];
/// What a ring needs beyond these.
const RING: &[libc::c_long] = &[libc::SYS_io_uring_enter];

/// What the door of a mount needs beyond these: threads, and their buffers in memory.
const SERVING: &[libc::c_long] = &[
    libc::SYS_gettid,
    libc::SYS_mlock,
    libc::SYS_rseq,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_writev,
];

/// What an argument of a system call must be like.
#[derive(Clone, Copy)]
enum Argument {
    /// None of these bits.
    Without(u32),
    /// One of these bits.
    With(u32),
    /// This number.
    Is(u32),
}

/// Those that are allowed as long as an argument, counted from 0, is like this: nothing becomes executable.
const CAREFUL: &[(libc::c_long, usize, Argument)] = &[
    (libc::SYS_mmap, 2, Argument::Without(libc::PROT_EXEC as u32)),
    (libc::SYS_mprotect, 2, Argument::Without(libc::PROT_EXEC as u32)),
];

/// Those for the door: threads, but no processes, and their names.
const THREADS: &[(libc::c_long, usize, Argument)] = &[
    (libc::SYS_clone, 0, Argument::With(libc::CLONE_THREAD as u32)),
    (libc::SYS_prctl, 0, Argument::Is(libc::PR_SET_NAME as u32)),
];

/// What a process may need beside the image as it is.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// The file of the image grows.
    pub growing: bool,
    /// Its bytes are moved by a ring.
    pub ring: bool,
    /// A mount may be handed over to it.
    pub serving: bool,
}

/// Gives everything up that serving does not need; there is no way back, for no thread.
///
/// # Errors
/// When the host refuses. A host without Landlock is no error: without the system calls there are no files either.
pub fn enter(needs: Needs) -> io::Result<()> {
    limit(libc::RLIMIT_CORE, 0)?;
    // The first look at the clock finds out where that is, with system calls that are not allowed later.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    // SAFETY: a plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    give_up_files();
    filter(needs)
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the structure is complete.
    check(unsafe { libc::setrlimit(resource, &limit) }.into())
}

fn check(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// No path leads anywhere from here on.
fn give_up_files() {
    let ruleset = Ruleset { handled_access_fs: EVERY_ACCESS };
    // SAFETY: the structure is that of the first version, and its length says so.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &ruleset, size_of::<Ruleset>(), 0) };
    if fd >= 0 {
        // SAFETY: plain system calls with the descriptor just made, which nobody else has.
        unsafe {
            libc::syscall(libc::SYS_landlock_restrict_self, fd, 0);
            libc::close(fd as i32);
        }
    }
}

const fn load(offset: usize) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32, 0, 0)
}

const fn step(code: u32, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: yes, jf: no, k }
}

const fn give(verdict: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, verdict, 0, 0)
}

/// Any other system call ends the process.
fn filter(needs: Needs) -> io::Result<()> {
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    /// `AUDIT_ARCH_X86_64` of `<linux/audit.h>`.
    const X86_64: u32 = 0xc000_003e;
    /// Where the lower half of the first argument is in `struct seccomp_data`.
    const ARGUMENTS: usize = 16;

    let mut program = vec![load(4), step(EQUAL, X86_64, 1, 0), give(libc::SECCOMP_RET_KILL_PROCESS), load(0)];
    let growing = if needs.growing { GROWING } else { &[] };
    let ring = if needs.ring { RING } else { &[] };
    let (serving, threads) = if needs.serving { (SERVING, THREADS) } else { (&[][..], &[][..]) };
    for &number in ALLOWED.iter().chain(growing).chain(ring).chain(serving) {
        program.push(step(EQUAL, number as u32, 0, 1));
        program.push(give(libc::SECCOMP_RET_ALLOW));
    }
    for &(number, place, argument) in CAREFUL.iter().chain(threads) {
        program.push(step(EQUAL, number as u32, 0, 4));
        program.push(load(ARGUMENTS + place * 8));
        program.push(match argument {
            Argument::Without(bits) => step(ANY_BIT, bits, 0, 1),
            Argument::With(bits) => step(ANY_BIT, bits, 1, 0),
            Argument::Is(value) => step(EQUAL, value, 1, 0),
        });
        program.push(give(libc::SECCOMP_RET_KILL_PROCESS));
        program.push(give(libc::SECCOMP_RET_ALLOW));
    }
    // The C library then makes threads in the way that can be looked at.
    program.push(step(EQUAL, libc::SYS_clone3 as u32, 0, 1));
    program.push(give(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32));
    program.push(give(libc::SECCOMP_RET_KILL_PROCESS));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let (mode, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the program is complete and lives during the call, which copies it.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, all, &program) } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} cannot be confined"))),
    }
}
