// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file a path leads to, for a program that sees trees among local files.
//!
//! Paths here are absolute, as bytes, without `.`, `..`, and a slash at the end; the root directory is the empty path.

use super::apart::{self, Overlay, Side, Spot};
use super::process::Process;
use crate::launch::Prefix;
use outrigger_client::{Client, Inode};
use outrigger_core::{Errno, FileKind, Name, Result};
use rustix::fs::{AtFlags, CWD, FileType, Stat, readlinkat, statat};
use std::ffi::OsStr;
use std::io;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The most symbolic links on one way, as path_resolution(7) has it.
const LINKS: usize = 40;
/// What the kernel puts behind the path of a file that has no name any more.
pub(crate) const DELETED: &[u8] = b" (deleted)";

/// A tree under a path.
struct Shown {
    path: Vec<u8>,
    name: Name,
}

/// Where trees are.
pub(crate) struct Names {
    /// None when the server has died.
    client: Option<Client>,
    root: OnceLock<Inode>,
    /// The longest paths first.
    trees: Vec<Shown>,
    /// Whether one of them covers a directory of this machine, into which local names may lead.
    pub(crate) covers: bool,
    /// The directory in which copies of trees are.
    mirror: Vec<u8>,
    /// The private directory of the server that has it.
    place: Vec<u8>,
    /// Where changes of local files go, if they are kept apart.
    apart: Option<Arc<Overlay>>,
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) enum Where {
    /// To a local file, or one that is not there: the kernel finds it as well.
    Local,
    /// To a local file by this path; on the one that was given is a tree, which the kernel does not know.
    Beyond(Vec<u8>),
    /// To a local file, by this path: on the one that was given, others may put a tree before the kernel looks.
    Fixed(Vec<u8>),
    /// Into a tree.
    Tree(Found),
    /// To a local file whose changes are kept apart.
    Apart(Spot),
}

impl Where {
    /// The file in a tree.
    pub(crate) fn tree(&self) -> Option<&Found> {
        match self {
            Where::Tree(found) => Some(found),
            Where::Local | Where::Beyond(_) | Where::Fixed(_) | Where::Apart(_) => None,
        }
    }

    /// The local file whose changes are kept apart.
    pub(crate) fn apart(&self) -> Option<&Spot> {
        match self {
            Where::Apart(spot) => Some(spot),
            _ => None,
        }
    }
}

/// A file in a tree, or the place for one.
#[derive(Debug)]
pub(crate) struct Found {
    /// The path.
    pub(crate) path: Vec<u8>,
    /// The number of the tree; none for a directory that is there only because trees stand below it.
    pub(crate) tree: Option<usize>,
    /// The file, if there is one.
    pub(crate) inode: Option<Arc<Inode>>,
    /// Its directory; none for the root of a tree.
    pub(crate) parent: Option<Arc<Inode>>,
    /// Whether the path ends with a slash: only a directory will do.
    pub(crate) slash: bool,
    /// Whether the path ends with `.` or `..`.
    pub(crate) dots: usize,
    /// Directories on the way. They are given back to the tree when the program has its answer.
    pub(crate) _way: Vec<Arc<Inode>>,
    /// How often content had been stored when the file was looked at ([`super::content::Contents::stored`]).
    pub(crate) seen: u64,
}

impl Found {
    /// The file.
    ///
    /// # Errors
    /// `ENOENT` where there is none.
    pub(crate) fn there(&self) -> Result<&Inode> {
        let inode = self.inode.as_ref().ok_or(Errno::ENOENT)?;
        if self.slash && !inode.is_dir() { Err(Errno::ENOTDIR.into()) } else { Ok(inode) }
    }

    /// Whether it is a FIFO.
    pub(crate) fn is_fifo(&self) -> bool {
        self.there().is_ok_and(|inode| inode.kind() == FileKind::Fifo)
    }

    /// The directory, and the name in it.
    ///
    /// # Errors
    /// `EBUSY` for the root of a tree, `EROFS` beside trees.
    pub(crate) fn place(&self) -> Result<(&Inode, Name)> {
        if self.tree.is_none() {
            return Err(Errno::EROFS.because("nothing can be made or removed beside trees"));
        }
        let parent = self.parent.as_ref().ok_or(Errno::EBUSY)?;
        Ok((parent, Name::new(last(&self.path).to_vec())?))
    }
}

