// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of the tree, by what it is rather than by its path.

use crate::client::Client;
use crate::dir::Entries;
use crate::file::File;
use bytes::Bytes;
use outrigger_core::ops::{
    Create, GetAttr, GetXattr, Link, ListXattr, Lookup, MkDir, MkNod, OpCode, Open, OpenFlags, ReadLink,
    RemoveXattr, Rename, RenameFlags, RmDir, SetAttr, SetXattr, SymLink, Unlink, XattrFlags,
};
use outrigger_core::reply::{Attrs, Created, Entry, Names, Ttl};
use outrigger_core::{Attr, Errno, FileKind, Generation, Name, Node, Result, SetAttrs, Target, XattrName};
use std::fmt;

/// A file the client holds a reference to. Dropping it returns the reference.
pub struct Inode {
    client: Client,
    entry: Entry,
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.entry.node, self.kind())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.client.forget(self.entry.node);
    }
}

impl Inode {
    pub(crate) fn root(client: Client, attrs: Attrs) -> Self {
        let entry = Entry {
            node: Node::ROOT,
            generation: Generation(0),
            attr: attrs.attr,
            entry_ttl: Ttl::FOREVER,
            attr_ttl: attrs.ttl,
        };
        Inode { client, entry }
    }

    /// Takes over the reference an operation counted.
    pub(crate) fn held(client: Client, entry: Entry) -> Self {
        Inode { client, entry }
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its number.
    pub fn node(&self) -> Node {
        self.entry.node
    }

    /// Whether both are the same file of the same tree.
    pub fn is_same(&self, other: &Inode) -> bool {
        self.node() == other.node() && self.client.tree() == other.client.tree()
    }

    /// Its attributes when it was found or last refreshed.
    pub fn attr(&self) -> &Attr {
        &self.entry.attr
    }

    /// The kind of file.
    pub fn kind(&self) -> FileKind {
        self.entry.attr.kind()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.entry.attr.is_dir()
    }

    /// Asks for its attributes anew.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn refresh(&mut self) -> Result<&Attr> {
        self.entry.attr = self.client.call(GetAttr { node: self.node(), handle: None })?.attr;
        Ok(&self.entry.attr)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn set(&mut self, attrs: SetAttrs) -> Result<&Attr> {
        self.entry.attr = self.client.call(SetAttr { node: self.node(), handle: None, attrs })?.attr;
        Ok(&self.entry.attr)
    }

    /// Changes attributes through `file`, which is open on it.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn set_through(&mut self, file: &File, attrs: SetAttrs) -> Result<&Attr> {
        self.entry.attr = file.set(attrs)?;
        Ok(&self.entry.attr)
    }

    /// Finds `name` in this directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, or whatever the tree answers.
    pub fn lookup(&self, name: &Name) -> Result<Inode> {
        let entry = self.client.call(Lookup { dir: self.node(), name: name.clone() })?;
        Ok(Inode::held(self.client.clone(), entry))
    }

    /// Finds `name` in this directory, or `None` when there is no such name.
    ///
    /// # Errors
    /// As [`Inode::lookup`], without `ENOENT`.
    pub fn find(&self, name: &Name) -> Result<Option<Inode>> {
        match self.lookup(name) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.errno == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists this directory, without `.` and `..`.
    ///
    /// # Errors
    /// `ENOTDIR`, `EACCES`, or whatever opening it fails with.
    pub fn entries(&self) -> Result<Entries> {
        Entries::open(self.client.clone(), self.node())
    }

    /// The target of this symbolic link.
    ///
    /// # Errors
    /// `EINVAL` when it is none.
    pub fn readlink(&self) -> Result<Target> {
        self.client.call(ReadLink { node: self.node() })
    }

    /// Opens this file.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn open(&self, flags: OpenFlags) -> Result<File> {
        if self.client.abilities().stateless_files && !flags.contains(OpenFlags::TRUNC) {
            return Ok(File::stateless(self.client.clone(), self.node(), flags));
        }
        let opened = self.client.call(Open { node: self.node(), flags })?;
        Ok(File::opened(self.client.clone(), self.node(), opened, flags))
    }

    /// Makes and opens a regular file in this directory; opens an existing one unless `EXCL` is set.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, `EROFS`, or whatever the tree answers.
    pub fn create(&self, name: &Name, mode: u32, flags: OpenFlags) -> Result<(Inode, File)> {
        if !self.client.has(OpCode::Create) {
            return self.create_in_two_steps(name, mode, flags);
        }
        let created =
            self.client.call(Create { dir: self.node(), name: name.clone(), mode, umask: 0, flags })?;
        Ok(Inode::created(&self.client, created, flags))
    }

