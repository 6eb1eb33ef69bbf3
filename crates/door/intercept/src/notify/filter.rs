// SPDX-License-Identifier: MIT OR Apache-2.0
//! The filter of system calls: which ones are answered by the server, as a program for the kernel (classic BPF).
//!
//! It looks at the number and the architecture only, so the kernel remembers which calls it allows, and these cost nothing. Calls with paths
//! are allowed if they come from the gate, by the address of its instruction.

use super::gate::ALLOWED;
use crate::launch::Filter;
use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ALLOW, SECCOMP_RET_DATA, SECCOMP_RET_ERRNO, SECCOMP_RET_TRACE,
    SECCOMP_RET_USER_NOTIF, seccomp_data, sock_filter,
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
/// Where the address of the instruction stands, its lower half first.
const INSTRUCTION: u32 = 8;
/// Where the first argument stands.
const ARGUMENT: u32 = 16;
/// Where the lower half of the second one stands.
const FLAGS: u32 = ARGUMENT + 8;
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
    libc::SYS_flock,
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

/// Calls that could change real files or mounts, and that the server does not handle: refused where changes are kept apart.
const FORBIDDEN: &[i64] = &[
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_acct,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_open_by_handle_at,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_quotactl_fd,
];

/// What programs do without: the old form of a call, and rings whose requests no filter sees.
const UNKNOWN: &[i64] = &[libc::SYS_getdents, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// The last call that is known here (`mseal`). Later ones may change files by paths.
const LAST_KNOWN: u32 = 462;

/// The requests of fcntl(2) that take and release locks.
const LOCKS: [i32; 4] = [libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW];

/// The kinds of requests to open files (ioctl(2)) among which are such as change them: of all file systems, and of some.
const CONTROLS: [u8; 11] = [b'f', b'X', b'v', b'r', b'n', b'o', 0x94, 0x97, 0xbc, 0xcf, 0xf5];

/// Which process answers calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// The one that has the listener.
    Listener,
    /// The one that traces the program.
    Tracer,
}

impl Told {
    fn action(self) -> u32 {
        match self {
            Told::Listener => SECCOMP_RET_USER_NOTIF,
            Told::Tracer => SECCOMP_RET_TRACE,
        }
    }
}

/// What is done with a call by a tracer that sees all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The kernel does it.
    Allowed,
    /// It is answered.
    Answered,
    /// It fails with this error.
    Refused(i32),
}

impl Fate {
    /// What a filter for a tracer decides, which is run here as by the kernel: so both decide alike.
    pub(crate) fn of(filter: &[sock_filter], data: &seccomp_data) -> Self {
        let answer = run(filter, data);
        match answer & SECCOMP_RET_ACTION_FULL {
            SECCOMP_RET_ALLOW => Fate::Allowed,
            SECCOMP_RET_TRACE => Fate::Answered,
            _ => Fate::Refused((answer & SECCOMP_RET_DATA) as i32),
        }
    }
}

/// What a filter of this module answers.
fn run(filter: &[sock_filter], data: &seccomp_data) -> u32 {
    let (mut at, mut value) = (0, 0);
    while let Some(step) = filter.get(at) {
        at += 1;
        let code = u32::from(step.code);
        match code & 7 {
            BPF_LD => value = word(data, step.k),
            BPF_ALU => value &= step.k,
            BPF_RET => return step.k,
            _ => {
                let holds = match code & 0xf0 {
                    BPF_JEQ => value == step.k,
                    BPF_JGE => value >= step.k,
                    BPF_JGT => value > step.k,
                    _ => value & step.k != 0,
                };
                at += usize::from(if holds { step.jt } else { step.jf });
            }
        }
    }
    // The kernel takes none without an answer at each end.
    NO_SUCH_CALL
}

