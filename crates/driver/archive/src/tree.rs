// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the tree of an archive from its entries, in the order they come.
//!
//! Names are contained: leading slashes and `..` cannot leave the tree. Missing directories are made up. Of entries
//! with the same name the last wins. Nothing here recurses, so depth is bounded only by the limits.

use crate::{
    Kind, Limits,
    entry::{Entry, Extra, S_IFDIR, S_IFMT, S_IFREG, Time},
    index::{Index, Warning, Warnings},
    source::Origin,
};
use hashbrown::{HashTable, hash_table::Entry as Slot};
use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// Longest name of a directory entry (`NAME_MAX` of Linux).
pub(crate) const NAME_MAX: usize = 255;
pub(crate) const ROOT: u32 = 0;
/// What an inode and a directory entry cost in the index beside names, in bytes (`index.rs`).
const INODE_BYTES: u64 = 48;
const DIRENT_BYTES: u64 = 20;
/// How long a chain of hard links to later hard links may be.
const LINK_ROUNDS: usize = 40;

pub(crate) struct Inode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub mtime: Time,
    pub size: u64,
    pub data: u64,
    /// Offset in `extras` plus one; 0 for none.
    pub extra: u32,
    /// Of a directory.
    pub parent: u32,
}

pub(crate) struct Dirent {
    pub parent: u32,
    pub inode: u32,
    pub name: u32,
    pub name_len: u8,
}

/// A hard link whose target has not been seen yet.
struct Pending {
    path: Vec<u8>,
    target: Vec<u8>,
}

/// A tree under construction.
pub(crate) struct Tree {
    pub inodes: Vec<Inode>,
    pub dirents: Vec<Dirent>,
    pub names: Vec<u8>,
    pub extras: Vec<u8>,
    pub warnings: Warnings,
    table: HashTable<u32>,
    hasher: RandomState,
    pending: Vec<Pending>,
    /// The directory of the last entry: consecutive entries mostly share it.
    last_dir: (Vec<u8>, u32),
    name_bytes: u64,
    max_entries: u32,
    max_names: u64,
    index_bytes: u64,
    max_index: u64,
    origin: Origin,
}

impl Tree {
    /// A tree with only a root directory.
    pub fn new(origin: Origin, limits: &Limits) -> Tree {
        let mut t = Tree {
            inodes: Vec::new(),
            dirents: Vec::new(),
            names: Vec::new(),
            extras: Vec::new(),
            warnings: Warnings::default(),
            table: HashTable::new(),
            hasher: RandomState::new(),
            pending: Vec::new(),
            last_dir: (Vec::new(), ROOT),
            name_bytes: 0,
            // Numbers are 32 bits wide in the index, and node 0 is not used.
            max_entries: limits.entries.min(u32::MAX - 2),
            // Offsets in the name and extra sections are 32 bits wide.
            max_names: limits.name_bytes.min(u64::from(u32::MAX) / 2),
            index_bytes: 0,
            max_index: limits
                .free_index
                .saturating_add(limits.index_ratio.saturating_mul(origin.source.size())),
            origin,
        };
        t.inodes.push(directory(ROOT));
        t
    }

    /// Adds an entry and returns its inode, or `None` when it was skipped with a warning. `at` is where the archive
    /// describes it.
    pub fn add(&mut self, at: u64, path: &[u8], entry: &Entry) -> crate::Result<Option<u32>> {
        let Some(parts) = self.contain(path) else { return Ok(None) };
        let Some((name, dirs)) = parts.split_last() else {
            if entry.mode & S_IFMT == S_IFDIR {
                self.describe(ROOT, at, entry)?;
                return Ok(Some(ROOT));
            }
            self.warnings.add(Warning::BadName, path);
            return Ok(None);
        };
        let Some(dir) = self.directory_of(at, dirs, path)? else { return Ok(None) };
        match self.find(dir, name) {
            Some(d) => self.replace(at, d, path, entry),
            None => {
                let inode = self.new_inode(at, entry, dir)?;
                self.link(at, dir, name, inode)?;
                Ok(Some(inode))
            }
        }
    }

