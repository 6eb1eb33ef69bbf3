// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file an image is in, and the parts of it.

use crate::detect::{FsType, detect_in, unknown};
use crate::disk::{Disk, Place, Plain, explained, is_written};
use crate::flash::erase_size;
use crate::host;
use crate::lock::Held;
use crate::options::Options;
use crate::served::Served;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_disk::marks;
use outrigger_proto_disk::partition::{self, Fault, Partition, Table};
use outrigger_proto_disk::volume::describe;
use outrigger_proto_disk::{DiskError, Medium, Window};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// An image, open and locked.
pub(crate) struct Image {
    disk: Disk,
    others: Vec<Other>,
    name: String,
    writable: bool,
    /// The partition that may be written, where that can be one only.
    writer: OnceLock<u32>,
}

/// A further disk that the file system in an image is on.
pub(crate) struct Other {
    /// The option of mount(8) that names it.
    pub option: String,
    /// The disk.
    pub disk: Disk,
}

/// A range of an image.
pub(crate) struct Part {
    /// Where it starts, in bytes.
    pub start: u64,
    /// How long it is, in bytes; none for all that follows.
    pub size: Option<u64>,
    /// Why it is not to be written, if it is not.
    pub read_only: Option<Arc<str>>,
    /// How many bytes are erased together, if it is flash memory.
    pub flash: Option<u32>,
}

impl Part {
    /// All of an image.
    pub(crate) fn whole() -> Self {
        Part { start: 0, size: None, read_only: None, flash: None }
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
                Ok(Part { start, size: Some(size), read_only, flash: None })
            }
            (None, fault) => Err(Errno::ENXIO.because(fault.as_ref().map(why).unwrap_or_default())),
        }
    }
}

impl Image {
    /// Opens and locks the image in the file `path`, and the further ones that the options name; for writing where that is asked
    /// for and allowed for all of them.
    ///
    /// # Errors
    /// Those of opening it, `EBUSY` when somebody else uses it, and those of [`Disk::open`].
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self> {
        let others = || options.devices.iter().map(|(_, path)| path.as_path());
        let writable = !options.read_only && [path].into_iter().chain(others()).all(is_writable);
        let opened = |path: &Path| -> Result<Disk> {
            if writable && let Some(who) = host::user_of(path)? {
                return Err(Errno::EBUSY.because(format!("it is not written, because {who}")));
            }
            if let Some(file) = host::file_of_loop(path) {
                unused(&file, writable)?;
            }
            let file = host::open(path, writable)?;
            Disk::open(Place::Host(Held::locked(file, writable)?), options.backing)
        };
        let disk = opened(path)?;
        let other = |(option, path): &(String, PathBuf)| {
            let about = |error: Error| {
                let why = error.reason.as_deref().unwrap_or(error.errno.message());
                error.errno.because(format!("{option}={}: {why}", path.display()))
            };
            Ok(Other { option: option.clone(), disk: opened(path).map_err(about)? })
        };
        let others = options.devices.iter().map(other).collect::<Result<_>>()?;
        Ok(Image { disk, others, name: path.display().to_string(), writable, writer: OnceLock::new() })
    }

    /// The image in a file of another tree.
    ///
    /// # Errors
    /// `EINVAL` for options that need a file of the host, and those of [`Disk::open`].
    pub(crate) fn served(served: Arc<Served>, options: &Options) -> Result<Self> {
        let refused = |option: &str| {
            let why = format!("option {option}: the image is in another tree, not in a file of this machine");
            Err(Errno::EINVAL.because(why))
        };
        if let Some((option, _)) = options.devices.first() {
            return refused(option);
        }
        if options.io.is_some() {
            return refused("io");
        }
        let name = served.name().to_owned();
        let disk = Disk::open(Place::Tree(served), false)?;
        Ok(Image { disk, others: Vec::new(), name, writable: false, writer: OnceLock::new() })
    }

    /// The further disks.
    pub(crate) fn others(&self) -> &[Other] {
        &self.others
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The error of the kernel code, with why the image cannot be read as its reason if it is not read by the kernel code itself.
    pub(crate) fn explained(&self, error: Error) -> Error {
        match self.disk.place.served() {
            Some(served) => served.explained(error),
            None => error,
        }
    }

    /// Why the end of the file system in a part of it cannot be read, if the image ends before.
    pub(crate) fn cut_off(&self, kind: &FsType, start: u64, size: Option<u64>) -> Option<String> {
        let size = size.unwrap_or(self.size().saturating_sub(start));
        let whole = describe(kind.name, &Window { medium: &self.disk, start, size }).ok()??.size?;
        (whole > size)
            .then(|| format!("the file system has {whole} bytes, and the image ends after {size} of them"))
    }

    /// What its user calls it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable && self.read_only().is_none()
    }

    /// Has the host hold up every process that opens one of its files: [`Held::reserve`]. What is only read needs no such
    /// thing.
    ///
    /// # Errors
    /// As there; then no file is held.
    pub(crate) fn reserve(&self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        self.files().try_for_each(Held::reserve).inspect_err(|_| self.release())
    }

