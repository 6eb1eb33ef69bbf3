// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree in the order in which it goes into an image, which does not depend on the order of its directories.

use super::failed;
use crate::context::Context;
use crate::status::Failure;
use outrigger_client::{Inode, Unreadable};
use outrigger_core::{Attr, Cancel, FileKind, Name, Node, Time};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

/// One name of the tree.
pub struct Found {
    /// Where it is: names with slashes between them; nothing for the root.
    pub path: Vec<u8>,
    /// What it leads to.
    pub inode: Rc<Inode>,
    /// Its attributes as the image gets them. The time of last access is that of modification: reading changes the other.
    pub attr: Attr,
    /// Set for a file that has several names in the tree.
    pub link: Option<Link>,
}

/// What is known of a file with several names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The first of its names in the order of the image.
    pub first: Vec<u8>,
    /// How many of its names there are; as many as were seen so far in the first walk.
    pub names: u32,
    /// The number of the file among those with several names, from 0 on.
    pub number: usize,
}

impl Found {
    /// The last component of its path.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }

    /// Whether it is a further name of a file that was there before.
    pub fn is_further_name(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.first != self.path)
    }
}

/// Where the names of a tree go, one by one.
pub trait Sink {
    /// Takes the next name; a directory comes before what is in it.
    ///
    /// # Errors
    /// A sentence that names the file. It ends the walk.
    fn put(&mut self, found: &Found) -> Result<(), Failure>;

    /// All that is in this directory was put.
    ///
    /// # Errors
    /// As [`Sink::put`].
    fn leave(&mut self, _directory: &Found) -> Result<(), Failure> {
        Ok(())
    }
}

/// A tree to make an image of.
pub struct Source {
    root: Rc<Inode>,
    /// How messages call it.
    shown: String,
    /// No file is newer than this in the image.
    latest: Option<Time>,
    cancel: Cancel,
    /// The files with several names, each held so that its number stays its own.
    links: HashMap<Node, (Link, Rc<Inode>)>,
    /// Whether a walk has counted them.
    counted: bool,
}

/// A directory in progress.
struct Frame {
    found: Found,
    /// What is in it, the next one last.
    rest: Vec<(Name, Rc<Inode>)>,
}

impl Source {
    /// The tree below `root`, which users call `shown`. Modification times after `latest` become that.
    ///
    /// # Errors
    /// When `root` is no directory.
    pub fn new(context: &Context, root: Inode, shown: String, latest: Option<Time>) -> Result<Self, Failure> {
        if !root.is_dir() {
            return Err(Failure::serious(format!("cannot make an image of '{shown}': it is no directory")));
        }
        let cancel = context.cancel.clone();
        Ok(Source { root: Rc::new(root), shown, latest, cancel, links: HashMap::new(), counted: false })
    }

    /// Gives every name of the tree to `sink`: a directory, then what is in it, sorted by the bytes of the names. The first walk
    /// counts the names of files that have several.
    ///
    /// # Errors
    /// What cannot be read, what `sink` says, and that the user has interrupted the command.
    pub fn walk(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        let root = Found {
            path: Vec::new(),
            attr: self.settled(self.root.attr()),
            inode: Rc::clone(&self.root),
            link: None,
        };
        sink.put(&root)?;
        let mut frames = vec![self.enter(root)?];
        while let Some(mut frame) = frames.pop() {
            if self.cancel.is_raised() {
                return Err(Failure::new("interrupted"));
            }
            let Some((name, inode)) = frame.rest.pop() else {
                sink.leave(&frame.found)?;
                continue;
            };
            let path = below(&frame.found.path, &name);
            frames.push(frame);
            let link = self.link(&inode, &path);
            let found = Found { attr: self.settled(inode.attr()), path, inode, link };
            sink.put(&found)?;
            if found.inode.is_dir() {
                frames.push(self.enter(found)?);
            }
        }
        self.counted = true;
        Ok(())
    }

    fn enter(&self, found: Found) -> Result<Frame, Failure> {
        let cannot = |error| failed("cannot read the directory", &self.shown, &found.path, &error);
        let mut rest = Vec::new();
        for entry in found.inode.entries().map_err(cannot)? {
            let (name, inode) = entry.map_err(|Unreadable { name, error }| match name {
                Some(name) => failed("cannot look at", &self.shown, &below(&found.path, &name), &error),
                None => cannot(error),
            })?;
            rest.push((name, Rc::new(inode)));
        }
        rest.sort_unstable_by(|(one, _), (other, _)| other.as_bytes().cmp(one.as_bytes()));
        Ok(Frame { found, rest })
    }

    /// The attributes that a file gets in the image.
    fn settled(&self, attr: &Attr) -> Attr {
        let mtime = self.latest.map_or(attr.mtime, |latest| attr.mtime.min(latest));
        Attr { mtime, atime: mtime, ..attr.clone() }
    }

    fn link(&mut self, inode: &Rc<Inode>, path: &[u8]) -> Option<Link> {
        if inode.is_dir() || inode.attr().nlink < 2 {
            return None;
        }
        let (number, counted) = (self.links.len(), self.counted);
        let known = match self.links.entry(inode.node()) {
            Entry::Occupied(known) => &mut known.into_mut().0,
            Entry::Vacant(free) => {
                let link = Link { first: path.to_vec(), names: 0, number };
                &mut free.insert((link, Rc::clone(inode))).0
            }
        };
        known.names += u32::from(!counted);
        Some(known.clone())
    }
}

/// The path of `name` in the directory `path`.
fn below(path: &[u8], name: &Name) -> Vec<u8> {
    if path.is_empty() { name.as_bytes().to_vec() } else { [path, b"/", name.as_bytes()].concat() }
}

/// How many bytes of a file are stored, holes apart.
pub fn stored(attr: &Attr) -> u64 {
    match attr.kind() {
        FileKind::Regular => {
            attr.size.min(attr.blocks.saturating_mul(512).max(u64::from(attr.blocks == 0) * attr.size))
        }
        _ => 0,
    }
}
