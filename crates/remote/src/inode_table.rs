// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file a node stands for, and the inode number it shows.
//!
//! The protocol knows files by their paths only. So a node is a place in a [`NodeTable`], and its inode number a hash of the
//! name under which it was found first and the number of the directory it was found in: the same for every mount and after
//! every pause, and kept while the file is known, also when it is renamed. The number is the table's key of the node, and
//! holds the kind of the file in its last three bits, for a name that leads to another kind leads to another file.

use crate::notes::Notes;
use bytes::Bytes;
use outrigger_core::hash::siphash13;
use outrigger_core::node_table::FileKey;
use outrigger_core::{Errno, Error, FileKind, Keep, Name, Node, NodeTable, Recalled, Result, Target, lock};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

/// The inode number of the root.
const ROOT_INO: u64 = 1;
/// The longest path a server on Linux takes, in bytes.
const PATH_MAX: usize = 4095;
/// The bits of an inode number that hold the kind.
const KIND: u64 = 7;

/// Room for the nodes known, in bytes; taken as it fills.
const NODES: usize = 1 << 29;
/// How many nodes are pinned at most.
const PINNED_MAX: usize = 1 << 14;

outrigger_core::record! {
    /// A pinned node, and a number in the order in which they were pinned.
    #[derive(Clone, Copy)]
    struct Pin { node: Node, number: u64 }
}

/// Nodes and where they are at the server.
pub struct InodeTable {
    table: NodeTable,
    /// The path of the root at the server.
    base: Bytes,
    /// Held from looking at a name to entering it, so that no two names get one number.
    naming: Mutex<()>,
    /// Nodes that stay for a while without references, because their numbers do not follow from their names; the oldest first.
    pinned: Mutex<VecDeque<Pin>>,
    notes: Option<Notes<u64, Pin>>,
}

impl InodeTable {
    /// The tree below `base`, an absolute path, with what former processes left in `keep`.
    ///
    /// # Errors
    /// Those of [`NodeTable::attach`] and [`Notes::open`].
    pub fn open(keep: Option<&dyn Keep>, base: Bytes) -> Result<Self> {
        let table = match keep {
            Some(keep) => NodeTable::attach(keep.region("remote-nodes", NODES / 8)?)?,
            None => NodeTable::in_memory(NODES)?,
        };
        let notes = |keep| Notes::open(keep, "remote-pins", PINNED_MAX + 1, |pin: &Pin| pin.number);
        let notes = keep.map(notes).transpose()?;
        let mut pinned: Vec<_> = notes.iter().flat_map(Notes::all).collect();
        pinned.sort_by_key(|pin| pin.number);
        let base = if base.ends_with(b"/") { base.slice(..base.len() - 1) } else { base };
        Ok(InodeTable { table, base, naming: Mutex::new(()), pinned: Mutex::new(pinned.into()), notes })
    }

    /// Nodes, their names and keys.
    pub fn table(&self) -> &NodeTable {
        &self.table
    }

    /// The path of the root at the server, without a slash at its end: empty when it is the root there too.
    pub fn base(&self) -> &[u8] {
        &self.base
    }

    /// The path of a node at the server.
    ///
    /// # Errors
    /// `ESTALE` when the node is not known or was removed, `ENAMETOOLONG` when the path is longer than servers take.
    pub fn path(&self, node: Node) -> Result<Vec<u8>> {
        let names = self.table.path(node)?;
        let mut path = self.base.to_vec();
        for name in &names {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        checked(path)
    }

    /// The path of a node in the tree; of a file with several names the shortest.
    ///
    /// # Errors
    /// `ESTALE` when it is not known or was removed.
    pub fn locate(&self, node: Node) -> Result<Target> {
        self.table.locate(node)
    }

    /// The path of a name in a directory.
    ///
    /// # Errors
    /// As [`InodeTable::path`].
    pub fn child(&self, dir: Node, name: &Name) -> Result<Vec<u8>> {
        join(self.path(dir)?, name)
    }

    /// `name` in `dir` leads to a file of this kind: its node, with one more reference, and its inode number.
    ///
    /// # Errors
    /// `ESTALE` when `dir` is not known, `ENFILE` when too many files are known.
    pub fn found(&self, dir: Node, name: &Name, kind: FileKind) -> Result<(Node, u64)> {
        let _naming = self.naming();
        if let Some(node) = self.table.get(dir, name) {
            let ino = self.ino(node)?;
            if kind_of(ino) == Some(kind) {
                return Ok((self.table.found(dir, name, FileKey::new(ino))?, ino));
            }
            self.table.removed(dir, name);
        }
        let mut ino = self.first_ino(dir, name, kind)?;
        while self.table.keyed(ino).is_some() {
            // A file that was moved away from here, or by chance another one, has this number.
            ino = with_kind(hash(&[&ino.to_le_bytes(), b"again\xff"]), kind);
        }
        Ok((self.table.found(dir, name, FileKey::new(ino))?, ino))
    }

    /// As [`InodeTable::found`], of a name that a former process knew.
    ///
    /// # Errors
    /// As [`InodeTable::found`].
    pub fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        let (node, ino) = self.found(dir, name, kind)?;
        Ok(Recalled { node, generation: NodeTable::generation(node), ino })
    }

