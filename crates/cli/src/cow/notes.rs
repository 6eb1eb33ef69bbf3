// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `commit`, and `diff`, note before they do it, so that an interrupted commit can be repeated. A line each, on stable storage before it counts:
//!
//! ```text
//! temporary PATH       temporary names for this file may be in use
//! attributes PATH      attributes of the real file are changed in place
//! opened PATH MODE     the directory got all permissions of its owner for a while, and had MODE
//! closed PATH          it has got those back
//! ```

use super::remove::remove_tree;
use super::{read, written};
use crate::place::{Place, leads_nowhere};
use outrigger_core::hash::siphash13;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file with the notes about the overlay in a directory.
pub(super) fn commit_of(dir: &Path) -> PathBuf {
    dir.join("commit")
}

/// What temporary names begin with.
const UNFINISHED: &str = ".outrigger-commit-";

/// What former attempts have noted.
#[derive(Default)]
pub struct Noted {
    /// Files that were made under temporary names.
    pub temporary: HashSet<PathBuf>,
    /// Files whose attributes were being changed: their times say nothing.
    pub attributes: HashSet<PathBuf>,
    opened: BTreeMap<PathBuf, u32>,
}

/// The notes of a commit.
pub struct Notes {
    file: File,
    /// Those of former attempts.
    pub noted: Noted,
}

/// The temporary name for a file.
pub fn beside(path: &Path) -> OsString {
    let name = path.file_name().unwrap_or_default();
    format!("{UNFINISHED}{:016x}", siphash13(name.as_bytes())).into()
}

/// Both temporary names for a file: that of the new one, and that of the former one where they cannot be exchanged.
pub fn temporaries(path: &Path) -> [OsString; 2] {
    let new = beside(path);
    let former = beside(Path::new(&new));
    [new, former]
}

impl Noted {
    /// The notes about the overlay in a directory.
    ///
    /// # Errors
    /// Those of reading the file.
    pub fn load(dir: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(commit_of(dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let mut noted = Noted::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut words = line.split(' ');
            let (Some(what), Some(path)) = (words.next(), words.next().and_then(read)) else { continue };
            match (what, words.next().and_then(|mode| u32::from_str_radix(mode, 8).ok())) {
                ("temporary", None) => drop(noted.temporary.insert(path)),
                ("attributes", None) => drop(noted.attributes.insert(path)),
                ("closed", None) => drop(noted.opened.remove(&path)),
                // The first is that of the time before all attempts.
                ("opened", Some(mode)) => drop(noted.opened.entry(path).or_insert(mode)),
                _ => {}
            }
        }
        Ok(noted)
    }

    /// The paths of temporary files that may be there.
    pub fn unfinished(&self) -> HashSet<PathBuf> {
        let names = |path: &PathBuf| temporaries(path).map(|name| path.with_file_name(name));
        self.temporary.iter().flat_map(names).collect()
    }
}

impl Notes {
    /// Those about the overlay in a directory. What former attempts have taken from its place is put back.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let file = appended(dir)?;
        let mut noted = Noted::load(dir)?;
        noted.temporary.iter().try_for_each(|path| put_back(path))?;
        let opened = std::mem::take(&mut noted.opened);
        // Those in others first.
        opened.iter().rev().try_for_each(|(path, mode)| close(path, *mode))?;
        Ok(Notes { file, noted })
    }

    /// Notes what is about to be done.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn begin<'p>(&mut self, what: &str, paths: impl IntoIterator<Item = &'p Path>) -> io::Result<()> {
        let line = |path: &Path| format!("{what} {}\n", written(path.as_os_str().as_bytes()));
        add(&mut self.file, &paths.into_iter().map(line).collect::<String>())
    }

    /// Notes the permissions of a directory that is about to get all of its owner's. Who only looks has no other notes.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn opens(overlay: &Path, path: &Path, mode: u32) -> io::Result<()> {
        let line = format!("opened {} {mode:o}\n", written(path.as_os_str().as_bytes()));
        add(&mut appended(overlay)?, &line)
    }

    /// Notes that a directory has got its permissions back. Without it they would be set once more.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn closes(overlay: &Path, path: &Path) -> io::Result<()> {
        let line = format!("closed {}\n", written(path.as_os_str().as_bytes()));
        appended(overlay)?.write_all(line.as_bytes())
    }
}

