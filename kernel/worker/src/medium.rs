// SPDX-License-Identifier: GPL-2.0-only
//! What the disk of an image is in: a file as it is, or a qcow2 image with those it is based on.

use crate::disk::{Image, punch};
use crate::socket;
use crate::transfer::{self, Buffered, Transfer};
use outrigger_proto_disk::qcow2::{Qcow2, Storage};
use outrigger_proto_disk::{DiskError, Medium};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file of an image, and how its bytes are moved.
pub struct ImageFile {
    pub file: File,
    transfer: Box<dyn Transfer>,
    /// Whether it is a block device, which neither grows nor gets holes.
    pub device: bool,
    size: AtomicU64,
}

impl ImageFile {
    /// A file, whose bytes the host's page cache moves.
    ///
    /// # Errors
    /// Those of looking at it.
    pub fn new(mut file: File) -> io::Result<Self> {
        let device = file.metadata()?.file_type().is_block_device();
        // Of a block device the metadata says nothing.
        let size = AtomicU64::new(file.seek(SeekFrom::End(0))?);
        Ok(ImageFile { file, transfer: Box::new(Buffered), device, size })
    }

    /// Fills pieces of memory one after the other, from `place` on.
    ///
    /// # Errors
    /// Those of preadv(2), and when the file ends before.
    pub fn read_pieces(&self, pieces: &mut [IoSliceMut<'_>], place: u64) -> io::Result<()> {
        self.transfer.read_pieces(&self.file, pieces, place)
    }

    /// Writes pieces of memory one after the other, at `place`. The file must be so long already.
    ///
    /// # Errors
    /// Those of pwritev(2).
    pub fn write_pieces(&self, pieces: &mut [IoSlice<'_>], place: u64) -> io::Result<()> {
        self.transfer.write_pieces(&self.file, pieces, place)
    }
}

impl Medium for ImageFile {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.transfer.read(&self.file, buffer, offset)
    }
}

impl Storage for ImageFile {
    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.transfer.write(&self.file, data, offset)?;
        self.size.fetch_max(offset + data.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)?;
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.device { Ok(()) } else { punch(&self.file, offset, length) }
    }
}

/// A file that is only read.
struct Below(File, u64);

impl Medium for Below {
    fn size(&self) -> u64 {
        self.1
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

/// What `format=` and `backing=` say the image is.
pub enum Form {
    /// A file as it is.
    Plain,
    /// A qcow2 image; and what it is based on, whether qcow2 too, the nearest first.
    Qcow2(Vec<bool>),
}

impl Form {
    /// Whether it is based on other files.
    pub fn has_files(&self) -> bool {
        matches!(self, Form::Qcow2(below) if !below.is_empty())
    }
}

/// The files of an image that is not looked at yet.
pub struct Arrived {
    image: ImageFile,
    form: Form,
    files: Vec<File>,
}

impl Arrived {
    /// An image of this form in a file, and what it is based on. Its bytes are moved as `io` says.
    ///
    /// # Errors
    /// Those of looking at the file, and when it cannot be moved in this way.
    pub fn new(file: File, form: Form, io: &str, write: bool, files: Vec<File>) -> io::Result<Self> {
        let image = ImageFile::new(file)?;
        let transfer = transfer::named(io, &image.file, write)?;
        Ok(Arrived { image: ImageFile { transfer, ..image }, form, files })
    }

    /// The same, where what it is based on arrives at the socket.
    ///
    /// # Errors
    /// As [`Arrived::new`] and [`receive`].
    pub fn with_files(
        file: File,
        form: Form,
        io: &str,
        write: bool,
        socket: &UnixStream,
    ) -> io::Result<Self> {
        let files = if form.has_files() { receive(socket)? } else { Vec::new() };
        Self::new(file, form, io, write, files)
    }

    /// The image.
    ///
    /// # Errors
    /// When there are not all files that it is based on; when one is damaged or not one that is served.
    pub fn image(self) -> io::Result<Image> {
        Ok(match self.form {
            Form::Plain => Image::Plain(self.image),
            Form::Qcow2(below) => Image::Qcow2(Box::new(qcow2(self.image, &below, self.files)?)),
        })
    }
}

fn qcow2(image: ImageFile, below: &[bool], files: Vec<File>) -> io::Result<Mutex<Qcow2<ImageFile>>> {
    if files.len() != below.len() {
        return Err(io::Error::other("not all files the image is based on have arrived"));
    }
    let mut lower: Option<Box<dyn Medium + Send + Sync>> = None;
    for (mut file, is_qcow2) in files.into_iter().zip(below).rev() {
        let size = file.seek(SeekFrom::End(0))?;
        let file = Below(file, size);
        lower = Some(match is_qcow2 {
            true => Box::new(Mutex::new(Qcow2::open(file, lower).map_err(explained)?)),
            false => Box::new(file),
        });
    }
    Ok(Mutex::new(Qcow2::open(image, lower).map_err(explained)?))
}

fn explained(error: DiskError) -> io::Error {
    match error {
        DiskError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Files that were sent ahead of everything else, with one byte.
///
/// # Errors
/// When nothing has arrived.
pub fn receive(socket: &UnixStream) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    match socket::receive(socket, &mut [0], &mut files)? {
        1 => Ok(files),
        _ => Err(io::Error::other("the files of the image have not arrived")),
    }
}