/// What stands at this place of the data.
fn word(data: &seccomp_data, offset: u32) -> u32 {
    let of = |value: u64| (value >> (8 * (offset & 4))) as u32;
    match offset {
        NUMBER => data.nr.cast_unsigned(),
        ARCHITECTURE => data.arch,
        INSTRUCTION..ARGUMENT => of(data.instruction_pointer),
        _ => data.args.get((offset - ARGUMENT) as usize / 8).copied().map_or(0, of),
    }
}

/// The filter for a tracer.
pub(crate) fn filter_traced(kind: Filter) -> Vec<sock_filter> {
    match kind {
        Filter::Apart => filter_apart(Told::Tracer),
        Filter::Plain | Filter::Gate => filter(Told::Tracer, None),
    }
}

/// The filter where changes of local files are kept apart: nothing that changes a file is allowed. What programs of 32 bits call is not
/// known here, and so refused.
pub(crate) fn filter_apart(told: Told) -> Vec<sock_filter> {
    let unknown = vec![give(NO_SUCH_CALL)];
    let traced = if told == Told::Tracer { kept_traced() } else { Vec::new() };
    let told = told.action();
    let each = |numbers: &[i64], answer: u32| -> Vec<Run> {
        runs(numbers).into_iter().map(|run| (run, vec![give(answer)])).collect()
    };
    let also = [libc::SYS_bind, libc::SYS_connect, libc::SYS_getdents64, libc::SYS_fstat];
    let mut all = each(&[NOTIFIED, &also].concat(), told);
    all.extend(each(FORBIDDEN, SECCOMP_RET_ERRNO | libc::EPERM as u32));
    all.extend(each(UNKNOWN, NO_SUCH_CALL));
    all.extend(traced);
    all.push((one(libc::SYS_ioctl), if_control(told)));
    all.push((one(libc::SYS_fcntl), if_lock(told)));
    all.push((LAST_KNOWN + 1..=u32::MAX, unknown.clone()));
    all.sort_by_key(|(run, _)| *run.start());
    [
        vec![load(ARCHITECTURE), jump(BPF_JEQ, X86_64, 1, 0)],
        unknown,
        vec![load(NUMBER)],
        refusal(IO_URING_SETUP),
        search(&all),
    ]
    .concat()
}

/// Gives this answer to requests to open files of some kinds.
fn if_control(answer: u32) -> Vec<sock_filter> {
    let head = vec![load(FLAGS), instruction(BPF_ALU | BPF_AND | BPF_K, 0xff00, 0, 0)];
    [head, if_one_of(&CONTROLS.map(|kind| u32::from(kind) << 8), answer)].concat()
}

/// Gives this answer to requests about locks.
fn if_lock(answer: u32) -> Vec<sock_filter> {
    [vec![load(FLAGS)], if_one_of(&LOCKS.map(i32::cast_unsigned), answer)].concat()
}

/// Gives this answer if what was loaded is one of these.
fn if_one_of(values: &[u32], answer: u32) -> Vec<sock_filter> {
    let jumps = values
        .iter()
        .enumerate()
        .map(|(index, &value)| jump(BPF_JEQ, value, (values.len() - index) as u8, 0));
    jumps.chain([give(SECCOMP_RET_ALLOW), give(answer)]).collect()
}

/// The filter; some calls from the instruction before the address `gate` are allowed.
pub(crate) fn filter(told: Told, gate: Option<u64>) -> Vec<sock_filter> {
    let told = answers(told, gate);
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
        search(&told),
    ]
    .concat()
}

/// Numbers that follow each other, and what is done with these calls.
type Run = (RangeInclusive<u32>, Vec<sock_filter>);

