// SPDX-License-Identifier: GPL-2.0-only
//! What this process may still do once it reads an untrusted image: next to nothing.

use rustix::fs::SealFlags;
use std::fs::File;
use std::io;

/// The system calls that serving needs, for the descriptors that are open already.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
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
    libc::SYS_ppoll,
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
    /// Not all of these bits.
    NotAll(u32),
    /// One of these bits.
    With(u32),
    /// This number.
    Is(u32),
    /// One of two numbers.
    Either(u32, u32),
    /// The upper half is at most this number.
    Below(u32),
}

/// A system call that is allowed as long as arguments, counted from 0, are like this.
type Careful<'a> = (libc::c_long, &'a [(usize, Argument)]);

/// Nothing becomes executable, and what is shared is in files, whose length is bounded.
const CAREFUL: &[Careful<'static>] = &[
    (
        libc::SYS_mmap,
        &[
            (2, Argument::Without(libc::PROT_EXEC as u32)),
            (3, Argument::NotAll((libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u32)),
        ],
    ),
    (libc::SYS_mprotect, &[(2, Argument::Without(libc::PROT_EXEC as u32))]),
    // With debug assertions the standard library looks whether a descriptor is open before it closes it.
    #[cfg(debug_assertions)]
    (libc::SYS_fcntl, &[(1, Argument::Is(libc::F_GETFD as u32))]),
];

/// Those for the door: threads, but no processes, and their names.
const THREADS: &[Careful<'static>] = &[
    (libc::SYS_clone, &[(0, Argument::With(libc::CLONE_THREAD as u32))]),
    (libc::SYS_prctl, &[(0, Argument::Is(libc::PR_SET_NAME as u32))]),
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
    /// How much memory the kernel code has, in bytes.
    pub memory: u64,
    /// How long files may become that it writes, in bytes; none when the only ones are those that `cp` hands over.
    pub longest: Option<u64>,
}

/// How much memory of its own the program needs, beside what is a file of memory: requests and replies in flight, in bytes.
const ROOM: u64 = 512 << 20;
/// The same for the threads of a mount: as many as there can be (`max_readers=`), with their stacks and buffers.
const ROOM_FOR_THREADS: u64 = 1 << 30;
/// What the program has to remember of files is less than this part of what the kernel code needs for them.
const PART: u64 = 4;
/// How many files are open at most: those of all orders that may be in flight.
const FILES: u64 = 1024;

/// Gives up every system call that serving does not need; there is no way back, for no thread. The process has left the host
/// before ([`crate::isolation`]).
///
/// # Errors
/// When the host refuses.
pub fn enter(needs: Needs) -> io::Result<()> {
    limit_all(needs)?;
    // The first look at the clock finds out where that is, with system calls that are not allowed later.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    filter(needs)
}

/// Bounds memory and files. Memory that is shared is in files: see [`seal`].
fn limit_all(needs: Needs) -> io::Result<()> {
    limit(libc::RLIMIT_CORE, 0)?;
    let threads = if needs.serving { ROOM_FOR_THREADS } else { 0 };
    limit(libc::RLIMIT_DATA, ROOM + threads + needs.memory / PART)?;
    limit(libc::RLIMIT_NOFILE, FILES)?;
    if let Some(longest) = needs.longest {
        // Code that writes further gets EFBIG, and is not ended.
        // SAFETY: nothing is called when the signal comes.
        if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        limit(libc::RLIMIT_FSIZE, longest)?;
    }
    Ok(())
}

/// Sets a limit, unless there is a lower one.
fn limit(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure it is given.
    check(unsafe { libc::getrlimit(resource, &mut limit) }.into())?;
    let most = most.min(limit.rlim_max);
    limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the structure is complete.
    check(unsafe { libc::setrlimit(resource, &limit) }.into())
}

/// Gives a file of memory its length for good: `length` bytes, or what it has if that is more. One that has been sealed
/// before stays as it is.
///
/// # Errors
/// When the host refuses.
pub fn seal(file: &File, length: u64) -> io::Result<()> {
    match rustix::fs::fcntl_get_seals(file) {
        Ok(has) if !has.intersects(SealFlags::GROW | SealFlags::SEAL) => {}
        // No file of memory, or one whose length is not for us to decide.
        _ => return Ok(()),
    }
    if file.metadata()?.len() < length {
        file.set_len(length)?;
    }
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::GROW | SealFlags::SHRINK)?)
}

