// SPDX-License-Identifier: MIT OR Apache-2.0
//! The private directory of one run.
//!
//! It is locked while its process lives. The directories of processes that were killed are removed by the next one, which keeps what
//! programs were writing.

use super::content::kept;
use super::say;
use crate::failed;
use outrigger_core::Error;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder};
use std::io;
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
    pub(crate) fn make(base: &Path, keep: &Path) -> Result<Self, String> {
        let base = fs::canonicalize(base).map_err(failed(format_args!("'{}'", base.display())))?;
        clear(&base, keep);
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

/// The directory of a process that was killed. Programs may still write to copies in it.
pub(crate) struct Former {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Former {
    /// The one at this path, if it is that of a process that is gone, and no other process has it.
    fn at(path: PathBuf) -> Option<Self> {
        let found = fs::symlink_metadata(&path).ok()?;
        let is_one = path.file_name()?.to_string_lossy().starts_with(NAME);
        let is_own = found.is_dir() && found.uid() == geteuid().as_raw();
        let lock = (is_one && is_own).then(|| locked(&path))?.ok()?;
        Some(Former { path, _lock: lock })
    }

    /// The one with these copies.
    pub(crate) fn of(mirror: &Path) -> Option<Self> {
        Self::at(mirror.parent()?.to_owned())
    }

    /// Keeps what programs have written, and removes the rest. A sentence is answered where there was anything.
    pub(crate) fn keep(self, keep: &Path) -> Option<String> {
        let said = match save(&self.path.join(WRITTEN), keep) {
            Ok(count) => {
                let _ = remove(&self.path);
                if count == 0 {
                    return None;
                }
                format!("that is in '{}'", keep.display())
            }
            Err(error) => format!(
                "see '{}', which cannot be copied: {}",
                self.path.join(WRITTEN).display(),
                Error::from(error)
            ),
        };
        Some(format!("an earlier one was killed before it had stored what programs wrote: {said}"))
    }
}

/// Removes the directories that processes have left that were killed.
fn clear(base: &Path, keep: &Path) {
    let paths = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    for said in paths.filter_map(Former::at).filter_map(|former| former.keep(keep)) {
        say(said);
    }
}

/// Keeps the files that a directory has links to, and answers how many these are.
fn save(written: &Path, keep: &Path) -> io::Result<usize> {
    let mut count = 0;
    let notes = match fs::read_dir(written) {
        // The process was killed before it served anything.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        notes => notes?,
    };
    for note in notes {
        let real = fs::read_link(note?.path())?;
        // One without its name is nobody's.
        if let Ok(file) = fs::File::open(&real) {
            kept(keep, &real.to_string_lossy(), &file)?;
            count += 1;
        }
    }
    Ok(count)
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
