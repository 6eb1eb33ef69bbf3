// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference: a file system as plain as it can be, so that one can see that it is right.
//!
//! Paths are looked up component by component in maps; files are vectors of bytes. It knows no users, times or blocks.

use outrigger_conformance::Result;
use outrigger_core::ops::{RenameFlags, XattrFlags};
use outrigger_core::{Errno, FileKind};
use std::collections::{BTreeMap, BTreeSet};

/// The number of a file in the model.
pub type Id = usize;

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File(Vec<u8>),
    /// A directory: names and where they lead.
    Dir(BTreeMap<String, Id>),
    /// A symbolic link.
    Symlink(String),
    /// A named pipe.
    Fifo,
}

/// A file of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// What it is.
    pub body: Body,
    /// Permission bits.
    pub mode: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// What a program can learn about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Size in bytes, of files and symbolic links.
    pub size: Option<u64>,
}

/// A whole file system. A file without a name stays in `files`, because it may be open.
#[derive(Debug, Clone)]
pub struct Model {
    files: Vec<File>,
}

/// The root directory.
const ROOT: Id = 0;

impl Default for Model {
    fn default() -> Self {
        let root = File { body: Body::Dir(BTreeMap::new()), mode: 0o755, xattrs: BTreeMap::new() };
        Model { files: vec![root] }
    }
}

impl Model {
    /// An empty file system.
    pub fn new() -> Self {
        Self::default()
    }

    /// A file by its number.
    pub fn file(&mut self, id: Id) -> &mut File {
        &mut self.files[id]
    }

