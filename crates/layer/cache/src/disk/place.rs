// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory the blocks are in: one that nobody else can look into or change.

use outrigger_core::{Errno, Error, Result};
use rustix::fs::{Mode, OFlags, fstat, mkdirat, open, openat};
use rustix::io::Errno as Code;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Bits of a mode that let others in.
const OTHERS: u32 = 0o077;
/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// Opens the directory `outrigger/content` below `caches`; it is made where it is missing, for its owner only.
///
/// # Errors
/// `EPERM` when somebody else could change what is in it; `ENOTDIR` or `ELOOP` for a symbolic link in its place.
pub(super) fn content(caches: &Path) -> Result<OwnedFd> {
    let shown = |what| format!("'{}{what}'", caches.display());
    let cannot = |error: io::Error, what| Error::from(error).errno.because(shown(what));
    std::fs::create_dir_all(caches).map_err(|error| cannot(error, ""))?;
    let base = open(caches, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let base = base.map_err(|error| cannot(error.into(), ""))?;
    let mut dir = base;
    for (name, what, forbidden) in
        [("outrigger", "/outrigger", OTHERS_WRITE), ("content", "/outrigger/content", OTHERS)]
    {
        dir = own_directory(&dir, name).map_err(|error| cannot(error.into(), what))?;
        must_be_private(&dir, forbidden, &shown(what))?;
    }
    Ok(dir)
}

/// Opens the directory `name` in `dir`, which is made if it is missing. A symbolic link is not followed.
pub(super) fn own_directory(dir: impl AsFd, name: &str) -> Result<OwnedFd, Code> {
    match mkdirat(&dir, name, Mode::RWXU) {
        Ok(()) | Err(Code::EXIST) => {}
        Err(error) => return Err(error),
    }
    openat(dir, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn must_be_private(dir: &OwnedFd, forbidden: u32, shown: &str) -> Result<()> {
    let stat = fstat(dir).map_err(io::Error::from)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::EPERM.because(format!("{shown} belongs to user {}", stat.st_uid)));
    }
    let mode = stat.st_mode & 0o7777;
    if mode & forbidden != 0 {
        return Err(Errno::EPERM.because(format!("{shown} is open to others: its mode is {mode:04o}")));
    }
    Ok(())
}
