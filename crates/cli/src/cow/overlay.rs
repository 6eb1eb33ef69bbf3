// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory that an overlay is in.
//!
//! ```text
//! DIR/overlay   says that this is one; `run`, `commit` and `discard` lock it
//! DIR/upper     the changes, as the layer `union` keeps them
//! DIR/origins   versions of the real files that are hidden
//! DIR/commit    where `commit` has begun
//! ```

use super::make::adorn;
use super::notes;
use super::origin::{Recorder, load};
use super::remove::{gone, remove_tree};
use super::shown;
use crate::place::Place;
use crate::status::Failure;
use outrigger_core::whiteout::WORK;
use outrigger_core::{Errno, Error};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file that says what the directory is.
const MARK: &str = "overlay";
/// What the names of marks begin with that are not complete.
const MARK_PART: &str = "overlay.part.";
/// What it contains.
const FORMAT: &str = "outrigger overlay 1\n";
/// The overlay that is meant where none is named.
const USUAL: &str = "default";

/// An overlay, locked against other processes.
pub struct Overlay {
    dir: PathBuf,
    _lock: File,
}

impl Overlay {
    /// The directory that the user means.
    ///
    /// # Errors
    /// A sentence when none is named, and the usual one is not known.
    pub fn dir(named: Option<&Path>) -> Result<PathBuf, Failure> {
        match named {
            Some(dir) if dir.as_os_str().is_empty() => {
                return Err(Failure::serious("an empty DIR names nothing"));
            }
            Some(dir) => return Ok(dir.to_owned()),
            None => {}
        }
        let state = outrigger_host::users_state();
        let usual = state.map(|state| state.join("outrigger/cow").join(USUAL));
        usual.ok_or_else(|| Failure::serious("neither XDG_STATE_HOME nor HOME is set: name a directory"))
    }

    /// Whether an overlay is there.
    pub fn is_at(dir: &Path) -> bool {
        fs::read(dir.join(MARK)).is_ok_and(|text| text == FORMAT.as_bytes())
    }

    /// A sentence for who looks for one where none is.
    pub fn missing(dir: &Path) -> String {
        format!("there is no overlay at '{}': `outrigger run --cow` makes one", shown(dir))
    }

    /// The overlay in a directory, which is made where it is missing.
    ///
    /// # Errors
    /// A sentence about what cannot be made, or about who uses it.
    pub fn make(dir: &Path) -> Result<Self, Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|error| failed("cannot make the overlay", dir, error))?;
        if !Self::is_at(dir) {
            if !is_empty(dir).map_err(|error| failed("cannot read", dir, error))? {
                let why = "is not empty, and not an overlay: name another directory for the changes";
                return Err(Failure::serious(format!("'{}' {why}", shown(dir))));
            }
            dir.canonicalize()
                .and_then(|dir| mark(&dir))
                .map_err(|error| failed("cannot make the overlay", dir, error))?;
        }
        let overlay = Self::open(dir)?;
        overlay.make_upper().map_err(|error| failed("cannot make the overlay", dir, error))?;
        Ok(overlay)
    }

    /// The overlay in a directory.
    ///
    /// # Errors
    /// A sentence when there is none, or when it is in use.
    pub fn open(dir: &Path) -> Result<Self, Failure> {
        if !Self::is_at(dir) {
            return Err(Failure::serious(Self::missing(dir)));
        }
        let dir = dir.canonicalize().map_err(|error| failed("cannot open", dir, error))?;
        Self::check_own(&dir)?;
        let unopened = |error| failed("cannot open the overlay", &dir, error);
        let lock = OpenOptions::new().read(true).write(true).open(dir.join(MARK)).map_err(unopened)?;
        match lock.try_lock() {
            Ok(()) if is_at(&lock, &dir.join(MARK)).map_err(unopened)? => Ok(Overlay { dir, _lock: lock }),
            // It was removed, and perhaps made anew, before it was locked.
            Ok(()) => Self::open(&dir),
            Err(TryLockError::WouldBlock) => Err(Failure::serious(format!(
                "the overlay '{}' is in use: a program that was started with it runs, or it is being committed",
                shown(&dir)
            ))),
            Err(TryLockError::Error(error)) => Err(failed("cannot lock the overlay", &dir, error)),
        }
    }

    /// Fails when an overlay is not of the user who runs this: what one user's overlay says of owners, another user's commit would do.
    ///
    /// # Errors
    /// A sentence about whose it is, or what it is not.
    pub(super) fn check_own(dir: &Path) -> Result<(), Failure> {
        let found = fs::metadata(dir).map_err(|error| failed("cannot open", dir, error))?;
        let user = rustix::process::geteuid().as_raw();
        if found.uid() != user {
            return Err(Failure::serious(format!(
                "the overlay '{}' is one of user {}, and you are user {user}: use it as that user",
                shown(dir),
                found.uid()
            )));
        }
        let upper = upper_of(dir);
        match fs::symlink_metadata(&upper) {
            Ok(upper) if !upper.is_dir() => Err(Failure::serious(format!(
                "the overlay '{}' is damaged: 'upper' is no directory",
                shown(dir)
            ))),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("cannot open", &upper, error))
            }
            _ => Ok(()),
        }
    }

    /// The upper tree: its root looks as the real one until a program changes that.
    fn make_upper(&self) -> io::Result<()> {
        let upper = upper_of(&self.dir);
        if upper.exists() {
            return Ok(());
        }
        self.clear()?;
        let (root, fresh) = (fs::metadata("/")?, self.dir.join(FORMER));
        fs::create_dir(&fresh)?;
        fs::create_dir(fresh.join(WORK)).map_err(in_an_overlay)?;
        fs::set_permissions(fresh.join(WORK), Permissions::from_mode(0o700))?;
        if rustix::process::geteuid().is_root() {
            adorn(Path::new("/"), &root, None, &fresh)?;
        } else {
            fs::set_permissions(&fresh, Permissions::from_mode(root.mode() & 0o7777 | 0o700))?;
        }
        fs::rename(fresh, upper)
    }

    /// Removes everything but the upper tree.
    fn clear(&self) -> io::Result<()> {
        remove_tree(&self.dir.join(FORMER))?;
        [origins_of(&self.dir), notes::commit_of(&self.dir)]
            .into_iter()
            .try_for_each(|file| gone(fs::remove_file(file)))
    }

    /// Where it is, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The upper tree.
    pub fn upper(&self) -> PathBuf {
        upper_of(&self.dir)
    }

    /// What writes down versions of files that are hidden.
    ///
    /// # Errors
    /// A sentence about the file that cannot be written.
    pub fn recorder(&self) -> Result<Recorder, Failure> {
        Recorder::open(&origins_of(&self.dir)).map_err(|error| failed("cannot write to", &self.dir, error))
    }

    /// Real files with one name that have been copied, and the inode numbers that they had.
    ///
    /// # Errors
    /// A sentence when it is not known.
    pub fn copies(&self) -> Result<Vec<(PathBuf, u64)>, Failure> {
        let known = load(&origins_of(&self.dir)).map_err(|error| failed("cannot read", &self.dir, error))?;
        Ok(known.into_iter().filter_map(|(path, origin)| Some((path, origin.copied_alone()?))).collect())
    }

    /// Gives it up, with all changes; what an interrupted `commit` or `diff` has left among the real files is undone.
    ///
    /// # Errors
    /// As [`Overlay::remove`], and when that cannot be undone.
    pub fn discard(self) -> Result<(), Failure> {
        notes::undo(&self.dir)
            .map_err(|error| failed("cannot undo what was interrupted with the overlay", &self.dir, error))?;
        self.remove()
    }

    /// Removes it, with all changes.
    ///
    /// # Errors
    /// A sentence about what cannot be removed.
    pub fn remove(self) -> Result<(), Failure> {
        let removed = || -> io::Result<()> {
            // A half of the changes would be others.
            gone(fs::rename(self.upper(), self.dir.join(FORMER)))?;
            self.clear()?;
            // The mark is the last: what is left without it would not be known as an overlay.
            gone(fs::remove_file(self.dir.join(MARK)))?;
            // Something else may be there, which stays.
            let _ = fs::remove_dir(&self.dir);
            Ok(())
        };
        removed().map_err(|error| failed("cannot remove the overlay", &self.dir, error))
    }
}