/// What is done with calls that are not just allowed.
fn answers(told: Told, gate: Option<u64>) -> Vec<Run> {
    let notified: Vec<i64> =
        NOTIFIED.iter().copied().filter(|number| gate.is_none() || !ALLOWED.contains(number)).collect();
    let mut all: Vec<Run> = runs(&notified).into_iter().map(|run| (run, vec![give(told.action())])).collect();
    all.push((one(libc::SYS_fcntl), if_lock(told.action())));
    if told == Told::Tracer {
        // What a listener passes on would not come to the tracer any more.
        all.push(without_listener());
    }
    if let Some(address) = gate {
        all.extend(runs(ALLOWED).into_iter().map(|run| (run, unless_from(address))));
        // A filter of the program's own may not permit what the gate calls.
        all.push((one(libc::SYS_seccomp), vec![give(SECCOMP_RET_USER_NOTIF)]));
        all.push((one(libc::SYS_prctl), if_argument(libc::PR_SET_SECCOMP as u32)));
    }
    all.sort_by_key(|(run, _)| *run.start());
    all
}

/// Tells the server, unless a call comes from the instruction before this address.
fn unless_from(address: u64) -> Vec<sock_filter> {
    vec![
        load(INSTRUCTION),
        jump(BPF_JEQ, address as u32, 0, 3),
        load(INSTRUCTION + 4),
        jump(BPF_JEQ, (address >> 32) as u32, 0, 1),
        give(SECCOMP_RET_ALLOW),
        give(SECCOMP_RET_USER_NOTIF),
    ]
}

/// Tells the server if the first argument is this one.
fn if_argument(value: u32) -> Vec<sock_filter> {
    vec![load(ARGUMENT), jump(BPF_JEQ, value, 0, 1), give(SECCOMP_RET_USER_NOTIF), give(SECCOMP_RET_ALLOW)]
}

/// Refuses a filter with a listener as the kernel refuses a second one.
fn without_listener() -> Run {
    let flag = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as u32;
    (one(libc::SYS_seccomp), unless_flag(FLAGS, flag, libc::EBUSY))
}

/// Refuses what takes programs, or their calls, away from the tracer.
fn kept_traced() -> Vec<Run> {
    vec![
        without_listener(),
        (one(libc::SYS_clone), unless_flag(ARGUMENT, libc::CLONE_UNTRACED as u32, libc::EPERM)),
        // Its flags are in memory. Programs call clone(2) then.
        (one(libc::SYS_clone3), vec![give(NO_SUCH_CALL)]),
    ]
}

/// Refuses a call with this flag in an argument.
fn unless_flag(argument: u32, flag: u32, errno: i32) -> Vec<sock_filter> {
    vec![
        load(argument),
        jump(BPF_JSET, flag, 0, 1),
        give(SECCOMP_RET_ERRNO | errno as u32),
        give(SECCOMP_RET_ALLOW),
    ]
}

/// One number.
fn one(number: i64) -> RangeInclusive<u32> {
    number as u32..=number as u32
}

/// Numbers that follow each other.
fn runs(numbers: &[i64]) -> Vec<RangeInclusive<u32>> {
    let mut numbers: Vec<u32> = numbers.iter().map(|&number| number as u32).collect();
    numbers.sort_unstable();
    let mut runs: Vec<RangeInclusive<u32>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end() + 1 == number => *run = *run.start()..=number,
            _ => runs.push(number..=number),
        }
    }
    runs
}