/// The last name of a path.
pub(crate) fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// The directory a path is in.
pub(crate) fn above(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &path[..end]
}

/// Whether a path is `top`, or below it.
pub(crate) fn is_below(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// How a path is to be followed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct How {
    /// Follow a symbolic link at the end.
    pub(crate) follow: bool,
    /// `RESOLVE_*` of openat2(2).
    pub(crate) resolve: u64,
    /// For [`Found::seen`].
    pub(crate) seen: u64,
    /// Whether other threads may change where a relative path begins.
    pub(crate) moves: bool,
    /// Whether the file is to be changed.
    pub(crate) changes: bool,
    /// Whether it is opened for that.
    pub(crate) opens: bool,
}

impl Names {
    pub(crate) fn new(prefixes: &[Prefix], client: Option<Client>, mirror: &Path) -> Result<Self> {
        let mut trees = Vec::new();
        for Prefix { path, name } in prefixes {
            let name = Name::new(name.as_bytes().to_vec())?;
            trees.push(Shown { path: path.as_os_str().as_bytes().to_vec(), name });
        }
        trees.sort_by_key(|shown| std::cmp::Reverse(shown.path.len()));
        let covers = prefixes.iter().any(|prefix| prefix.path.symlink_metadata().is_ok());
        Ok(Names { client, trees, covers, ..Names::without_trees(mirror) })
    }

    /// No trees; in the mirror there may still be copies.
    pub(crate) fn without_trees(mirror: &Path) -> Self {
        let mirror = mirror.as_os_str().as_bytes().to_vec();
        let place = above(&mirror).to_vec();
        let (root, trees) = (OnceLock::new(), Vec::new());
        Names { client: None, root, trees, covers: false, mirror, place, apart: None }
    }

    /// The same with local files whose changes are kept apart.
    pub(crate) fn keeping_apart(self, apart: Option<Arc<Overlay>>) -> Self {
        // What is found by a path depends on the overlay then.
        Names { covers: self.covers || apart.is_some(), apart, ..self }
    }

    /// Where changes of local files go, if they are kept apart.
    pub(crate) fn overlay(&self) -> Option<&Arc<Overlay>> {
        self.apart.as_ref()
    }

    /// The directory in which copies are.
    pub(crate) fn mirror(&self) -> &Path {
        as_path(&self.mirror)
    }

    /// The number of the tree that a path is in.
    fn tree_of(&self, path: &[u8]) -> Option<usize> {
        self.trees.iter().position(|shown| is_below(path, &shown.path))
    }

    /// Whether a path is the root of a tree.
    pub(crate) fn is_root(&self, path: &[u8]) -> bool {
        self.trees.iter().any(|shown| shown.path == path)
    }

    /// Whether trees stand below a path.
    pub(crate) fn is_above(&self, path: &[u8]) -> bool {
        self.trees.iter().any(|shown| shown.path.len() > path.len() && is_below(&shown.path, path))
    }

