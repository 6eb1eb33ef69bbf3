// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file a node stands for, where the server has handles that mean a file whatever becomes of its names and of either side.
//!
//! Nodes follow handles. Names are kept beside them, for people, for silly renames, and for a node whose handle is not noted
//! because a process died in between: it is looked up again along its path.

use crate::inode_table::hash;
use crate::notes::Notes;
use outrigger_core::node_table::FileKey;
use outrigger_core::{Errno, FileKind, Keep, Name, Node, NodeTable, Result, lock};
use std::collections::HashMap;
use std::sync::Mutex;

/// Room for the nodes known, in bytes; taken as it fills.
const NODES: usize = 1 << 29;
/// How many handles are noted at most.
const NOTED_MAX: usize = 1 << 20;
/// The longest handle, in bytes, and the words of one.
const HANDLE_MAX: usize = 64;
const HANDLE: usize = HANDLE_MAX / 8;
/// What is noted of a file: node, number, kind, length of the handle, handle.
const WORDS: usize = 4 + HANDLE;

/// A file as the server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFile {
    len: u8,
    bytes: [u8; HANDLE_MAX],
    /// Its number.
    pub ino: u64,
    /// Its kind.
    pub kind: FileKind,
}

/// Nodes, and the files that they stand for.
pub struct HandleTable {
    table: NodeTable,
    /// By the slot of the node, so that the next node in it takes the place.
    known: Mutex<HashMap<u32, (Node, KnownFile)>>,
    notes: Option<Notes<u32, [u64; WORDS]>>,
}

impl KnownFile {
    /// The file with this handle. One without a handle is told by its number.
    ///
    /// # Errors
    /// `EIO` for more than 64 bytes.
    pub fn new(handle: &[u8], ino: u64, kind: FileKind) -> Result<Self> {
        let mut bytes = [0; HANDLE_MAX];
        let place = bytes.get_mut(..handle.len());
        place.ok_or_else(|| Errno::EIO.because("a handle of more than 64 bytes"))?.copy_from_slice(handle);
        Ok(KnownFile { len: handle.len() as u8, bytes, ino, kind })
    }

    /// What the server calls it.
    pub fn handle(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    fn key(&self) -> u64 {
        if self.len == 0 { self.ino } else { hash(&[self.handle()]) }
    }

    fn is(&self, other: &KnownFile) -> bool {
        self.handle() == other.handle() && self.key() == other.key()
    }

    fn encode(&self, node: Node) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..4].copy_from_slice(&[node.0, self.ino, self.kind.bits().into(), self.len.into()]);
        for (word, bytes) in words[4..].iter_mut().zip(self.bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// Memory may be damaged: what makes no sense is not known.
    fn decode(words: &[u64; WORDS]) -> Option<(Node, Self)> {
        let [node, ino, kind, len, handle @ ..] = words;
        let bytes: Vec<u8> = handle.iter().flat_map(|word| word.to_le_bytes()).collect();
        let kind = FileKind::of_mode(u32::try_from(*kind).ok()?)?;
        let handle = bytes.get(..usize::try_from(*len).ok()?)?;
        Some((Node(*node), KnownFile::new(handle, *ino, kind).ok()?))
    }
}

fn slot(node: Node) -> u32 {
    node.0 as u32
}

impl HandleTable {
    /// None but those that former processes left in `keep`.
    ///
    /// # Errors
    /// Those of [`NodeTable::attach`] and [`Notes::open`].
    pub fn open(keep: Option<&dyn Keep>) -> Result<Self> {
        let table = match keep {
            Some(keep) => NodeTable::attach(keep.region("remote-nodes", NODES / 8)?)?,
            None => NodeTable::in_memory(NODES)?,
        };
        let slot_in = |words: &[u64; WORDS]| slot(Node(words[0]));
        let notes = keep.map(|keep| Notes::open(keep, "remote-handles", NOTED_MAX, slot_in)).transpose()?;
        let noted: Vec<_> = notes.iter().flat_map(Notes::all).collect();
        let known = noted.iter().filter_map(KnownFile::decode).map(|known| (slot(known.0), known));
        Ok(HandleTable { known: Mutex::new(known.collect()), table, notes })
    }

