// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metadata of a tree as a file holds it.
//!
//! Magic, a CRC-32 of all that follows, what the tree is called, and a [`SavedTree`] in the encoding of messages. Whatever the file
//! holds, reading it takes memory in proportion to its size, and gives names, numbers and attributes that a server could have sent.

use bytes::{Buf, Bytes};
use outrigger_core::reply::COOKIE_MAX;
use outrigger_core::{Attr, FileKind, Name, Target, Time, Wire};
use std::collections::HashSet;

/// Raised whenever the layout changes.
const MAGIC: &[u8; 8] = b"outrigm\x01";
/// Magic and checksum.
const SEAL: usize = MAGIC.len() + 4;

/// Milliseconds since the epoch; 0 for what was not learnt at a time that is known, which is not fresh.
pub type Learnt = u64;

/// What a process knew of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SavedTree {
    /// The process that saved it.
    pub writer: u64,
    /// Until when it had said that it changes the tree.
    pub mark: u64,
    /// Attributes of the root.
    pub root: Option<Known>,
    /// Directories: the root, then those in which an entry is said to be one, in the order of these entries.
    pub dirs: Vec<SavedDir>,
}

/// What was known of the names in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Wire)]
pub struct SavedDir {
    /// When the listing was known to be as it is; [`None`] when these are only some of the names.
    pub listed: Option<Learnt>,
    /// Times of change of the directory with this listing, if it is sure to have others after a change.
    pub stamp: Option<(Time, Time)>,
    /// The names.
    pub entries: Vec<SavedEntry>,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
pub struct SavedEntry {
    /// The name.
    pub name: Name,
    /// Its position in the listing.
    pub cookie: u64,
    /// The inode number that the listing told.
    pub ino: u64,
    /// The kind of file, where the listing told it.
    pub kind: Option<FileKind>,
    /// Attributes of the file.
    pub known: Option<Known>,
    /// It is a directory of which names are saved as well.
    pub is_open: bool,
}

/// What was known of a file.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
pub struct Known {
    /// When its attributes were asked for.
    pub learnt: Learnt,
    /// Its attributes.
    pub attr: Attr,
    /// Where it points, as a symbolic link.
    pub target: Option<Target>,
}

impl SavedTree {
    /// The file that holds this of the tree called `tree`.
    pub fn encode(&self, tree: &str) -> Vec<u8> {
        let mut file = [MAGIC, &[0; 4][..]].concat();
        Bytes::copy_from_slice(tree.as_bytes()).put(&mut file);
        (self.writer, self.mark).put(&mut file);
        self.root.put(&mut file);
        self.dirs.iter().for_each(|dir| dir.put(&mut file));
        let sum = crc32fast::hash(&file[SEAL..]);
        file[SEAL - 4..SEAL].copy_from_slice(&sum.to_le_bytes());
        file
    }

    /// What a file holds of the tree called `tree`, which is whole and undamaged, with at most so many entries. [`None`] for anything
    /// else.
    pub fn decode(file: Bytes, tree: &str, entries_max: usize) -> Option<Self> {
        let (seal, rest) = file.split_at_checked(SEAL)?;
        let (magic, sum) = seal.split_at(MAGIC.len());
        if magic != MAGIC || sum != crc32fast::hash(rest).to_le_bytes() {
            return None;
        }
        let mut input = file.slice(SEAL..);
        if Bytes::get(&mut input).ok()? != tree.as_bytes() {
            return None;
        }
        let (writer, mark) = Wire::get(&mut input).ok()?;
        let root = Wire::get(&mut input).ok()?;
        let (mut dirs, mut entries, mut announced) = (Vec::new(), 0, 1);
        while input.has_remaining() {
            let dir = SavedDir::get(&mut input).ok()?;
            entries += dir.entries.len();
            announced += dir.entries.iter().filter(|entry| entry.is_open).count();
            let is_next = dirs.len() < announced && entries <= entries_max;
            if !is_next || !dir.has_places() || !dir.entries.iter().all(SavedEntry::is_sound) {
                return None;
            }
            dirs.push(dir);
        }
        let is_whole = dirs.len() == announced || dirs.is_empty();
        is_whole.then_some(SavedTree { writer, mark, root, dirs })
    }

    /// How many names there are, and how many of these were listed or asked for from some moment on.
    pub(super) fn news(&self, since: Learnt) -> (usize, usize) {
        let of_dir = |dir: &SavedDir| match dir.listed.is_some_and(|listed| listed >= since) {
            true => dir.entries.len(),
            false => {
                let known = dir.entries.iter().filter_map(|entry| entry.known.as_ref());
                known.filter(|known| known.learnt >= since).count()
            }
        };
        (self.dirs.iter().map(|dir| dir.entries.len()).sum(), self.dirs.iter().map(of_dir).sum())
    }

