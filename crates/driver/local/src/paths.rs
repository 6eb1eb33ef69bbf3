// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes of files that no handle finds again: a [`NodeTable`] remembers where they are.
//!
//! * Without the right to open handles, or where handles do not pack, this is every node of the tree.
//! * Otherwise it is what lies on another mount below the tree. Such a mount hangs in the table below an anchor, a
//!   child of the table's root named after the node of the directory that holds it. The nodes of these files have a
//!   low half of 0, which no inode number has.
//!
//! A path is used only if the file there is the one the node was given to: inode number, device, time of birth and
//! kind make its key.

use crate::attr::failed;
use crate::held::HeldNodes;
use outrigger_core::node_table::{FileKey, NodeTable};
use outrigger_core::{Errno, Error, Generation, Name, Node, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags, Statx, openat2};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The nodes that are known by path.
pub(crate) struct Paths {
    table: NodeTable,
    /// Whether the table holds only what lies on other mounts.
    anchored: bool,
    /// Whether the table holds anything; spares the others its lock.
    used: AtomicBool,
    held: HeldNodes,
}

/// Where a file should be: a directory to start from, and the nodes on the way down from there with their names, the file
/// being the last.
pub(crate) type Whereabouts = (Start, Vec<(Node, Name)>);

/// A directory to start from.
pub(crate) enum Start {
    /// One that is open.
    Open(Arc<OwnedFd>),
    /// One that can be opened.
    Node(Node),
}

/// What tells the file apart from all others that ever had its path; the same for all its names, and the same in
/// every process, so that one can take over the table of another.
fn key(st: &Statx) -> FileKey {
    let device = u64::from(st.stx_dev_major) << 32 | u64::from(st.stx_dev_minor);
    let kind = u64::from(st.stx_mode >> 12);
    let birth = (st.stx_btime.tv_sec as u64, u64::from(st.stx_btime.tv_nsec));
    let parts = [device, st.stx_ino, kind, birth.0, birth.1];
    FileKey::new(parts.into_iter().fold(0, mix)).unwrap_or(FileKey::MIN)
}

