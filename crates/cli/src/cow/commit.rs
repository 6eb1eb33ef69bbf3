// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making the real files what the program saw.
//!
//! A file is made beside the real one, stored, and renamed: each name leads to the former file or to all of the new one. Just before
//! that, the real file must still be the one that was compared. What is removed goes last, and so do directories that something else
//! takes the place of. Temporary names are noted before they are used, so that the next attempt removes what an interrupted one has
//! left. Nothing is taken out of the overlay before everything is applied and stored.

use super::changes::{Became, Change, Changes};
use super::make::{adorn, make};
use super::notes::{Noted, Notes, clean, commit_of, temporaries};
use super::only::Only;
use super::origin::{Origin, Recorder, Version};
use super::overlay::{Overlay, failed, origins_of};
use super::preflight;
use super::remove::{gone, remove_tree};
use super::shown;
use crate::place::{Place, leads_nowhere, open_dir};
use crate::status::Failure;
use outrigger_core::{Errno, Error};
use outrigger_host::MountEntry;
use rustix::fs::{OFlags, RenameFlags, fstat, syncfs};
use rustix::io::Errno as Number;
use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The changes of an overlay on their way to the real files.
pub struct Commit<'a> {
    overlay: &'a Overlay,
    changes: Changes,
    /// Whether there are changes that stay in the overlay.
    is_part: bool,
    /// The directories that names are changed in, by device and inode number: nothing else may have their paths then.
    dirs: HashMap<PathBuf, (u64, u64)>,
    notes: Notes,
    /// Whether the overlay's side is taken where a real file was changed.
    force: bool,
    /// Files with several names, by device and inode number, whose attributes changed with another name.
    touched: HashSet<(u64, u64)>,
    /// How many changes are applied, of how many.
    done: (usize, usize),
    /// Told what was done.
    tell: &'a mut dyn FnMut(&Change) -> Result<(), Failure>,
}

impl<'a> Commit<'a> {
    /// Finds out what is to be done: all changes, or some of them.
    ///
    /// # Errors
    /// A sentence about what cannot be read, or what is no change.
    pub fn new(
        overlay: &'a Overlay,
        only: &Only,
        tell: &'a mut dyn FnMut(&Change) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let dir = overlay.path();
        let notes = Notes::open(dir).map_err(|error| failed("cannot use the overlay", dir, error))?;
        let mut changes = Changes::of(dir)?;
        only.all_found(&changes.list)?;
        let all = changes.list.len();
        changes.list.retain(|change| only.has(change));
        let (is_part, dirs) = (changes.list.len() < all, parents(&changes.list));
        let (force, touched, done) = (false, HashSet::new(), (0, 0));
        Ok(Commit { overlay, changes, is_part, dirs, notes, force, touched, done, tell })
    }

    /// Real files that were changed since, and how.
    pub fn conflicts(&self) -> Vec<(&Change, &'static str)> {
        let all = self.changes.list.iter().filter(|change| !self.was_begun(change));
        all.filter_map(|change| Some((change, self.changes.conflict(change)?))).collect()
    }

    /// Mounts of the system on what is to be removed or replaced, or below it: the changes are not of what is under them.
    ///
    /// # Errors
    /// When the table of mounts cannot be read.
    pub fn mounts_in_the_way(&self) -> io::Result<Vec<PathBuf>> {
        let is_in_the_way = |mount: &MountEntry| {
            let mut gone = self
                .changes
                .list
                .iter()
                .filter(|change| [Became::Removed, Became::Replaced].contains(&change.became));
            gone.any(|change| mount.mountpoint.starts_with(&change.path))
        };
        Ok(MountEntry::all()?.into_iter().filter(is_in_the_way).map(|mount| mount.mountpoint).collect())
    }

    /// The first directory above a change that was another one when the program saw it: something was mounted there, or on one above it,
    /// or unmounted.
    ///
    /// # Errors
    /// When the table of mounts cannot be read.
    pub fn mounted_since(&self) -> io::Result<Option<PathBuf>> {
        let mounts = MountEntry::all()?;
        let is_mount = |path: &Path| mounts.iter().any(|mount| mount.mountpoint == path);
        let is_above = |path: &Path| self.changes.list.iter().any(|change| change.path.starts_with(path));
        let is_other = |path: &Path, then: &Origin| {
            then.is_elsewhere(path)
                || is_mount(path) && fs::symlink_metadata(path).is_ok_and(|now| !then.is_file(&now))
        };
        let others =
            self.changes.origins.iter().filter(|(path, then)| is_other(path, then) && is_above(path));
        Ok(others.map(|(path, _)| path.clone()).min())
    }

