// SPDX-License-Identifier: GPL-2.0-only
//! The end of a process whose parent is gone, also when its kernel code never comes to an end.

use crate::log;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

/// From here on this process ends at most `patience` after the other side of `socket` has hung up.
///
/// # Errors
/// When the host has no thread for it.
pub fn watch(socket: &UnixStream, patience: Duration) -> io::Result<()> {
    let socket = socket.try_clone()?;
    // A thread that begins makes system calls that the sandbox, which is entered next, does not allow.
    let begun = Arc::new(Barrier::new(2));
    let begins = Arc::clone(&begun);
    let wait = move || {
        begins.wait();
        let mut hung_up = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one complete structure.
        while unsafe { libc::poll(&mut hung_up, 1, -1) } < 1 {}
        thread::sleep(patience);
        log::append(b"outrigger-kernel: unmounting takes too long\n");
        // SAFETY: ends the process without running anything more in it, for the kernel's thread is in the middle of something.
        unsafe { libc::_exit(crate::host::STOPPED) }
    };
    thread::Builder::new().name("watchdog".into()).spawn(wait)?;
    begun.wait();
    Ok(())
}