    /// Adds a hard link at `path` to the inode of `target`, which may also come later.
    pub fn hard_link(&mut self, at: u64, path: &[u8], target: &[u8]) -> crate::Result<()> {
        match self.resolve(target) {
            Some(inode) => self.link_to(at, path, inode),
            None => {
                self.spend(at, path.len() + target.len())?;
                self.pending.push(Pending { path: path.to_vec(), target: target.to_vec() });
                Ok(())
            }
        }
    }

    /// Adds `path` as another name of `inode`.
    pub fn link_to(&mut self, at: u64, path: &[u8], inode: u32) -> crate::Result<()> {
        let Some(parts) = self.contain(path) else { return Ok(()) };
        let linkable = self.inodes[inode as usize].mode & S_IFMT != S_IFDIR;
        let Some((name, dirs)) = parts.split_last().filter(|_| linkable) else {
            self.warnings.add(Warning::BadLink, path);
            return Ok(());
        };
        let Some(dir) = self.directory_of(at, dirs, path)? else { return Ok(()) };
        match self.find(dir, name) {
            None => self.link(at, dir, name, inode),
            Some(d) => {
                let old = self.dirents[d as usize].inode;
                if self.inodes[old as usize].mode & S_IFMT == S_IFDIR {
                    self.warnings.add(Warning::KindConflict, path);
                } else if old != inode {
                    self.warnings.add(Warning::Duplicate, path);
                    self.relink(d, inode);
                }
                Ok(())
            }
        }
    }

    /// Completes late hard links and makes the index.
    pub fn finish(mut self) -> crate::Result<Index> {
        // Links to later links resolve in as many rounds as they are deep; nothing real needs many.
        let mut left = std::mem::take(&mut self.pending);
        for _ in 0..LINK_ROUNDS {
            let mut still = Vec::new();
            for p in left {
                match self.resolve(&p.target) {
                    Some(inode) => self.link_to(0, &p.path, inode)?,
                    None => still.push(p),
                }
            }
            left = still;
        }
        for p in left {
            self.warnings.add(Warning::BadLink, &p.path);
        }
        Ok(Index::build(self))
    }

    /// Changes the data of a regular file already added (cpio puts the data of hard links with the last of them).
    pub fn set_data(&mut self, inode: u32, size: u64, data: u64) {
        let i = &mut self.inodes[inode as usize];
        (i.size, i.data) = (size, data);
    }

