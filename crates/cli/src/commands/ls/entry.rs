// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `ls` finds out about each name.

use super::Lister;
use super::options::{Indicator, Layout, Links, Which};
use crate::context::Place;
use crate::format::colour::Part;

use bytes::Bytes;
use outrigger_client::{Follow, Inode};
use outrigger_core::reply::Names;
use outrigger_core::{Attr, Errno, FileKind, Name, Result, Time, XattrName};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A name and what is known about it.
#[derive(Debug)]
pub struct Entry {
    /// The name as it is shown.
    pub name: Vec<u8>,
    /// Attributes, unless finding them out failed.
    pub attr: Option<Attr>,
    /// The kind, as far as it is known without attributes.
    pub kind: Option<FileKind>,
    /// What a symbolic link points to.
    pub target: Option<Vec<u8>>,
    /// The mode of what it leads to, when that was asked for and exists.
    pub target_mode: Option<u32>,
    /// Whether it has an access control list.
    pub acl: bool,
    /// Whether it has capabilities.
    pub capability: bool,
}

impl Entry {
    /// A name about which nothing else can be found out.
    pub fn unknown(name: Vec<u8>) -> Self {
        Entry { name, attr: None, kind: None, target: None, target_mode: None, acl: false, capability: false }
    }

    /// Whether it is a directory, or a link to one whose target was asked for.
    pub fn leads_to_directory(&self) -> bool {
        let target = self.target_mode.and_then(FileKind::of_mode);
        self.kind == Some(FileKind::Directory) || target == Some(FileKind::Directory)
    }

    /// The time that counts; `None` when it is unknown.
    pub fn time(&self, which: Which) -> Option<Time> {
        let attr = self.attr.as_ref()?;
        match which {
            Which::Modified => Some(attr.mtime),
            Which::Changed => Some(attr.ctime),
            Which::Accessed => Some(attr.atime),
            Which::Born => attr.btime,
        }
    }

    /// Whether it is a device node.
    pub fn is_device(&self) -> bool {
        matches!(self.kind, Some(FileKind::CharDevice | FileKind::BlockDevice)) && self.attr.is_some()
    }
}

impl Lister<'_> {
    /// What an operand names. Failing to find out is reported.
    pub fn operand(&mut self, place: &Place) -> Option<Entry> {
        match find_operand(place, self.options.links) {
            Ok(inode) => Some(self.examine(place.shown.as_bytes().to_vec(), place, &inode)),
            Err(error) => {
                self.complain_about("cannot access", place, true, &error);
                None
            }
        }
    }

    /// What names in the directory at `directory` lead to.
    pub fn children(&mut self, directory: &Place, found: Vec<(Name, Inode)>) -> Vec<Entry> {
        let of = |(name, inode): &(Name, Inode)| self.child(directory, name.to_vec(), inode);
        let mut entries: Vec<Entry> = found.iter().map(of).collect();
        let asked = entries.iter_mut().zip(&found).map(|(entry, (_, inode))| (entry, inode));
        let asked = asked.filter(|(_, inode)| self.wants_acl(inode));
        let (asked, inodes): (Vec<&mut Entry>, Vec<&Inode>) = asked.unzip();
        for ((entry, names), inode) in asked.into_iter().zip(Inode::xattrs_of(&inodes)).zip(inodes) {
            entry.acl = names.is_ok_and(|names| has_acl(inode, &names));
        }
        entries
    }

    /// Whether it is shown if a file has an access control list. Symbolic links have none.
    fn wants_acl(&self, inode: &Inode) -> bool {
        self.options.layout == Layout::Long && inode.kind() != FileKind::Symlink
    }

    /// What a name in the directory at `directory` leads to, but for access control lists of what is no link.
    fn child(&mut self, directory: &Place, name: Vec<u8>, inode: &Inode) -> Entry {
        let follows = self.options.links == Links::Follow;
        if inode.kind() != FileKind::Symlink || !(follows || self.wants_targets()) {
            return self.known(name, inode);
        }
        let mut place = directory.child(&name);
        if directory.shown == "." {
            place.shown = OsStr::from_bytes(&name).into();
        }
        if !follows {
            return self.examine(name, &place, inode);
        }
        match place.find(Follow::Yes) {
            Ok(target) => self.examine(name, &place, &target),
            Err(_) if !self.options.needs_more_than_names() => plain(name, inode),
            Err(error) => {
                self.complain_about("cannot access", &place, false, &error);
                Entry { attr: None, ..plain(name, inode) }
            }
        }
    }

    fn wants_targets(&self) -> bool {
        self.options.layout == Layout::Long || self.options.needs_targets() || self.context.json
    }

    /// What is found out about `inode` without asking where it leads, but for access control lists.
    fn known(&self, name: Vec<u8>, inode: &Inode) -> Entry {
        let mut entry = plain(name, inode);
        let colours = self.options.colours.as_ref();
        if inode.kind() == FileKind::Regular && colours.is_some_and(|colours| colours.has(Part::Capability)) {
            entry.capability = has_xattr(inode, b"security.capability");
        }
        entry
    }

    /// What `inode`, found as `name` at `place`, is.
    pub fn examine(&mut self, name: Vec<u8>, place: &Place, inode: &Inode) -> Entry {
        let mut entry = self.known(name, inode);
        entry.acl = self.wants_acl(inode) && inode.xattrs().is_ok_and(|names| has_acl(inode, &names));
        if inode.kind() == FileKind::Symlink && self.wants_targets() {
            match inode.readlink() {
                Ok(target) => entry.target = Some(target.to_vec()),
                Err(error) => self.complain_about("cannot read symbolic link", place, false, &error),
            }
            let shows_kind = self.options.indicator >= Indicator::FileType;
            if entry.target.is_some() && (shows_kind || self.options.needs_targets()) {
                entry.target_mode = place.find(Follow::Yes).ok().map(|target| target.attr().mode);
            }
        }
        entry
    }
}

fn plain(name: Vec<u8>, inode: &Inode) -> Entry {
    let (attr, kind) = (Some(inode.attr().clone()), FileKind::of_mode(inode.attr().mode));
    Entry { attr, kind, ..Entry::unknown(name) }
}

fn find_operand(place: &Place, links: Links) -> Result<Inode> {
    match links {
        Links::Keep => place.find(Follow::No),
        Links::Follow | Links::FollowGiven => place.find(Follow::Yes),
        Links::FollowGivenDirectories => match place.find(Follow::Yes) {
            Ok(inode) if inode.is_dir() => Ok(inode),
            Err(error) if error.errno != Errno::ENOENT => Err(error),
            _ => place.find(Follow::No),
        },
    }
}

fn has_xattr(inode: &Inode, name: &'static [u8]) -> bool {
    XattrName::new(Bytes::from_static(name)).is_ok_and(|name| inode.xattr(&name).is_ok())
}

/// A list that says no more than the permissions is not stored, so that having one means having more.
fn has_acl(inode: &Inode, names: &Names) -> bool {
    names.iter().any(|name| match name.as_bytes() {
        b"system.posix_acl_access" | b"system.nfs4_acl" => true,
        b"system.posix_acl_default" => inode.is_dir(),
        _ => false,
    })
}