    /// Nothing that was learnt up to some moment counts as fresh.
    pub fn expire(&mut self, until: Learnt) {
        let expire = |learnt: &mut Learnt| {
            if *learnt <= until {
                *learnt = 0;
            }
        };
        self.root.iter_mut().for_each(|known| expire(&mut known.learnt));
        for dir in &mut self.dirs {
            dir.listed.iter_mut().for_each(expire);
            dir.entries
                .iter_mut()
                .flat_map(|entry| &mut entry.known)
                .for_each(|known| expire(&mut known.learnt));
        }
    }
}

impl SavedDir {
    /// Whether each position can be found again.
    fn has_places(&self) -> bool {
        let mut seen = HashSet::new();
        let mut is_new = |cookie: u64| (1..=COOKIE_MAX).contains(&cookie) && seen.insert(cookie);
        self.listed.is_none() || self.entries.iter().all(|entry| is_new(entry.cookie))
    }
}

impl SavedEntry {
    fn is_sound(&self) -> bool {
        let fits = |known: &Known| FileKind::of_mode(known.attr.mode) == self.kind;
        let is_dir = self.kind == Some(FileKind::Directory);
        self.known.as_ref().is_none_or(|known| self.kind.is_some() && fits(known))
            && (is_dir || !self.is_open)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    const MANY: usize = 100;

    fn entry(name: &str, cookie: u64, kind: FileKind) -> SavedEntry {
        let attr = Attr { mode: kind.bits() | 0o644, size: cookie, ..Attr::default() };
        let target = (kind == FileKind::Symlink).then(|| Target::new("there").expect("a target"));
        let known = Some(Known { learnt: cookie * 100, attr, target });
        let name = Name::try_from(name).expect("a name");
        SavedEntry { name, cookie, ino: 7, kind: Some(kind), known, is_open: kind == FileKind::Directory }
    }

    fn tree() -> SavedTree {
        let entries = vec![
            entry("file", 1, FileKind::Regular),
            entry("link", 2, FileKind::Symlink),
            entry("dir", 3, FileKind::Directory),
        ];
        let (time, inside) = (Time::new(-5, 6), vec![entry("inside", 9, FileKind::Regular)]);
        let root = SavedDir { listed: Some(50), stamp: Some((time, time)), entries };
        let dir = SavedDir { listed: None, stamp: None, entries: inside };
        let known = Known { learnt: 5, attr: Attr::default(), target: None };
        SavedTree { writer: 1, mark: 2, root: Some(known), dirs: vec![root, dir] }
    }

    fn decoded(file: &[u8]) -> Option<SavedTree> {
        SavedTree::decode(Bytes::copy_from_slice(file), "the tree", MANY)
    }

    /// The file, with its checksum put right after a change.
    fn sealed(mut file: Vec<u8>) -> Vec<u8> {
        let sum = crc32fast::hash(&file[SEAL..]);
        file[SEAL - 4..SEAL].copy_from_slice(&sum.to_le_bytes());
        file
    }

    #[test]
    fn damage_at_each_place_is_found_and_nothing_else_is_read() {
        let file = tree().encode("the tree");
        assert_eq!(decoded(&file), Some(tree()));
        for at in 0..file.len() {
            for bit in [1, 0x80] {
                let mut damaged = file.clone();
                damaged[at] ^= bit;
                assert_eq!(decoded(&damaged), None, "{at}");
            }
            assert_eq!(decoded(&file[..at]), None, "cut at {at}");
        }
        assert_eq!(decoded(&[&file[..], b"x"].concat()), None);
        assert_eq!(SavedTree::decode(file.clone().into(), "the tre", MANY), None);
        assert_eq!(SavedTree::decode(file.into(), "the tree", 3), None, "four entries");
    }

    #[test]
    fn what_no_server_could_have_sent_is_refused() {
        type Change = fn(&mut SavedTree);
        let changes: [Change; 8] = [
            |tree| tree.dirs[0].entries[1].cookie = 1,
            |tree| tree.dirs[0].entries[1].cookie = 0,
            |tree| tree.dirs[0].entries[1].cookie = u64::MAX,
            |tree| tree.dirs[0].entries[0].is_open = true,
            |tree| tree.dirs[0].entries[2].is_open = false,
            |tree| tree.dirs[0].entries[1].kind = Some(FileKind::Regular),
            |tree| tree.dirs[0].entries[1].kind = None,
            |tree| drop(tree.dirs.pop()),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut changed = tree();
            change(&mut changed);
            assert_eq!(decoded(&changed.encode("the tree")), None, "{number}");
        }
    }

    #[test]
    fn what_was_learnt_before_a_change_is_not_fresh() {
        let mut tree = tree();
        tree.expire(200);
        let learnt: Vec<_> =
            tree.dirs[0].entries.iter().flat_map(|entry| &entry.known).map(|known| known.learnt).collect();
        assert_eq!((tree.root.map(|root| root.learnt), tree.dirs[0].listed), (Some(0), Some(0)));
        assert_eq!(learnt, [0, 0, 300]);
    }

    proptest! {
        #[test]
        fn whatever_is_sealed_does_no_harm(
            at in any::<proptest::sample::Index>(),
            bytes in proptest::collection::vec(any::<u8>(), 1..9),
        ) {
            let mut file = tree().encode("the tree");
            let at = SEAL + at.index(file.len() - SEAL);
            let end = file.len().min(at + bytes.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
            let file = sealed(file);
            if let Some(tree) = decoded(&file) {
                prop_assert_eq!(tree.encode("the tree"), file);
            }
        }
    }
}
