// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content that no tree takes: it goes to a directory of the user.

use super::content::{PIECE, write_at};
use super::mirror::os;
use outrigger_core::{Errno, Error, Result};
use rustix::fs::{fsync, symlink};
use rustix::io::pread;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest name of a file, in bytes.
const NAME_MAX: usize = 255;

/// Notes that a copy is written: after a crash it is found by that.
pub(super) fn note_at(note: &Path, real: &Path) -> Result<()> {
    match symlink(real, note) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        noted => os(noted),
    }
}

/// What is said of content that is neither stored nor kept. `note` is a link to its copy.
pub(super) fn unkept(path: &str, error: &Error, note: &Path, (keep, why): (&Path, &Error)) -> String {
    let keep = keep.display();
    match std::fs::read_link(note).ok().filter(|real| real.exists()) {
        Some(real) => format!(
            "'{path}' is not stored: {error}; what was written stays in '{}', as it cannot be copied to '{keep}': {why}",
            real.display()
        ),
        None => format!("'{path}' is lost: {error}; and it cannot be kept in '{keep}': {why}"),
    }
}

/// What is said of content that programs go on to write to; `None` where the copy has no name any more, as the file was removed. `note` is a
/// link to the copy.
pub(super) fn unfinished(path: &str, error: Option<&Error>, note: &Path, keep: &Path) -> Option<String> {
    let real = std::fs::read_link(note).ok().filter(|real| real.exists())?;
    let not_stored = error.map(|error| format!(", and is not stored: {error}")).unwrap_or_default();
    Some(format!(
        "'{path}' is open for writing{not_stored}; what is written to it from now on stays in '{}', and the next `outrigger run` keeps it in '{}'",
        real.display(),
        keep.display()
    ))
}

/// Copies content to a new file in a directory, for its user only; when this returns it is on stable storage. The name of the file ends with
/// that of `path`, as far as there is room.
///
/// # Errors
/// Those of this machine.
pub(super) fn kept(keep: &Path, path: &str, copy: impl AsFd) -> Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(keep)?;
    let name = path.rsplit('/').next().unwrap_or_default();
    let at = |number: u32| keep.join(named(&format!("{}.{number}-", std::process::id()), name));
    let new = |place: PathBuf| match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place)
    {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
        made => Some(made.map(|file| (place, file))),
    };
    let (place, to) = (0..).find_map(|number| new(at(number))).ok_or(Errno::EEXIST)??;
    let copied = copy_to(&to.into(), copy).and_then(|()| Ok(File::open(keep)?.sync_all()?));
    if copied.is_err() {
        // No half of it is left.
        let _ = std::fs::remove_file(&place);
    }
    copied.map(|()| place)
}

/// A name that begins so, and is no longer than names may be.
fn named(begin: &str, name: &str) -> String {
    let room = NAME_MAX.saturating_sub(begin.len());
    format!("{begin}{}", &name[..name.floor_char_boundary(room)])
}

fn copy_to(to: &OwnedFd, from: impl AsFd) -> Result<()> {
    let (mut offset, mut buffer) = (0, vec![0; PIECE]);
    loop {
        let count = os(pread(&from, &mut buffer, offset))?;
        if count == 0 {
            return os(fsync(to));
        }
        write_at(to, offset, &buffer[..count])?;
        offset += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_kept_whatever_the_length_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        std::fs::write(&copy, "precious").unwrap();
        for name in ["n".repeat(255), "\u{fffd}".repeat(255)] {
            let keep = dir.path().join("unsaved");
            let place = kept(&keep, &format!("/data/{name}"), File::open(&copy).unwrap()).unwrap();
            assert_eq!(std::fs::read(&place).unwrap(), b"precious");
            let found = place.file_name().unwrap().to_str().unwrap();
            assert!(found.len() <= NAME_MAX && found.ends_with(&name[..3]), "{found}");
        }
    }
}
