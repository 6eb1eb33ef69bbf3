// SPDX-License-Identifier: GPL-2.0-only
//! What the disk of an image is in: a file as it is, or an image of another form with the files it needs.

use crate::disk::{Image, punch};
use crate::served::Served;
use crate::socket;
use crate::transfer::{self, Buffered, Transfer};
use outrigger_proto_disk::form::{self, Form};
use outrigger_proto_disk::qcow2::{Qcow2, Storage};
use outrigger_proto_disk::{Bytes, DiskError, Medium, vhd};
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
    /// Whether it is a block device or served, which neither grows nor gets holes.
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

/// The files of an image that is not looked at yet.
pub struct Arrived {
    image: ImageFile,
    forms: Vec<Form>,
    files: Vec<File>,
}

impl Arrived {
    /// An image in a file, and those it needs beside its own, of these forms. Its bytes are moved as `io` says.
    ///
    /// # Errors
    /// Those of looking at the file, and when it cannot be moved in this way.
    pub fn new(file: File, forms: Vec<Form>, io: &str, write: bool, files: Vec<File>) -> io::Result<Self> {
        let image = ImageFile::new(file)?;
        let transfer = transfer::named(io, &image.file, write)?;
        Ok(Arrived { image: ImageFile { transfer, ..image }, forms, files })
    }

    /// An image whose bytes are asked for at this connection: it needs no other file, and is only read.
    pub fn served(connection: File, size: u64, forms: Vec<Form>) -> Self {
        let (transfer, size) = (Box::new(Served::default()), AtomicU64::new(size));
        Arrived {
            image: ImageFile { file: connection, transfer, device: true, size },
            forms,
            files: Vec::new(),
        }
    }

    /// The same, where the files it needs arrive at the socket.
    ///
    /// # Errors
    /// As [`Arrived::new`] and [`receive`].
    pub fn with_files(
        file: File,
        forms: Vec<Form>,
        io: &str,
        write: bool,
        socket: &UnixStream,
    ) -> io::Result<Self> {
        let files = if forms.len() > 1 { receive(socket)? } else { Vec::new() };
        Self::new(file, forms, io, write, files)
    }

    /// The image.
    ///
    /// # Errors
    /// When there are not all files that it needs; when one is damaged or not one that is served.
    pub fn image(self) -> io::Result<Image> {
        if self.files.len() + 1 != self.forms.len() {
            return Err(io::Error::other("not all files the image needs have arrived"));
        }
        let mut files = Vec::new();
        for (form, mut file) in self.forms[1..].iter().zip(self.files) {
            let size = file.seek(SeekFrom::End(0))?;
            files.push((*form, Box::new(Below(file, size)) as Bytes));
        }
        Ok(match self.forms[0] {
            Form::Raw => Image::Plain(self.image),
            Form::Qcow2 => {
                let below = (!files.is_empty()).then(|| form::open(files).map_err(explained)).transpose()?;
                Image::Qcow2(Box::new(Mutex::new(Qcow2::open(self.image, below).map_err(explained)?)))
            }
            form => {
                if form == Form::Vhd
                    && let Some(size) = vhd::fixed(&self.image).map_err(explained)?
                {
                    return Ok(Image::Plain(ImageFile { size: AtomicU64::new(size), ..self.image }));
                }
                files.insert(0, (form, Box::new(self.image)));
                Image::ReadOnly(form::open(files).map_err(explained)?)
            }
        })
    }
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
