// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making the real files what the program saw.
//!
//! A file is made beside the real one, stored, and renamed: each name leads to the former file or to all of the new one. What is
//! removed goes last. Temporary names are noted before they are used, so that the next attempt removes what an interrupted one has
//! left. Nothing is taken out of the overlay before everything is applied and stored.

use super::changes::{Became, Change, Changes, UNFINISHED};
use super::make::{adorn, make};
use super::overlay::{Overlay, commit_of, failed, remove_tree};
use super::{read, shown, written};
use crate::status::Failure;
use outrigger_core::hash::siphash13;
use outrigger_core::{Errno, Error};
use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno as Number;
use std::collections::HashSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The changes of an overlay on their way to the real files.
pub struct Commit<'a> {
    changes: Changes,
    notes: Notes,
    /// Told what was done.
    tell: &'a mut dyn FnMut(&Change) -> Result<(), Failure>,
}

/// What is in the way of an interrupted attempt.
struct Notes {
    file: File,
    /// Files whose attributes were being changed: their times say nothing.
    begun: HashSet<PathBuf>,
}

impl<'a> Commit<'a> {
    /// Finds out what is to be done, and removes what an interrupted attempt has left.
    ///
    /// # Errors
    /// A sentence about what cannot be read.
    pub fn new(
        overlay: &Overlay,
        tell: &'a mut dyn FnMut(&Change) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let dir = overlay.path();
        let notes = Notes::open(dir).map_err(|error| failed("cannot use the overlay", dir, error))?;
        Ok(Commit { changes: Changes::of(dir)?, notes, tell })
    }

    /// Real files that were changed since.
    pub fn conflicts(&self) -> Vec<&Change> {
        let begun = |change: &&Change| self.notes.begun.contains(&change.path);
        let all = self.changes.list.iter().filter(|change| self.changes.is_conflict(change));
        all.filter(|change| !begun(change)).collect()
    }

    /// Applies everything, and stores it.
    ///
    /// # Errors
    /// A sentence about the first thing that could not be done. The overlay is as it was.
    pub fn apply(mut self) -> Result<(), Failure> {
        let changes = std::mem::take(&mut self.changes.list);
        let (gone, there): (Vec<_>, Vec<_>) =
            changes.iter().partition(|change| change.became == Became::Removed);
        let count = changes.len();
        let mut done = 0;
        let mut step = |result: io::Result<()>, change: &Change| {
            result.map_err(|error| stopped(change, error, (done, count)))?;
            done += 1;
            (self.tell)(change)
        };
        for change in &there {
            step(put(&mut self.changes, &mut self.notes, change), change)?;
        }
        // Directories at last: in a new one, names have to be made first.
        for change in there.iter().rev() {
            settle(&mut self.notes, change)
                .map_err(|error| stopped(change, error, (count - gone.len(), count)))?;
        }
        for change in &gone {
            step(take_away(change), change)?;
        }
        store(&changes)
    }
}

/// Has names on stable storage.
fn store(changes: &[Change]) -> Result<(), Failure> {
    let mut stored = HashSet::new();
    for dir in changes.iter().filter_map(|change| change.path.parent()) {
        // One that was removed is a change of the one above it.
        let Ok(opened) = File::open(dir) else { continue };
        let of = |error| failed("cannot store what is in", dir, error);
        if stored.insert(opened.metadata().map_err(of)?.dev()) {
            syncfs(&opened).map_err(|error| of(error.into()))?;
        }
    }
    Ok(())
}

fn stopped(change: &Change, error: io::Error, (done, count): (usize, usize)) -> Failure {
    let why = Error::from(error).why();
    Failure::serious(format!(
        "'{}' cannot be {}: {why}. {done} of {count} changes are applied; the overlay has all of them still, and the commit can be \
         repeated",
        shown(&change.path),
        change.became.name(),
    ))
}

/// Makes one real file what it is in the overlay, but for the attributes of a directory.
fn put(changes: &mut Changes, notes: &mut Notes, change: &Change) -> io::Result<()> {
    let Some((upper, mine)) = &change.upper else { return Ok(()) };
    let path = &change.path;
    if mine.is_dir() && change.became != Became::Replaced {
        return if change.became == Became::Added { make(upper, mine, path) } else { Ok(()) };
    }
    let is_other = change.became != Became::Modified || change.what.contains(&"content");
    if !is_other {
        notes.begin("attributes", path)?;
        return adorn(upper, mine, change.real.as_ref(), path);
    }
    let temporary = beside(path);
    notes.begin("temporary", &temporary)?;
    remove_tree(&temporary)?;
    let made = new_file(changes, change, (upper, mine), &temporary);
    made.and_then(|()| exchange(&temporary, path, change.real.as_ref())).inspect_err(|_| {
        // Room is needed for something else, perhaps.
        let _ = remove_tree(&temporary);
    })
}

