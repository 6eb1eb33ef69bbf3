// SPDX-License-Identifier: GPL-2.0-only
//! What this process and its parent exchange beside requests, as this process uses it.

use crate::sandbox;
use outrigger_succession::control::{self, Stamp};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The memory that both hold.
pub struct Control {
    shared: control::Control,
    /// Whether changes are still those of the past.
    replaying: AtomicBool,
}

impl Deref for Control {
    type Target = control::Control;

    fn deref(&self) -> &control::Control {
        &self.shared
    }
}

impl Control {
    /// What is in `file` from `start` on.
    pub fn at(file: File, start: u64) -> Self {
        Control { shared: control::Control::at(Arc::new(file), start), replaying: AtomicBool::new(true) }
    }

    /// In a file of memory that no other process has, bounded to an overlay of `room` bytes.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn in_memory(room: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("outrigger-kernel overlay", flags)?;
        let control = Control::at(file.into(), 0);
        control.bounded(room)?;
        Ok(control)
    }

    /// Bounds the file to an overlay of `room` bytes; gives its length.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn bounded(&self, room: u64) -> io::Result<u64> {
        let length = self.blocks() + room;
        sandbox::seal(&self.parts().0, length)?;
        Ok(length)
    }

    /// When the next change is to happen, as long as those of the past are repeated; now where there is no stamp. `None` once it is
    /// known that they are over.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next(&self) -> io::Result<Option<Option<Stamp>>> {
        if !self.replaying.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let stamp = self.clock()?;
        self.replaying.store(stamp.is_some(), Ordering::Relaxed);
        Ok(Some(stamp))
    }
}
