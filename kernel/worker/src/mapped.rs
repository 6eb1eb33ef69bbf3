// SPDX-License-Identifier: GPL-2.0-only
//! Windows of an image in memory: the ones that were not looked at for longest make room for others.

use crate::transfer::Transfer;
use outrigger_core::lock;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// How many windows there are.
const WINDOWS: usize = 16;
/// How large one is, in bytes.
const WINDOW: usize = 1 << 20;

/// Where the windows are, for the handler of a fault there; 0 when there are none.
static START: AtomicUsize = AtomicUsize::new(0);

/// Whether there is a window at this address.
pub fn has(address: usize) -> bool {
    let start = START.load(Ordering::Relaxed);
    start != 0 && (start..start + WINDOWS * WINDOW).contains(&address)
}

/// The windows of one image.
pub struct Mapped {
    /// Addresses reserved for all windows.
    start: usize,
    /// How long the file was at the start, in bytes.
    end: u64,
    slots: Mutex<Slots>,
}

/// What each window shows.
#[derive(Default)]
struct Slots {
    /// The number of the piece of the file, and when it was looked at.
    shown: [Option<(u64, u64)>; WINDOWS],
    now: u64,
}

impl Slots {
    /// The slot that shows `piece`, or the one to show it in.
    fn find(&mut self, piece: u64) -> (usize, bool) {
        self.now += 1;
        let known = self.shown.iter().position(|shown| shown.is_some_and(|(number, _)| number == piece));
        let oldest = || (0..WINDOWS).min_by_key(|&slot| self.shown[slot].map_or(0, |(_, when)| when));
        let slot = known.or_else(oldest).unwrap_or(0);
        (slot, known.is_some())
    }
}

impl Mapped {
    /// Reserves the addresses for windows of `file`.
    ///
    /// # Errors
    /// When the host has none.
    pub fn new(mut file: &File) -> io::Result<Self> {
        let end = file.seek(SeekFrom::End(0))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: no address is given, so nothing that exists is touched.
        let start = unsafe { libc::mmap(null_mut(), WINDOWS * WINDOW, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.expose_provenance();
        START.store(start, Ordering::Relaxed);
        Ok(Mapped { start, end, slots: Mutex::default() })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        lock(&self.slots)
    }

    /// Copies from a piece of the file, from `skipped` on.
    fn copy(&self, file: &File, piece: u64, skipped: usize, to: &mut [u8]) -> io::Result<()> {
        let mut slots = self.slots();
        let (slot, shown) = slots.find(piece);
        let address = self.start + slot * WINDOW;
        if !shown {
            slots.shown[slot] = None;
            let offset = (piece * WINDOW as u64) as i64;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let at = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the addresses were reserved for this; no thread reads them while the slots are locked.
            let mapped = unsafe { libc::mmap(at, WINDOW, libc::PROT_READ, flags, file.as_raw_fd(), offset) };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        slots.shown[slot] = Some((piece, slots.now));
        let from = std::ptr::with_exposed_provenance::<u8>(address + skipped);
        // SAFETY: the window is mapped, stays so while the slots are locked, and the caller's range is within it. Beyond
        // the end of the file there is a fault that ends this process, see `crash`.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }
}

impl Transfer for Mapped {
    fn read(&self, file: &File, buffer: &mut [u8], place: u64) -> io::Result<()> {
        // A request for what is beyond the end is refused; a fault is left for a file that shrinks.
        if place.checked_add(buffer.len() as u64).is_none_or(|last| last > self.end) {
            return file.read_exact_at(buffer, place);
        }
        let (mut place, mut rest) = (place, buffer);
        while !rest.is_empty() {
            let skipped = (place % WINDOW as u64) as usize;
            let length = rest.len().min(WINDOW - skipped);
            let (piece, after) = rest.split_at_mut(length);
            self.copy(file, place / WINDOW as u64, skipped, piece)?;
            place += length as u64;
            rest = after;
        }
        Ok(())
    }

    fn write(&self, file: &File, data: &[u8], place: u64) -> io::Result<()> {
        file.write_all_at(data, place)
    }
}
