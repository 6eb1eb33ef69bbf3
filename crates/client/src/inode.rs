// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of the tree, by what it is rather than by its path.

use crate::client::Client;
use crate::dir::Entries;
use crate::file::File;
use bytes::Bytes;
use outrigger_core::ops::{
    Create, GetAttr, GetXattr, Link, ListXattr, Lookup, MkDir, MkNod, OpCode, Open, OpenFlags, ReadLink,
    RemoveXattr, Rename, RenameFlags, RmDir, SetAttr, SetXattr, SymLink, Unlink, Walk, XattrFlags,
};
use outrigger_core::reply::{Attrs, Created, Entry, Names, Ttl};
use outrigger_core::{
    Attr, DriverClass, Errno, FileKind, Generation, Name, Node, Result, SetAttrs, Target, XattrName,
};
use std::fmt;
use std::sync::Arc;

/// A reference that the tree counts for a node; dropping it returns the reference. Open files share it: a tree may refuse what
/// is asked of a handle whose node was forgotten.
pub(crate) struct Held {
    pub(crate) client: Client,
    pub(crate) node: Node,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.node != UNTOLD {
            self.client.forget(self.node);
        }
    }
}

/// The node of what a directory lists without telling which file it is.
pub(crate) const UNTOLD: Node = Node(0);

