// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file a path leads to, for a program that sees trees among local files.
//!
//! Paths here are absolute, as bytes, without `.`, `..`, and a slash at the end; the root directory is the empty path.

use super::apart::{Overlay, Spot};
use crate::launch::Prefix;
use outrigger_client::{Client, Inode};
use outrigger_core::{Errno, FileKind, Name, Result};
use rustix::fs::{AtFlags, CWD, Stat, statat};
use std::ffi::OsStr;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What the kernel puts behind the path of a file that has no name any more.
pub(crate) const DELETED: &[u8] = b" (deleted)";

/// A tree under a path.
struct ShownTree {
    path: Vec<u8>,
    name: Name,
}

/// Where trees are.
pub(crate) struct Names {
    /// None when the server has died.
    client: Option<Client>,
    root: OnceLock<Inode>,
    /// The longest paths first.
    trees: Vec<ShownTree>,
    /// Whether one of them covers a directory of this machine, into which local names may lead.
    pub(crate) covers: bool,
    /// The directory in which copies of trees are.
    pub(super) mirror: Vec<u8>,
    /// The private directory of the server that has it.
    pub(super) place: Vec<u8>,
    /// Where changes of local files go, if they are kept apart.
    pub(super) apart: Option<Arc<Overlay>>,
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
    /// How often content had been stored when the file was looked at ([`super::contents::Contents::stored`]).
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
            trees.push(ShownTree { path: path.as_os_str().as_bytes().to_vec(), name });
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
    pub(super) fn tree_of(&self, path: &[u8]) -> Option<usize> {
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
    pub(super) fn opened(&self, path: &[u8], inode: Arc<Inode>) -> Result<Arc<Inode>> {
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
