// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a path to a file, following symbolic links inside the tree (path_resolution(7)).

use crate::client::Client;
use crate::inode::Inode;
use bytes::Bytes;
use outrigger_core::{Errno, Error, FileKind, Name, Result};

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Answer what it points to.
    Yes,
    /// Answer the link itself.
    No,
}

/// The most symbolic links one walk follows, as in Linux.
const LINKS_MAX: usize = 40;

/// The most names that are asked for at once (`MAXWELEM` of 9P).
const STEPS_MAX: usize = 16;

/// A walk in progress: the directories from the root to here, and the remaining components, last first.
struct Walker<'c> {
    client: &'c Client,
    above: Vec<Inode>,
    pending: Vec<Bytes>,
    links: usize,
}

impl Client {
    /// Finds the file at `path`. The root of the tree is its own parent, and absolute symbolic links start at it,
    /// so that no path leads out of the tree.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ELOOP` beyond 40 symbolic links, `ENAMETOOLONG`, or whatever the tree answers.
    pub fn walk(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        let mut walker = Walker::start(self, path)?;
        // A trailing slash asks for a directory, so the link in front of it is followed (POSIX 4.16).
        let slash = path.ends_with(b"/");
        let found = walker.run(if slash { Follow::Yes } else { follow })?;
        if slash && !found.is_dir() {
            return Err(not_a_directory(path));
        }
        Ok(found)
    }

    /// Finds the directory that holds the last component of `path`, and that component.
    ///
    /// # Errors
    /// As [`Client::walk`]; `EINVAL` when the path has no last component: it is the root, or ends in `.` or `..`.
    pub fn walk_parent(&self, path: &[u8]) -> Result<(Inode, Name)> {
        let trimmed = without_trailing_slashes(path);
        let (dir, name) = match trimmed.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&trimmed[..=slash], &trimmed[slash + 1..]),
            None => (&b"/"[..], trimmed),
        };
        if name.is_empty() {
            return Err(Errno::EINVAL.because("the root of a tree has no name"));
        }
        let name = Name::new(Bytes::copy_from_slice(name))?;
        let dir = self.walk(dir, Follow::Yes)?;
        if dir.is_dir() { Ok((dir, name)) } else { Err(not_a_directory(path)) }
    }
}

fn without_trailing_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

fn not_a_directory(path: &[u8]) -> Error {
    Errno::ENOTDIR.because(format!("\"{}\" is not a directory", path.escape_ascii()))
}

impl<'c> Walker<'c> {
    fn start(client: &'c Client, path: &[u8]) -> Result<Self> {
        let mut walker = Walker { client, above: vec![client.root()?], pending: Vec::new(), links: 0 };
        walker.push(path);
        Ok(walker)
    }

    fn push(&mut self, path: &[u8]) {
        let components = path.split(|&byte| byte == b'/').filter(|component| !component.is_empty());
        self.pending.extend(components.rev().map(Bytes::copy_from_slice));
    }

    fn here(&self) -> Result<&Inode> {
        self.above.last().ok_or_else(|| Errno::EIO.because("a walk lost its root"))
    }

    fn run(&mut self, follow: Follow) -> Result<Inode> {
        while let Some(component) = self.pending.last() {
            if !self.here()?.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            match &component[..] {
                b"." => drop(self.pending.pop()),
                b".." => {
                    self.pending.pop();
                    if self.above.len() > 1 {
                        self.above.pop();
                    }
                }
                _ => self.descend(follow)?,
            }
        }
        self.above.pop().ok_or_else(|| Errno::EIO.because("a walk lost its root"))
    }

    /// Follows the next components as far as they are names, at most [`STEPS_MAX`] of them.
    fn descend(&mut self, follow: Follow) -> Result<()> {
        let is_name = |component: &&Bytes| !matches!(&component[..], b"." | b"..");
        let names = self.pending.iter().rev().take_while(is_name).take(STEPS_MAX);
        let names = names.map(|component| Name::new(component.clone())).collect::<Result<Vec<Name>>>()?;
        for inode in self.here()?.descend(&names)? {
            self.pending.pop();
            let ends = self.pending.is_empty() && follow == Follow::No;
            if inode.kind() == FileKind::Symlink && !ends {
                // The tree follows no link, so that this is the last it has found.
                return self.follow(&inode);
            }
            self.above.push(inode);
        }
        Ok(())
    }

    fn follow(&mut self, inode: &Inode) -> Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let target = inode.readlink()?;
        if target.starts_with(b"/") {
            self.above = vec![self.client.root()?];
        }
        self.push(&target);
        Ok(())
    }
}