    /// The first change that this user can never make, and why.
    pub fn impossible(&self) -> Option<(&Path, io::Error)> {
        let mut all = self.changes.list.iter();
        all.find_map(|change| {
            let is_copy = self.changes.origins.get(&change.path).is_some_and(|origin| origin.copied);
            Some((&*change.path, preflight::check(change, is_copy).err()?))
        })
    }

    /// Whether the real file differs from the version that was hidden by what a former attempt did: to its attributes, where what is in it is
    /// the same on both sides, or by having put a directory in the place of a file, in which each name counts for itself.
    fn was_begun(&self, change: &Change) -> bool {
        let only_attributes = change.became == Became::Modified && !change.what.contains(&"content");
        let is_dir = change.real.as_ref().is_some_and(Metadata::is_dir);
        let Noted { temporary, attributes, .. } = &self.notes.noted;
        only_attributes && (attributes.contains(&change.path) || is_dir && temporary.contains(&change.path))
    }

    /// Applies everything, and stores it. With `force`, also where a real file is changed meanwhile. `true`: the overlay has nothing else.
    ///
    /// # Errors
    /// A sentence about the first thing that could not be done. The overlay is as it was.
    pub fn apply(mut self, force: bool) -> Result<bool, Failure> {
        let changes = std::mem::take(&mut self.changes.list);
        (self.force, self.done) = (force, (0, changes.len()));
        let applied = self.steps(&changes);
        let closed = self.changes.opened.close();
        let systems = applied?;
        closed?;
        store(&systems)?;
        if self.is_part {
            self.keep(&changes)
                .map_err(|error| failed("cannot write to the overlay", self.overlay.path(), error))?;
        }
        Ok(!self.is_part)
    }

    /// Has the overlay know the versions that were made. What was noted of this commit says nothing about the next one.
    fn keep(&self, changes: &[Change]) -> io::Result<()> {
        let recorder = Recorder::open(&origins_of(self.overlay.path()))?;
        for change in changes.iter().filter(|change| change.upper.is_some()) {
            // In a directory that may not be looked into any more, a version that is not known is a conflict, if it changes again.
            if let Ok(Some(real)) = Place::of(&change.path).and_then(|place| place.found()) {
                recorder.record_copy(&change.path, &real)?;
            }
        }
        gone(fs::remove_file(commit_of(self.overlay.path())))
    }

    /// All steps; the file systems that were changed.
    fn steps(&mut self, changes: &[Change]) -> Result<HashMap<u64, OwnedFd>, Failure> {
        self.prepare(changes)?;
        let is_last = |change: &&Change| change.became == Became::Removed || is_former_dir(change);
        let (last, first): (Vec<_>, Vec<_>) = changes.iter().partition(is_last);
        for change in first.iter().filter(|change| !is_settled_only(change)) {
            let result = self.put(change, &[]);
            self.step(result, change)?;
        }
        let former: HashSet<&Path> =
            last.iter().filter(|change| is_former_dir(change)).map(|change| &*change.path).collect();
        // What is in a directory that is replaced goes with it, never by its own path: that may lead elsewhere then.
        let mut within = Vec::new();
        for change in last {
            if is_former_dir(change) {
                let result = self.put(change, &within);
                for removed in within.drain(..).filter(|_| result.is_ok()) {
                    self.step(Ok(()), removed)?;
                }
                self.step(result, change)?;
            } else if change.path.ancestors().any(|above| former.contains(above)) {
                within.push(change);
            } else {
                let result = self.take_away(change);
                self.step(result, change)?;
            }
        }
        // The permissions that directories get may forbid to open them.
        let systems = changed_systems(changes)?;
        self.settle(&first)?;
        Ok(systems)
    }

