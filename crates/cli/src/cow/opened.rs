// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories that their owner may not use: they have all permissions of their owner for a while.

use super::notes::{Notes, close};
use super::overlay::failed;
use crate::place::{open_dir, set_mode};
use crate::status::Failure;
use rustix::fs::{OFlags, fstat};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Directories that were opened so, with the permissions that they get back in the end. The overlay notes them before.
#[derive(Default)]
pub struct Opened {
    overlay: PathBuf,
    dirs: BTreeMap<PathBuf, u32>,
}

impl Opened {
    /// None yet, for the overlay in a directory.
    pub fn of(overlay: &Path) -> Self {
        Opened { overlay: overlay.to_owned(), dirs: BTreeMap::new() }
    }

    /// Gives this user all permissions of a directory of theirs, where some of `needed` are missing. There is nothing to be given to the
    /// superuser.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn open(&mut self, path: &Path, needed: u32) -> io::Result<()> {
        let user = rustix::process::geteuid();
        if user.is_root() {
            return Ok(());
        }
        let dir = open_dir(path, OFlags::PATH)?;
        let found = fstat(&dir)?;
        let mode = found.st_mode & 0o7777;
        if found.st_uid != user.as_raw() || mode & needed == needed {
            return Ok(());
        }
        Notes::opens(&self.overlay, path, mode)?;
        self.dirs.entry(path.to_owned()).or_insert(mode);
        set_mode(&dir, mode | 0o700)
    }

    /// Leaves a directory as it is from now on.
    pub fn forget(&mut self, path: &Path) {
        self.dirs.remove(path);
    }

    /// Gives all directories their permissions back, those in others first.
    ///
    /// # Errors
    /// A sentence about the first one that did not get them.
    pub fn close(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        for (path, mode) in std::mem::take(&mut self.dirs).into_iter().rev() {
            let closed = close(&path, mode).and_then(|()| Notes::closes(&self.overlay, &path));
            let closed = closed.map_err(|error| failed("cannot restore the permissions of", &path, error));
            result = result.and(closed);
        }
        result
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // What could not be closed is noted, and is closed by the next commit.
        let _ = self.close();
    }
}