    fn dir(&self, id: Id) -> Result<&BTreeMap<String, Id>> {
        match &self.files[id].body {
            Body::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn dir_mut(&mut self, id: Id) -> Result<&mut BTreeMap<String, Id>> {
        match &mut self.files[id].body {
            Body::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn is_dir(&self, id: Id) -> bool {
        self.dir(id).is_ok()
    }

    /// The file a path leads to. All symbolic links here lead nowhere, so a path through one ends with `ENOENT`.
    pub fn find(&self, path: &str) -> Result<Id> {
        let mut at = ROOT;
        for name in path.split('/').filter(|part| !part.is_empty()) {
            if matches!(self.files[at].body, Body::Symlink(_)) {
                return Err(Errno::ENOENT);
            }
            at = *self.dir(at)?.get(name).ok_or(Errno::ENOENT)?;
        }
        Ok(at)
    }

    /// The directory a path's last name is in, and that name.
    fn parent<'p>(&self, path: &'p str) -> Result<(Id, &'p str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(dir)?;
        match self.files[dir].body {
            Body::Symlink(_) => Err(Errno::ENOENT),
            Body::Dir(_) => Ok((dir, name)),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Makes a regular file, a directory, a symbolic link or a pipe.
    pub fn make(&mut self, path: &str, body: Body, mode: u32) -> Result<Id> {
        let (dir, name) = self.parent(path)?;
        if self.dir(dir)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.files.push(File { body, mode, xattrs: BTreeMap::new() });
        let id = self.files.len() - 1;
        self.dir_mut(dir)?.insert(name.to_owned(), id);
        Ok(id)
    }

    /// Gives a file another name.
    pub fn link(&mut self, old: &str, new: &str) -> Result<()> {
        let id = self.find(old)?;
        let (dir, name) = self.parent(new)?;
        if self.dir(dir)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if self.is_dir(id) {
            return Err(Errno::EPERM);
        }
        self.dir_mut(dir)?.insert(name.to_owned(), id);
        Ok(())
    }

    /// Removes a name that is no directory's.
    pub fn unlink(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let id = *self.dir(dir)?.get(name).ok_or(Errno::ENOENT)?;
        if self.is_dir(id) {
            return Err(Errno::EISDIR);
        }
        self.dir_mut(dir)?.remove(name);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let id = *self.dir(dir)?.get(name).ok_or(Errno::ENOENT)?;
        if !self.dir(id)?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.dir_mut(dir)?.remove(name);
        Ok(())
    }

    /// Whether `below` is `dir` or somewhere below it.
    fn contains(&self, dir: Id, below: Id) -> bool {
        dir == below
            || self.dir(dir).is_ok_and(|names| names.values().any(|&child| self.contains(child, below)))
    }

    /// Moves a name, in the order of checks that renameat2(2) has in Linux.
    pub fn rename(&mut self, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
        let ((from, name), (to, to_name)) = (self.parent(old)?, self.parent(new)?);
        let source = *self.dir(from)?.get(name).ok_or(Errno::ENOENT)?;
        let target = self.dir(to)?.get(to_name).copied();
        match target {
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EEXIST),
            None if flags == RenameFlags::EXCHANGE => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.is_dir(source) && self.contains(source, to) {
            return Err(Errno::EINVAL);
        }
        let Some(target) = target else {
            self.dir_mut(from)?.remove(name);
            self.dir_mut(to)?.insert(to_name.to_owned(), source);
            return Ok(());
        };
        if self.is_dir(target) && self.contains(target, from) {
            let exchanges = flags == RenameFlags::EXCHANGE;
            return Err(if exchanges { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if flags == RenameFlags::EXCHANGE {
            self.dir_mut(from)?.insert(name.to_owned(), target);
            self.dir_mut(to)?.insert(to_name.to_owned(), source);
            return Ok(());
        }
        if source == target {
            return Ok(());
        }
        match (self.is_dir(source), self.is_dir(target)) {
            (false, true) => return Err(Errno::EISDIR),
            (true, false) => return Err(Errno::ENOTDIR),
            (true, true) if !self.dir(target)?.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.dir_mut(from)?.remove(name);
        self.dir_mut(to)?.insert(to_name.to_owned(), source);
        Ok(())
    }

    /// The bytes of a regular file.
    pub fn bytes(&mut self, id: Id) -> Result<&mut Vec<u8>> {
        match &mut self.files[id].body {
            Body::File(bytes) => Ok(bytes),
            Body::Dir(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, path: &str, name: &str, value: &[u8], flags: XattrFlags) -> Result<()> {
        let id = self.find(path)?;
        if !matches!(self.files[id].body, Body::File(_) | Body::Dir(_)) {
            return Err(Errno::EPERM);
        }
        match self.files[id].xattrs.contains_key(name) {
            true if flags == XattrFlags::CREATE => return Err(Errno::EEXIST),
            false if flags == XattrFlags::REPLACE => return Err(Errno::ENODATA),
            _ => {}
        }
        self.files[id].xattrs.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn names_of(&self, id: Id) -> u32 {
        let in_dir = |file: &File| match &file.body {
            Body::Dir(names) => names.values().filter(|&&child| child == id).count() as u32,
            _ => 0,
        };
        self.files.iter().map(in_dir).sum()
    }

    /// What stat(2) must say. The link count of a removed directory does not matter: it is out of the tree.
    pub fn facts(&self, id: Id) -> Facts {
        let file = &self.files[id];
        let (kind, size, nlink) = match &file.body {
            Body::File(bytes) => (FileKind::Regular, Some(bytes.len() as u64), self.names_of(id)),
            Body::Symlink(target) => (FileKind::Symlink, Some(target.len() as u64), self.names_of(id)),
            Body::Fifo => (FileKind::Fifo, None, self.names_of(id)),
            Body::Dir(names) => {
                let below = names.values().filter(|&&child| self.is_dir(child)).count() as u32;
                (FileKind::Directory, None, 2 + below)
            }
        };
        Facts { kind, mode: file.mode, nlink, size }
    }

    /// Every path and where it leads.
    pub fn paths(&self) -> BTreeMap<String, Id> {
        let mut found = BTreeMap::new();
        self.collect(ROOT, "", &mut found);
        found
    }

    fn collect(&self, dir: Id, prefix: &str, found: &mut BTreeMap<String, Id>) {
        for (name, &id) in self.dir(dir).into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            self.collect(id, &path, found);
            found.insert(path, id);
        }
    }

    /// The names in a directory.
    pub fn names(&self, path: &str) -> Result<BTreeSet<String>> {
        let id = self.find(path)?;
        Ok(self.dir(id)?.keys().cloned().collect())
    }
}