/// A file the client holds a reference to, which is returned when the inode and the files opened on it are dropped.
pub struct Inode {
    held: Arc<Held>,
    entry: Entry,
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.entry.node, self.kind())
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
        Inode::held(client, entry)
    }

    /// Takes over the reference an operation counted.
    pub(crate) fn held(client: Client, entry: Entry) -> Self {
        Inode { held: Arc::new(Held { client, node: entry.node }), entry }
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.held.client
    }

    /// Its number.
    pub fn node(&self) -> Node {
        self.entry.node
    }

    /// Whether both are the same file of the same tree.
    pub fn is_same(&self, other: &Inode) -> bool {
        self.node() == other.node() && self.held.client.tree() == other.held.client.tree()
    }

    /// Whether a directory is `above` once more, in which it was found: servers and damaged images may have one inside itself. It looks the same
    /// then: the number alone is also that of the root of another file system, where a server does not tell these apart.
    pub fn repeats(&self, above: &Inode) -> bool {
        let looks = |attr: &Attr| {
            (attr.ino, attr.dev, attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.mtime, attr.ctime)
        };
        let is_one_tree = self.held.client.tree() == above.held.client.tree();
        self.is_same(above)
            || is_one_tree && self.attr().ino != 0 && looks(self.attr()) == looks(above.attr())
    }

    /// Whether both may be one file that is reached in two ways, one of them through a server: as far as size and time tell.
    pub fn may_be_same(&self, other: &Inode) -> bool {
        let is_remote = |inode: &Inode| inode.client().abilities().class == DriverClass::Network;
        let looks = |inode: &Inode| (inode.kind(), inode.attr().size, inode.attr().mtime.secs);
        self.held.client.tree() != other.held.client.tree()
            && (is_remote(self) || is_remote(other))
            && looks(self) == looks(other)
    }

    /// Whether no more than its kind and number is known: of what [`Inode::names`] lists. It has to be looked up for anything else.
    pub fn is_bare(&self) -> bool {
        self.node() == UNTOLD
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

    /// Whether opening it may connect to a peer or start a program: whoever goes through a directory does not open it.
    pub fn opens_stream(&self) -> bool {
        self.kind() == FileKind::Regular && self.held.client.abilities().opens_streams
    }

    /// Whether its attributes may only be told, not believed: they count for no time.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.entry.attr_ttl == Ttl::NEVER
    }

    /// Asks for its attributes anew.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn refresh(&mut self) -> Result<&Attr> {
        self.entry.attr = self.attr_now()?;
        Ok(&self.entry.attr)
    }

    /// Its attributes now, beside those of [`Inode::attr`], which stay.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn attr_now(&self) -> Result<Attr> {
        Ok(self.held.client.call(GetAttr { node: self.node(), handle: None })?.attr)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn set(&mut self, attrs: SetAttrs) -> Result<&Attr> {
        self.entry.attr = self.held.client.call(SetAttr { node: self.node(), handle: None, attrs })?.attr;
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
        let entry = self.held.client.call(Lookup { dir: self.node(), name: name.clone() })?;
        Ok(Inode::held(self.held.client.clone(), entry))
    }

    /// Finds several names one below the other, in one request where the tree has that. Fewer are answered than asked for
    /// where one cannot be found: [`Inode::lookup`] in the last one says why.
    ///
    /// # Errors
    /// As [`Inode::lookup`] of the first name.
    pub fn descend(&self, names: &[Name]) -> Result<Vec<Inode>> {
        let client = &self.held.client;
        if names.len() > 1 && client.has(OpCode::Walk) {
            let entries = client.call(Walk { dir: self.node(), names: names.to_vec() })?;
            if !entries.is_empty() {
                return Ok(entries.into_iter().map(|entry| Inode::held(client.clone(), entry)).collect());
            }
        }
        names.first().map(|name| self.lookup(name)).into_iter().collect()
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
        Entries::open(&self.held, false)
    }

    /// The same, for who needs no more than names and kinds: inodes are bare ([`Inode::is_bare`]) where anything else would have to be
    /// asked of the other side for each name.
    ///
    /// # Errors
    /// As [`Inode::entries`].
    pub fn names(&self) -> Result<Entries> {
        Entries::open(&self.held, self.client().abilities().plus_asks_each)
    }

    /// The target of this symbolic link.
    ///
    /// # Errors
    /// `EINVAL` when it is none.
    pub fn readlink(&self) -> Result<Target> {
        self.held.client.call(ReadLink { node: self.node() })
    }

    /// Opens this file.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn open(&self, flags: OpenFlags) -> Result<File> {
        if self.held.client.abilities().stateless_files && !flags.contains(OpenFlags::TRUNC) {
            return Ok(File::stateless(&self.held, flags));
        }
        let opened = self.held.client.call(Open { node: self.node(), flags })?;
        Ok(File::opened(&self.held, opened, flags))
    }

    /// Makes and opens a regular file in this directory; opens an existing one unless `EXCL` is set.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, `EROFS`, or whatever the tree answers.
    pub fn create(&self, name: &Name, mode: u32, flags: OpenFlags) -> Result<(Inode, File)> {
        self.create_masked(name, (mode, 0), flags)
    }

    /// The same with a umask(2), which the tree applies to the mode unless the directory has a default access list.
    ///
    /// # Errors
    /// Those of [`Inode::create`].
    pub fn create_masked(
        &self,
        name: &Name,
        (mode, umask): (u32, u32),
        flags: OpenFlags,
    ) -> Result<(Inode, File)> {
        if !self.held.client.has(OpCode::Create) {
            return self.create_in_two_steps(name, (mode, umask), flags);
        }
        let (mode, umask) = self.masked(mode, umask);
        let created = self.held.client.call(Create {
            dir: self.node(),
            name: name.clone(),
            mode,
            umask,
            flags,
            initial: None,
        })?;
        Ok(Inode::created(&self.held.client, created, flags))
    }

    /// The mode and the umask for the tree, which gets none where it keeps no access lists.
    fn masked(&self, mode: u32, umask: u32) -> (u32, u32) {
        if self.held.client.abilities().acl { (mode, umask) } else { (mode & !umask, 0) }
    }

    /// Makes and opens several files at once, in directories of one tree, each as [`Inode::create`] does.
    pub fn create_all<'a>(
        files: impl IntoIterator<Item = (&'a Inode, Name, u32)>,
        flags: OpenFlags,
    ) -> Vec<Result<(Inode, File)>> {
        let files: Vec<(&Inode, Name, u32)> = files.into_iter().collect();
        let Some(client) = files.first().map(|(dir, ..)| dir.held.client.clone()) else { return Vec::new() };
        if !client.has(OpCode::Create) {
            return files.iter().map(|(dir, name, mode)| dir.create(name, *mode, flags)).collect();
        }
        let create = |(dir, name, mode): (&Inode, Name, u32)| Create {
            dir: dir.node(),
            name,
            mode,
            umask: 0,
            flags,
            initial: None,
        };
        let created = client.call_all(files.into_iter().map(create));
        created.into_iter().map(|created| Ok(Inode::created(&client, created?, flags))).collect()
    }

    fn created(client: &Client, created: Created, flags: OpenFlags) -> (Inode, File) {
        let inode = Inode::held(client.clone(), created.entry);
        let file = File::opened(&inode.held, created.opened, flags);
        (inode, file)
    }

    fn create_in_two_steps(
        &self,
        name: &Name,
        (mode, umask): (u32, u32),
        flags: OpenFlags,
    ) -> Result<(Inode, File)> {
        let inode = match self.mknod_masked(name, (FileKind::Regular.bits() | mode, umask), 0) {
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
        self.mknod_masked(name, (mode, 0), rdev)
    }

    /// The same with a umask(2), as [`Inode::create_masked`].
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn mknod_masked(&self, name: &Name, (mode, umask): (u32, u32), rdev: u32) -> Result<Inode> {
        let (mode, umask) = self.masked(mode, umask);
        let entry = self.held.client.call(MkNod {
            dir: self.node(),
            name: name.clone(),
            mode,
            umask,
            rdev,
            initial: None,
        })?;
        Ok(Inode::held(self.held.client.clone(), entry))
    }

    /// Makes a directory in this one.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn mkdir(&self, name: &Name, mode: u32) -> Result<Inode> {
        self.mkdir_masked(name, (mode, 0))
    }

    /// The same with a umask(2), as [`Inode::create_masked`].
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn mkdir_masked(&self, name: &Name, (mode, umask): (u32, u32)) -> Result<Inode> {
        let (mode, umask) = self.masked(mode, umask);
        let entry = self.held.client.call(MkDir {
            dir: self.node(),
            name: name.clone(),
            mode,
            umask,
            initial: None,
        })?;
        Ok(Inode::held(self.held.client.clone(), entry))
    }

    /// Makes a symbolic link in this directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn symlink(&self, name: &Name, target: Target) -> Result<Inode> {
        let entry =
            self.held.client.call(SymLink { dir: self.node(), name: name.clone(), target, initial: None })?;
        Ok(Inode::held(self.held.client.clone(), entry))
    }

    /// Gives `file` the name `name` in this directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn link(&self, file: &Inode, name: &Name) -> Result<Inode> {
        let entry =
            self.held.client.call(Link { node: file.node(), dir: self.node(), name: name.clone() })?;
        Ok(Inode::held(self.held.client.clone(), entry))
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn unlink(&self, name: &Name) -> Result<()> {
        self.held.client.call(Unlink { dir: self.node(), name: name.clone() })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn rmdir(&self, name: &Name) -> Result<()> {
        self.held.client.call(RmDir { dir: self.node(), name: name.clone() })
    }

    /// Moves `name` of this directory to `to_name` in `to_dir`.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn rename(&self, name: &Name, to_dir: &Inode, to_name: &Name, flags: RenameFlags) -> Result<()> {
        self.held.client.call(Rename {
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
        if !self.held.client.has(OpCode::ListXattr) {
            return Ok(Names::new());
        }
        self.held.client.call(ListXattr { node: self.node() })
    }

    /// As [`Inode::xattrs`], for several files of one tree at once.
    pub fn xattrs_of(inodes: &[&Inode]) -> Vec<Result<Names>> {
        match inodes.first() {
            Some(one) if one.held.client.has(OpCode::ListXattr) => {
                one.held.client.call_all(inodes.iter().map(|inode| ListXattr { node: inode.node() }))
            }
            _ => inodes.iter().map(|_| Ok(Names::new())).collect(),
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` when there is none.
    pub fn xattr(&self, name: &XattrName) -> Result<Bytes> {
        self.held.client.call(GetXattr { node: self.node(), name: name.clone() })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn set_xattr(&self, name: &XattrName, value: Bytes, flags: XattrFlags) -> Result<()> {
        self.held.client.call(SetXattr { node: self.node(), name: name.clone(), value, flags })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` when there is none.
    pub fn remove_xattr(&self, name: &XattrName) -> Result<()> {
        self.held.client.call(RemoveXattr { node: self.node(), name: name.clone() })
    }
}
