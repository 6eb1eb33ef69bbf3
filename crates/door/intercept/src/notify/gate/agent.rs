// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code that a program gets: it decides about calls with paths whether they concern local files only, and makes those by itself.
//!
//! It stands at [`AT`] in all programs and consists of registers and the stack only, so that it can be copied as it is. A call comes here in
//! place of its `mov`: its number is in `rax`, and where it goes on is in `rcx`. As after `syscall`, nothing but `rax`, `rcx`, `r11` and
//! flags is changed, and 128 bytes below the stack pointer stay as they are.
//!
//! The kernel makes the call first, on local files. What it finds without the trees is local, but for
//!
//! - a name that is missing: trees stand where nothing is. It is missing for the program, too, if the directory is there, is not the root
//!   directory, and has no such name (a link to a tree may have it);
//! - names by which the kernel comes to copies of trees: in /proc, in /dev, and of the mirror. They are looked at as letters, wherever a name
//!   may be one of the root directory. Links of /proc to open files are not followed by opening (`RESOLVE_NO_MAGICLINKS`);
//! - relative paths, once programs have directories of trees, or of /proc and /dev: then it is looked where the path begins.
//!
//! All else is asked of the server, by the same call at an instruction that the filter does not allow. The path is read when the kernel has
//! read it: it is there. Only calls that change nothing come that far.

use std::arch::global_asm;

/// Where programs have it. Below 2 GiB, where memory sanitizers let programs have something, and below what `MAP_32BIT` takes.
pub(crate) const AT: u64 = 0x3e5f_0000;
/// The code, and a page with the facts that it needs to know.
pub(crate) const SIZE: u64 = 2 * PAGE;
/// The size of a page.
pub(crate) const PAGE: u64 = 4096;
/// What may stand at the beginning of the facts: all is asked; relative paths begin where files are local; they may begin in copies, or /proc.
pub(crate) const CLOSED: u32 = 0;
pub(crate) const PLAIN: u32 = 1;
pub(crate) const ODD: u32 = 2;
/// Where the device and the number of the root directory stand among the facts.
pub(crate) const ROOT: usize = 8;
/// Where the names stand: proc, dev, and those of the root directory below which trees stand; each ends with a NUL, and so do all.
pub(crate) const NAMES: usize = 24;

/// How calls are known here (`r14`).
const NO_FOLLOW: u32 = 1;
const OPENS: u32 = 2;
const MAY_BE_EMPTY: u32 = 4;
/// Opening that changes something, or gives no file.
const NOT_LOOKING: u32 =
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH) as u32 | 0o20_000_000;
/// What is on the stack below `rbp`.
const RESULT: i32 = -8;
const LAST: i32 = -16;
const HOW: i32 = -40;
const STAT: i32 = -184;
const LINK: i32 = -248;
const PATH: i32 = -760;
const FRAME: i32 = 768;
/// The longest path that is copied there, with its NUL.
const PATH_MAX: i32 = 512;
/// What is on the stack above `rbp`: registers of the call.
const SAVED_R10: i32 = 64;
const SAVED_RDX: i32 = 72;
const SAVED_RSI: i32 = 80;
/// Directories among the kinds of files, and where that stands in `struct stat`.
const KIND: u32 = libc::S_IFMT;
const DIRECTORY: u32 = libc::S_IFDIR;
const MODE: i32 = 24;

global_asm!(
    include_str!("agent.s"),
    FRAME = const FRAME,
    RESULT = const RESULT,
    LAST = const LAST,
    HOW = const HOW,
    STAT = const STAT,
    LINK = const LINK,
    PATH = const PATH,
    PATH_MAX = const PATH_MAX,
    SAVED_R10 = const SAVED_R10,
    SAVED_RDX = const SAVED_RDX,
    SAVED_RSI = const SAVED_RSI,
    KIND = const KIND,
    DIRECTORY = const DIRECTORY,
    MODE = const MODE,
    FACTS = const PAGE,
    CLOSED = const CLOSED,
    PLAIN = const PLAIN,
    ROOT = const ROOT,
    NAMES = const NAMES,
    NO_FOLLOW = const NO_FOLLOW,
    OPENS = const OPENS,
    MAY_BE_EMPTY = const MAY_BE_EMPTY,
    NOT_LOOKING = const NOT_LOOKING,
    AT_FDCWD = const libc::AT_FDCWD,
    AT_SYMLINK_NOFOLLOW = const libc::AT_SYMLINK_NOFOLLOW,
    O_NOFOLLOW = const libc::O_NOFOLLOW,
    NO_MAGICLINKS = const libc::RESOLVE_NO_MAGICLINKS,
    EFAULT = const libc::EFAULT,
    ENOENT = const libc::ENOENT,
    EINTR = const libc::EINTR,
    ENOTDIR = const libc::ENOTDIR,
    EACCES = const libc::EACCES,
    EINVAL = const libc::EINVAL,
    STAT_CALL = const libc::SYS_stat,
    LSTAT = const libc::SYS_lstat,
    FSTAT = const libc::SYS_fstat,
    ACCESS = const libc::SYS_access,
    READLINK = const libc::SYS_readlink,
    OPEN = const libc::SYS_open,
    OPENAT = const libc::SYS_openat,
    OPENAT2 = const libc::SYS_openat2,
    FACCESSAT = const libc::SYS_faccessat,
    FACCESSAT2 = const libc::SYS_faccessat2,
    READLINKAT = const libc::SYS_readlinkat,
    NEWFSTATAT = const libc::SYS_newfstatat,
    STATX = const libc::SYS_statx,
    GETCWD = const libc::SYS_getcwd,
    CLOSE = const libc::SYS_close,
);

unsafe extern "C" {
    static outrigger_gate_start: u8;
    static outrigger_gate_enter: u8;
    static outrigger_gate_allowed: u8;
    static outrigger_gate_end: u8;
    #[cfg(test)]
    static outrigger_gate_scan: u8;
}

/// The calls that come here.
pub(crate) const CALLS: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_statx,
    libc::SYS_faccessat2,
];

/// The calls that are made here, at the instruction which the filter allows.
pub(crate) const ALLOWED: &[i64] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getcwd,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_statx,
    libc::SYS_openat2,
    libc::SYS_faccessat2,
];

/// The bytes.
pub(crate) fn code() -> &'static [u8] {
    let start = &raw const outrigger_gate_start;
    let length = (&raw const outrigger_gate_end).addr() - start.addr();
    // SAFETY: both are labels of one piece of constant bytes, the second one behind the first one.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// Where calls come in.
pub(crate) fn entry() -> u64 {
    place((&raw const outrigger_gate_enter).addr())
}

/// What the kernel calls the instruction that is allowed: the address behind it.
pub(crate) fn allowed() -> u64 {
    place((&raw const outrigger_gate_allowed).addr())
}

/// Where the letters of a path are looked at.
#[cfg(test)]
pub(super) fn scan() -> u64 {
    place((&raw const outrigger_gate_scan).addr())
}

/// Where programs have a label.
fn place(label: usize) -> u64 {
    AT + (label - (&raw const outrigger_gate_start).addr()) as u64
}
