// SPDX-License-Identifier: MIT OR Apache-2.0
//! Following a path, one name at a time: through links of both sides, trees, and an overlay.

use super::apart::{self, Overlay, Side, Spot};
use super::names::{DELETED, Found, How, Names, Where, above, is_below};
use super::process::Process;
use outrigger_client::Inode;
use outrigger_core::{Errno, FileKind, Name, Result};
use rustix::fs::{AtFlags, CWD, FileType, readlinkat, statat};
use std::io;
use std::sync::Arc;

/// The most symbolic links on one way, as path_resolution(7) has it.
const LINKS: usize = 40;

impl Names {
    /// Finds a file. `before_asking` is called before a tree is asked.
    ///
    /// # Errors
    /// Those of a path that leads into a tree.
    pub(crate) fn find(
        &self,
        process: Process,
        start: &[u8],
        path: &[u8],
        how: How,
        before_asking: &dyn Fn(),
    ) -> Result<Where> {
        let had = self.apart.as_ref().and_then(|overlay| overlay.had(start));
        let shown = had.or_else(|| self.shown(start));
        let start = shown.unwrap_or(start);
        let mut walk = Walk {
            side: match (&self.apart, had) {
                (None, _) => Side::System,
                // Another directory may have its name.
                (Some(_), Some(_)) => Side::Hidden,
                (Some(overlay), None) => overlay.side(start),
            },
            before_asking,
            crossed: shown.is_some(),
            from: shown.and_then(|shown| self.tree_of(shown)),
            dots: match path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()) {
                Some(b".") => 1,
                Some(b"..") => 2,
                _ => 0,
            },
            names: self,
            process,
            at: start.to_vec(),
            left: Vec::new(),
            links: 0,
            known: Vec::new(),
            how,
            jail: (how.resolve & (libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT) != 0)
                .then(|| start.to_vec()),
        };
        let slash = path.ends_with(b"/") || path.ends_with(b"/.") || path == b".";
        walk.add(path)?;
        let stays = how.resolve & libc::RESOLVE_NO_XDEV != 0;
        let from = walk.from;
        let found = if walk.go(slash)? { walk.end(slash)? } else { walk.local(slash) };
        let leaves = match &found {
            Where::Local | Where::Apart(_) => false,
            Where::Beyond(_) | Where::Fixed(_) => true,
            Where::Tree(found) => found.tree != from,
        };
        if stays && leaves { Err(Errno::EXDEV.into()) } else { Ok(found) }
    }
}

/// A path on the way.
struct Walk<'n> {
    /// Where the directory is that was reached.
    side: Side,
    before_asking: &'n dyn Fn(),
    names: &'n Names,
    process: Process,
    at: Vec<u8>,
    /// The names to go, the next one last.
    left: Vec<Vec<u8>>,
    links: usize,
    /// Whether there was a tree on the way.
    crossed: bool,
    /// The tree where the path begins.
    from: Option<usize>,
    dots: usize,
    /// Directories of trees on the way: the length of their path.
    known: Vec<(usize, Arc<Inode>)>,
    how: How,
    jail: Option<Vec<u8>>,
}

