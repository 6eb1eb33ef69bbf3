// SPDX-License-Identifier: GPL-2.0-only
//! What this process and whoever started it tell each other beside requests: a part of a memory file that both hold.
//!
//! Numbers of eight bytes, little-endian, in its first page; behind it a ring with the times of changes, and blocks of
//! content.
//! `crates/driver/kernel/src/guarded/control.rs` is the other side.

use crate::sandbox;
use outrigger_succession::place::{
    BLOCKS, CHANGE, CHANGES, CHECKPOINTS, CLOCK, FIRST_CHANGE, FOUND, RING, SEALED,
};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Seconds and nanoseconds since 1970.
pub type Stamp = [u64; 2];

/// The file.
pub struct Control {
    file: Arc<File>,
    /// Where it starts in the file, in bytes.
    start: u64,
    /// Whether changes are still those of the past.
    replaying: AtomicBool,
}

impl Control {
    /// What is in `file` from `start` on.
    pub fn at(file: File, start: u64) -> Self {
        Control { file: Arc::new(file), start, replaying: AtomicBool::new(true) }
    }

    /// In a file of memory that nobody else has.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn in_memory() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("outrigger-kernel overlay", flags)?;
        Ok(Control::at(file.into(), 0))
    }

    /// Bounds the file to an overlay of `room` bytes; gives its length.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn bounded(&self, room: u64) -> io::Result<u64> {
        let length = self.blocks() + room;
        sandbox::seal(&self.file, length)?;
        Ok(length)
    }

    /// The file itself.
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// The file, and where this part of it starts.
    pub fn record(&self) -> (Arc<File>, u64) {
        (self.file(), self.start)
    }

    /// Where the blocks of an overlay start in the file.
    pub fn blocks(&self) -> u64 {
        self.start + BLOCKS
    }

    /// Two numbers; zeroes where the file ends.
    fn numbers(&self, place: u64) -> io::Result<[u64; 2]> {
        let mut bytes = [0; 16];
        match self.file.read_exact_at(&mut bytes, self.start + place) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok([0, 8].map(|at| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))),
        }
    }

    fn put(&self, numbers: &[u64], place: u64) -> io::Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.file.write_all_at(&bytes, self.start + place)
    }

    /// Whether the image is as the first process has found it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn is_before_checkpoints(&self) -> io::Result<bool> {
        Ok(self.numbers(CHECKPOINTS)?[0] == 0)
    }

    /// What was noted about the image by the first process, or zero.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn found(&self) -> io::Result<u64> {
        Ok(self.numbers(FOUND)?[0])
    }

    /// Notes something about the image for those who come later.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_found(&self, what: u64) -> io::Result<()> {
        self.put(&[what], FOUND)
    }

    /// Where the list of a sealed overlay is, and its length.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn sealed(&self) -> io::Result<Option<(u64, u64)>> {
        let [place, length] = self.numbers(SEALED)?;
        Ok((place != 0).then_some((place, length)))
    }

    /// From here on the checkpoint has happened: the place is written last, and at once.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn seal(&self, place: u64, length: u64) -> io::Result<()> {
        self.put(&[length], SEALED + 8)?;
        self.put(&[place], SEALED)
    }

    /// Everything that was sealed is in the image.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn has_happened(&self) -> io::Result<()> {
        let [checkpoints, _] = self.numbers(CHECKPOINTS)?;
        // Whoever is killed between the two has the same carried out again, and counts two for one, which does no harm.
        self.put(&[checkpoints + 1], CHECKPOINTS)?;
        self.break_seal()
    }

    /// What was sealed is not any more.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn break_seal(&self) -> io::Result<()> {
        self.put(&[0], SEALED)
    }

    /// When the next change is to happen, as long as those of the past are repeated; the last answer says that they are over.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn clock(&self) -> io::Result<Option<Stamp>> {
        if !self.replaying.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let stamp = self.numbers(CLOCK)?;
        if stamp == [u64::MAX; 2] {
            self.replaying.store(false, Ordering::Relaxed);
        }
        Ok(Some(stamp))
    }

    /// Notes when the change in the frame with this number happens.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note(&self, frame: u64, stamp: Stamp) -> io::Result<()> {
        self.put(&stamp, RING + (frame - FIRST_CHANGE) % CHANGES * CHANGE)
    }
}