fn check(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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

const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const MORE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
/// Where the first argument is in `struct seccomp_data`, and how long one is; the lower half comes first.
const ARGUMENTS: usize = 16;
const ARGUMENT: usize = 8;

/// Allows a system call whose arguments are as they have to be.
fn careful((number, arguments): Careful<'_>) -> Vec<libc::sock_filter> {
    /// Stands for the way to the end.
    const KILL: u8 = u8::MAX;
    let mut steps = Vec::new();
    for &(place, argument) in arguments {
        let upper = if matches!(argument, Argument::Below(_)) { ARGUMENT / 2 } else { 0 };
        steps.push(load(ARGUMENTS + place * ARGUMENT + upper));
        match argument {
            Argument::Without(bits) => steps.push(step(ANY_BIT, bits, KILL, 0)),
            Argument::NotAll(bits) => steps.extend([step(AND, bits, 0, 0), step(EQUAL, bits, KILL, 0)]),
            Argument::With(bits) => steps.push(step(ANY_BIT, bits, 0, KILL)),
            Argument::Is(value) => steps.push(step(EQUAL, value, 0, KILL)),
            Argument::Either(one, other) => {
                steps.extend([step(EQUAL, one, 1, 0), step(EQUAL, other, 0, KILL)]);
            }
            Argument::Below(most) => steps.push(step(MORE, most, KILL, 0)),
        }
    }
    let all = steps.len();
    for (done, step) in (1..).zip(&mut steps) {
        for way in [&mut step.jt, &mut step.jf].into_iter().filter(|way| **way == KILL) {
            *way = (all - done + 1) as u8;
        }
    }
    steps.insert(0, step(EQUAL, number as u32, 0, all as u8 + 2));
    steps.extend([give(libc::SECCOMP_RET_ALLOW), give(libc::SECCOMP_RET_KILL_PROCESS)]);
    steps
}

/// Any other system call ends the process.
fn filter(needs: Needs) -> io::Result<()> {
    /// `AUDIT_ARCH_X86_64` of `<linux/audit.h>`.
    const X86_64: u32 = 0xc000_003e;

    let mut program = vec![load(4), step(EQUAL, X86_64, 1, 0), give(libc::SECCOMP_RET_KILL_PROCESS), load(0)];
    let growing = if needs.growing { GROWING } else { &[] };
    let ring = if needs.ring { RING } else { &[] };
    let (serving, threads) = if needs.serving { (SERVING, THREADS) } else { (&[][..], &[][..]) };
    for &number in ALLOWED.iter().chain(growing).chain(ring).chain(serving) {
        program.push(step(EQUAL, number as u32, 0, 1));
        program.push(give(libc::SECCOMP_RET_ALLOW));
    }
    for &one in CAREFUL.iter().chain(threads) {
        program.extend(careful(one));
    }
    // Of a file's blocks some become free or zero, none are added beyond its end but what is rounded up to the next 4 GiB.
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    let [hole, zero] =
        [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE].map(|mode| (mode | keep) as u32);
    let end = Argument::Below(needs.longest.map_or(u32::MAX, |longest| (longest >> 32) as u32));
    let modes = [(1, Argument::Either(hole, zero)), (2, end), (3, end)];
    program.extend(careful((libc::SYS_fallocate, &modes)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::process::Command;
    use std::ptr::null_mut;

    const MIB: usize = 1 << 20;
    const NEEDS: Needs =
        Needs { growing: false, ring: false, serving: false, memory: 24 << 20, longest: Some(MIB as u64) };
    /// Which of [`DEEDS`] this process is to do.
    const DEED: &str = "OUTRIGGER_TEST_DEED";
    /// Exit statuses above this are signals.
    const SIGNALLED: i32 = 200;

    /// The number of the error of the last system call, if it has failed.
    fn errno(result: i64) -> i32 {
        if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 }
    }

    fn write(file: &File, length: usize, place: usize) -> i32 {
        file.write_all_at(&vec![1; length], place as u64)
            .map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0)
    }

    fn allocate(file: &File, mode: i32, place: usize, length: usize) -> i32 {
        // SAFETY: a plain system call.
        errno(unsafe { libc::fallocate(file.as_raw_fd(), mode, place as i64, length as i64) }.into())
    }

    fn map(length: usize, flags: i32) -> i32 {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no address is given, so nothing that exists is touched.
        let address = unsafe { libc::mmap(null_mut(), length, access, flags | libc::MAP_ANONYMOUS, -1, 0) };
        errno(if address == libc::MAP_FAILED { -1 } else { 0 })
    }

    fn duplicates(file: &File) -> i32 {
        // SAFETY: a plain system call; the descriptors are left open.
        (0..FILES + 1)
            .map(|_| errno(unsafe { libc::dup(file.as_raw_fd()) }.into()))
            .find(|&errno| errno != 0)
            .unwrap_or(0)
    }

    /// Something to do in the sandbox.
    type Deed = fn(&File) -> i32;

    /// What may be done, and with which error it fails; or with which signal the process ends.
    const DEEDS: &[(&str, Deed, Result<i32, i32>)] = &[
        ("a write within the image", |file| write(file, 4096, MIB - 4096), Ok(0)),
        ("a write beyond its end", |file| write(file, 1, MIB), Ok(libc::EFBIG)),
        ("a write that begins before its end", |file| write(file, 4096, MIB - 2048), Ok(libc::EFBIG)),
        (
            "a hole",
            |file| allocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, MIB),
            Ok(0),
        ),
        (
            "blocks that were never written",
            |file| allocate(file, libc::FALLOC_FL_KEEP_SIZE, 0, MIB),
            Err(libc::SIGSYS),
        ),
        ("a longer file", |file| allocate(file, 0, 0, 2 * MIB), Err(libc::SIGSYS)),
        (
            "zeroes far beyond its end",
            |file| allocate(file, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, 0, 5 << 30),
            Err(libc::SIGSYS),
        ),
        ("memory", |_| map(ROOM as usize / 2, libc::MAP_PRIVATE), Ok(0)),
        ("too much memory", |_| map(ROOM as usize + 7 * MIB, libc::MAP_PRIVATE), Ok(libc::ENOMEM)),
        ("memory that is shared", |_| map(MIB, libc::MAP_SHARED), Err(libc::SIGSYS)),
    ];

    /// In this process, if it is one of those that the tests below start: does `deed` where no other thread is, and ends as that
    /// has ended.
    fn do_alone(deed: impl Fn(usize) -> i32) {
        let Some(number) = std::env::var(DEED).ok().and_then(|number| number.parse::<usize>().ok()) else {
            return;
        };
        // SAFETY: of the C library's locks none is held in the new process.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let errno = deed(number);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(errno) }
        }
        let mut status = 0;
        // SAFETY: plain system calls; the second one ends the process at once, and 0 stands for the signal.
        unsafe {
            libc::waitpid(child, &mut status, 0);
            libc::_exit(if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                SIGNALLED + libc::WTERMSIG(status)
            })
        }
    }

    /// How `deed` of this test ends in a process of its own.
    fn elsewhere(test: &str, deed: usize) -> Result<i32, i32> {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", test, "--test-threads=1"]).env(DEED, deed.to_string());
        // As main does: further arenas look into files.
        let ended = command.env("MALLOC_ARENA_MAX", "1").output().expect("it starts").status;
        match ended.code().expect("it waits for the other one") {
            signal if signal > SIGNALLED => Err(signal - SIGNALLED),
            errno => Ok(errno),
        }
    }

    #[test]
    fn memory_and_files_have_bounds() {
        do_alone(|number| {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(MIB as u64).expect("a size");
            crate::isolation::enter().expect("it leaves");
            enter(NEEDS).expect("a sandbox");
            DEEDS[number].1(&file)
        });
        for (number, (what, _, expected)) in DEEDS.iter().enumerate() {
            assert_eq!(
                elsewhere("sandbox::tests::memory_and_files_have_bounds", number),
                *expected,
                "{what}"
            );
        }
    }

    #[test]
    fn a_process_has_so_many_open_files_at_most() {
        do_alone(|_| {
            limit_all(NEEDS).expect("limits");
            duplicates(&tempfile::tempfile().expect("a file"))
        });
        let ended = elsewhere("sandbox::tests::a_process_has_so_many_open_files_at_most", 0);
        assert_eq!(ended, Ok(libc::EMFILE));
    }

    #[test]
    fn a_file_of_memory_that_is_sealed_keeps_its_length() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("test", flags).expect("memory"));
        for length in [MIB, 2 * MIB] {
            seal(&file, length as u64).expect("a seal");
            assert_eq!(file.metadata().expect("it is there").len(), MIB as u64);
        }
        assert_eq!((write(&file, 4096, 0), write(&file, 1, MIB)), (0, libc::EPERM));
    }
}
