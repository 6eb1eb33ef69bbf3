// SPDX-License-Identifier: MIT OR Apache-2.0
//! Giving up a part of the changes: programs see the real files there again.

use super::changes::Changes;
use super::only::Only;
use super::origin;
use super::overlay::{Overlay, failed, origins_of};
use super::remove::remove_tree;
use super::shown;
use crate::status::Failure;
use outrigger_core::whiteout::{OPAQUE, whiteout};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Removes the changes at or below some paths from an overlay.
///
/// # Errors
/// A sentence about a path at which nothing was changed, or whose directory the program has removed or replaced; nothing is removed then.
/// Else about what cannot be removed.
pub fn discard(overlay: &Overlay, only: &Only) -> Result<(), Failure> {
    // While it lives, this user may look into the directories of the overlay.
    let mut changes = Changes::of(overlay.path())?;
    only.all_found(&changes.list)?;
    for path in only.paths() {
        if let Some(above) = hidden_above(overlay, path)? {
            return Err(Failure::new(format!(
                "nothing was discarded: '{}' is in '{}', which the program has removed or replaced: discard that",
                shown(path),
                shown(&above)
            )));
        }
    }
    for path in only.paths() {
        let Some(dir) = upper(overlay, path).parent().map(Path::to_owned) else { continue };
        let mut reveal = || {
            changes.opened.open(&dir, 0o700)?;
            remove_tree(&upper(overlay, path))?;
            remove_tree(&whiteout_of(overlay, path))
        };
        match reveal() {
            // All of it went with a directory above it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            revealed => revealed.map_err(|error| failed("cannot discard", path, error))?,
        }
    }
    origin::forget(&origins_of(overlay.path()), |path| only.has_below(path))
        .map_err(|error| failed("cannot write to", overlay.path(), error))
}

/// Where the overlay has a file.
fn upper(overlay: &Overlay, path: &Path) -> PathBuf {
    overlay.upper().join(path.strip_prefix("/").unwrap_or(path))
}

/// Where it says that there is none.
fn whiteout_of(overlay: &Overlay, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    upper(overlay, path).with_file_name(OsString::from_vec(whiteout(name.as_bytes())))
}

/// The directory above a real file whose names the overlay hides, if there is one.
fn hidden_above(overlay: &Overlay, path: &Path) -> Result<Option<PathBuf>, Failure> {
    let is_there = |path: &Path| match fs::symlink_metadata(path) {
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            Ok(false)
        }
        found => found.map(|_| true).map_err(|error| failed("cannot look at", path, error)),
    };
    if !is_there(path)? {
        return Ok(None);
    }
    for above in path.ancestors().skip(1).take_while(|above| above.parent().is_some()) {
        if is_there(&whiteout_of(overlay, above))? || is_there(&upper(overlay, above).join(OPAQUE))? {
            return Ok(Some(above.to_owned()));
        }
    }
    Ok(None)
}
