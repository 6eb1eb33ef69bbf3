// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of a tree as they are made in an empty file system, always by the same requests in the same order.

use super::failed;
use super::keeps::Keeps;
use super::source::{Found, Sink};
use crate::copy::{Contents, Side};
use crate::status::Failure;
use bytes::Bytes;
use outrigger_client::{Client, File, Inode};
use outrigger_core::ops::{OpenFlags, XattrFlags};
use outrigger_core::{Errno, Error, FileKind, Name, Result, SetAttrs, SetTime};

/// Flags for new files.
const NEW: OpenFlags = OpenFlags::WRITE_ONLY.union(OpenFlags::EXCL);
/// Files up to this size, in bytes, are made together with the others of their directory that come next: the process of the kernel
/// code is asked once for all.
const SMALL: u64 = 64 << 10;
/// So many of them at most.
const TOGETHER: usize = 64;
/// The smallest hole that file systems keep, in bytes.
const BLOCK: usize = 4096;

/// A small file that is not made yet.
struct Small {
    found: Found,
    name: Name,
    content: Bytes,
}

/// Fills an empty file system.
pub struct Populate<'a> {
    /// The directories on the way to what is made.
    directories: Vec<Inode>,
    /// The files with several names, by their numbers.
    links: Vec<Option<Inode>>,
    /// Files of the last directory on the way, which come before all else.
    small: Vec<Small>,
    root: Client,
    keeps: Keeps,
    contents: &'a Contents,
    /// How messages call the tree that is copied.
    shown: String,
}

impl<'a> Populate<'a> {
    /// Of the file system of this client.
    pub fn new(client: Client, keeps: Keeps, contents: &'a Contents, shown: String) -> Self {
        let (directories, links, small) = (Vec::new(), Vec::new(), Vec::new());
        Populate { directories, links, small, root: client, keeps, contents, shown }
    }

    fn make(&mut self, found: &Found) -> Result<(), Failure> {
        let cannot = |error| refused(&self.shown, found, error);
        let Some(directory) = self.directories.last() else {
            let root = self.root.root().map_err(cannot)?;
            self.directories.push(root);
            return Ok(());
        };
        let name = Name::new(found.name().to_vec()).map_err(cannot)?;
        if found.is_further_name()
            && let Some(link) = &found.link
            && let Some(Some(first)) = self.links.get(link.number)
        {
            return directory.link(first, &name).map(drop).map_err(cannot);
        }
        let mut made = match found.attr.kind() {
            FileKind::Directory => {
                let made = match directory.mkdir(&name, 0o700) {
                    // mke2fs has made one.
                    Err(error) if error.errno == Errno::EEXIST && found.path == b"lost+found" => {
                        directory.lookup(&name)
                    }
                    made => made,
                };
                let made = made.map_err(cannot)?;
                self.directories.push(made);
                return Ok(());
            }
            FileKind::Regular => return self.file(found, &name),
            FileKind::Symlink => {
                let target = found
                    .inode
                    .readlink()
                    .map_err(|error| failed("cannot read", &self.shown, &found.path, &error))?;
                directory.symlink(&name, target).map_err(cannot)?
            }
            kind => directory.mknod(&name, kind.bits() | 0o600, found.attr.rdev).map_err(cannot)?,
        };
        self.finish(found, &mut made, None)?;
        self.keep(found, made);
        Ok(())
    }

    fn file(&mut self, found: &Found, name: &Name) -> Result<(), Failure> {
        let cannot = |error| refused(&self.shown, found, error);
        let Some(directory) = self.directories.last() else { return Ok(()) };
        let source = found.inode.open(OpenFlags::empty());
        let source = source.map_err(|error| failed("cannot open", &self.shown, &found.path, &error))?;
        let (mut made, file) = directory.create(name, 0o600, NEW).map_err(cannot)?;
        self.contents.copy((&source, &found.attr), &file).map_err(|(side, error)| match side {
            Side::Source => failed("cannot read", &self.shown, &found.path, &error),
            Side::Target => refused(&self.shown, found, error),
        })?;
        self.finish(found, &mut made, Some(&file))?;
        file.close().map_err(|error| refused(&self.shown, found, error))?;
        self.contents.progress().file();
        self.keep(found, made);
        Ok(())
    }

    /// Keeps a file that will get more names.
    fn keep(&mut self, found: &Found, made: Inode) {
        if let Some(link) = found.link.as_ref().filter(|link| link.names > 1) {
            self.links.resize_with(self.links.len().max(link.number + 1), || None);
            self.links[link.number] = Some(made);
        }
    }

    /// Gives a file its attributes, in the order in which they survive: a change of the owner takes permissions away, and any change
    /// the times.
    fn finish(&self, found: &Found, made: &mut Inode, file: Option<&File>) -> Result<(), Failure> {
        let last = self.prepare(found, made, file)?;
        set(made, file, last).map_err(|error| refused(&self.shown, found, error))
    }

