// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walking a tree from a place down, without holding more of it than one directory a level.
//!
//! Directories are read while they are walked, so that what comes first shows at once. Deep down, and where the
//! walker changes the directories, each is read as a whole before: a process can hold only so many open.

use crate::context::Place;
use outrigger_client::{Entries, Follow, Inode, Unreadable};
use outrigger_core::{Errno, Error, FileKind, Name, Result};
use std::vec;

/// The most directories that are held open.
const OPEN_MAX: usize = 64;

/// Why a directory is not walked into.
pub const LOOP: &str = "file system loop: the directory contains itself";

/// A walk in progress.
pub struct Descent {
    place: Place,
    levels: Vec<Level>,
    follow: bool,
    whole: bool,
    names: bool,
}

struct Level {
    inode: Inode,
    /// The last name the walk came to.
    name: Option<Name>,
    entries: Source,
    /// The lengths of the path in the tree and of the path as it is shown.
    lengths: (usize, usize),
}

enum Source {
    Open(Entries),
    Read(vec::IntoIter<std::result::Result<(Name, Inode), Unreadable>>),
}

/// What the walk came to. [`Descent::place`] leads to it.
pub enum Step {
    /// A file. [`Descent::enter`] walks into a directory.
    Found(Inode),
    /// A directory that was walked into has no more files.
    Left(Inode),
    /// The directory the walk is in cannot be read any further, or the file it came to cannot be followed.
    Failed(Error),
    /// A name whose file cannot be examined. The walk continues.
    Unreadable(Error),
}

impl Descent {
    /// A walk that starts at `place` and follows all symbolic links or none.
    pub fn new(place: Place, follow: bool) -> Self {
        Descent { place, levels: Vec::new(), follow, whole: false, names: false }
    }

    /// The same, for a walker that looks at names and kinds only: what it finds may be bare ([`Inode::is_bare`]).
    pub fn by_names(mut self) -> Self {
        self.names = true;
        self
    }

    /// The same, for a walker that removes what it finds.
    pub fn reading_whole_directories(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Where the walk is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// How many directories the walk is inside of: that of a file just found.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The directory the walk is in, and what the file it came to is called there. None where it began.
    pub fn spot(&self) -> Option<(&Inode, &Name)> {
        let level = self.levels.last()?;
        Some((&level.inode, level.name.as_ref()?))
    }

    /// Walks into the directory just found. When that fails, gives it back.
    pub fn enter(&mut self, inode: Inode) -> Result<(), Box<(Inode, Error)>> {
        let inode = match self.spot() {
            Some((dir, name)) if inode.is_bare() => match dir.lookup(name) {
                Ok(found) => found,
                Err(error) => return Err(Box::new((inode, error))),
            },
            _ => inode,
        };
        if self.levels.iter().any(|level| inode.repeats(&level.inode)) {
            return Err(Box::new((inode, Errno::ELOOP.because(LOOP))));
        }
        let entries = match if self.names { inode.names() } else { inode.entries() } {
            Ok(entries) if self.whole || self.levels.len() >= OPEN_MAX => {
                Source::Read(entries.collect::<Vec<_>>().into_iter())
            }
            Ok(entries) => Source::Open(entries),
            Err(error) => return Err(Box::new((inode, error))),
        };
        let lengths = (self.place.path.len(), self.place.shown.len());
        self.levels.push(Level { inode, name: None, entries, lengths });
        Ok(())
    }

    /// The next step; `None` in the end.
    pub fn step(&mut self) -> Option<Step> {
        let level = self.levels.last_mut()?;
        self.place.shorten(level.lengths);
        let next = match &mut level.entries {
            Source::Open(entries) => entries.next(),
            Source::Read(entries) => entries.next(),
        };
        match next {
            Some(Ok((name, inode))) => {
                self.place.lengthen(&name);
                level.name = Some(name);
                Some(self.resolve(inode))
            }
            Some(Err(Unreadable { name: Some(name), error })) => {
                self.place.lengthen(&name);
                Some(Step::Unreadable(error))
            }
            Some(Err(Unreadable { name: None, error })) => Some(Step::Failed(error)),
            None => Some(Step::Left(self.levels.pop()?.inode)),
        }
    }

    /// What a symbolic link leads to, when links are followed and it leads anywhere.
    fn resolve(&self, inode: Inode) -> Step {
        if !self.follow || inode.kind() != FileKind::Symlink {
            return Step::Found(inode);
        }
        match self.place.find(Follow::Yes) {
            Ok(target) => Step::Found(target),
            Err(error) if error.errno == Errno::ELOOP => Step::Failed(error),
            Err(_) => Step::Found(inode),
        }
    }
}