/// Does what is to be done with numbers in these ranges, by halving.
fn search(runs: &[Run]) -> Vec<sock_filter> {
    match runs {
        [] => vec![give(SECCOMP_RET_ALLOW)],
        [(run, answer)] => {
            let head =
                [jump(BPF_JGE, *run.start(), 0, 1), jump(BPF_JGT, *run.end(), 0, 1), give(SECCOMP_RET_ALLOW)];
            [&head, &answer[..]].concat()
        }
        _ => {
            let (lower, upper) = runs.split_at(runs.len() / 2);
            let below = search(lower);
            [vec![jump(BPF_JGE, *upper[0].0.start(), below.len() as u8, 0)], below, search(upper)].concat()
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

    /// An address above 4 GiB, so that both halves count.
    const GATE: u64 = 0x1234_5678_9abc;

    /// What the kernel would do.
    fn run(gate: Option<u64>, (architecture, number): (u32, u32), from: u64, argument: u32) -> u32 {
        super::run(&filter(Told::Listener, gate), &data((architecture, number), from, argument))
    }

    fn run_apart(call: (u32, u32), argument: u32) -> u32 {
        super::run(&filter_apart(Told::Listener), &data(call, 0, argument))
    }

    /// A call whose arguments are all the same.
    fn data((architecture, number): (u32, u32), from: u64, argument: u32) -> seccomp_data {
        seccomp_data {
            nr: number.cast_signed(),
            arch: architecture,
            instruction_pointer: from,
            args: [argument.into(); 6],
        }
    }

    #[test]
    fn calls_with_paths_are_notified_and_no_others() {
        for number in 0..600 {
            let wanted = |gate: bool| match i64::from(number) {
                libc::SYS_io_uring_setup => NO_SUCH_CALL,
                libc::SYS_seccomp if gate => SECCOMP_RET_USER_NOTIF,
                number if NOTIFIED.contains(&number) => SECCOMP_RET_USER_NOTIF,
                _ => SECCOMP_RET_ALLOW,
            };
            let call = (X86_64, number);
            assert_eq!(run(None, call, GATE, 0), wanted(false), "call {number}");
            for from in [GATE + 2, GATE as u32 as u64, GATE + (1 << 32)] {
                assert_eq!(run(Some(GATE), call, from, 0), wanted(true), "call {number} with a gate");
            }
            let is_let_through = ALLOWED.contains(&number.into());
            let wanted = if is_let_through { SECCOMP_RET_ALLOW } else { wanted(true) };
            assert_eq!(run(Some(GATE), call, GATE, 0), wanted, "call {number} from the gate");
        }
    }

    /// All calls of all kinds, and some arguments.
    fn everything() -> impl Iterator<Item = ((u32, u32), u32)> {
        let numbers = || (0..600).flat_map(|number| [number, X32 | number]).chain([u32::MAX]);
        let all = [X86_64, OTHERS[0], OTHERS[1]].into_iter();
        let all = all.flat_map(move |architecture| numbers().map(move |number| (architecture, number)));
        all.flat_map(|call| {
            [0, 8, 0x5413, libc::F_SETLKW as u32, libc::FS_IOC_SETFLAGS as u32]
                .map(|argument| (call, argument))
        })
    }

    #[test]
    fn a_tracer_is_told_what_a_listener_is_told() {
        let takes_away = [libc::SYS_seccomp, libc::SYS_clone, libc::SYS_clone3].map(|number| number as u32);
        for (kind, listener) in
            [(Filter::Plain, filter(Told::Listener, None)), (Filter::Apart, filter_apart(Told::Listener))]
        {
            let tracer = filter_traced(kind);
            for (call, argument) in everything().filter(|((_, number), _)| !takes_away.contains(number)) {
                let data = data(call, 0, argument);
                let wanted = match super::run(&listener, &data) {
                    SECCOMP_RET_ALLOW => Fate::Allowed,
                    SECCOMP_RET_USER_NOTIF => Fate::Answered,
                    refused => Fate::Refused((refused & SECCOMP_RET_DATA) as i32),
                };
                assert_eq!(Fate::of(&tracer, &data), wanted, "{kind:?}: {call:x?} with {argument:x}");
            }
        }
    }

    #[test]
    fn nothing_is_taken_away_from_a_tracer_that_keeps_changes_apart() {
        let fate = |number: i64, argument: u32| {
            Fate::of(&filter_traced(Filter::Apart), &data((X86_64, number as u32), 0, argument))
        };
        let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as u32;
        assert_eq!(fate(libc::SYS_seccomp, listener), Fate::Refused(libc::EBUSY));
        assert_eq!(fate(libc::SYS_seccomp, 1), Fate::Allowed);
        let untraced = (libc::CLONE_UNTRACED | libc::CLONE_VM) as u32;
        assert_eq!(fate(libc::SYS_clone, untraced), Fate::Refused(libc::EPERM));
        assert_eq!(fate(libc::SYS_clone, libc::CLONE_VM as u32), Fate::Allowed);
        assert_eq!(fate(libc::SYS_clone3, 0), Fate::Refused(libc::ENOSYS));
    }

    #[test]
    fn nothing_that_changes_a_file_is_allowed_where_changes_are_kept_apart() {
        let refused = SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for number in 0..600 {
            let wanted = match i64::from(number) {
                463.. | libc::SYS_io_uring_setup => NO_SUCH_CALL,
                number if UNKNOWN.contains(&number) => NO_SUCH_CALL,
                number if FORBIDDEN.contains(&number) => refused,
                libc::SYS_bind | libc::SYS_connect | libc::SYS_getdents64 | libc::SYS_fstat => {
                    SECCOMP_RET_USER_NOTIF
                }
                number if NOTIFIED.contains(&number) => SECCOMP_RET_USER_NOTIF,
                _ => SECCOMP_RET_ALLOW,
            };
            assert_eq!(run_apart((X86_64, number), 0), wanted, "call {number}");
            for call in [(X86_64, X32 | number), (OTHERS[0], number), (OTHERS[1], number)] {
                assert_eq!(run_apart(call, 0), NO_SUCH_CALL, "call {number} of {:x}", call.0);
            }
        }
        let control = |request| run_apart((X86_64, libc::SYS_ioctl as u32), request);
        for (request, wanted) in [
            (libc::TCGETS as u32, SECCOMP_RET_ALLOW),
            (libc::FIONREAD as u32, SECCOMP_RET_ALLOW),
            (libc::FS_IOC_SETFLAGS as u32, SECCOMP_RET_USER_NOTIF),
            (libc::FICLONE as u32, SECCOMP_RET_USER_NOTIF),
            (0x401c_5820, SECCOMP_RET_USER_NOTIF),
        ] {
            assert_eq!(control(request), wanted, "request {request:x}");
        }
    }

    #[test]
    fn requests_for_locks_are_notified_and_other_requests_of_fcntl_are_not() {
        let call = (X86_64, libc::SYS_fcntl as u32);
        for (request, wanted) in [
            (libc::F_SETLK, SECCOMP_RET_USER_NOTIF),
            (libc::F_OFD_SETLKW, SECCOMP_RET_USER_NOTIF),
            (libc::F_GETFL, SECCOMP_RET_ALLOW),
            (libc::F_DUPFD_CLOEXEC, SECCOMP_RET_ALLOW),
        ] {
            let request = request.cast_unsigned();
            assert_eq!(run(None, call, 0, request), wanted, "{request}");
            assert_eq!(run(Some(GATE), call, GATE, request), wanted, "{request}");
            assert_eq!(run_apart(call, request), wanted, "{request}");
        }
    }

    #[test]
    fn filters_of_programs_are_notified_where_there_is_a_gate() {
        let prctl = |gate, argument| run(gate, (X86_64, libc::SYS_prctl as u32), 0, argument);
        assert_eq!(prctl(Some(GATE), libc::PR_SET_SECCOMP as u32), SECCOMP_RET_USER_NOTIF);
        assert_eq!(prctl(Some(GATE), libc::PR_SET_NAME as u32), SECCOMP_RET_ALLOW);
        assert_eq!(prctl(None, libc::PR_SET_SECCOMP as u32), SECCOMP_RET_ALLOW);
    }

    #[test]
    fn io_uring_is_refused_to_all_architectures() {
        let others = OTHERS.map(|other| (other, 0));
        for (architecture, bit) in others.into_iter().chain([(X86_64, X32)]) {
            for number in 0..600 {
                let wanted = if number == IO_URING_SETUP { NO_SUCH_CALL } else { SECCOMP_RET_ALLOW };
                assert_eq!(
                    run(Some(GATE), (architecture, bit | number), GATE, 0),
                    wanted,
                    "call {number} of {architecture:x}"
                );
            }
        }
    }
}