    /// Removes what a former attempt has left, and notes which temporary names are used.
    fn prepare(&mut self, changes: &[Change]) -> Result<(), Failure> {
        for path in std::mem::take(&mut self.notes.noted.temporary) {
            let cleaned = match self.reach(&path) {
                Err(error) if leads_nowhere(&error) => Ok(()),
                place => place.and_then(|place| clean(&place, &path)),
            };
            cleaned.map_err(|error| {
                failed("cannot remove what an interrupted commit has left of", &path, error)
            })?;
        }
        let new = || changes.iter().filter(|change| needs_temporary(change));
        for change in new() {
            let names = temporaries(&change.path).map(|name| change.path.with_file_name(name));
            if let Some(taken) = names.iter().find(|name| fs::symlink_metadata(name).is_ok()) {
                let why = Errno::EEXIST.because("the name is needed for a temporary file");
                return Err(failed("cannot use", taken, why.into()));
            }
        }
        let noted = self.notes.begin("temporary", new().map(|change| &*change.path));
        noted.map_err(unwritten)
    }

    /// Tells that a change is applied, or why not.
    fn step(&mut self, result: io::Result<()>, change: &Change) -> Result<(), Failure> {
        result.map_err(|error| stopped(change, error, self.done))?;
        if let Some(real) = change.real.as_ref().filter(|real| !real.is_dir() && real.nlink() > 1) {
            self.touched.insert((real.dev(), real.ino()));
        }
        self.done.0 += 1;
        (self.tell)(change)
    }

    /// The place of a path, in whose directory its owner can see, make and remove names.
    fn reach(&mut self, path: &Path) -> io::Result<Place> {
        let place = Place::of(path)?;
        let dir = fs::metadata(place.dir())?;
        self.check_known(path, &dir)?;
        self.changes.opened.open(path.parent().unwrap_or(path), 0o700)?;
        Ok(place)
    }

    /// Fails when the directory of a path is another one, as one that was mounted there meanwhile.
    fn check_known(&self, path: &Path, dir: &Metadata) -> io::Result<()> {
        let known = path.parent().and_then(|above| self.dirs.get(above));
        if known.is_none_or(|known| *known == (dir.dev(), dir.ino())) { Ok(()) } else { Err(conflict()) }
    }

    /// Fails when the real file is not the one that was compared.
    fn check(&self, place: &Place, change: &Change) -> io::Result<()> {
        let now = place.found()?;
        let is_same = match (&change.real, &now) {
            (None, None) => true,
            (Some(then), Some(now)) => self.is_same(then, now),
            _ => false,
        };
        if is_same || self.force { Ok(()) } else { Err(conflict()) }
    }

    fn is_same(&self, then: &Metadata, now: &Metadata) -> bool {
        let file = |found: &Metadata| (found.dev(), found.ino(), found.file_type());
        let same = file(then) == file(now);
        if now.is_dir() {
            // Its times and permissions change with what is done in it.
            return same && (then.uid(), then.gid()) == (now.uid(), now.gid());
        }
        if self.touched.contains(&(now.dev(), now.ino())) {
            return same && then.size() == now.size();
        }
        same && Version::of(then) == Version::of(now)
    }

    /// Makes one real file what it is in the overlay, but for the attributes of a directory. `within` is what was known in a directory
    /// that goes.
    fn put(&mut self, change: &Change, within: &[&Change]) -> io::Result<()> {
        let Some((upper, mine)) = &change.upper else { return Ok(()) };
        let place = self.reach(&change.path).map_err(moved)?;
        if mine.is_dir() && change.became == Became::Added {
            return make(upper, mine, &place.path()).map(drop).map_err(|error| self.in_the_way(error));
        }
        if !needs_temporary(change) {
            self.check(&place, change)?;
            self.notes.begin("attributes", [&*change.path])?;
            return adorn(upper, mine, change.real.as_ref(), &place.path());
        }
        let [new, former] = temporaries(&change.path);
        let (new, former) = (place.sibling(&new)?, place.sibling(&former)?);
        let made = self.new_file(change, (upper, mine), &new.path());
        // Another program may have given this name to a file of its own since the names were checked.
        let is_ours = !made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
        let exchanged = made.and_then(|()| {
            within.iter().try_for_each(|inner| self.check(&Place::of(&inner.path).map_err(moved)?, inner))?;
            self.check(&place, change)?;
            self.exchange(&new, &place, &former, change)
        });
        let is_exchanged = exchanged.inspect_err(|_| {
            // The temporary file takes space that the next attempt may need.
            let _ = is_ours.then(|| remove_tree(&new.path()));
        })?;
        let old = if is_exchanged { new } else { former };
        self.remove_former(&old, change, within).inspect_err(|_| {
            // Another process has made a file in the directory: that gets its name back, with the file.
            let _ = put_back(&place, &old, change);
        })
    }

