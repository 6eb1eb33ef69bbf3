// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the host's own kernel and other processes use an image: mounts, loop devices, swap, and what is stacked on a block device
//! (sysfs(5), proc(5)).
//!
//! Two kernels that write one file system destroy it, and neither notices. flock(2) does not tell: the kernel takes no such lock.

use rustix::fs::{major, makedev, minor};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens an image; a block device exclusively if it is to be written (open(2), `O_EXCL`), so that the host does not mount it
/// meanwhile.
///
/// # Errors
/// Those of open(2).
pub(crate) fn open(path: &Path, writable: bool) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(writable);
    if writable && fs::metadata(path)?.file_type().is_block_device() {
        options.custom_flags(nix::libc::O_EXCL);
    }
    options.open(path)
}

/// What in the host's kernel uses the image in a file, as a sentence; none when nothing does.
///
/// # Errors
/// Those of looking at the file.
pub(crate) fn user_of(path: &Path) -> io::Result<Option<String>> {
    let metadata = fs::metadata(path)?;
    if metadata.file_type().is_block_device() {
        return Ok(user_of_device(path, metadata.rdev()));
    }
    Ok(loop_of(metadata.dev(), metadata.ino()))
}

/// Who uses a block device, or another loop device that has some of the same bytes.
fn user_of_device(path: &Path, device: u64) -> Option<String> {
    if let Some(uses) = exclusive_user(path, device) {
        return Some(uses);
    }
    let own = Loop::of_device(device)?;
    let others = loops().filter(|other| other.device != own.device && other.overlaps(&own));
    others.into_iter().find_map(|other| {
        let uses = exclusive_user(&other.path(), other.device)?;
        Some(format!("{} is a loop device of the same file, and {uses}", other.path().display()))
    })
}

/// What has a block device exclusively.
fn exclusive_user(path: &Path, device: u64) -> Option<String> {
    // Otherwise it is not mounted, no swap, and no part of another device.
    match File::options().read(true).custom_flags(nix::libc::O_EXCL).open(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {}
        _ => return None,
    }
    let folder = folder_of(device);
    let uses = mounted_at(&folder).or_else(|| swap(device)).or_else(|| holder(&folder));
    Some(uses.unwrap_or_else(|| "another program has it open exclusively".to_owned()))
}

/// The file that a loop device, or a partition of one, has its content in.
pub(crate) fn file_of_loop(path: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    Loop::of_device(metadata.rdev()).map(|device| device.file)
}

/// The directory of a block device in sysfs.
fn folder_of(device: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(device), minor(device)).into()
}

/// Where a block device, or a partition of it, is mounted, in words.
fn mounted_at(folder: &Path) -> Option<String> {
    let numbers =
        |folder: &Path| fs::read_to_string(folder.join("dev")).ok().map(|text| text.trim().to_owned());
    let mut devices: Vec<String> = numbers(folder).into_iter().collect();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            devices.extend(numbers(&entry.path()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let words = lines.find(|words| words.len() > 5 && devices.iter().any(|device| device == words[2]))?;
    let access = if words[5].split(',').any(|option| option == "ro") { " read-only" } else { "" };
    Some(format!("the host has it mounted{access} at {}", words[4].escape_debug()))
}

fn swap(device: u64) -> Option<String> {
    let swaps = fs::read_to_string("/proc/swaps").ok()?;
    let is_it = |line: &str| {
        let path = line.split_whitespace().next()?;
        let metadata = fs::metadata(path).ok()?;
        (metadata.file_type().is_block_device() && metadata.rdev() == device).then_some(())
    };
    swaps.lines().skip(1).find_map(is_it).map(|()| "the host swaps to it".to_owned())
}

/// What is made of a block device: device mapper, md, bcache.
fn holder(folder: &Path) -> Option<String> {
    let mut holders = fs::read_dir(folder.join("holders")).ok()?;
    let name = holders.next()?.ok()?.file_name();
    Some(format!("it is a part of /dev/{}", name.display()))
}

/// A loop device, or a partition of one.
struct Loop {
    name: String,
    device: u64,
    /// What has the content, and where.
    file: PathBuf,
    bytes: Range<u64>,
}

impl Loop {
    /// The one with this number.
    fn of_device(device: u64) -> Option<Self> {
        let folder = folder_of(device).canonicalize().ok()?;
        if !folder.join("partition").exists() {
            return Loop::at(&folder);
        }
        let whole = Loop::at(folder.parent()?)?;
        let start = whole.bytes.start + SECTOR * number_in(&folder.join("start"))?;
        let bytes = start..start + SECTOR * number_in(&folder.join("size"))?;
        Some(Loop { bytes, ..whole })
    }

    /// The one that has this directory in sysfs; none if that is another kind of device, or is not in use.
    fn at(folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join("loop/backing_file")).ok()?;
        let numbers = fs::read_to_string(folder.join("dev")).ok()?;
        let (major, minor) = numbers.trim().split_once(':')?;
        let start = number_in(&folder.join("loop/offset"))?;
        Some(Loop {
            name: folder.file_name()?.to_string_lossy().into_owned(),
            device: makedev(major.parse().ok()?, minor.parse().ok()?),
            file: text.trim_end_matches('\n').into(),
            bytes: start..start + SECTOR * number_in(&folder.join("size"))?,
        })
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// Whether the content is in this file.
    fn is_of(&self, dev: u64, ino: u64) -> bool {
        let same =
            |metadata: fs::Metadata| metadata.is_file() && (metadata.dev(), metadata.ino()) == (dev, ino);
        fs::metadata(&self.file).is_ok_and(same)
    }

    fn overlaps(&self, other: &Loop) -> bool {
        self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
            && fs::metadata(&other.file).is_ok_and(|file| self.is_of(file.dev(), file.ino()))
    }
}

/// What sysfs counts lengths in, in bytes.
const SECTOR: u64 = 512;

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// All loop devices that are in use.
fn loops() -> impl Iterator<Item = Loop> {
    fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(|entry| Loop::at(&entry.path()))
}

/// The loop device that has a file.
fn loop_of(dev: u64, ino: u64) -> Option<String> {
    let found = loops().find(|device| device.is_of(dev, ino))?;
    let mounted =
        mounted_at(&folder_of(found.device)).map(|place| format!(", and {place}")).unwrap_or_default();
    Some(format!("{} is a loop device of it{mounted} (losetup --detach)", found.path().display()))
}
