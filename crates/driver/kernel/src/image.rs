// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file an image is in, and the parts of it.

use crate::detect::{FsType, container, detect, detect_in};
use crate::options::Options;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_disk::partition::{self, Fault, Partition, Table};
use outrigger_proto_disk::{DiskError, Medium};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// An image, open and locked.
pub(crate) struct Image {
    medium: ImageFile,
    name: String,
    writable: bool,
}

/// A range of an image.
pub(crate) struct Part {
    /// Where it starts, in bytes.
    pub start: u64,
    /// How long it is, in bytes; none for all that follows.
    pub size: Option<u64>,
    /// Why it is not to be written, if it is not.
    pub read_only: Option<Arc<str>>,
}

impl Part {
    /// All of an image.
    pub(crate) fn whole() -> Self {
        Part { start: 0, size: None, read_only: None }
    }

    /// The part that is this partition.
    ///
    /// # Errors
    /// `ENXIO` when nothing of it is there.
    pub(crate) fn of(partition: &Partition) -> Result<Self> {
        let number = partition.number;
        let why = |fault: &Fault| format!("partition {number} {fault}");
        match (partition.range(), &partition.fault) {
            (Some((start, size)), fault) => {
                let read_only =
                    fault.as_ref().map(|fault| format!("{}: it is not written", why(fault)).into());
                Ok(Part { start, size: Some(size), read_only })
            }
            (None, fault) => Err(Errno::ENXIO.because(fault.as_ref().map(why).unwrap_or_default())),
        }
    }
}

impl Image {
    /// Opens and locks the image in the file `path`; for writing where that is asked for and allowed.
    ///
    /// # Errors
    /// Those of opening it, `EBUSY` when somebody else uses it, and those of [`must_be_plain`].
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self> {
        let both = || File::options().read(true).write(true).open(path);
        let (file, writable) = if options.read_only {
            (File::open(path)?, false)
        } else {
            match both() {
                Ok(file) => (file, true),
                Err(_) => (File::open(path)?, false),
            }
        };
        let lock = if writable {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        match rustix::fs::flock(&file, lock) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Errno::EBUSY.because(
                    "another process uses this image; several may only read it (--opt ro, mount: -o ro)",
                ));
            }
            Err(errno) => return Err(Errno(errno.raw_os_error()).into()),
        }
        must_be_plain(&file)?;
        Ok(Image { medium: ImageFile::new(file)?, name: path.display().to_string(), writable })
    }

    pub(crate) fn file(&self) -> &File {
        &self.medium.file
    }

    /// What its user calls it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// In bytes.
    pub(crate) fn size(&self) -> u64 {
        self.medium.size
    }

    /// The file system in a part of it.
    ///
    /// # Errors
    /// Those of reading it.
    pub(crate) fn detect(&self, part: &Part) -> Result<Option<&'static FsType>> {
        detect_in(self.file(), part.start, part.size)
    }

    /// Its partition table, if it has one.
    ///
    /// # Errors
    /// `EINVAL` when that is damaged, and those of reading it.
    pub(crate) fn table(&self) -> Result<Option<Table>> {
        table_of(&self.medium)
    }

    /// The partition with this number.
    ///
    /// # Errors
    /// `ENXIO` with what there is instead.
    pub(crate) fn part(&self, number: u32) -> Result<Part> {
        let table = self.table()?.ok_or_else(|| no_partition("the image has no partition table"))?;
        match table.partitions.iter().find(|partition| partition.number == number) {
            Some(partition) => Part::of(partition),
            None => {
                let numbers = table.partitions.iter().map(|each| each.number.to_string());
                let numbers = numbers.collect::<Vec<_>>().join(", ");
                Err(no_partition(&format!("there is no partition {number}, but {numbers}")))
            }
        }
    }
}

/// The partition table of a medium.
///
/// # Errors
/// `EINVAL` when it is damaged, and those of reading it.
pub(crate) fn table_of(medium: &ImageFile) -> Result<Option<Table>> {
    partition::table(medium).map_err(|error| match error {
        DiskError::Io(error) => error.into(),
        damaged => Errno::EINVAL.because(damaged.to_string()),
    })
}

impl Drop for Image {
    fn drop(&mut self) {
        // A process that is just being started may have the file for another moment, and the lock must not wait for it.
        let _ = rustix::fs::flock(self.file(), FlockOperation::Unlock);
    }
}

fn no_partition(reason: &str) -> Error {
    Errno::ENXIO.because(reason)
}

/// Refuses images in which the disk's bytes have to be searched for.
///
/// # Errors
/// `EOPNOTSUPP` with the name of the form.
pub(crate) fn must_be_plain(file: &File) -> Result<()> {
    match container(file) {
        None => Ok(()),
        Some(name) => Err(Errno::EOPNOTSUPP.because(format!(
            "{name} images are not served: `qemu-img convert -O raw` makes a plain one, with holes where nothing is"
        ))),
    }
}

/// Whether a file is an image: it holds a file system that is known, or a partition table, whole or damaged; or it is one of
/// those that are refused by name.
///
/// # Errors
/// Those of reading it.
pub fn is_image(file: &File) -> Result<bool> {
    if container(file).is_some() || detect(file)?.is_some() {
        return Ok(true);
    }
    match partition::table(&ImageFile::new(file.try_clone()?)?) {
        Ok(table) => Ok(table.is_some()),
        Err(DiskError::Io(error)) => Err(error.into()),
        Err(_) => Ok(true),
    }
}

/// A file, or a block device, as a medium.
pub(crate) struct ImageFile {
    pub file: File,
    /// In bytes.
    pub size: u64,
}

impl ImageFile {
    pub(crate) fn new(mut file: File) -> io::Result<Self> {
        // Of a block device the metadata says nothing.
        let size = file.seek(SeekFrom::End(0))?;
        Ok(ImageFile { file, size })
    }
}

impl Medium for ImageFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}