impl Walk<'_> {
    /// Goes on with a path.
    fn add(&mut self, path: &[u8]) -> Result<()> {
        if path.starts_with(b"/") {
            if self.how.resolve & libc::RESOLVE_BENEATH != 0 {
                return Err(Errno::EXDEV.into());
            }
            self.at = self.jail.clone().unwrap_or_default();
            self.known.clear();
            self.arrive();
        }
        let names = path.split(|&byte| byte == b'/').rev().filter(|name| !name.is_empty());
        self.left.extend(names.map(<[u8]>::to_vec));
        Ok(())
    }

    /// Goes to the end; `false` when that is local, or not there.
    fn go(&mut self, slash: bool) -> Result<bool> {
        while let Some(name) = self.left.pop() {
            let is_last = self.left.is_empty();
            let goes_on = match &name[..] {
                b"." => true,
                b".." => self.up()?,
                _ => self.down(&name, is_last, self.how.follow || slash || !is_last)?,
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn up(&mut self) -> Result<bool> {
        if self.jail.as_ref() == Some(&self.at) {
            return if self.how.resolve & libc::RESOLVE_BENEATH != 0 {
                Err(Errno::EXDEV.into())
            } else {
                Ok(true)
            };
        }
        self.at.truncate(above(&self.at).len());
        let length = self.at.len();
        self.known.retain(|(known, _)| *known <= length);
        self.arrive();
        Ok(true)
    }

    /// Looks where the directory is that was reached.
    fn arrive(&mut self) {
        if let Some(overlay) = &self.names.apart {
            self.side = overlay.side(&self.at);
        }
    }

    /// Goes to a name in the directory.
    fn down(&mut self, name: &[u8], is_last: bool, follow: bool) -> Result<bool> {
        let next = [&self.at[..], b"/", name].concat();
        if is_below(&self.at, &self.names.place) {
            return self.down_in_mirror(&next);
        }
        match self.names.tree_of(&next) {
            Some(_) if self.names.is_root(&next) => {
                (self.before_asking)();
                let inode = self.names.inode(&next)?;
                self.enter(next, inode);
                Ok(true)
            }
            Some(_) => self.down_in_tree(name, next, is_last, follow),
            None => match &self.names.apart {
                Some(overlay) => self.down_apart(overlay, next, is_last, follow),
                None => self.down_locally(next, is_last, follow),
            },
        }
    }

    /// The path of a copy leads to its file: the kernel gives programs such paths, as by /proc/self/exe. There is nothing else in the
    /// private directory of the server that programs may look at or change: what goes through all of /tmp must not come to trees, and
    /// much less to the root directory.
    fn down_in_mirror(&mut self, next: &[u8]) -> Result<bool> {
        if self.at.ends_with(DELETED) {
            // A directory of a tree that was removed.
            return Ok(self.stop(next.to_vec()));
        }
        let left = self.left.iter().rev().flat_map(|name| [b"/", &name[..]].concat()).collect::<Vec<_>>();
        if next != self.names.mirror || self.names.tree_of(&left).is_none() {
            return Err(Errno::EACCES.because("a private directory of outrigger"));
        }
        self.crossed = true;
        self.at.clear();
        Ok(true)
    }

    fn enter(&mut self, path: Vec<u8>, inode: Inode) {
        self.crossed = true;
        self.known.push((path.len(), Arc::new(inode)));
        self.at = path;
    }

    /// The directory that was reached.
    fn here(&mut self) -> Result<Arc<Inode>> {
        match self.known.last() {
            Some((length, inode)) if *length == self.at.len() => Ok(Arc::clone(inode)),
            _ => {
                (self.before_asking)();
                let inode = Arc::new(self.names.inode(&self.at)?);
                self.known.push((self.at.len(), Arc::clone(&inode)));
                Ok(inode)
            }
        }
    }

    fn down_in_tree(&mut self, name: &[u8], next: Vec<u8>, is_last: bool, follow: bool) -> Result<bool> {
        let here = self.here()?;
        if !here.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        match here.find(&Name::new(name.to_vec())?)? {
            Some(inode) if follow && inode.kind() == FileKind::Symlink => {
                let target = inode.readlink()?;
                self.follow(&target)?;
            }
            Some(inode) if is_last || inode.is_dir() => self.enter(next, inode),
            Some(_) => return Err(Errno::ENOTDIR.into()),
            None if is_last => self.at = next,
            None => return Err(Errno::ENOENT.into()),
        }
        Ok(true)
    }

    /// The same where changes are kept apart. The kernel is not asked what is wrong with a path: it does not know the overlay.
    fn down_apart(&mut self, overlay: &Overlay, next: Vec<u8>, is_last: bool, follow: bool) -> Result<bool> {
        if overlay.is_upper(&next) && !is_last {
            // The path of a copy leads to its file.
            (self.crossed, self.side) = (true, Side::Both);
            self.at.clear();
            return Ok(true);
        }
        if self.side == Side::Hidden {
            // The path begins in a directory that was removed.
            return Err(Errno::ENOENT.into());
        }
        let side = overlay.below(self.side, &next);
        if side == Side::System {
            let goes_on = self.down_locally(next, is_last, follow)?;
            self.arrive();
            return Ok(goes_on);
        }
        let place = overlay.place(side, &next);
        let found = match &place {
            Some(place) => statat(CWD, &place[..], AtFlags::SYMLINK_NOFOLLOW),
            None => Err(rustix::io::Errno::NOENT),
        };
        match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
            Ok(FileType::Symlink) if follow => {
                self.crossed |= side == Side::Upper;
                let target = readlinkat(CWD, place.unwrap_or_default(), Vec::new());
                self.follow(target.map_err(io::Error::from)?.as_bytes())?;
            }
            Ok(kind) if is_last || kind == FileType::Directory => {
                self.crossed |= side == Side::Upper;
                (self.at, self.side) = (next, side);
            }
            Ok(_) => return Err(Errno::ENOTDIR.into()),
            Err(rustix::io::Errno::NOENT) if self.names.is_above(&next) => {
                self.crossed = true;
                (self.at, self.side) = (next, side);
            }
            Err(rustix::io::Errno::NOENT) if is_last => (self.at, self.side) = (next, side),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        Ok(true)
    }

    /// Follows a symbolic link.
    fn follow(&mut self, target: &[u8]) -> Result<()> {
        self.links += 1;
        if self.links > LINKS || self.how.resolve & libc::RESOLVE_NO_SYMLINKS != 0 {
            return Err(Errno::ELOOP.into());
        }
        self.add(target)
    }

    fn down_locally(&mut self, next: Vec<u8>, is_last: bool, follow: bool) -> Result<bool> {
        if matches!(&next[..], b"/proc/self" | b"/proc/thread-self") {
            // These are other files for each process.
            self.at = format!("/proc/{}", self.process.thread).into_bytes();
            return Ok(true);
        }
        let found = statat(CWD, &next[..], AtFlags::SYMLINK_NOFOLLOW);
        match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
            Ok(FileType::Symlink) if follow => {
                let is_magic = next.starts_with(b"/proc/");
                let apart = self.names.overlay().filter(|_| self.how.changes);
                let target = match readlinkat(CWD, &next[..], Vec::new()) {
                    Err(error) if is_magic && apart.is_some() => return Err(io::Error::from(error).into()),
                    Err(_) => return Ok(self.stop(next)),
                    Ok(target) => target.into_bytes(),
                };
                // Files that are open, and have no path.
                let is_refused = self.how.resolve & libc::RESOLVE_NO_MAGICLINKS != 0;
                if let (true, Some(overlay)) = (is_magic, apart) {
                    let may_open = self.how.opens && self.process.has(&next);
                    if overlay.is_free(&next, &target, may_open)? {
                        return Ok(self.stop(next));
                    }
                    // By its path, the file that is changed is the one that was looked at.
                    self.crossed = true;
                }
                if is_magic && (is_refused || !target.starts_with(b"/") || target.ends_with(DELETED)) {
                    return Ok(self.stop(next));
                }
                self.follow(&target)?;
            }
            Ok(kind) if is_last || kind == FileType::Directory => self.at = next,
            Err(rustix::io::Errno::NOENT) if self.names.is_above(&next) => {
                self.crossed = true;
                self.at = next;
            }
            _ => return Ok(self.stop(next)),
        }
        Ok(true)
    }

    /// Goes no further than to this name: the kernel knows what is wrong with it, or follows it.
    fn stop(&mut self, next: Vec<u8>) -> bool {
        self.at = next;
        false
    }

    /// What was found is local, and its changes are kept apart.
    fn apart(self, Found { path, slash, dots, .. }: Found) -> Where {
        Where::Apart(Spot { path, side: self.side, slash, dots, crossed: self.crossed })
    }

    /// What was found is local.
    fn local(self, slash: bool) -> Where {
        if !self.crossed {
            return Where::Local;
        }
        let mut path = self.at;
        for name in self.left.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if slash || path.is_empty() {
            path.push(b'/');
        }
        Where::Beyond(path)
    }

    /// What was found.
    fn end(mut self, slash: bool) -> Result<Where> {
        let path = self.at.clone();
        let Some(tree) = self.names.tree_of(&path) else {
            let is_between = !path.is_empty()
                && self.names.is_above(&path)
                && statat(CWD, &path[..], AtFlags::empty()).is_err();
            let found = Found {
                path,
                tree: None,
                inode: None,
                parent: None,
                slash,
                dots: self.dots,
                _way: Vec::new(),
                seen: self.how.seen,
            };
            return Ok(match is_between {
                true => Where::Tree(found),
                false if self.side == Side::System => {
                    if self.how.changes && apart::is_top_of_system(&found.path) {
                        return Err(Errno::EBUSY.into());
                    }
                    self.local(slash)
                }
                false => self.apart(found),
            });
        };
        let is_known = self.known.last().is_some_and(|(length, _)| *length == path.len());
        let inode = if is_known {
            self.known.pop().map(|(_, inode)| inode)
        } else {
            (self.before_asking)();
            match self.names.inode(&path) {
                Ok(inode) => Some(Arc::new(inode)),
                Err(error) if error.errno == Errno::ENOENT => None,
                Err(error) => return Err(error),
            }
        };
        let inode = inode.map(|inode| self.names.opened(&path, inode)).transpose()?;
        let parent = if self.names.is_root(&path) {
            None
        } else {
            self.at.truncate(above(&path).len());
            Some(self.here()?)
        };
        let (dots, seen) = (self.dots, self.how.seen);
        let way = self.known.into_iter().map(|(_, inode)| inode).collect();
        Ok(Where::Tree(Found { path, tree: Some(tree), inode, parent, slash, dots, _way: way, seen }))
    }
}