    /// Makes and opens several files at once, in directories of one tree, each as [`Inode::create`] does.
    pub fn create_all<'a>(
        files: impl IntoIterator<Item = (&'a Inode, Name, u32)>,
        flags: OpenFlags,
    ) -> Vec<Result<(Inode, File)>> {
        let files: Vec<(&Inode, Name, u32)> = files.into_iter().collect();
        let Some(client) = files.first().map(|(dir, ..)| dir.client.clone()) else { return Vec::new() };
        if !client.has(OpCode::Create) {
            return files.iter().map(|(dir, name, mode)| dir.create(name, *mode, flags)).collect();
        }
        let create =
            |(dir, name, mode): (&Inode, Name, u32)| Create { dir: dir.node(), name, mode, umask: 0, flags };
        let created = client.call_all(files.into_iter().map(create));
        created.into_iter().map(|created| Ok(Inode::created(&client, created?, flags))).collect()
    }

    fn created(client: &Client, created: Created, flags: OpenFlags) -> (Inode, File) {
        let inode = Inode::held(client.clone(), created.entry);
        let file = File::opened(client.clone(), inode.node(), created.opened, flags);
        (inode, file)
    }

    fn create_in_two_steps(&self, name: &Name, mode: u32, flags: OpenFlags) -> Result<(Inode, File)> {
        let inode = match self.mknod(name, FileKind::Regular.bits() | mode, 0) {
            Err(error) if error.errno == Errno::EEXIST && !flags.contains(OpenFlags::EXCL) => {
                self.lookup(name)?
            }
            made => made?,
        };
        let file = inode.open(flags.difference(OpenFlags::EXCL))?;
        Ok((inode, file))
    }

    /// Makes a file of any kind but directory and symbolic link in this directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn mknod(&self, name: &Name, mode: u32, rdev: u32) -> Result<Inode> {
        let entry = self.client.call(MkNod { dir: self.node(), name: name.clone(), mode, umask: 0, rdev })?;
        Ok(Inode::held(self.client.clone(), entry))
    }

    /// Makes a directory in this one.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn mkdir(&self, name: &Name, mode: u32) -> Result<Inode> {
        let entry = self.client.call(MkDir { dir: self.node(), name: name.clone(), mode, umask: 0 })?;
        Ok(Inode::held(self.client.clone(), entry))
    }

    /// Makes a symbolic link in this directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn symlink(&self, name: &Name, target: Target) -> Result<Inode> {
        let entry = self.client.call(SymLink { dir: self.node(), name: name.clone(), target })?;
        Ok(Inode::held(self.client.clone(), entry))
    }

    /// Gives `file` the name `name` in this directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn link(&self, file: &Inode, name: &Name) -> Result<Inode> {
        let entry = self.client.call(Link { node: file.node(), dir: self.node(), name: name.clone() })?;
        Ok(Inode::held(self.client.clone(), entry))
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn unlink(&self, name: &Name) -> Result<()> {
        self.client.call(Unlink { dir: self.node(), name: name.clone() })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn rmdir(&self, name: &Name) -> Result<()> {
        self.client.call(RmDir { dir: self.node(), name: name.clone() })
    }

    /// Moves `name` of this directory to `to_name` in `to_dir`.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn rename(&self, name: &Name, to_dir: &Inode, to_name: &Name, flags: RenameFlags) -> Result<()> {
        self.client.call(Rename {
            dir: self.node(),
            name: name.clone(),
            to_dir: to_dir.node(),
            to_name: to_name.clone(),
            flags,
        })
    }

    /// The names of its extended attributes; none where the tree has no such thing.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn xattrs(&self) -> Result<Names> {
        if !self.client.has(OpCode::ListXattr) {
            return Ok(Names::new());
        }
        self.client.call(ListXattr { node: self.node() })
    }

    /// As [`Inode::xattrs`], for several files of one tree at once.
    pub fn xattrs_of(inodes: &[&Inode]) -> Vec<Result<Names>> {
        match inodes.first() {
            Some(one) if one.client.has(OpCode::ListXattr) => {
                one.client.call_all(inodes.iter().map(|inode| ListXattr { node: inode.node() }))
            }
            _ => inodes.iter().map(|_| Ok(Names::new())).collect(),
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` when there is none.
    pub fn xattr(&self, name: &XattrName) -> Result<Bytes> {
        self.client.call(GetXattr { node: self.node(), name: name.clone() })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn set_xattr(&self, name: &XattrName, value: Bytes, flags: XattrFlags) -> Result<()> {
        self.client.call(SetXattr { node: self.node(), name: name.clone(), value, flags })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` when there is none.
    pub fn remove_xattr(&self, name: &XattrName) -> Result<()> {
        self.client.call(RemoveXattr { node: self.node(), name: name.clone() })
    }
}
