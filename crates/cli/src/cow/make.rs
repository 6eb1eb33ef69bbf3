// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making a real file as one of the overlay is.

use super::alike::{attributes, is_of_others};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags, chownat, ftruncate,
    lremovexattr, lsetxattr, mknodat, seek, utimensat,
};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

/// Makes a file of the kind and with the content of one in the overlay, which only its owner can use yet. A directory is empty. A file
/// with content is open, to be stored when it is complete.
///
/// # Errors
/// Those of the calls; `EEXIST` when there is something.
pub fn make(upper: &Path, mine: &Metadata, new: &Path) -> io::Result<Option<File>> {
    let kind = mine.file_type();
    if kind.is_dir() {
        fs::create_dir(new)?;
        fs::set_permissions(new, Permissions::from_mode(0o700))?;
        return Ok(None);
    }
    if kind.is_symlink() {
        symlink(fs::read_link(upper)?, new)?;
        return Ok(None);
    }
    if !kind.is_file() {
        let kind = FileType::from_raw_mode(mine.mode());
        mknodat(CWD, new, kind, Mode::from_raw_mode(0o600), mine.rdev())?;
        return Ok(None);
    }
    let mut from = open(upper, mine)?;
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    pour(&mut from, &mut to)?;
    Ok(Some(to))
}

/// Opens a file of the overlay, also one that its owner may not read.
fn open(upper: &Path, mine: &Metadata) -> io::Result<File> {
    match File::open(upper) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fs::set_permissions(upper, Permissions::from_mode(mine.mode() & 0o7777 | 0o400))?;
            let opened = File::open(upper);
            fs::set_permissions(upper, Permissions::from_mode(mine.mode() & 0o7777))?;
            opened
        }
        opened => opened,
    }
}

/// Copies content; holes stay holes.
fn pour(from: &mut File, to: &mut File) -> io::Result<()> {
    let (mut at, end) = (0, from.metadata()?.len());
    while at < end {
        let start = match seek(&*from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            // What does not know its holes has none.
            Err(Errno::INVAL) => at,
            start => start?,
        };
        let stop = seek(&*from, SeekFrom::Hole(start)).unwrap_or(end).max(start + 1);
        from.seek(io::SeekFrom::Start(start))?;
        to.seek(io::SeekFrom::Start(start))?;
        let copied = io::copy(&mut from.by_ref().take(stop - start), to)?;
        if copied == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = start + copied;
    }
    Ok(ftruncate(&*to, end)?)
}

/// Gives a file the owner, the extended attributes, the permissions and the times that one in the overlay has. What belongs to others
/// ([`is_of_others`]) in `real`, which it is or takes the place of, belongs to them afterwards.
///
/// # Errors
/// Those of the calls.
pub fn adorn(upper: &Path, mine: &Metadata, real: Option<&Metadata>, path: &Path) -> io::Result<()> {
    let is_link = mine.is_symlink();
    own(mine, real, path)?;
    set_attributes(upper, path)?;
    if !is_link {
        fs::set_permissions(path, Permissions::from_mode(mine.mode() & 0o7777))?;
    }
    let time = |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps {
        last_access: time(mine.atime(), mine.atime_nsec()),
        last_modification: time(mine.mtime(), mine.mtime_nsec()),
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn own(mine: &Metadata, real: Option<&Metadata>, path: &Path) -> io::Result<()> {
    let now = fs::symlink_metadata(path)?;
    let (uid, gid) = match real.filter(|real| is_of_others(mine, real)) {
        Some(real) => (real.uid(), real.gid()),
        None => (mine.uid(), mine.gid()),
    };
    if (uid, gid) == (now.uid(), now.gid()) {
        return Ok(());
    }
    let (user, group) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    Ok(chownat(CWD, path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn set_attributes(upper: &Path, path: &Path) -> io::Result<()> {
    let (mine, theirs) = (attributes(upper)?, attributes(path)?);
    for name in theirs.keys().filter(|name| !mine.contains_key(*name)) {
        lremovexattr(path, name)?;
    }
    for (name, value) in mine.iter().filter(|(name, value)| theirs.get(*name) != Some(*value)) {
        lsetxattr(path, name, value, XattrFlags::empty())?;
    }
    Ok(())
}
