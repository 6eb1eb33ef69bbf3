// SPDX-License-Identifier: GPL-2.0-only
//! The disks: ranges of files that this process was started with.

use crate::control::Control;
use crate::overlay::Overlay;
use crate::transfer::{self, Buffered, Transfer};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// How many disks there can be.
const DISKS: usize = 16;

static TABLE: [OnceLock<Disk>; DISKS] = [const { OnceLock::new() }; DISKS];
static COUNT: Mutex<u32> = Mutex::new(0);

/// A range of a file.
pub struct Disk {
    file: File,
    /// Where the disk starts in the file, in bytes.
    start: u64,
    /// Its size in bytes.
    size: u64,
    writable: bool,
    /// How its bytes are moved.
    transfer: Box<dyn Transfer>,
    /// Whether it is a block device, where a hole cannot be punched.
    device: bool,
    /// What is written but not in the file yet, if that is kept apart.
    overlay: Option<Mutex<Overlay>>,
}

/// Gives a disk the next number.
///
/// # Errors
/// When there are too many.
pub fn add(disk: Disk) -> io::Result<u32> {
    let mut count = COUNT.lock().map_err(|_| io::Error::other("the table of disks is broken"))?;
    let slot = TABLE.get(*count as usize).ok_or_else(|| io::Error::other("too many disks"))?;
    slot.set(disk).map_err(|_| io::Error::other("the table of disks is broken"))?;
    *count += 1;
    Ok(*count - 1)
}

/// The disk with this number.
///
/// # Errors
/// `ENXIO` when there is none.
pub fn get(number: u32) -> io::Result<&'static Disk> {
    let slot = TABLE.get(number as usize).and_then(OnceLock::get);
    slot.ok_or_else(|| io::Error::from_raw_os_error(libc::ENXIO))
}

impl Disk {
    /// `size` bytes of `file` from `start` on; all that follow when `size` is none.
    ///
    /// # Errors
    /// When the file does not reach so far.
    pub fn new(file: File, start: u64, size: Option<u64>, writable: bool) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let metadata = file.metadata()?;
        let device = metadata.file_type().is_block_device();
        let length = if device { io::Seek::seek(&mut &file, io::SeekFrom::End(0))? } else { metadata.len() };
        let rest = length
            .checked_sub(start)
            .ok_or_else(|| io::Error::other("the image ends before its partition"))?;
        // A partition may be cut off: what is there can be read.
        let size = size.unwrap_or(rest).min(rest);
        Ok(Disk { file, start, size, writable, transfer: Box::new(Buffered), device, overlay: None })
    }

    /// The same disk, whose bytes are moved as `io=` says.
    ///
    /// # Errors
    /// Those of [`transfer::named`].
    pub fn moved_by(mut self, io: &str) -> io::Result<Self> {
        self.transfer = transfer::named(io, &self.file, self.writable)?;
        Ok(self)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it takes writes.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Whether what is discarded becomes free on the host.
    pub fn discards(&self) -> bool {
        self.writable && !self.device
    }

    fn place(&self, length: u64, offset: u64) -> io::Result<u64> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(self.start + offset),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    /// The same disk, of which the file changes only at [`Disk::checkpoint`].
    ///
    /// # Errors
    /// When what a predecessor left cannot be written.
    pub fn kept_apart(mut self, control: Arc<Control>) -> io::Result<Self> {
        self.overlay = Some(Mutex::new(Overlay::open(control, &self)?));
        Ok(self)
    }

    fn overlay(&self) -> Option<MutexGuard<'_, Overlay>> {
        self.overlay.as_ref().map(|overlay| overlay.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Brings the file up to date and returns when all of it is on the medium.
    ///
    /// # Errors
    /// Those of writing it.
    pub fn checkpoint(&self) -> io::Result<()> {
        self.overlay().map_or_else(|| self.flush_image(), |mut overlay| overlay.checkpoint(self))
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// Those of pread(2); `EIO` beyond the end.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.place(buffer.len() as u64, offset)?;
        match self.overlay() {
            Some(overlay) => overlay.read(self, buffer, offset),
            None => self.read_image(buffer, offset),
        }
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// Those of pwrite(2); `EIO` beyond the end.
    pub fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        self.place(buffer.len() as u64, offset)?;
        match self.overlay() {
            Some(mut overlay) => overlay.write(self, buffer, offset),
            None => self.write_image(buffer, offset),
        }
    }

    /// Returns when all that was written is on the medium, or certain to get there before what is written later.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    pub fn flush(&self) -> io::Result<()> {
        match self.overlay() {
            Some(mut overlay) => {
                overlay.flush();
                Ok(())
            }
            None => self.flush_image(),
        }
    }

    /// Gives a range back to the host (`zero`: it has to read as zeroes).
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub fn discard(&self, offset: u64, length: u64, zero: bool) -> io::Result<()> {
        if !self.discards() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.place(length, offset)?;
        match self.overlay() {
            Some(mut overlay) => overlay.discard(self, offset, length, zero),
            None => self.discard_image(offset, length, zero),
        }
    }

    /// Reads from the file itself.
    pub(crate) fn read_image(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.transfer.read(&self.file, buffer, self.place(buffer.len() as u64, offset)?)
    }

    /// Writes into the file itself.
    pub(crate) fn write_image(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.transfer.write(&self.file, buffer, self.place(buffer.len() as u64, offset)?)
    }

    /// Returns when all that was written into the file is on the medium.
    pub(crate) fn flush_image(&self) -> io::Result<()> {
        if self.writable { self.file.sync_data() } else { Ok(()) }
    }

    /// Takes a range out of the file.
    pub(crate) fn discard_image(&self, offset: u64, length: u64, zero: bool) -> io::Result<()> {
        let place = self.place(length, offset)?;
        match zero {
            true => fallocate(&self.file, libc::FALLOC_FL_ZERO_RANGE, place, length),
            false => punch(&self.file, place, length),
        }
    }
}

/// Makes a hole in a file.
///
/// # Errors
/// Those of fallocate(2).
pub fn punch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE, offset, length)
}

fn fallocate(file: &File, mode: libc::c_int, offset: u64, length: u64) -> io::Result<()> {
    let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain system call on a descriptor of our own.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
