// SPDX-License-Identifier: GPL-2.0-only
//! The disks: ranges of images that this process was started with.

use crate::abi::{self, Access};
use crate::control::Control;
use crate::medium::ImageFile;
use crate::overlay::Overlay;
use crate::ring::{self, Ring};
use outrigger_core::{Errno, Result, lock};
use outrigger_proto_disk::container::Container;
use outrigger_proto_disk::qcow2::{Qcow2, Storage};
use outrigger_proto_disk::{Bytes, Medium};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// How many disks there can be.
const DISKS: usize = 16;

static TABLE: [OnceLock<Disk>; DISKS] = [const { OnceLock::new() }; DISKS];
static COUNT: Mutex<u32> = Mutex::new(0);
/// The errno of the first write that did not reach an image, or 0: file systems drop such pages, so it stays true.
static LOST: AtomicI32 = AtomicI32::new(0);
/// Whether a synchronisation has reported it.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// A range of an image.
pub struct Disk {
    image: Image,
    /// Where the disk starts in it, in bytes.
    start: u64,
    /// Its size in bytes.
    size: u64,
    /// Whether the image may be changed.
    writable: bool,
    /// Whether the ring of this process has its file.
    has_ring: bool,
    /// What is written but not in the image yet, if that is kept apart.
    overlay: Option<Mutex<Overlay>>,
}

/// What a disk is in.
pub enum Image {
    /// A file as it is.
    Plain(ImageFile),
    /// A qcow2 image.
    Qcow2(Box<Mutex<Qcow2<ImageFile>>>),
    /// An image of a form that is not written.
    ReadOnly(Bytes),
}

/// What of a qcow2 image is not content: less than this part of it, whatever the size of clusters, and some more bytes.
const TABLES: (u64, u64) = (16, 64 << 20);

impl Image {
    /// Of the disk, in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Image::Plain(image) => image.size(),
            Image::Qcow2(image) => image.size(),
            Image::ReadOnly(image) => image.size(),
        }
    }

    /// How long the file may become when it is written, in bytes: all content of a qcow2 image may move beyond its end.
    ///
    /// # Errors
    /// Those of looking at it.
    pub fn longest(&self) -> io::Result<u64> {
        match self {
            Image::Plain(image) => Ok(image.size()),
            Image::Qcow2(image) => {
                let ((part, more), disk) = (TABLES, image.size());
                let file = lock(image).storage().size();
                Ok(file.saturating_add(disk).saturating_add(disk / part + more))
            }
            Image::ReadOnly(_) => Ok(0),
        }
    }
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