/// Makes the file under its temporary name: a further name where the file has one already.
fn new_file(
    changes: &mut Changes,
    change: &Change,
    (upper, mine): (&Path, &Metadata),
    temporary: &Path,
) -> io::Result<()> {
    let number = (mine.dev(), mine.ino());
    if mine.is_dir() {
        return make(upper, mine, temporary);
    }
    if let Some(first) = changes.linked.get(&number).filter(|_| mine.nlink() > 1) {
        match fs::hard_link(first, temporary) {
            // On another file system, or where links are not permitted, it becomes a file of its own.
            Err(error) if is_no_place_for_links(&error) => {}
            linked => return linked,
        }
    }
    make(upper, mine, temporary)?;
    let copied = changes.origins.get(&change.path).is_some_and(|origin| origin.copied);
    // A file of this user's gets a group of theirs, if it must.
    let real = change.real.as_ref().filter(|real| copied && real.uid() != mine.uid());
    adorn(upper, mine, real, temporary).map_err(|error| of_others(error, mine, real))?;
    changes.linked.insert(number, change.path.clone());
    Ok(())
}

fn is_no_place_for_links(error: &io::Error) -> bool {
    let number = Number::from_io_error(error);
    number.is_some_and(|number| {
        [Number::XDEV, Number::PERM, Number::MLINK, Number::OPNOTSUPP].contains(&number)
    })
}

fn of_others(error: io::Error, mine: &Metadata, real: Option<&Metadata>) -> io::Error {
    match real.filter(|real| real.uid() != mine.uid()) {
        Some(real) if error.kind() == io::ErrorKind::PermissionDenied => {
            let why = "and a new file cannot be given to them without privileges";
            Errno::EPERM.because(format!("it belongs to user {}, {why}", real.uid())).into()
        }
        _ => error,
    }
}

/// Gives a new file its name in one step, whatever has it now; that is removed.
fn exchange(temporary: &Path, path: &Path, real: Option<&Metadata>) -> io::Result<()> {
    let is_dir = fs::symlink_metadata(temporary)?.is_dir();
    let Some(real) = real.filter(|real| real.is_dir() || is_dir) else {
        return fs::rename(temporary, path);
    };
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::EXCHANGE) {
        Err(Number::INVAL | Number::NOSYS) => {
            let former = beside(temporary);
            remove_tree(&former)?;
            fs::rename(path, &former)?;
            fs::rename(temporary, path)?;
            remove_tree(&former)
        }
        exchanged => {
            exchanged?;
            if real.is_dir() { remove_tree(temporary) } else { fs::remove_file(temporary) }
        }
    }
}

/// Gives a directory its attributes.
fn settle(notes: &mut Notes, change: &Change) -> io::Result<()> {
    match &change.upper {
        Some((upper, mine)) if mine.is_dir() => {
            notes.begin("attributes", &change.path)?;
            adorn(upper, mine, change.real.as_ref(), &change.path)
        }
        _ => Ok(()),
    }
}

fn take_away(change: &Change) -> io::Result<()> {
    let is_dir = change.real.as_ref().is_some_and(Metadata::is_dir);
    let removed = if is_dir { fs::remove_dir(&change.path) } else { fs::remove_file(&change.path) };
    match removed {
        // With a directory that was replaced.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(())
        }
        other => other,
    }
}

/// The temporary name for a file.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    path.with_file_name(format!("{UNFINISHED}{:016x}", siphash13(name.as_bytes())))
}

impl Notes {
    /// Those of former attempts, what they have left having been removed.
    fn open(dir: &Path) -> io::Result<Self> {
        let path = commit_of(dir);
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
        let text = fs::read_to_string(&path)?;
        let mut begun = HashSet::new();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let Some((what, path)) = line.split_once(' ') else { continue };
            match (what, read(path)) {
                ("temporary", Some(path)) => {
                    remove_tree(&beside(&path))?;
                    remove_tree(&path)?;
                }
                ("attributes", Some(path)) => drop(begun.insert(path)),
                _ => {}
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Notes { file, begun })
    }

    fn begin(&mut self, what: &str, path: &Path) -> io::Result<()> {
        writeln!(self.file, "{what} {}", written(path.as_os_str().as_bytes()))
    }
}