    /// The names of `path` inside the tree; `None` (with a warning) when one cannot exist.
    fn contain<'p>(&mut self, path: &'p [u8]) -> Option<Vec<&'p [u8]>> {
        if path.first() == Some(&b'/') {
            self.warnings.add(Warning::Absolute, path);
        }
        match split(path) {
            Ok((parts, dotdot)) => {
                if dotdot {
                    self.warnings.add(Warning::DotDot, path);
                }
                Some(parts)
            }
            Err(w) => {
                self.warnings.add(w, path);
                None
            }
        }
    }

    /// The inode of an existing path.
    fn resolve(&self, path: &[u8]) -> Option<u32> {
        let mut at = ROOT;
        for name in split(path).ok()?.0 {
            at = self.dirents[self.find(at, name)? as usize].inode;
        }
        Some(at)
    }

    /// The directory `dirs`, made where missing; `None` (with a warning) when something else is in the way.
    fn directory_of(&mut self, at: u64, dirs: &[&[u8]], path: &[u8]) -> crate::Result<Option<u32>> {
        let key_len: usize = dirs.iter().map(|d| d.len() + 1).sum();
        if key_len == self.last_dir.0.len() && same_path(&self.last_dir.0, dirs) {
            return Ok(Some(self.last_dir.1));
        }
        let mut dir = ROOT;
        for name in dirs {
            dir = match self.find(dir, name) {
                Some(d) => {
                    let inode = self.dirents[d as usize].inode;
                    if self.inodes[inode as usize].mode & S_IFMT != S_IFDIR {
                        self.warnings.add(Warning::KindConflict, path);
                        return Ok(None);
                    }
                    inode
                }
                None => {
                    let inode = self.push_inode(at, directory(dir))?;
                    self.link(at, dir, name, inode)?;
                    inode
                }
            };
        }
        self.last_dir.0.clear();
        for d in dirs {
            self.last_dir.0.extend_from_slice(d);
            self.last_dir.0.push(b'/');
        }
        self.last_dir.1 = dir;
        Ok(Some(dir))
    }

    /// A second entry with the name of dirent `d`.
    fn replace(&mut self, at: u64, d: u32, path: &[u8], entry: &Entry) -> crate::Result<Option<u32>> {
        let old = self.dirents[d as usize].inode;
        let was_dir = self.inodes[old as usize].mode & S_IFMT == S_IFDIR;
        if was_dir && entry.mode & S_IFMT == S_IFDIR {
            self.describe(old, at, entry)?;
            return Ok(Some(old));
        }
        if was_dir {
            // As tar(1): a directory is not removed to make room for a file.
            self.warnings.add(Warning::KindConflict, path);
            return Ok(None);
        }
        self.warnings.add(Warning::Duplicate, path);
        let parent = self.dirents[d as usize].parent;
        let inode = self.new_inode(at, entry, parent)?;
        self.relink(d, inode);
        Ok(Some(inode))
    }

    /// Makes dirent `d` a name of `inode`; other names of its old inode keep that.
    fn relink(&mut self, d: u32, inode: u32) {
        let old = std::mem::replace(&mut self.dirents[d as usize].inode, inode);
        let n = &mut self.inodes[old as usize].nlink;
        *n = n.saturating_sub(1);
        self.count_link(self.dirents[d as usize].parent, inode);
    }

    fn count_link(&mut self, dir: u32, inode: u32) {
        let is_dir = self.inodes[inode as usize].mode & S_IFMT == S_IFDIR;
        let counted = if is_dir { dir } else { inode };
        let n = &mut self.inodes[counted as usize].nlink;
        *n = n.saturating_add(1);
    }

    fn find(&self, dir: u32, name: &[u8]) -> Option<u32> {
        let same = |d: &u32| self.is(*d, dir, name);
        self.table.find(hash(&self.hasher, dir, name), same).copied()
    }

    fn is(&self, d: u32, dir: u32, name: &[u8]) -> bool {
        let e = &self.dirents[d as usize];
        e.parent == dir && dirent_name(&self.names, e) == name
    }

    /// Adds a name that [`Tree::find`] did not find.
    fn link(&mut self, at: u64, dir: u32, name: &[u8], inode: u32) -> crate::Result<()> {
        self.spend(at, name.len())?;
        self.charge(at, DIRENT_BYTES)?;
        if self.dirents.len() >= self.max_entries as usize {
            return Err(self.too_many(at));
        }
        let d = self.dirents.len() as u32;
        // `spend` keeps offsets below 2^31, `contain` keeps names below 256 bytes.
        let e = Dirent { parent: dir, inode, name: self.names.len() as u32, name_len: name.len() as u8 };
        self.names.extend_from_slice(name);
        self.dirents.push(e);
        let (hasher, dirents, names) = (&self.hasher, &self.dirents, &self.names);
        let rehash = |d: &u32| {
            let e = &dirents[*d as usize];
            hash(hasher, e.parent, dirent_name(names, e))
        };
        if let Slot::Vacant(v) = self.table.entry(hash(hasher, dir, name), |_| false, rehash) {
            v.insert(d);
        }
        self.count_link(dir, inode);
        Ok(())
    }

    fn new_inode(&mut self, at: u64, entry: &Entry, parent: u32) -> crate::Result<u32> {
        let dir = entry.mode & S_IFMT == S_IFDIR;
        let inode = self.push_inode(at, Inode { nlink: if dir { 2 } else { 0 }, ..directory(parent) })?;
        self.describe(inode, at, entry)?;
        Ok(inode)
    }

    fn push_inode(&mut self, at: u64, inode: Inode) -> crate::Result<u32> {
        self.charge(at, INODE_BYTES)?;
        if self.inodes.len() > self.max_entries as usize {
            return Err(self.too_many(at));
        }
        self.inodes.push(inode);
        Ok((self.inodes.len() - 1) as u32)
    }

    /// Gives an inode the attributes of `entry`.
    fn describe(&mut self, inode: u32, at: u64, entry: &Entry) -> crate::Result<()> {
        let extra = self.store(at, &entry.extra)?;
        let i = &mut self.inodes[inode as usize];
        (i.mode, i.uid, i.gid, i.mtime, i.extra) = (entry.mode, entry.uid, entry.gid, entry.mtime, extra);
        if entry.mode & S_IFMT == S_IFREG {
            (i.size, i.data) = (entry.size, entry.data);
        } else {
            i.size = entry.extra.target.as_ref().map_or(0, |t| t.len() as u64);
        }
        Ok(())
    }

    fn store(&mut self, at: u64, extra: &Extra) -> crate::Result<u32> {
        if extra.is_empty() {
            return Ok(0);
        }
        self.spend(at, usize::try_from(extra.name_bytes()).unwrap_or(usize::MAX))?;
        let offset = self.extras.len();
        extra.encode(&mut self.extras);
        if self.extras.len() > (u32::MAX - 1) as usize {
            return Err(self.too_long(at));
        }
        Ok(offset as u32 + 1)
    }

    fn spend(&mut self, at: u64, bytes: usize) -> crate::Result<()> {
        self.name_bytes = self.name_bytes.saturating_add(bytes as u64);
        if self.name_bytes > self.max_names { Err(self.too_long(at)) } else { self.charge(at, bytes as u64) }
    }

    /// Counts what the index becomes longer by. One long name makes many directories, and compressed it is short: the index
    /// may be larger than the archive only within bounds.
    fn charge(&mut self, at: u64, bytes: u64) -> crate::Result<()> {
        self.index_bytes = self.index_bytes.saturating_add(bytes);
        if self.index_bytes <= self.max_index {
            return Ok(());
        }
        let (index, size) = (self.index_bytes, self.origin.source.size());
        let what = format!(
            "{index} bytes of index for an archive of {size} bytes: made to use up memory? If not, raise max_index_ratio"
        );
        Err(self.origin.error(Kind::Limit, at, what))
    }

    fn too_many(&self, at: u64) -> crate::Error {
        let max = self.max_entries;
        self.origin.error(
            Kind::Limit,
            at,
            format!("more than {max} entries: raise max_entries if that is right"),
        )
    }

    fn too_long(&self, at: u64) -> crate::Error {
        let max = self.max_names;
        self.origin.error(
            Kind::Limit,
            at,
            format!("more than {max} bytes of names: raise max_names if that is right"),
        )
    }
}

