// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reserving the file of a mounted image, so that a process that opens it right after umount(8) waits until everything is in it.
//!
//! The kernel ends a FUSE mount without waiting for its server: umount(2) returns while the image is still written. A write lease
//! (fcntl(2), `F_SETLEASE`) closes that gap whatever program unmounts: the host holds up open(2) of the file until the lease
//! is given up, which happens when the file system in it is unmounted. As long as the mount is there, the lease is given
//! up as soon as another process opens the file, and taken again when no other process has it open.

use outrigger_core::registry::Control;
use outrigger_core::{Errno, Result};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Delay before a released or refused lease is requested again.
const RETRY: Duration = Duration::from_secs(1);

/// Reserves `image` until its mount has ended and it is unmounted. Send a message when another process opens the file
/// (`SIGIO`).
pub fn reserve(image: Arc<dyn Control>, is_mounted: impl Fn() -> bool + Send + 'static) -> Sender<()> {
    let (wanted, opened) = mpsc::channel();
    let keep = move || keep(|| image.reserve(), || image.release(), is_mounted, &opened);
    // Without the thread only `umount.fuse.outrigger` waits, where it is installed.
    let _ = thread::Builder::new().name("image-lease".into()).spawn(keep);
    wanted
}

fn keep(
    reserve: impl Fn() -> Result<()>,
    release: impl Fn(),
    is_mounted: impl Fn() -> bool,
    opened: &Receiver<()>,
) {
    while is_mounted() {
        let waited = match reserve() {
            Ok(()) => opened.recv().map_err(|_| RecvTimeoutError::Disconnected),
            // Another process has it open.
            Err(error) if error.errno == Errno::EAGAIN => opened.recv_timeout(RETRY),
            Err(error) => {
                // A block device, a file system without leases, or a file of another user: that does not change.
                tracing::debug!(%error, "the image cannot be reserved");
                return;
            }
        };
        match waited {
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) => {}
        }
        // Once the mount has ended, the file is closed with the image in order, and the lease ends with that.
        if is_mounted() {
            release();
            if opened.recv_timeout(RETRY) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_can_never_be_reserved_is_tried_once() {
        for (errno, expected) in [(Errno::EINVAL, 1), (Errno::EACCES, 1), (Errno::EAGAIN, 2)] {
            let tries = Cell::new(0);
            // Four openings of the file are queued, so that no attempt waits for one.
            let (wanted, opened) = mpsc::channel();
            (0..4).for_each(|_| wanted.send(()).unwrap());
            let reserve = || {
                tries.set(tries.get() + 1);
                Err(errno.into())
            };
            keep(reserve, || {}, || tries.get() < 2, &opened);
            assert_eq!(tries.get(), expected, "{errno:?}");
        }
    }
}
