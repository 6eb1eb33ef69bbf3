// SPDX-License-Identifier: MIT OR Apache-2.0
//! The private directory of one run.
//!
//! It is locked while its process lives. The directories of processes that were killed are removed by the next one, which keeps what
//! programs were writing.

use super::content::is_closed;
use super::unsaved::kept;
use super::{mirror, say};
use crate::failed;
use outrigger_core::{Errno, Error};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
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
pub(crate) struct RunDirectory {
    path: PathBuf,
    _lock: OwnedFd,
}

impl RunDirectory {
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
                    // Another process that begins may have taken it for one that was left.
                    let Some(lock) = locked(&path).ok().filter(|lock| is_at(lock, &path)) else { continue };
                    for name in [MIRROR, WRITTEN] {
                        DirBuilder::new().mode(0o755).create(path.join(name)).map_err(failed(&what))?;
                    }
                    return Ok(RunDirectory { path, _lock: lock });
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

    /// Removes it, unless it has the only copy of something: the next run keeps that, if it can.
    pub(crate) fn remove(self) {
        let is_needed = fs::read_dir(self.written()).is_ok_and(|mut notes| notes.next().is_some());
        if !is_needed {
            // What is left of it the next run removes.
            let _ = remove(&self.path);
        }
    }
}

/// Locks a directory, if nobody else has.
fn locked(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Whether the directory that is open is the one at this path.
fn is_at(dir: &OwnedFd, path: &Path) -> bool {
    let found = fstat(dir).ok().zip(fs::symlink_metadata(path).ok());
    found.is_some_and(|(dir, found)| (dir.st_dev, dir.st_ino) == (found.dev(), found.ino()))
}

/// The directory of a process that was killed. Programs may still write to copies in it.
pub(crate) struct FormerRunDirectory {
    path: PathBuf,
    _lock: OwnedFd,
}

impl FormerRunDirectory {
    /// The one at this path, if it is that of a process that is gone, and no other process has it.
    fn at(path: PathBuf) -> Option<Self> {
        let found = fs::symlink_metadata(&path).ok()?;
        let is_one = path.file_name()?.to_string_lossy().starts_with(NAME);
        let is_own = found.is_dir() && found.uid() == geteuid().as_raw();
        let lock = (is_one && is_own).then(|| locked(&path))?.ok()?;
        Some(FormerRunDirectory { path, _lock: lock })
    }

    /// The one with these copies.
    pub(crate) fn of(mirror: &Path) -> Option<Self> {
        Self::at(mirror.parent()?.to_owned())
    }

    /// Whether programs still have copies in it open for writing.
    fn is_written(&self) -> bool {
        let notes = fs::read_dir(self.path.join(WRITTEN)).into_iter().flatten().flatten();
        let copies =
            notes.filter_map(|note| mirror::open(&fs::read_link(note.path()).ok()?, OFlags::RDONLY).ok());
        copies.into_iter().any(|copy| !is_closed(&copy))
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
        Some(format!("an earlier one ended before it had stored what programs wrote: {said}"))
    }
}

/// Removes the directories that processes have left that were killed. Programs of theirs may go on, and write to what they have open.
fn clear(base: &Path, keep: &Path) {
    let paths = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    let unused = paths.filter_map(FormerRunDirectory::at).filter(|former| !former.is_written());
    for said in unused.filter_map(|former| former.keep(keep)) {
        say(said);
    }
}

/// Keeps the files that a directory has links to, and answers how many these are. What cannot be kept keeps its link.
fn save(written: &Path, keep: &Path) -> io::Result<usize> {
    let mut count = 0;
    let notes = match fs::read_dir(written) {
        // The process was killed before it served anything.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        notes => notes?,
    };
    let mut failure = None;
    for note in notes {
        let note = note?.path();
        match save_one(&note, keep) {
            Ok(found) => {
                count += usize::from(found);
                fs::remove_file(&note)?;
            }
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(count), Err)
}

/// Keeps the file that a link leads to; `false` where there is none: its name was removed.
fn save_one(note: &Path, keep: &Path) -> io::Result<bool> {
    let real = fs::read_link(note)?;
    match mirror::open(&real, OFlags::RDONLY) {
        Err(error) if error.errno == Errno::ENOENT => Ok(false),
        file => Ok(kept(keep, &real.to_string_lossy(), &file?).map(|_| true)?),
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