/// Splits a path into names, resolving `.` and `..` without leaving the tree; tells whether there was a `..`.
fn split(path: &[u8]) -> Result<(Vec<&[u8]>, bool), Warning> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut dotdot = false;
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                dotdot = true;
                parts.pop();
            }
            n if n.len() > NAME_MAX => return Err(Warning::NameTooLong),
            n if n.contains(&0) => return Err(Warning::BadName),
            n => parts.push(n),
        }
    }
    Ok((parts, dotdot))
}

/// A directory that no entry has described yet.
pub(crate) fn directory(parent: u32) -> Inode {
    let mode = S_IFDIR | 0o755;
    Inode { mode, uid: 0, gid: 0, nlink: 2, mtime: Time::default(), size: 0, data: 0, extra: 0, parent }
}

pub(crate) fn dirent_name<'n>(names: &'n [u8], e: &Dirent) -> &'n [u8] {
    &names[e.name as usize..e.name as usize + usize::from(e.name_len)]
}

fn hash(hasher: &RandomState, dir: u32, name: &[u8]) -> u64 {
    let mut h = hasher.build_hasher();
    h.write_u32(dir);
    h.write(name);
    h.finish()
}

/// Whether `joined` is `parts`, each followed by a slash (the lengths are equal).
fn same_path(joined: &[u8], parts: &[&[u8]]) -> bool {
    let mut rest = joined;
    for p in parts {
        match rest.strip_prefix(*p).and_then(|r| r.strip_prefix(b"/")) {
            Some(r) => rest = r,
            None => return false,
        }
    }
    rest.is_empty()
}
