// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a mount was made of, for every process that goes on with it.
//!
//! A LOCATION is read once. By the time another process goes on, its file may have been renamed or removed, another one may have
//! its name, and what was the name of a host may be that of a file. So the file of this machine stays open from the first process
//! on, and with it is noted how the LOCATION was understood.
//!
//! # Layout, in words of the region
//!
//! | word | what |
//! |---|---|
//! | 0 | 0: nothing is noted yet; [`NO_FILE`]: the LOCATION names no file of this machine; else [`FILE`] and the number of its descriptor |
//! | 1 | how many trees inside of the file, and of the one before, the LOCATION opens |
//! | 2.. | which file it is: see [`fingerprint`] |
//! | 7 | length of its path in bytes |
//! | 8.. | its path, eight bytes a word |

use super::cannot_open;
use crate::location::{Base, Location};
use crate::status::Failure;
use outrigger_core::{Errno, Keep, Region};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

const REGION: &str = "mount-origin";
const WORDS: usize = PATH_AT + PATH_MAX / 8;
const NO_FILE: u64 = 1;
const FILE: u64 = 1 << 32;
const NESTED_AT: usize = 1;
const FINGERPRINT_AT: usize = 2;
const LENGTH_AT: usize = 7;
const PATH_AT: usize = 8;
/// The longest path that can be opened, in bytes, with the NUL at its end.
const PATH_MAX: usize = 4096;

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
    let note = keep.region(REGION, WORDS)?;
    match note.word(0).load(Ordering::Acquire) {
        0 => first(text, keep, &*note),
        NO_FILE => Ok((Location::of_no_file(text), None)),
        noted => again(text, keep, &*note, (noted - FILE) as RawFd),
    }
}

/// Whether the file is still the one that the first process has noted, so that another process can go on with it.
///
/// # Errors
/// That it has changed.
pub fn is_unchanged(keep: &dyn Keep) -> Result<(), Failure> {
    let note = keep.region(REGION, WORDS)?;
    match note.word(0).load(Ordering::Acquire) {
        0 | NO_FILE => Ok(()),
        noted => {
            let path = path(&*note);
            compare(&*note, &path, &open(format!("/proc/self/fd/{}", noted - FILE).as_ref())?)
        }
    }
}

/// Opens what `text` names, and notes it.
fn first(text: &OsStr, keep: &dyn Keep, note: &dyn Region) -> Result<(Location, Option<Origin>), Failure> {
    let location = Location::of(text)?;
    let put = |at: usize, value: u64| note.word(at).store(value, Ordering::Release);
    let Base::Host(path) = &location.base else {
        put(0, NO_FILE);
        return Ok((location, None));
    };
    let file = open(path)?;
    put(NESTED_AT, location.nested.len() as u64);
    fingerprint(path, &file)?.into_iter().zip(FINGERPRINT_AT..).for_each(|(value, at)| put(at, value));
    let bytes = path.as_os_str().as_bytes();
    put(LENGTH_AT, bytes.len() as u64);
    for (chunk, at) in bytes.chunks(8).zip(PATH_AT..) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        put(at, u64::from_le_bytes(word));
    }
    keep.hold(file.as_fd())?;
    // The store that says that the rest is there.
    put(0, FILE + file.as_raw_fd() as u64);
    let path = path.clone();
    Ok((location, Some(Origin { path, file })))
}

/// The file that a former process has opened, which held it as `number`.
fn again(
    text: &OsStr,
    keep: &dyn Keep,
    note: &dyn Region,
    number: RawFd,
) -> Result<(Location, Option<Origin>), Failure> {
    let path = path(note);
    let file = match keep.adopt(number) {
        Ok(file) => file,
        // A service manager that starts a keeper anew has the notes only.
        Err(error) if error.errno == Errno::EBADF => open(&path)?,
        Err(error) => return Err(cannot_open(&path.display().to_string(), &error)),
    };
    compare(note, &path, &file)?;
    note.word(0).store(FILE + file.as_raw_fd() as u64, Ordering::Release);
    let nested = note.word(NESTED_AT).load(Ordering::Acquire);
    let location = Location::of_file(text, path.clone(), nested as usize);
    Ok((location, Some(Origin { path, file })))
}

/// The path that is noted.
fn path(note: &dyn Region) -> PathBuf {
    let get = |at: usize| note.word(at).load(Ordering::Acquire);
    let length = (get(LENGTH_AT) as usize).min(PATH_MAX);
    let bytes = (0..length.div_ceil(8)).flat_map(|at| get(PATH_AT + at).to_le_bytes()).take(length);
    PathBuf::from(OsString::from_vec(bytes.collect()))
}

fn compare(note: &dyn Region, path: &Path, file: &OwnedFd) -> Result<(), Failure> {
    let noted = |at: usize| note.word(at).load(Ordering::Acquire);
    match (FINGERPRINT_AT..).zip(fingerprint(path, file)?).any(|(at, now)| noted(at) != now) {
        false => Ok(()),
        true => Err(Failure::serious(format!("'{}' has changed since it was mounted", path.display()))),
    }
}

fn open(path: &Path) -> Result<OwnedFd, Failure> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| cannot_open(&path.display().to_string(), &io::Error::from(errno).into()))
}

/// What tells a file from all others and from itself with other content: device, inode, and, except for a directory, size and time
/// of change. Whatever is in a directory says itself whether it is still the same.
fn fingerprint(path: &Path, file: &OwnedFd) -> Result<[u64; 5], Failure> {
    let stat = fstat(file)
        .map_err(|errno| cannot_open(&path.display().to_string(), &io::Error::from(errno).into()))?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let content = [stat.st_size as u64, stat.st_mtime as u64, stat.st_mtime_nsec];
    let [size, seconds, nanoseconds] = if is_directory { [0; 3] } else { content };
    Ok([stat.st_dev, stat.st_ino, size, seconds, nanoseconds])
}
