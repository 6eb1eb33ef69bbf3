// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reserving the file of a mounted image, so that a process that opens it right after umount(8) waits until everything is in it.
//!
//! The kernel ends a FUSE mount without waiting for its server: umount(2) returns while the image is still written. A write lease
//! (fcntl(2), `F_SETLEASE`) closes that gap whatever program unmounts: the host holds up open(2) of the file until the lease
//! is given up, which happens when the file system in it is unmounted. As long as the mount is there, the lease is given
//! up as soon as somebody opens the file, and taken again when nobody else has it open.

use crate::trees::OpenedImage;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// How long until a lease that was given up or refused is tried for again.
const RETRY: Duration = Duration::from_secs(1);

/// Reserves `image` until its mount has ended and it is unmounted. Each message says that somebody opens the file
/// (`SIGIO`).
pub fn reserve(image: OpenedImage, is_mounted: impl Fn() -> bool + Send + 'static) -> Sender<()> {
    let (wanted, opened) = mpsc::channel();
    let keep = move || {
        while is_mounted() {
            let reserved = image.reserve();
            if let Err(error) = &reserved {
                tracing::debug!(%error, "the image is not reserved");
            }
            let waited = match reserved {
                Ok(()) => opened.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Err(_) => opened.recv_timeout(RETRY),
            };
            match waited {
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) => {}
            }
            // Once the mount has ended, the file is closed with the image in order, and the lease ends with that.
            if is_mounted() {
                image.release();
                if opened.recv_timeout(RETRY) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        }
    };
    // Without the thread umount(8) waits by its helper, where that is installed.
    let _ = thread::Builder::new().name("image-lease".into()).spawn(keep);
    wanted
}