/// The file, to be written to at its end.
fn appended(dir: &Path) -> io::Result<File> {
    let path = commit_of(dir);
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
    let text = fs::read(&path)?;
    if text.last().is_some_and(|&last| last != b'\n') {
        file.write_all(b"\n")?;
    }
    File::open(dir)?.sync_all()?;
    Ok(file)
}

/// Has lines on stable storage.
fn add(file: &mut File, lines: &str) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    file.write_all(lines.as_bytes())?;
    file.sync_data()
}

/// Gives a file its name back that has only the second temporary one.
fn put_back(path: &Path) -> io::Result<()> {
    let place = match Place::of(path) {
        Err(error) if leads_nowhere(&error) => return Ok(()),
        place => place?,
    };
    let former = place.sibling(&temporaries(path)[1])?;
    match (place.found()?, former.found()?) {
        (None, Some(_)) => former.rename_to_new(&place),
        _ => Ok(()),
    }
}

/// Gives a directory the permissions back that it had, unless it has got others meanwhile.
///
/// # Errors
/// Those of the calls.
pub fn close(path: &Path, mode: u32) -> io::Result<()> {
    let place = match Place::of(path) {
        Err(error) if leads_nowhere(&error) => return Ok(()),
        place => place?,
    };
    match place.found()? {
        Some(now) if now.is_dir() && now.mode() & 0o7777 == mode | 0o700 => {
            fs::set_permissions(place.path(), Permissions::from_mode(mode))
        }
        _ => Ok(()),
    }
}

/// Removes the temporary files for a place.
///
/// # Errors
/// Those of the calls.
pub fn clean(place: &Place, path: &Path) -> io::Result<()> {
    temporaries(path).iter().try_for_each(|name| remove_tree(&place.sibling(name)?.path()))
}

/// Undoes what an interrupted `commit` or `diff` of the overlay in a directory has left: files with temporary names, and directories that
/// have too many permissions. Files that were committed stay as they are.
///
/// # Errors
/// Those of the calls.
pub fn undo(overlay: &Path) -> io::Result<()> {
    let noted = Notes::open(overlay)?.noted;
    noted.temporary.iter().try_for_each(|path| match Place::of(path) {
        Err(error) if leads_nowhere(&error) => Ok(()),
        place => clean(&place?, path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_only_its_second_temporary_name_is_put_back_and_nothing_else_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (moved, there) = (dir.join("moved"), dir.join("there"));
        let at = |path: &Path, number: usize| path.with_file_name(&temporaries(path)[number]);
        fs::create_dir(at(&moved, 1)).unwrap();
        fs::write(at(&moved, 0), "new").unwrap();
        fs::write(&there, "new").unwrap();
        fs::create_dir(at(&there, 1)).unwrap();
        let mut interrupted = Notes::open(&dir).unwrap();
        interrupted.begin("temporary", [&*moved, &*there]).unwrap();
        Notes::opens(&dir, &moved, 0o500).unwrap();
        Notes::opens(&dir, &there, 0o100).unwrap();
        Notes::closes(&dir, &there).unwrap();
        fs::set_permissions(at(&moved, 1), Permissions::from_mode(0o700)).unwrap();
        let notes = Notes::open(&dir).unwrap();
        assert!(moved.is_dir() && !at(&moved, 1).exists() && at(&moved, 0).exists());
        assert!(there.is_file() && at(&there, 1).is_dir());
        assert_eq!(fs::metadata(&moved).unwrap().mode() & 0o7777, 0o500);
        assert_eq!(notes.noted.unfinished().len(), 4);
        undo(&dir).unwrap();
        assert!(!at(&there, 1).exists() && !at(&moved, 0).exists());
        assert!(moved.is_dir() && fs::read(&there).unwrap() == b"new");
    }
}