    /// Gives a file all attributes but those that come last, which are the result.
    fn prepare(&self, found: &Found, made: &mut Inode, file: Option<&File>) -> Result<SetAttrs, Failure> {
        let cannot = |error| refused(&self.shown, found, error);
        let attr = &found.attr;
        let mut last = SetAttrs {
            atime: Some(SetTime::To(attr.atime)),
            mtime: Some(SetTime::To(attr.mtime)),
            ..SetAttrs::default()
        };
        if self.keeps.unix {
            let owner = SetAttrs { uid: Some(attr.uid), gid: Some(attr.gid), ..SetAttrs::default() };
            if (attr.uid, attr.gid) != (made.attr().uid, made.attr().gid) {
                set(made, file, owner).map_err(cannot)?;
            }
            last.mode = (found.attr.kind() != FileKind::Symlink).then(|| attr.permissions());
        }
        if self.keeps.attributes {
            self.attributes(found, made)?;
        }
        Ok(last)
    }

    /// All of a small file; none when it is none, or that is not as much as was expected, or cannot be had.
    fn content(found: &Found) -> Option<Bytes> {
        let attr = &found.attr;
        let is_small = attr.kind() == FileKind::Regular && attr.size <= SMALL;
        let source =
            (is_small && found.link.is_none()).then(|| found.inode.open(OpenFlags::empty()).ok())??;
        // One more byte shows whether it has grown. Blocks of zeroes count as holes, and not what `st_blocks` says: that differs between
        // file systems, and equal trees have equal images.
        let is_whole = |content: &Bytes| content.len() as u64 == attr.size && !may_have_hole(content);
        source.read_at(0, attr.size as usize + 1).ok().filter(is_whole)
    }

    /// Makes the small files.
    fn make_small(&mut self) -> Result<(), Failure> {
        let small = std::mem::take(&mut self.small);
        let Some(directory) = self.directories.last() else { return Ok(()) };
        let cannot = |one: &Small, error| refused(&self.shown, &one.found, error);
        let made = Inode::create_all(small.iter().map(|one| (directory, one.name.clone(), 0o600)), NEW);
        let made = small.iter().zip(made).map(|(one, made)| made.map_err(|error| cannot(one, error)));
        let mut made = made.collect::<Result<Vec<_>, _>>()?;
        let contents = small.iter().zip(&made).map(|(one, (_, file))| (file, one.content.clone()));
        for (one, written) in small.iter().zip(File::fill_all(contents)) {
            written.map_err(|error| cannot(one, error))?;
        }
        let mut last = Vec::with_capacity(small.len());
        for (one, (inode, file)) in small.iter().zip(&mut made) {
            last.push(self.prepare(&one.found, inode, Some(file))?);
        }
        let set = File::set_all(made.iter().map(|(_, file)| file).zip(last));
        for ((one, set), (_, file)) in small.iter().zip(set).zip(made) {
            set.and_then(|()| file.close()).map_err(|error| cannot(one, error))?;
            self.contents.progress().bytes(one.content.len() as u64);
            self.contents.progress().file();
        }
        Ok(())
    }

    fn attributes(&self, found: &Found, made: &Inode) -> Result<(), Failure> {
        for (name, value) in found.attributes(&self.shown)? {
            made.set_xattr(&name, value, XattrFlags::empty()).map_err(|error| {
                let what = format!("cannot set the extended attribute {name} of");
                failed(&what, &self.shown, &found.path, &error)
            })?;
        }
        Ok(())
    }
}

/// Whether a block has nothing but zeroes.
fn may_have_hole(content: &[u8]) -> bool {
    content.chunks(BLOCK).any(|block| block.iter().all(|&byte| byte == 0))
}

impl Sink for Populate<'_> {
    fn put(&mut self, found: &Found) -> Result<(), Failure> {
        let Some(content) = Self::content(found) else {
            self.make_small()?;
            return self.make(found);
        };
        let name = Name::new(found.name().to_vec()).map_err(|error| refused(&self.shown, found, error))?;
        self.small.push(Small { found: found.clone(), name, content });
        if self.small.len() < TOGETHER { Ok(()) } else { self.make_small() }
    }

    fn leave(&mut self, found: &Found) -> Result<(), Failure> {
        self.make_small()?;
        match self.directories.pop() {
            Some(mut made) => self.finish(found, &mut made, None),
            None => Ok(()),
        }
    }
}

fn set(made: &mut Inode, file: Option<&File>, attrs: SetAttrs) -> Result<()> {
    match file {
        Some(file) => made.set_through(file, attrs).map(drop),
        None => made.set(attrs).map(drop),
    }
}

/// The error message for a file that cannot be made in the image.
fn refused(shown: &str, found: &Found, error: Error) -> Failure {
    let failure = failed("cannot put into the image", shown, &found.path, &error);
    match error.errno {
        Errno::ENOSPC => failure.and(": --size makes a larger one"),
        _ => failure,
    }
}