    /// Keeps the node that `name` in `dir` leads to without references: it was renamed, or has several names. Gives a node that
    /// is to be forgotten in its place.
    pub fn pin(&self, dir: Node, name: &Name) -> Option<Node> {
        let node = self.table.get(dir, name)?;
        let key = self.table.key(node).ok()?;
        self.table.found(dir, name, key).ok()?;
        let mut pinned = lock(&self.pinned);
        let oldest = if pinned.len() >= PINNED_MAX { pinned.pop_front() } else { None };
        let pin = Pin { node, number: pinned.back().map_or(0, |last| last.number + 1) };
        if let Some(notes) = &self.notes {
            oldest.iter().for_each(|pin: &Pin| notes.remove(&pin.number));
            let _ = notes.put(pin.number, &pin);
        }
        pinned.push_back(pin);
        oldest.map(|pin| pin.node)
    }

    /// The inode number that `name` in `dir` shows in a listing.
    ///
    /// # Errors
    /// `ESTALE` when `dir` is not known.
    pub fn listed(&self, dir: Node, name: &Name, kind: FileKind) -> Result<u64> {
        let known = self.table.get(dir, name).and_then(|node| self.ino(node).ok());
        match known.filter(|&ino| kind_of(ino) == Some(kind)) {
            Some(ino) => Ok(ino),
            None => self.first_ino(dir, name, kind),
        }
    }

    fn first_ino(&self, dir: Node, name: &Name, kind: FileKind) -> Result<u64> {
        Ok(with_kind(number_of(self.ino(dir)?, name), kind))
    }

    /// The inode number of a node.
    ///
    /// # Errors
    /// `ESTALE` when it is not known.
    pub fn ino(&self, node: Node) -> Result<u64> {
        if node == Node::ROOT {
            return Ok(ROOT_INO);
        }
        self.table.key(node).map(|key| key.map_or(ROOT_INO, FileKey::get))
    }

    /// The kind of a node.
    ///
    /// # Errors
    /// `ESTALE` when it is not known.
    pub fn kind(&self, node: Node) -> Result<FileKind> {
        if node == Node::ROOT {
            return Ok(FileKind::Directory);
        }
        self.ino(node).map(|ino| kind_of(ino).unwrap_or(FileKind::Regular))
    }

    fn naming(&self) -> MutexGuard<'_, ()> {
        lock(&self.naming)
    }
}

/// The path of `name` in the directory at `dir`.
///
/// # Errors
/// `ENAMETOOLONG` when it is longer than servers take.
pub fn join(mut dir: Vec<u8>, name: &[u8]) -> Result<Vec<u8>> {
    if !dir.ends_with(b"/") {
        dir.push(b'/');
    }
    dir.extend_from_slice(name);
    checked(dir)
}

fn checked(path: Vec<u8>) -> Result<Vec<u8>> {
    if path.len() > PATH_MAX {
        return Err(too_long(path.len()));
    }
    Ok(path)
}

fn too_long(len: usize) -> Error {
    Errno::ENAMETOOLONG.because(format!("the path is {len} bytes long; servers take {PATH_MAX}"))
}

/// A hash that is the same in every process and every build.
pub fn hash(parts: &[&[u8]]) -> u64 {
    siphash13(&parts.concat())
}

/// The number of a name in the directory with the inode number `dir`.
fn number_of(dir: u64, name: &[u8]) -> u64 {
    hash(&[&dir.to_le_bytes(), &(name.len() as u64).to_le_bytes(), name])
}

fn with_kind(hash: u64, kind: FileKind) -> u64 {
    let number = FileKind::ALL.iter().position(|&known| known == kind).unwrap_or_default() as u64 + 1;
    // Numbers above this do not fit into the signed integers that some programs keep them in.
    let hash = hash & (i64::MAX as u64);
    hash & !KIND | number
}