/// Mixes a word into a hash; the finaliser of SplitMix64, which spreads every bit over all others.
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Paths {
    /// The nodes in `table`, and those of them that have no name.
    pub(crate) fn new(table: NodeTable, anchored: bool, held: HeldNodes) -> Self {
        let used = AtomicBool::new(!anchored || !table.is_empty());
        Paths { table, anchored, used, held }
    }

    /// Whether `node` is one of them.
    pub(crate) fn has(&self, node: Node) -> bool {
        !self.anchored || node.0 as u32 == 0
    }

    /// The table's node for one of the tree.
    fn inward(&self, node: Node) -> Result<Node> {
        if !self.anchored {
            return Ok(node);
        }
        let stale = || Errno::ESTALE.because(format!("{node:?} is not known any more"));
        self.table.at_slot((node.0 >> 32) as u32).ok_or_else(stale)
    }

    fn outward(&self, node: Node) -> Node {
        if self.anchored { Node(node.0 << 32) } else { node }
    }

    /// How often the number was given to another file before.
    pub(crate) fn generation(&self, node: Node) -> Generation {
        NodeTable::generation(self.inward(node).unwrap_or_default())
    }

    fn anchor_name(node: Node) -> Result<Name> {
        Name::try_from(format!("{:016x}", node.0).as_str())
    }

    /// The table's node for a directory, if it is known there.
    fn known_dir(&self, dir: Node) -> Option<Node> {
        if !self.used.load(Ordering::Acquire) {
            None
        } else if self.has(dir) {
            self.inward(dir).ok()
        } else {
            self.table.get(Node::ROOT, &Paths::anchor_name(dir).ok()?)
        }
    }

    /// `name` in `dir` leads to the file `st` describes: its node, with one more reference.
    pub(crate) fn found(&self, dir: Node, name: &Name, st: &Statx) -> Result<Node> {
        self.used.store(true, Ordering::Release);
        if self.has(dir) {
            let node = self.table.found(self.inward(dir)?, name, Some(key(st)))?;
            return Ok(self.outward(node));
        }
        let anchor = self.table.found(Node::ROOT, &Paths::anchor_name(dir)?, None)?;
        let node = self.table.found(anchor, name, Some(key(st)));
        // What is below it keeps the anchor.
        self.table.forget(anchor, 1);
        node.map(|node| self.outward(node))
    }

    /// A new file without a name.
    pub(crate) fn found_nameless(&self, st: &Statx, fd: Arc<OwnedFd>) -> Result<Node> {
        self.used.store(true, Ordering::Release);
        let node = self.outward(self.table.found_nameless(Some(key(st)))?);
        self.held.put(node, fd);
        Ok(node)
    }

    /// The descriptor of a file that has no name.
    pub(crate) fn held(&self, node: Node) -> Option<Arc<OwnedFd>> {
        self.held.get(node)
    }

    /// Where `node` may be, the likeliest place first; each starting from the nearest directory above it that `open`
    /// has a descriptor of.
    pub(crate) fn whereabouts(
        &self,
        node: Node,
        open: impl Fn(Node) -> Option<Arc<OwnedFd>>,
    ) -> Result<Vec<Whereabouts>> {
        let names = self.table.names(self.inward(node)?)?;
        Ok(names.into_iter().filter_map(|name| self.climb(node, name, &open)).collect())
    }

    /// A directory `node` is in, and its name there.
    pub(crate) fn place(&self, node: Node) -> Option<(Node, Name)> {
        let first = |node| self.table.names(node).ok()?.into_iter().next();
        let (dir, name) = first(self.inward(node).ok()?)?;
        if !self.anchored {
            return Some((dir, name));
        }
        match first(dir)? {
            (Node::ROOT, outer) => Some((anchor(&outer)?, name)),
            _ => Some((self.outward(dir), name)),
        }
    }

    fn climb(
        &self,
        node: Node,
        (mut dir, name): (Node, Name),
        open: &impl Fn(Node) -> Option<Arc<OwnedFd>>,
    ) -> Option<Whereabouts> {
        let mut way = vec![(node, name)];
        let start = loop {
            if dir == Node::ROOT {
                // An anchor itself is never given out, so something is left below it.
                break if self.anchored { Start::Node(anchor(&way.pop()?.1)?) } else { Start::Node(dir) };
            }
            if let Some(fd) = open(self.outward(dir)) {
                break Start::Open(fd);
            }
            let (above, name) = self.table.names(dir).ok()?.into_iter().next()?;
            way.push((self.outward(dir), name));
            dir = above;
        };
        way.reverse();
        Some((start, way))
    }

    /// Whether `st` describes the file that `node` was given to.
    pub(crate) fn is_same(&self, node: Node, st: &Statx) -> bool {
        let known = self.inward(node).and_then(|node| self.table.key(node));
        known.is_ok_and(|known| known.is_none_or(|known| known == key(st)))
    }

    /// The node that loses its last known name with `name` in `dir` while somebody refers to it.
    pub(crate) fn loses_last_name(&self, dir: Node, name: &Name) -> Option<Node> {
        let node = self.table.get(self.known_dir(dir)?, name)?;
        let last = self.table.names(node).is_ok_and(|names| names.len() == 1);
        (last && self.table.references(node) != Some(0)).then(|| self.outward(node))
    }

    /// Keeps `fd`, because `node` is about to lose its last name. Tells whether it was not held before.
    pub(crate) fn hold(&self, node: Node, fd: Arc<OwnedFd>) -> bool {
        self.held.put(node, fd)
    }

    /// Ends [`Paths::hold`]: the name is still there.
    pub(crate) fn let_go(&self, node: Node) {
        self.held.remove(node);
    }

    /// `name` in `dir` was removed.
    pub(crate) fn removed(&self, dir: Node, name: &Name) {
        if let Some(dir) = self.known_dir(dir) {
            self.table.removed(dir, name);
        }
    }

    /// A name moved, or two were exchanged. The host has done it, so a refusal can only mean that others changed more
    /// than is known here; then the names are found anew.
    pub(crate) fn renamed(
        &self,
        (dir, name): (Node, &Name),
        (to_dir, to_name): (Node, &Name),
        exchange: bool,
    ) {
        match (self.known_dir(dir), self.known_dir(to_dir)) {
            (Some(from), Some(to)) => {
                let (one, other) = ((from, name), (to, to_name));
                let done = match exchange {
                    true => self.table.exchanged(one, other),
                    false => self.table.renamed(one, other),
                };
                if done.is_err() {
                    self.table.removed(from, name);
                    self.table.removed(to, to_name);
                }
            }
            (Some(from), None) => self.table.removed(from, name),
            (None, Some(to)) => self.table.removed(to, to_name),
            (None, None) => {}
        }
    }

    /// Takes back references.
    pub(crate) fn forget(&self, node: Node, count: u64) {
        if let Ok(inner) = self.inward(node) {
            self.table.forget(inner, count);
            if self.table.key(inner).is_err() {
                self.held.remove(node);
            }
        }
    }
}

/// The node an anchor is named after.
fn anchor(name: &Name) -> Option<Node> {
    let digits = std::str::from_utf8(name).ok()?;
    u64::from_str_radix(digits, 16).ok().map(Node)
}

/// The longest path openat2(2) takes, less its NUL.
const PATH_MAX: usize = 4095;

/// Opens what is at the end of `way` from `start`, never anything outside, following no symbolic link.
pub(crate) fn open_beneath(start: BorrowedFd<'_>, way: &[(Node, Name)]) -> Result<OwnedFd, Error> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (mut at, mut path): (Option<OwnedFd>, Vec<u8>) = (None, Vec::new());
    let mut names = way.iter().map(|(_, name)| name).peekable();
    while let Some(name) = names.next() {
        path.extend_from_slice(name);
        if names.peek().is_some_and(|next| path.len() + 1 + next.len() <= PATH_MAX) {
            path.push(b'/');
            continue;
        }
        let from = at.as_ref().map_or(start, AsFd::as_fd);
        at = Some(openat2(from, &path[..], flags, Mode::empty(), resolve).map_err(failed)?);
        path.clear();
    }
    at.ok_or_else(|| Errno::ENOENT.into())
}

impl std::fmt::Debug for Paths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.anchored { "paths on other mounts" } else { "paths" })
    }
}