    /// Makes the file under its temporary name: a further name where the file has one already.
    fn new_file(
        &mut self,
        change: &Change,
        (upper, mine): (&Path, &Metadata),
        temporary: &Path,
    ) -> io::Result<()> {
        let number = (mine.dev(), mine.ino());
        if mine.is_dir() {
            return make(upper, mine, temporary).map(drop);
        }
        if let Some(first) = self.changes.linked.get(&number).filter(|_| mine.nlink() > 1) {
            match fs::hard_link(Place::of(first).map_err(moved)?.path(), temporary) {
                // On another file system, or where links are not permitted, it becomes a file of its own.
                Err(error) if is_no_place_for_links(&error) => {}
                linked => return linked,
            }
        }
        let file = make(upper, mine, temporary)?;
        let copied = self.changes.origins.get(&change.path).is_some_and(|origin| origin.copied);
        // A file of this user's gets a group of theirs, if it must.
        let real = change.real.as_ref().filter(|real| copied && real.uid() != mine.uid());
        adorn(upper, mine, real, temporary).map_err(|error| of_others(error, mine, real))?;
        if let Some(file) = file {
            file.sync_all()?;
        }
        self.changes.linked.insert(number, change.path.clone());
        Ok(())
    }

    /// Gives the file `new` its name in one step. `true`: the old file, if there was one, has the name of `new` (the two were exchanged).
    /// `false`: the old file was moved to `former`.
    fn exchange(&self, new: &Place, place: &Place, former: &Place, change: &Change) -> io::Result<bool> {
        let Some(real) = &change.real else {
            // With --force, there may be one now.
            let renamed = if self.force {
                Ok(new.rename(place, RenameFlags::empty())?)
            } else {
                new.rename_to_new(place)
            };
            return renamed.map(|()| true).map_err(|error| self.in_the_way(error));
        };
        let is_dir = new.found()?.is_some_and(|found| found.is_dir());
        if !real.is_dir() && !is_dir {
            return Ok(new.rename(place, RenameFlags::empty()).map(|()| true)?);
        }
        match new.rename(place, RenameFlags::EXCHANGE) {
            Err(Number::INVAL | Number::NOSYS) => {
                place.rename_to_new(former)?;
                new.rename_to_new(place).inspect_err(|_| drop(former.rename_to_new(place)))?;
                Ok(false)
            }
            exchanged => Ok(exchanged.map(|()| true)?),
        }
    }

    /// Removes what was exchanged for something else: of a directory what was known in it, so that it stays if there is more now.
    fn remove_former(&mut self, old: &Place, change: &Change, within: &[&Change]) -> io::Result<()> {
        let Some(found) = old.found()? else { return Ok(()) };
        if !found.is_dir() {
            return old.remove(false);
        }
        if self.force {
            return remove_tree(&old.path());
        }
        let root = change.path.with_file_name(old.name());
        for inner in within {
            let Ok(below) = inner.path.strip_prefix(&change.path) else { continue };
            let is_dir = inner.real.as_ref().is_some_and(Metadata::is_dir);
            gone(self.reach(&root.join(below)).and_then(|place| place.remove(is_dir)))?;
        }
        old.remove(true).map_err(|error| self.in_the_way(error))
    }

    /// Gives directories their attributes, those in others first.
    fn settle(&mut self, changes: &[&Change]) -> Result<(), Failure> {
        let is_dir = |change: &&Change| change.upper.as_ref().is_some_and(|(_, mine)| mine.is_dir());
        let dirs: Vec<&Change> = changes.iter().rev().copied().filter(is_dir).collect();
        let noted = self.notes.begin("attributes", dirs.iter().map(|change| &*change.path));
        noted.map_err(unwritten)?;
        for change in dirs {
            let Some((upper, mine)) = &change.upper else { continue };
            self.changes.opened.forget(&change.path);
            let settled = Place::of(&change.path).map_err(moved).and_then(|place| {
                self.check_known(&change.path, &fs::metadata(place.dir())?)?;
                adorn(upper, mine, change.real.as_ref(), &place.path())
            });
            match is_settled_only(change) {
                true => self.step(settled, change)?,
                false => settled.map_err(|error| stopped(change, error, self.done))?,
            }
        }
        Ok(())
    }

