// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file or directory a mount was made from, for successor processes.
//!
//! A LOCATION is read once. By the time a successor takes over, its file may have been renamed or removed, another one may have
//! its name, and what was the name of a host may be that of a file. So the file of this machine stays open from the first process
//! on, and with it is noted how the LOCATION was understood.

use super::cannot_open;
use crate::location::{Base, Location};
use crate::notes::{self, Notes, Origin as Note};
use crate::status::Failure;
use outrigger_core::{Errno, Keep};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file or directory of this machine that stays what it is, whatever its name is later.
pub struct Origin {
    path: PathBuf,
    file: OwnedFd,
}

impl Origin {
    /// Where what was called `path` is now.
    pub fn reach(&self, path: &Path) -> Option<PathBuf> {
        (path == self.path).then(|| format!("/proc/self/fd/{}", self.file.as_raw_fd()).into())
    }
}

/// What `text` means for a mount, and the file of this machine it begins with, if there is one: as in the first process that served
/// the mount, which has left it in `keep`.
///
/// # Errors
/// Why the file cannot be opened, or that it has changed: places in an archive mean nothing in another one.
pub fn of(text: &OsStr, keep: &dyn Keep) -> Result<(Location, Option<Origin>), Failure> {
    let notes = notes::of(keep)?;
    let note = notes.view::<Notes<'_>>().origin();
    if note.is_known().get() == 0 {
        return first(text, keep, note);
    }
    match path(note) {
        Some(path) => again(text, keep, note, path),
        None => Ok((Location::of_no_file(text), None)),
    }
}

/// Checks that the file is still the one that the first process noted, so that a successor can serve it.
///
/// # Errors
/// That it has changed.
pub fn is_unchanged(keep: &dyn Keep) -> Result<(), Failure> {
    let notes = notes::of(keep)?;
    let note = notes.view::<Notes<'_>>().origin();
    match path(note) {
        Some(path) => {
            let number = note.descriptor().get();
            compare(note, &path, &open(format!("/proc/self/fd/{number}").as_ref())?)
        }
        None => Ok(()),
    }
}

/// Opens what `text` names, and notes it.
fn first(text: &OsStr, keep: &dyn Keep, note: Note<'_>) -> Result<(Location, Option<Origin>), Failure> {
    let location = Location::of(text)?;
    let Base::Host(path) = &location.base else {
        note.is_known().set(1);
        return Ok((location, None));
    };
    let file = open(path)?;
    note.nested().set(location.nested.len() as u64);
    note.fingerprint().iter().zip(fingerprint(path, &file)?).for_each(|(word, value)| word.set(value));
    keep.hold(file.as_fd())?;
    note.descriptor().set(file.as_raw_fd() as u64);
    note.path().set(path.as_os_str().as_bytes())?;
    note.is_known().set(1);
    let path = path.clone();
    Ok((location, Some(Origin { path, file })))
}

/// The file that a former process has opened.
fn again(
    text: &OsStr,
    keep: &dyn Keep,
    note: Note<'_>,
    path: PathBuf,
) -> Result<(Location, Option<Origin>), Failure> {
    let file = match keep.adopt(note.descriptor().get() as RawFd) {
        Ok(file) => file,
        // A service manager that starts a keeper anew has the notes only.
        Err(error) if error.errno == Errno::EBADF => open(&path)?,
        Err(error) => return Err(cannot_open(&path.display().to_string(), &error)),
    };
    compare(note, &path, &file)?;
    note.descriptor().set(file.as_raw_fd() as u64);
    let location = Location::of_file(text, path.clone(), note.nested().get() as usize);
    Ok((location, Some(Origin { path, file })))
}

/// The path that is noted.
fn path(note: Note<'_>) -> Option<PathBuf> {
    note.path().get().filter(|_| note.is_known().get() != 0).map(|bytes| OsString::from_vec(bytes).into())
}

fn compare(note: Note<'_>, path: &Path, file: &OwnedFd) -> Result<(), Failure> {
    match note.fingerprint().read() == fingerprint(path, file)? {
        true => Ok(()),
        false => Err(Failure::serious(format!("'{}' has changed since it was mounted", path.display()))),
    }
}

fn open(path: &Path) -> Result<OwnedFd, Failure> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| cannot_open(&path.display().to_string(), &io::Error::from(errno).into()))
}

/// What identifies a file and its version: device, inode, and, except for a directory, size and time
/// of change. Whatever is in a directory says itself whether it is still the same.
fn fingerprint(path: &Path, file: &OwnedFd) -> Result<[u64; 5], Failure> {
    let stat = fstat(file)
        .map_err(|errno| cannot_open(&path.display().to_string(), &io::Error::from(errno).into()))?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let content = [stat.st_size as u64, stat.st_mtime as u64, stat.st_mtime_nsec];
    let [size, seconds, nanoseconds] = if is_directory { [0; 3] } else { content };
    Ok([stat.st_dev, stat.st_ino, size, seconds, nanoseconds])
}
