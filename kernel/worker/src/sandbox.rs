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
    libc::SYS_recvfrom,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_sendto,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// What an image needs beyond these that is no plain file.
pub const GROWING: libc::c_long = libc::SYS_ftruncate;
/// What a ring needs beyond these.
pub const RING: libc::c_long = libc::SYS_io_uring_enter;

/// Those that are allowed as long as they make nothing executable (the third argument).
const NOT_EXECUTABLE: &[libc::c_long] = &[libc::SYS_mmap, libc::SYS_mprotect];

/// Gives everything up that serving does not need, but for the system calls `more`; there is no way back.
///
/// # Errors
/// When the host refuses. A host without Landlock is no error: without the system calls there are no files either.
pub fn enter(more: &[libc::c_long]) -> io::Result<()> {
    limit(libc::RLIMIT_CORE, 0)?;
    // SAFETY: a plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    give_up_files();
    filter(more)
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
fn filter(more: &[libc::c_long]) -> io::Result<()> {
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    /// `AUDIT_ARCH_X86_64` of `<linux/audit.h>`.
    const X86_64: u32 = 0xc000_003e;
    /// The third argument's lower half in `struct seccomp_data`.
    const THIRD_ARGUMENT: usize = 16 + 2 * 8;

    let mut program = vec![load(4), step(EQUAL, X86_64, 1, 0), give(libc::SECCOMP_RET_KILL_PROCESS), load(0)];
    for &number in ALLOWED.iter().chain(more) {
        program.push(step(EQUAL, number as u32, 0, 1));
        program.push(give(libc::SECCOMP_RET_ALLOW));
    }
    for &number in NOT_EXECUTABLE {
        program.push(step(EQUAL, number as u32, 0, 4));
        program.push(load(THIRD_ARGUMENT));
        program.push(step(ANY_BIT, libc::PROT_EXEC as u32, 0, 1));
        program.push(give(libc::SECCOMP_RET_KILL_PROCESS));
        program.push(give(libc::SECCOMP_RET_ALLOW));
    }
    program.push(give(libc::SECCOMP_RET_KILL_PROCESS));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is complete and lives during the call, which copies it.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) }.into())
}