    /// The path that the program knows for one of a copy; none for a file that has no name any more.
    pub(crate) fn shown<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let of_overlay = || self.apart.as_ref()?.shown(path).filter(|_| !is_gone(path));
        self.in_mirror(path).or_else(of_overlay)
    }

    /// The same for one in the mirror.
    pub(crate) fn in_mirror<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        (is_below(path, &self.mirror) && !is_gone(path)).then(|| &path[self.mirror.len()..])
    }

    /// Whether a path may lead to the private directory of the server: whatever stands before, it has that name then.
    pub(crate) fn may_be_private(&self, path: &[u8]) -> bool {
        let name = last(&self.place);
        path.split(|&byte| byte == b'/').any(|other| other == name)
    }

    /// Whether a path is known to lead to a local file, without looking at each name on the way.
    pub(crate) fn is_local(&self, path: &[u8]) -> bool {
        let is_magic = |start: &[u8]| path.starts_with(start);
        if self.covers
            || path.ends_with(b"/..")
            || is_magic(b"/proc")
            || is_magic(b"/dev")
            || self.may_be_private(path)
            || self.tree_of(path).is_some()
        {
            return false;
        }
        // The kernel does not know trees: what it finds without them is local.
        match statat(CWD, path, AtFlags::empty()) {
            Ok(_) => true,
            Err(rustix::io::Errno::NOENT) => {
                let above = above(path);
                let is_plain = |name: &[u8]| !matches!(name, b"." | b".." | b"");
                let is_absent = || {
                    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
                    matches!(found, Err(rustix::io::Errno::NOENT))
                };
                !above.is_empty()
                    && is_plain(last(path))
                    && is_absent()
                    && statat(CWD, above, AtFlags::empty()).is_ok_and(|above| !is_root_directory(&above))
            }
            Err(_) => false,
        }
    }

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
        let shown = self.shown(start);
        let start = shown.unwrap_or(start);
        let mut walk = Walk {
            side: self.apart.as_ref().map_or(Side::System, |overlay| overlay.side(start)),
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

    /// The file at a path without symbolic links.
    pub(crate) fn inode(&self, path: &[u8]) -> Result<Inode> {
        let tree = &self.trees[self.tree_of(path).ok_or(Errno::ENOENT)?];
        let below = path[tree.path.len()..].split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let below = below.map(|name| Name::new(name.to_vec()));
        let names = iter::once(Ok(tree.name.clone())).chain(below).collect::<Result<Vec<_>>>()?;
        let mut found = self.root()?.descend(&names)?;
        let mut count = found.len();
        while let (Some(inode), Some(left)) = (found.pop(), names.get(count..)) {
            if left.is_empty() {
                return Ok(inode);
            }
            found = inode.descend(left)?;
            count += found.len();
        }
        Err(Errno::ENOENT.into())
    }

    /// Whether a path may be the root of a tree that is opened when it is used: those of hosts are one below a prefix.
    fn may_be_closed(&self, path: &[u8]) -> bool {
        self.is_root(path) || self.is_root(above(path))
    }

    /// The file that was found at a path. Looking at the root of a tree opens that: before, its attributes are not known.
    fn opened(&self, path: &[u8], inode: Arc<Inode>) -> Result<Arc<Inode>> {
        if !(self.may_be_closed(path) && inode.is_dir() && inode.is_stale()) {
            return Ok(inode);
        }
        let mut inode = Arc::into_inner(inode).map_or_else(|| self.inode(path), Ok)?;
        inode.refresh()?;
        Ok(Arc::new(inode))
    }

    /// The directory of all trees.
    fn root(&self) -> Result<&Inode> {
        match self.root.get() {
            Some(root) => Ok(root),
            None => {
                let root = self.client.as_ref().ok_or(Errno::ENOTCONN)?.root()?;
                Ok(self.root.get_or_init(|| root))
            }
        }
    }

    /// Names of trees, and of directories on the way to them, in a directory.
    pub(crate) fn below<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let inside = self
            .trees
            .iter()
            .filter(move |shown| shown.path.len() > path.len() && is_below(&shown.path, path));
        inside.filter_map(move |shown| shown.path[path.len() + 1..].split(|&byte| byte == b'/').next())
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
                let changes = self.how.changes && self.names.apart.is_some();
                let target = match readlinkat(CWD, &next[..], Vec::new()) {
                    Err(error) if is_magic && changes => return Err(io::Error::from(error).into()),
                    Err(_) => return Ok(self.stop(next)),
                    Ok(target) => target.into_bytes(),
                };
                // Files that are open, and have no path.
                let is_refused = self.how.resolve & libc::RESOLVE_NO_MAGICLINKS != 0;
                if is_magic && changes {
                    if apart::is_free(&next, &target, self.how.opens)? {
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

/// Whether the kernel says of the path of an open file that nothing has that name any more.
pub(crate) fn is_gone(path: &[u8]) -> bool {
    path.ends_with(DELETED) && statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_err()
}

/// Whether it is the root directory, by whichever path: trees stand in it.
fn is_root_directory(found: &Stat) -> bool {
    statat(CWD, "/", AtFlags::empty())
        .is_ok_and(|root| (root.st_dev, root.st_ino) == (found.st_dev, found.st_ino))
}

/// A path for system calls.
pub(crate) fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}