/// Notes how an access ended that the kernel made to an image: 0 or a negative errno.
pub fn note(access: &Access) {
    // Not every file can be given a hole; the kernel does without.
    let changes = matches!(access.kind, abi::WRITE | abi::FLUSH | abi::ZERO);
    let refused = access.result == -i64::from(libc::EOPNOTSUPP);
    if changes && !refused && access.result < 0 && get(access.disk).is_ok_and(Disk::writable) {
        let errno = access.result.unsigned_abs() as i32;
        let _ = LOST.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether all that was written has reached the images since this process began.
///
/// # Errors
/// That of the first write that has not.
pub fn all_written() -> Result<()> {
    match LOST.load(Ordering::Relaxed) {
        0 => Ok(()),
        errno => Err(Errno(errno)
            .because(format!("not everything that was written is in the image: {}", Errno(errno).message()))),
    }
}

/// The same for a synchronisation: as with errseq_t of Linux, one failure is reported by one of them.
///
/// # Errors
/// As [`all_written`].
pub fn all_written_since_last() -> Result<()> {
    match all_written() {
        Err(error) if !REPORTED.swap(true, Ordering::Relaxed) => Err(error),
        _ => Ok(()),
    }
}

impl Disk {
    /// `size` bytes of an image from `start` on; all that follow when `size` is none.
    ///
    /// # Errors
    /// When the image does not reach so far.
    pub fn new(image: Image, start: u64, size: Option<u64>, writable: bool) -> io::Result<Self> {
        let rest = image
            .size()
            .checked_sub(start)
            .ok_or_else(|| io::Error::other("the image ends before its partition"))?;
        // A partition may be cut off: what is there can be read.
        let size = size.unwrap_or(rest).min(rest);
        Ok(Disk { image, start, size, writable, has_ring: false, overlay: None })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the image may be changed.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Whether it takes writes, even if no other process ever sees them.
    pub fn takes_writes(&self) -> bool {
        self.writable || self.overlay.is_some()
    }

    /// Whether what is discarded becomes free on the host.
    pub fn discards(&self) -> bool {
        self.writable
            && match &self.image {
                Image::Plain(image) => !image.device,
                Image::Qcow2(_) => true,
                Image::ReadOnly(_) => false,
            }
    }

    fn place(&self, length: u64, offset: u64) -> io::Result<u64> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(self.start + offset),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    /// The same disk, of which the file changes only at [`Disk::checkpoint`], and never if it is not to be changed.
    ///
    /// # Errors
    /// When what a predecessor left cannot be written.
    pub fn kept_apart(mut self, control: Arc<Control>) -> io::Result<Self> {
        self.overlay = Some(Mutex::new(Overlay::open(control, &self)?));
        Ok(self)
    }

    /// The same disk, whose file is the first of the ring of this process.
    ///
    /// # Errors
    /// When the host refuses one.
    pub fn with_ring(mut self) -> io::Result<Self> {
        if let Image::Plain(image) = &self.image {
            ring::open(&image.file)?;
            self.has_ring = true;
        }
        Ok(self)
    }

    fn overlay(&self) -> Option<MutexGuard<'_, Overlay>> {
        self.overlay.as_ref().map(|overlay| lock(overlay))
    }

    /// Brings the file up to date and returns when all of it is on the medium.
    ///
    /// # Errors
    /// Those of writing it.
    pub fn checkpoint(&self) -> io::Result<()> {
        match self.overlay() {
            Some(mut overlay) if self.writable => overlay.checkpoint(self),
            _ => self.flush_image(),
        }
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

    /// Fills pieces of memory one after the other, from `offset` on.
    ///
    /// # Errors
    /// As [`Disk::read`].
    pub fn read_pieces(&self, pieces: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        let in_file = self.overlay().is_none_or(|overlay| overlay.has_nothing_of(offset, length));
        if let (Image::Plain(image), true) = (&self.image, in_file) {
            return image.read_pieces(pieces, self.place(length, offset)?);
        }
        for piece in pieces {
            self.read(piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes pieces of memory one after the other, at `offset`.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write_pieces(&self, pieces: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        if let (Image::Plain(image), None, true) = (&self.image, &self.overlay, self.writable) {
            let length = pieces.iter().map(|piece| piece.len() as u64).sum();
            return image.write_pieces(pieces, self.place(length, offset)?);
        }
        for piece in pieces {
            self.write(piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// Those of pwrite(2); `EIO` beyond the end.
    pub fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        if !self.takes_writes() {
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

    /// Whether the host may take its time for an access: the ring that does it, and where it is in the file.
    pub fn takes_time(&self, access: &Access) -> Option<(&'static Ring, u64)> {
        let ring = ring::get().filter(|_| self.has_ring)?;
        let place = match access.kind {
            // A task that may not wait gets its error at once, and so does one whose access is an error.
            abi::FLUSH => self.writable.then_some(0),
            abi::DISCARD | abi::ZERO if !self.discards() => None,
            abi::WRITE if !self.writable => None,
            _ => self.place(access.length, access.offset).ok(),
        }?;
        let in_file = self.overlay().is_none_or(|overlay| {
            access.kind == abi::READ && overlay.has_nothing_of(access.offset, access.length)
        });
        in_file.then_some((ring, place))
    }

    /// Reads from the image itself.
    pub(crate) fn read_image(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let place = self.place(buffer.len() as u64, offset)?;
        match &self.image {
            Image::Plain(image) => image.read(buffer, place),
            Image::Qcow2(image) => lock(image).read(buffer, place),
            Image::ReadOnly(image) => image.read(buffer, place),
        }
    }

    /// Writes into the image itself.
    pub(crate) fn write_image(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let place = self.place(buffer.len() as u64, offset)?;
        match &self.image {
            Image::Plain(image) => image.write(buffer, place),
            Image::Qcow2(image) => lock(image).write(buffer, place),
            Image::ReadOnly(_) => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }

    /// Returns when all that was written into the image is on the medium.
    pub(crate) fn flush_image(&self) -> io::Result<()> {
        match &self.image {
            _ if !self.writable => Ok(()),
            Image::Plain(image) => image.flush(),
            Image::Qcow2(image) => lock(image).flush(),
            Image::ReadOnly(_) => Ok(()),
        }
    }

    /// Takes a range out of the image.
    pub(crate) fn discard_image(&self, offset: u64, length: u64, zero: bool) -> io::Result<()> {
        let place = self.place(length, offset)?;
        match &self.image {
            Image::Plain(image) if zero => fallocate(&image.file, libc::FALLOC_FL_ZERO_RANGE, place, length),
            Image::Plain(image) => punch(&image.file, place, length),
            Image::Qcow2(image) => lock(image).discard(place, length, zero),
            Image::ReadOnly(_) => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
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
