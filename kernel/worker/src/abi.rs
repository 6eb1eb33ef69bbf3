// SPDX-License-Identifier: GPL-2.0-only
//! The other side of `kernel/arch/include/asm/host.h`, which documents every item.

use std::ffi::{c_char, c_void};

/// The version of this interface.
pub const ABI: u64 = 3;
/// The major number of the disks' block devices.
pub const DISK_MAJOR: u32 = 240;

/// What the host supplies.
#[repr(C)]
pub struct Host {
    pub abi: u64,
    pub memory: *mut c_void,
    pub memory_size: u64,
    pub window: *mut c_void,
    pub window_size: u64,
    pub monotonic: extern "C" fn() -> u64,
    pub wall: extern "C" fn() -> u64,
    pub sleep: extern "C" fn(nanoseconds: u64),
    pub print: unsafe extern "C" fn(text: *const u8, length: u64),
    pub die: extern "C" fn() -> !,
    pub random: unsafe extern "C" fn(to: *mut u8, length: u64),
    pub alias: unsafe extern "C" fn(address: *mut c_void, offset: u64, length: u64) -> i64,
    pub access: unsafe extern "C" fn(access: *mut Access) -> bool,
    pub completed: extern "C" fn() -> *mut Access,
}

// SAFETY: the pointers are addresses that never change, and only the one thread of the kernel uses them.
unsafe impl Sync for Host {}
// SAFETY: as above.
unsafe impl Send for Host {}

/// The kinds of accesses.
pub const READ: u32 = 0;
/// See above.
pub const WRITE: u32 = 1;
/// See above.
pub const FLUSH: u32 = 2;
/// See above.
pub const DISCARD: u32 = 3;
/// See above.
pub const ZERO: u32 = 4;

/// One access to a disk.
#[repr(C)]
pub struct Access {
    pub disk: u32,
    pub kind: u32,
    pub offset: u64,
    pub length: u64,
    pub pieces: *mut libc::iovec,
    pub count: u64,
    pub result: i64,
}

/// A disk to add.
#[repr(C)]
pub struct Disk {
    pub number: u32,
    pub sector_size: u32,
    pub size: u64,
    pub read_only: bool,
    pub discards: bool,
}

/// Flash memory to add.
#[repr(C)]
pub struct Flash {
    pub number: u32,
    pub erase_size: u32,
    pub size: u64,
    pub content: u64,
    pub read_only: bool,
}

/// Something to do inside the kernel.
#[repr(C)]
pub struct Job {
    pub run: unsafe extern "C" fn(job: *mut Job),
    pub next: *mut Job,
}

unsafe extern "C" {
    pub fn outrigger_start(host: *const Host, command_line: *const c_char) -> i64;
    pub fn outrigger_submit(job: *mut Job);
    pub fn outrigger_run() -> u64;

    pub fn outrigger_system_call(number: u64, arguments: *const [u64; 6]) -> i64;
    pub fn outrigger_add_disk(disk: *const Disk) -> i64;
    pub fn outrigger_add_flash(flash: *const Flash) -> i64;
    pub fn outrigger_act_as(uid: u32, gid: u32) -> i64;
    pub fn outrigger_reopen(fd: u32, flags: u32) -> i64;
    pub fn outrigger_truncate(fd: u32, size: u64) -> i64;
    pub fn outrigger_get_xattr(fd: u32, name: *const c_char, value: *mut u8, size: u64) -> i64;
    pub fn outrigger_set_xattr(fd: u32, name: *const c_char, value: *const u8, size: u64, flags: u32) -> i64;
    pub fn outrigger_list_xattr(fd: u32, names: *mut u8, size: u64) -> i64;
    pub fn outrigger_remove_xattr(fd: u32, name: *const c_char) -> i64;
}
