// SPDX-License-Identifier: GPL-2.0-only
//! The disks: ranges of files that this process was started with.

use crate::transfer::{self, Buffered, Transfer};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, OnceLock};

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
        Ok(Disk { file, start, size, writable, transfer: Box::new(Buffered), device })
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

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// Those of pread(2); `EIO` beyond the end.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.transfer.read(&self.file, buffer, self.place(buffer.len() as u64, offset)?)
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// Those of pwrite(2); `EIO` beyond the end.
    pub fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        self.transfer.write(&self.file, buffer, self.place(buffer.len() as u64, offset)?)
    }

    /// Returns when all that was written is on the medium.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    pub fn flush(&self) -> io::Result<()> {
        if self.writable { self.file.sync_data() } else { Ok(()) }
    }

    /// Gives a range back to the host (`zero`: it has to read as zeroes).
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub fn discard(&self, offset: u64, length: u64, zero: bool) -> io::Result<()> {
        if !self.discards() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let place = self.place(length, offset)?;
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let mode = if zero { libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE } else { hole };
        // SAFETY: a plain system call on a descriptor of our own.
        match unsafe { libc::fallocate(self.file.as_raw_fd(), mode, place as i64, length as i64) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
