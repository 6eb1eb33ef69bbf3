// SPDX-License-Identifier: GPL-2.0-only
//! The hypercalls: what the kernel code asks of this process, answered with a few system calls of the host.
//!
//! They run on the kernel's stacks and may not call back into it.

use crate::abi::{self, ABI, Access, Host};
use crate::disk::{self, Disk};
use crate::fixed;
use crate::log;
use crate::ring::{self, Ring};
use crate::sandbox;
use libc::{c_int, c_void};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::slice::from_raw_parts_mut;
use std::sync::OnceLock;

/// Addresses for pages that have to appear side by side: more than any set of mounts uses at a time.
const WINDOW: u64 = 4 << 30;
/// What the memory is aligned to, so that the host can use large pages.
const ALIGNMENT: u64 = 2 << 20;

/// The object that holds the kernel's memory, of which pieces are mapped a second time.
static MEMORY: OnceLock<File> = OnceLock::new();

/// Makes the machine: `memory` bytes of it, rounded up to 2 MiB. The disks are those of [`disk::add`].
///
/// # Errors
/// When the host has not that many addresses to give.
pub fn machine(memory: u64) -> io::Result<Host> {
    let memory_size = memory.next_multiple_of(ALIGNMENT);
    let object = memfd_create("kernel memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let object = File::from(object);
    sandbox::seal(&object, memory_size)?;
    let reserved =
        map(null_mut(), memory_size + ALIGNMENT, libc::PROT_NONE, libc::MAP_PRIVATE | ANONYMOUS, -1, 0)?;
    let start = reserved.map_addr(|address| address.next_multiple_of(ALIGNMENT as usize));
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let shared = libc::MAP_SHARED | libc::MAP_FIXED;
    let memory = map(start, memory_size, both, shared, object.as_raw_fd(), 0)?;
    let window = map(null_mut(), WINDOW, libc::PROT_NONE, libc::MAP_PRIVATE | ANONYMOUS, -1, 0)?;
    MEMORY.set(object).map_err(|_| io::Error::other("this process has a kernel already"))?;
    Ok(Host {
        abi: ABI,
        memory,
        memory_size,
        window,
        window_size: WINDOW,
        monotonic,
        wall,
        sleep,
        print,
        die,
        random,
        alias,
        access,
        completed,
    })
}

const ANONYMOUS: c_int = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn map(
    at: *mut c_void,
    length: u64,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> io::Result<*mut c_void> {
    // SAFETY: without MAP_FIXED nothing that exists is touched; with it, the callers name addresses they reserved here.
    let address = unsafe { libc::mmap(at, length as usize, access, flags, fd, offset) };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address) }
}

/// What a hypercall answers for `result`.
fn answer(result: io::Result<()>) -> i64 {
    match result {
        Ok(()) => 0,
        Err(error) => -i64::from(error.raw_os_error().unwrap_or_else(|| {
            // Errors of our own have a reason, which the kernel cannot pass on.
            log::append(format!("disk: {error}\n").as_bytes());
            if error.kind() == io::ErrorKind::StorageFull { libc::ENOSPC } else { libc::EIO }
        })),
    }
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure it is given; both clocks always exist.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

extern "C" fn monotonic() -> u64 {
    fixed::get().map_or_else(|| clock(libc::CLOCK_MONOTONIC), fixed::Fixed::monotonic)
}

extern "C" fn wall() -> u64 {
    fixed::get().map_or_else(|| clock(libc::CLOCK_REALTIME), fixed::Fixed::wall)
}

extern "C" fn sleep(nanoseconds: u64) {
    if let Some(fixed) = fixed::get() {
        return fixed.advance(nanoseconds);
    }
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    };
    // SAFETY: the structure is complete, and the time left after a signal is not asked for.
    unsafe { libc::nanosleep(&time, null_mut()) };
}

unsafe extern "C" fn print(text: *const u8, length: u64) {
    // SAFETY: the kernel passes a buffer of that length, which stays during the call.
    log::append(unsafe { std::slice::from_raw_parts(text, length as usize) });
}

/// What the exit status says when the kernel code has stopped.
pub const STOPPED: i32 = 101;
/// The exit status of a process that a signal of another one has ended (see `STRUCK` in `crates/driver/kernel/src/worker.rs`).
pub const STRUCK: i32 = 102;

extern "C" fn die() -> ! {
    // SAFETY: ends the process without running anything more in it; the state of the kernel is not to be trusted.
    unsafe { libc::_exit(STOPPED) }
}

/// Ends the process at once, and leaves the reason where that of a panic is.
pub fn stop(why: &str) -> ! {
    log::append(b"Kernel panic - ");
    log::append(why.as_bytes());
    log::append(b"\n");
    die()
}

unsafe extern "C" fn random(to: *mut u8, length: u64) {
    if let Some(fixed) = fixed::get() {
        // SAFETY: the kernel passes a buffer of that length, which stays during the call.
        return fixed.random(unsafe { from_raw_parts_mut(to, length as usize) });
    }
    // SAFETY: the kernel passes a buffer of that length. Short requests are never cut short, see getrandom(2).
    unsafe { libc::getrandom(to.cast(), length as usize, 0) };
}

unsafe extern "C" fn alias(address: *mut c_void, offset: u64, length: u64) -> i64 {
    let Some(memory) = MEMORY.get() else { return -i64::from(libc::ENOMEM) };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let shared = libc::MAP_SHARED | libc::MAP_FIXED;
    answer(map(address, length, access, shared, memory.as_raw_fd(), offset as i64).map(drop))
}

unsafe extern "C" fn access(access: *mut Access) -> bool {
    // SAFETY: the kernel passes an access, with which it does nothing before it is complete.
    let asked = unsafe { &mut *access };
    let disk = match disk::get(asked.disk) {
        Ok(disk) => disk,
        Err(error) => {
            asked.result = answer(Err(error));
            return true;
        }
    };
    if let Some((ring, place)) = disk.takes_time(asked) {
        asked.offset = place;
        // SAFETY: as above.
        return unsafe { ring.begin(access) };
    }
    // SAFETY: as above.
    asked.result = answer(unsafe { carry_out(disk, asked) });
    disk::note(asked);
    true
}

/// Carries out an access now.
///
/// # Safety
/// Its pieces must be memory that nothing else uses meanwhile.
unsafe fn carry_out(disk: &Disk, access: &Access) -> io::Result<()> {
    let (count, offset, length) = (access.count as usize, access.offset, access.length);
    match access.kind {
        abi::READ => {
            // SAFETY: slices for I/O are laid out as pieces are, and the kernel passes so many.
            disk.read_pieces(unsafe { from_raw_parts_mut(access.pieces.cast(), count) }, offset)
        }
        abi::WRITE => {
            // SAFETY: as above, and nothing changes the memory.
            disk.write_pieces(unsafe { from_raw_parts_mut(access.pieces.cast(), count) }, offset)
        }
        abi::FLUSH => disk.flush(),
        kind => disk.discard(offset, length, kind == abi::ZERO),
    }
}

extern "C" fn completed() -> *mut Access {
    ring::get().map_or(null_mut(), Ring::completed)
}
