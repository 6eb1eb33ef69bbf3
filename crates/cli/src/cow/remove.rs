// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removing files and directories that may be gone already.

use rustix::fs::{Mode, OFlags, open};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is not there need not be removed.
pub(super) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a file, or a directory with all that is in it, also where the permissions of directories forbid that to their owner.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !metadata.is_dir() {
        return gone(fs::remove_file(path));
    }
    gone(fs::remove_dir_all(path).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => permit(path).and_then(|()| fs::remove_dir_all(path)),
        _ => Err(error),
    }))
}

/// Lets the owner of a directory, and of those in it, do everything there. Others may put symbolic links in their places meanwhile: none is
/// followed.
fn permit(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = open(path, flags, Mode::empty())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(&path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            permit(&entry.path())?;
        }
    }
    Ok(())
}
