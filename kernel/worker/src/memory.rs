// SPDX-License-Identifier: GPL-2.0-only
//! The program's own memory, beside that of the kernel code: bounded ([`crate::sandbox`]), and the end of it has a reason.

use crate::host;
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's memory. Without any the program ends here, for what it does then otherwise takes system calls it has not.
struct Bounded;

#[global_allocator]
static MEMORY: Bounded = Bounded;

fn found(address: *mut u8) -> *mut u8 {
    if address.is_null() {
        host::stop("the process of the kernel code has used up the memory it may have");
    }
    address
}

// SAFETY: everything is left to the system's allocator, whose results are given as they are.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises what this asks for.
        found(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        found(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        found(unsafe { System.realloc(address, layout, size) })
    }
}
