// SPDX-License-Identifier: MIT OR Apache-2.0
//! The private directory of one run.
//!
//! It is locked while its process lives. The directories of processes that were killed are removed by the next one, unless programs were
//! writing to files: those are the user's.

use crate::failed;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What the names of such directories begin with.
const NAME: &str = "outrigger-run-";
/// Where the copies are.
const MIRROR: &str = "files";
/// A symbolic link for each file that a program writes to.
const WRITTEN: &str = "written";

/// The directory.
pub(crate) struct Place {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Place {
    /// Makes one, and removes those that were left.
    ///
    /// # Errors
    /// A sentence about what cannot be made.
    pub(crate) fn make(base: &Path) -> Result<Self, String> {
        let base = fs::canonicalize(base).map_err(failed(format_args!("'{}'", base.display())))?;
        clear(&base);
        let pid = std::process::id();
        let paths = (0..1000).map(|number| base.join(format!("{NAME}{pid}-{number}")));
        for path in paths {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    let what = format!("'{}'", path.display());
                    made.map_err(failed(&what))?;
                    let lock = locked(&path).map_err(failed(&what))?;
                    for name in [MIRROR, WRITTEN] {
                        DirBuilder::new().mode(0o755).create(path.join(name)).map_err(failed(&what))?;
                    }
                    return Ok(Place { path, _lock: lock });
                }
            }
        }
        Err(format!("'{}': there is no free name in it", base.display()))
    }

    /// Where the copies are.
    pub(crate) fn mirror(&self) -> PathBuf {
        self.path.join(MIRROR)
    }

    /// Where it is written down which programs write to.
    pub(crate) fn written(&self) -> PathBuf {
        self.path.join(WRITTEN)
    }

    /// Removes it.
    pub(crate) fn remove(self) {
        // What is left of it the next run removes.
        let _ = remove(&self.path);
    }
}

/// Locks a directory, if nobody else has.
fn locked(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes the directories that processes have left that were killed.
fn clear(base: &Path) {
    let is_left = |path: &PathBuf| {
        let is_own =
            fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        is_own && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAME))
    };
    let entries = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(is_left) {
        let Ok(_lock) = locked(&path) else { continue };
        let mut written = fs::read_dir(path.join(WRITTEN)).into_iter().flatten().flatten();
        if written.next().is_some() {
            let _ = writeln!(
                io::stderr(),
                "outrigger run: an earlier one was killed before it had stored what programs wrote: see '{}', and remove that directory",
                path.join(WRITTEN).display()
            );
        } else {
            let _ = remove(&path);
        }
    }
}

/// Removes a directory, whatever the permissions in it are.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700))?;
            remove(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(path)
}