fn kind_of(ino: u64) -> Option<FileKind> {
    let number = (ino & KIND).checked_sub(1)?;
    FileKind::ALL.get(number as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    #[test]
    fn inode_numbers_are_the_same_in_every_build() {
        assert_eq!(number_of(7, b"name"), 0x3d5c_0c56_853c_e656);
        assert_eq!(hash(&[&7_u64.to_le_bytes(), b"again\xff"]), 0xb5f0_5bae_1f72_2a8b);
    }

    fn inodes() -> InodeTable {
        InodeTable::open(None, Bytes::from_static(b"/srv/")).expect("room")
    }

    fn name(text: &str) -> Name {
        Name::try_from(text).expect("a name")
    }

    #[test]
    fn paths_follow_renames() {
        let inodes = inodes();
        let (dir, _) = inodes.found(Node::ROOT, &name("d"), FileKind::Directory).expect("found");
        let (file, ino) = inodes.found(dir, &name("f"), FileKind::Regular).expect("found");
        assert_eq!(inodes.path(file).as_deref(), Ok(&b"/srv/d/f"[..]));
        assert_eq!(inodes.path(Node::ROOT).as_deref(), Ok(&b"/srv"[..]));
        inodes.table().renamed((Node::ROOT, &name("d")), (Node::ROOT, &name("e"))).expect("renamed");
        assert_eq!(inodes.path(file).as_deref(), Ok(&b"/srv/e/f"[..]));
        assert_eq!(inodes.ino(file), Ok(ino));
        let whole = InodeTable::open(None, Bytes::from_static(b"/")).expect("room");
        assert_eq!(whole.path(Node::ROOT).as_deref(), Ok(&b"/"[..]));
        assert_eq!(whole.child(Node::ROOT, &name("x")).as_deref(), Ok(&b"/x"[..]));
    }

    #[test]
    fn a_file_has_one_number_however_often_it_is_forgotten() {
        let inodes = inodes();
        let (node, ino) = inodes.found(Node::ROOT, &name("f"), FileKind::Regular).expect("found");
        assert_eq!(inodes.listed(Node::ROOT, &name("f"), FileKind::Regular), Ok(ino));
        inodes.table().forget(node, 1);
        assert_eq!(inodes.listed(Node::ROOT, &name("f"), FileKind::Regular), Ok(ino));
        let (_, again) = inodes.found(Node::ROOT, &name("f"), FileKind::Regular).expect("found");
        assert_eq!(again, ino);
    }

    #[test]
    fn a_renamed_file_keeps_its_number_and_a_new_one_in_its_place_gets_another() {
        let inodes = inodes();
        let (node, ino) = inodes.found(Node::ROOT, &name("a"), FileKind::Regular).expect("found");
        inodes.table().renamed((Node::ROOT, &name("a")), (Node::ROOT, &name("b"))).expect("renamed");
        let (new, other) = inodes.found(Node::ROOT, &name("a"), FileKind::Regular).expect("found");
        assert!(new != node && other != ino);
        assert_eq!(inodes.found(Node::ROOT, &name("b"), FileKind::Regular), Ok((node, ino)));
    }

    #[test]
    fn the_next_process_unpins_the_oldest_first() {
        let keep = HeapKeep::default();
        let open = || InodeTable::open(Some(&keep), Bytes::from_static(b"/srv")).expect("room");
        let pin = |inodes: &InodeTable, number: usize| {
            let name = name(&number.to_string());
            let (node, _) = inodes.found(Node::ROOT, &name, FileKind::Regular).expect("found");
            (node, inodes.pin(Node::ROOT, &name))
        };
        let before = open();
        let pinned: Vec<Node> = (0..PINNED_MAX).map(|number| pin(&before, number).0).collect();
        // The note of the one that was pinned last takes the place of the oldest one's.
        assert_eq!(pin(&before, PINNED_MAX).1, Some(pinned[0]));
        let after = open();
        assert_eq!(pin(&after, PINNED_MAX + 1).1, Some(pinned[1]));
        assert_eq!(pin(&open(), PINNED_MAX + 2).1, Some(pinned[2]));
    }

    #[test]
    fn a_name_that_leads_to_another_kind_leads_to_another_file() {
        let inodes = inodes();
        for kind in FileKind::ALL {
            let (node, ino) = inodes.found(Node::ROOT, &name("f"), kind).expect("found");
            assert_eq!(inodes.kind(node), Ok(kind));
            assert_eq!(inodes.found(Node::ROOT, &name("f"), kind), Ok((node, ino)));
        }
        assert_eq!(inodes.kind(Node::ROOT), Ok(FileKind::Directory));
    }

    #[test]
    fn paths_that_no_server_takes_are_refused() {
        let inodes = inodes();
        let mut dir = Node::ROOT;
        let long = name(&"x".repeat(255));
        for _ in 0..15 {
            dir = inodes.found(dir, &long, FileKind::Directory).expect("found").0;
        }
        assert_eq!(inodes.path(dir).map(|path| path.len()), Ok(4 + 15 * 256));
        assert_eq!(inodes.child(dir, &long).unwrap_err().errno, Errno::ENAMETOOLONG);
    }
}