/// An upper tree that is not complete, or is being removed.
const FORMER: &str = "upper.part";
const ORIGINS: &str = "origins";

/// The upper tree of the overlay in a directory.
pub(super) fn upper_of(dir: &Path) -> PathBuf {
    dir.join("upper")
}

/// Its versions of hidden files.
pub(super) fn origins_of(dir: &Path) -> PathBuf {
    dir.join(ORIGINS)
}

/// Whether there is nothing in a directory but marks that were not completed.
fn is_empty(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        if !entry?.file_name().as_bytes().starts_with(MARK_PART.as_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the mark in one step: a half of it would not be known as an overlay. Who makes it at the same time is as good.
fn mark(dir: &Path) -> io::Result<()> {
    let part = dir.join(format!("{MARK_PART}{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(FORMAT.as_bytes())?;
    file.sync_all()?;
    match Place::of(&part)?.rename_to_new(&Place::of(&dir.join(MARK))?) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(part),
        renamed => renamed,
    }
}

/// Whether an open file still has a name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|found| (found.dev(), found.ino()) == (file.dev(), file.ino())),
    }
}

/// A sentence about a directory.
pub(super) fn failed(what: &str, path: &Path, error: io::Error) -> Failure {
    Failure::serious(format!("{what} '{}': {}", shown(path), Error::from(error).why()))
}

/// Names of ours cannot be kept apart by the same means once more.
fn in_an_overlay(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Errno::EPERM.because(IN_AN_OVERLAY).into(),
        _ => error,
    }
}

const IN_AN_OVERLAY: &str = "it is in an overlay itself: a directory in /run or /dev/shm is not";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_an_overlay_that_was_removed_is_none_of_the_next_one() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("kept");
        let first = Overlay::make(&dir).unwrap();
        let mark = dir.join(MARK);
        let former = File::open(&mark).unwrap();
        assert!(is_at(&former, &mark).unwrap() && Overlay::open(&dir).is_err());
        first.remove().unwrap();
        assert!(!is_at(&former, &mark).unwrap());
        let second = Overlay::make(&dir).unwrap();
        assert!(!is_at(&former, &mark).unwrap());
        assert_eq!(fs::read_dir(second.path()).unwrap().count(), 2, "the mark and the upper tree");
    }
}