    fn take_away(&mut self, change: &Change) -> io::Result<()> {
        let is_dir = change.real.as_ref().is_some_and(Metadata::is_dir);
        let place = match self.reach(&change.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            place => place.map_err(moved)?,
        };
        if place.found()?.is_none() {
            return Ok(());
        }
        self.check(&place, change)?;
        gone(place.remove(is_dir)).map_err(|error| self.in_the_way(error))
    }

    /// The error for a name that another process has made since the comparison: a conflict.
    fn in_the_way(&self, error: io::Error) -> io::Error {
        let number = Number::from_io_error(&error);
        let is_other = number.is_some_and(|number| [Number::EXIST, Number::NOTEMPTY].contains(&number));
        if is_other && !self.force { conflict() } else { error }
    }
}

/// The directories that are changed, and that are there.
fn parents(changes: &[Change]) -> HashMap<PathBuf, (u64, u64)> {
    let mut all = HashMap::new();
    for dir in changes.iter().filter_map(|change| change.path.parent()) {
        if !all.contains_key(dir)
            && let Ok(found) = open_dir(dir, OFlags::PATH).and_then(|dir| Ok(fstat(dir)?))
        {
            all.insert(dir.to_owned(), (found.st_dev, found.st_ino));
        }
    }
    all
}

/// Whether something else takes the place of a directory.
fn is_former_dir(change: &Change) -> bool {
    change.became == Became::Replaced && change.real.as_ref().is_some_and(Metadata::is_dir)
}

/// Whether a directory gets other attributes, and nothing else.
fn is_settled_only(change: &Change) -> bool {
    let is_dir = change.upper.as_ref().is_some_and(|(_, mine)| mine.is_dir());
    is_dir && change.became == Became::Modified
}

/// Whether a file is made anew, and not changed in place.
fn needs_temporary(change: &Change) -> bool {
    let Some((_, mine)) = &change.upper else { return false };
    match change.became {
        Became::Replaced => true,
        Became::Modified => change.what.contains(&"content"),
        Became::Added => !mine.is_dir(),
        Became::Removed => false,
    }
}

/// Gives a former directory its name again, and removes what has taken that.
fn put_back(place: &Place, old: &Place, change: &Change) -> io::Result<()> {
    let [new, _] = temporaries(&change.path);
    let new = place.sibling(&new)?;
    if old.name() == new.name() {
        old.rename(place, RenameFlags::EXCHANGE)?;
    } else {
        place.rename_to_new(&new)?;
        old.rename_to_new(place)?;
    }
    remove_tree(&new.path())
}

/// The overlay, which has no room for notes perhaps.
fn unwritten(error: io::Error) -> Failure {
    Failure::serious(format!("cannot write to the overlay: {}", Error::from(error).why()))
}

fn conflict() -> io::Error {
    Errno::ESTALE.because("it was changed while the overlay was being committed").into()
}

/// A directory that cannot be reached by its names any more.
fn moved(error: io::Error) -> io::Error {
    if leads_nowhere(&error) { conflict() } else { error }
}

/// A directory of each file system that is changed.
fn changed_systems(changes: &[Change]) -> Result<HashMap<u64, OwnedFd>, Failure> {
    let (mut seen, mut systems) = (HashSet::new(), HashMap::new());
    for dir in changes.iter().filter_map(|change| change.path.parent()).filter(|dir| seen.insert(*dir)) {
        match readable(dir) {
            Ok((device, opened)) => drop(systems.insert(device, opened)),
            // One that was removed or replaced is a change of the one above it.
            Err(error) if leads_nowhere(&error) => {}
            Err(error) => return Err(failed("cannot store what is in", dir, error)),
        }
    }
    Ok(systems)
}

/// A directory, or one above it on the same file system where users may only make names in it: syncfs(2) needs one that can be read.
fn readable(dir: &Path) -> io::Result<(u64, OwnedFd)> {
    let device = fstat(open_dir(dir, OFlags::PATH)?)?.st_dev;
    for above in dir.ancestors() {
        match open_dir(above, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            opened => {
                let opened = opened?;
                if fstat(&opened)?.st_dev == device {
                    return Ok((device, opened));
                }
                break;
            }
        }
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// Has everything on stable storage.
fn store(systems: &HashMap<u64, OwnedFd>) -> Result<(), Failure> {
    systems.values().try_for_each(|system| {
        let why = |error: Number| Error::from(io::Error::from(error)).why();
        syncfs(system).map_err(|error| Failure::serious(format!("cannot store the changes: {}", why(error))))
    })
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