    /// Ends [`Image::reserve`].
    pub(crate) fn release(&self) {
        self.files().for_each(Held::release);
    }

    /// Those that may be written.
    fn files(&self) -> impl Iterator<Item = &Held> {
        let disks = [&self.disk].into_iter().chain(self.others.iter().map(|other| &other.disk));
        disks.filter_map(|disk| disk.place.host())
    }

    /// Why nothing of it is to be written, if so.
    pub(crate) fn read_only(&self) -> Option<&'static str> {
        let all = [&self.disk].into_iter().chain(self.others.iter().map(|other| &other.disk));
        all.filter_map(|disk| disk.read_only).next()
    }

    /// Why a partition is not to be written when others may be open: each is served by a process of its own, and two that
    /// take up clusters of the same qcow2 image would take the same ones.
    pub(crate) fn shared(&self, partition: &Partition, all: &[Partition]) -> Option<Arc<str>> {
        let cluster = self.disk.qcow2.as_ref()?.cluster();
        let clusters = |one: &Partition| one.start / cluster..(one.start + one.size).div_ceil(cluster);
        let (own, number) = (clusters(partition), partition.number);
        let overlaps = |other: &&Partition| {
            let range = clusters(other);
            other.number != number && range.start < own.end && own.start < range.end
        };
        if let Some(other) = all.iter().find(overlaps) {
            let other = other.number;
            return Some(format!("partition {number} shares a cluster of the qcow2 image with partition {other}: partition={number} alone can be written").into());
        }
        let writer = *self.writer.get_or_init(|| number);
        (writer != number).then(|| {
            format!("only one partition of a qcow2 image is written at a time, and partition {writer} was opened first: name the other one with partition={number}").into()
        })
    }

    /// In bytes.
    pub(crate) fn size(&self) -> u64 {
        self.disk.size()
    }

    /// The file system in a part of it.
    ///
    /// # Errors
    /// Those of reading it.
    pub(crate) fn detect(&self, part: &Part) -> Result<Option<&'static FsType>> {
        detect_in(&self.disk, part.start, part.size)
    }

    /// Why a part of it cannot be mounted in which [`Image::detect`] finds nothing.
    pub(crate) fn unknown(&self, part: &Part) -> Error {
        unknown(&self.disk, part.start, part.size)
    }

    /// The same part as flash memory.
    ///
    /// # Errors
    /// Those of reading it.
    pub(crate) fn as_flash(&self, mut part: Part, erase: Option<u32>) -> Result<Part> {
        let unit = erase.map_or_else(|| erase_size(&self.disk, part.start), Ok)?;
        let size = part.size.unwrap_or(self.size().saturating_sub(part.start));
        if !size.is_multiple_of(u64::from(unit)) {
            let why = format!(
                "its {size} bytes are no whole number of {unit}, which are erased together: it is not written (erase=)"
            );
            part.read_only.get_or_insert(why.into());
        }
        Ok(Part { flash: Some(unit), ..part })
    }

    /// Its partition table, if it has one.
    ///
    /// # Errors
    /// `EINVAL` when that is damaged, and those of reading it.
    pub(crate) fn table(&self) -> Result<Option<Table>> {
        table_of(&self.disk)
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

/// Whether a file can be opened for writing, and is of a form that is written.
fn is_writable(path: &Path) -> bool {
    File::options().read(true).write(true).open(path).is_ok_and(|file| is_written(&file).unwrap_or(true))
}

/// Sees to it that the file a loop device has its content in is not in use in a way that excludes this. The device stays the
/// one that is held: as long as it is there, that file is not written.
fn unused(file: &Path, writable: bool) -> Result<()> {
    // What was removed, or is elsewhere, others cannot open either.
    let Ok(opened) = File::open(file) else { return Ok(()) };
    Held::locked(opened, writable).map(drop).map_err(|error| {
        let why = error.reason.as_deref().unwrap_or(error.errno.message());
        error.errno.because(format!("it is a loop device of {}: {why}", file.display()))
    })
}

/// The partition table of a medium.
///
/// # Errors
/// `EINVAL` when it is damaged, and those of reading it.
pub(crate) fn table_of(medium: &Disk) -> Result<Option<Table>> {
    partition::table(medium).map_err(explained)
}

fn no_partition(reason: &str) -> Error {
    Errno::ENXIO.because(reason)
}

/// Whether a file is an image: it holds a file system that is known, or a partition table, whole or damaged; or something else
/// that disks hold, or it is in one of the forms that are known, served or not.
///
/// # Errors
/// Those of reading it.
pub fn is_image(file: &File) -> Result<bool> {
    is_disk(&Plain::new(file.try_clone()?)?)
}

/// The same for bytes that are in no file of the host.
///
/// # Errors
/// Those of reading them.
pub fn is_disk(disk: &impl Medium) -> Result<bool> {
    if marks::form(disk)?.is_some() || detect_in(disk, 0, None)?.is_some() {
        return Ok(true);
    }
    match partition::table(disk) {
        Ok(table) => Ok(table.is_some() || marks::content(disk)?.is_some()),
        Err(DiskError::Io(error)) => Err(error.into()),
        Err(_) => Ok(true),
    }
}