    /// Nodes and their names.
    pub fn table(&self) -> &NodeTable {
        &self.table
    }

    /// The file that a node stands for, if that is known.
    pub fn get(&self, node: Node) -> Option<KnownFile> {
        lock(&self.known).get(&slot(node)).filter(|(known, _)| *known == node).map(|(_, known)| *known)
    }

    /// Notes which file a node stands for.
    ///
    /// # Errors
    /// `ENFILE` when there is no room for more.
    pub fn note(&self, node: Node, known: KnownFile) -> Result<()> {
        let before = lock(&self.known).insert(slot(node), (node, known));
        match &self.notes {
            Some(notes) if before != Some((node, known)) => notes.put(slot(node), &known.encode(node)),
            _ => Ok(()),
        }
    }

    /// `name` in `dir` leads to this file: its node, with one more reference.
    ///
    /// # Errors
    /// `ESTALE` when `dir` is not known, `ENFILE` when too many files are known.
    pub fn found(&self, dir: Node, name: &Name, known: KnownFile) -> Result<Node> {
        let node = self.table.found(dir, name, self.key(&known))?;
        self.note(node, known).inspect_err(|_| self.table.forget(node, 1))?;
        Ok(node)
    }

    /// The key of a file in the table: by chance another one may have that which follows from the handle.
    fn key(&self, known: &KnownFile) -> Option<FileKey> {
        let mut key = known.key() | 1;
        while let Some(other) = self.table.keyed(key).and_then(|node| self.get(node)) {
            if other.is(known) {
                break;
            }
            key = hash(&[&key.to_le_bytes()]) | 1;
        }
        FileKey::new(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    fn file(handle: &[u8], ino: u64) -> KnownFile {
        KnownFile::new(handle, ino, FileKind::Regular).unwrap()
    }

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    #[test]
    fn nodes_follow_handles_and_outlive_the_process() {
        let keep = HeapKeep::default();
        let files = HandleTable::open(Some(&keep)).unwrap();
        let [one, other, above] = [file(&[1; HANDLE_MAX], 5), file(&[2; 5], 5), file(&[], 8)];
        let a = files.found(Node::ROOT, &name("a"), one).unwrap();
        assert_eq!(files.found(Node::ROOT, &name("b"), one), Ok(a), "two names of one file");
        let c = files.found(Node::ROOT, &name("c"), other).unwrap();
        assert_ne!(c, a);
        let srv = files.found(Node::ROOT, &name("srv"), above).unwrap();
        drop(files);
        let later = HandleTable::open(Some(&keep)).unwrap();
        assert_eq!([a, c, srv].map(|node| later.get(node)), [Some(one), Some(other), Some(above)]);
        later.table().removed(Node::ROOT, &name("c"));
        later.table().forget(c, 1);
        let d = later.found(Node::ROOT, &name("d"), file(&[3], 7)).unwrap();
        assert_eq!((slot(d), later.get(c)), (slot(c), None), "the place of a forgotten node is used again");
    }

    #[test]
    fn damaged_notes_are_not_believed() {
        let words = file(&[1, 2, 3], 5).encode(Node(7));
        assert_eq!(KnownFile::decode(&words), Some((Node(7), file(&[1, 2, 3], 5))));
        for (at, value) in [(2, 3), (2, u64::MAX), (3, 65), (3, u64::MAX)] {
            let mut damaged = words;
            damaged[at] = value;
            assert_eq!(KnownFile::decode(&damaged), None, "{at} {value}");
        }
        assert!(KnownFile::new(&[0; HANDLE_MAX + 1], 5, FileKind::Regular).is_err());
    }
}
