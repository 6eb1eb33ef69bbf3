// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our numbers of files, and the program's.
//!
//! A program counts its nodes anew whenever it starts. So the door gets numbers of ours, from the core's [`NodeTable`],
//! which knows the path of each; and for each number we note what the running program, counted by its *epoch*, calls
//! it. A number noted in an earlier epoch is looked up again by path when it is next used.

use crate::decode;
use crate::hidden::is_hidden_name;
use crate::identity::{Identity, Occasion, Seen};
use crate::message::Fault;
use crate::stored::{Names, Stored};
use outrigger_core::attr::SET_ID;
use outrigger_core::{Attr, Errno, FileKind, Name, Node, NodeTable, Result, lock};
use outrigger_proto_fuse::EntryOut;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// Memory the table may grow to; untouched memory costs nothing.
const TABLE_BYTES: usize = 1 << 30;
/// Counts the programs that served this tree, one after the other.
pub(crate) type Epoch = u32;

/// See the [module](self).
pub(crate) struct Nodes {
    table: NodeTable,
    known: Mutex<Known>,
    /// Names that led to nothing when they were last looked up.
    absent: Mutex<HashSet<Place>>,
    /// Renames in flight: until they are answered, a file may be at either place.
    moves: Mutex<Vec<(Place, Place)>>,
    /// What programs have reported stored.
    pub(crate) stored: Stored,
}

/// A name in a directory.
pub(crate) type Place = (Node, Name);
/// How many absent names are remembered: those the kernel has asked for just before it makes something.
const ABSENT: usize = 1024;
/// So many files are looked at to find out what inode numbers mean.
const WITNESSES: usize = 4;

#[derive(Default)]
struct Known {
    epoch: Epoch,
    /// The inode number of the root, as the running program shows it.
    root: Option<u64>,
    /// Files that did not change have had other inode numbers.
    renumbered: bool,
    /// From the program's numbers, of this epoch only.
    ours: HashMap<u64, Node>,
    theirs: HashMap<Node, Theirs>,
    /// Directories without references that live on for what is known below them, and the directories above them.
    kept: HashMap<Node, Vec<Node>>,
}

/// What is known of a file besides its place.
#[derive(Debug, Clone)]
struct Theirs {
    epoch: Epoch,
    /// The program's number in that epoch.
    id: u64,
    /// References the program counts, in that epoch.
    references: u64,
    kind: FileKind,
    /// The program has no inode numbers but its node's: they change when it is restarted, ours do not.
    unnumbered: bool,
    /// Open handles.
    opened: u32,
    /// It was removed while it was open, and lives on under a hidden name.
    hidden: bool,
    /// It was made without a name and may get one (`O_TMPFILE`).
    nameless: bool,
    /// The permissions last seen have set-id bits.
    set_id: bool,
    /// The size last seen.
    size: u64,
    /// Where the acknowledged writes end.
    written: u64,
    identity: Identity,
}

/// References to return to the program: its number, and how many.
pub(crate) type Forgotten = (u64, u64);

impl Nodes {
    /// A table with nothing but the root.
    ///
    /// # Errors
    /// None in practice: the table's memory is taken when it is used.
    pub(crate) fn new() -> Result<Self> {
        Ok(Nodes {
            table: NodeTable::in_memory(TABLE_BYTES)?,
            known: Mutex::default(),
            absent: Mutex::default(),
            moves: Mutex::default(),
            stored: Stored::default(),
        })
    }

    /// Another program serves the tree from now on.
    pub(crate) fn next_epoch(&self, epoch: Epoch) {
        let mut known = lock(&self.known);
        known.epoch = epoch;
        known.root = None;
        known.ours.clear();
    }

    /// The program that serves from now on is not the same one started again.
    pub(crate) fn next_program(&self) {
        lock(&self.known).renumbered = false;
    }

    /// The root has this inode number in the running program.
    pub(crate) fn root_is(&self, ino: u64, epoch: Epoch) {
        let mut known = lock(&self.known);
        if known.epoch == epoch {
            known.root = Some(ino);
        }
    }

    /// Notes something of what `node` is known by.
    pub(crate) fn identity(&self, node: Node, change: impl FnOnce(&mut Identity)) {
        if let Some(theirs) = lock(&self.known).theirs.get_mut(&node) {
            change(&mut theirs.identity);
        }
    }

    /// The program shows `node` with these attributes.
    pub(crate) fn observe(&self, node: Node, attr: &Attr, occasion: Occasion, epoch: Epoch) {
        let mut known = lock(&self.known);
        // The answer of a program that has died may come late.
        if known.theirs.get(&node).is_some_and(|theirs| theirs.epoch == epoch) {
            known.observe(node, attr, occasion);
        }
    }

    /// Some files whose inode numbers show whether the running program counts as the one before did, if that matters.
    pub(crate) fn witnesses(&self) -> Vec<Node> {
        let mut guard = lock(&self.known);
        let Known { epoch, root: Some(_), renumbered: false, theirs, .. } = &mut *guard else {
            return Vec::new();
        };
        let is_file = |theirs: &Theirs| theirs.kind == FileKind::Regular && theirs.epoch != *epoch;
        if !theirs.values().any(|theirs| is_file(theirs) && theirs.opened > 0) {
            return Vec::new();
        }
        let files = theirs.iter_mut().filter(|(_, theirs)| is_file(theirs) && !theirs.hidden);
        let witnesses = files.filter_map(|(&node, theirs)| theirs.identity.take_witness().then_some(node));
        witnesses.take(WITNESSES).collect()
    }

    /// Whether inode numbers are known to mean nothing.
    pub(crate) fn renumbered(&self) -> bool {
        lock(&self.known).renumbered
    }

    /// What the program shows at `path` is not what it had reported stored there, but a file of others: nothing is
    /// expected of that.
    pub(crate) fn expect_nothing_of_others(&self, path: &Names, entry: &EntryOut) {
        let node = path.iter().try_fold(Node::ROOT, |dir, name| self.table.get(dir, name));
        let (Some(node), Ok((attr, _))) = (node, decode::attr(&entry.attr)) else { return };
        let known = lock(&self.known);
        let seen = Seen::new(&attr, entry.nodeid, known.root);
        let is_replaced =
            |theirs: &Theirs| theirs.kind == FileKind::Regular && theirs.identity.is_replaced(&seen);
        if !known.renumbered && known.theirs.get(&node).is_some_and(is_replaced) {
            drop(known);
            self.stored.removed(path);
        }
    }

    /// Which of the files that have had the path of `node` it leads to now.
    pub(crate) fn version(&self, node: Node) -> u32 {
        lock(&self.known).theirs.get(&node).map_or(0, |theirs| theirs.identity.version())
    }

    /// Which program serves the tree.
    pub(crate) fn epoch(&self) -> Epoch {
        lock(&self.known).epoch
    }

    /// The program's number of `node`, if it is known in this epoch.
    pub(crate) fn theirs(&self, node: Node, epoch: Epoch) -> Option<u64> {
        if node == Node::ROOT {
            return Some(decode::ROOT);
        }
        lock(&self.known).theirs.get(&node).filter(|theirs| theirs.epoch == epoch).map(|theirs| theirs.id)
    }

    /// Our number of the program's node, if it has one.
    pub(crate) fn ours(&self, id: u64) -> Option<Node> {
        if id == decode::ROOT { Some(Node::ROOT) } else { lock(&self.known).ours.get(&id).copied() }
    }

    /// All names of `node`.
    ///
    /// # Errors
    /// `ESTALE` when it is not known or was removed.
    pub(crate) fn names(&self, node: Node) -> Result<Vec<Place>> {
        let names = self.table.names(node)?;
        if names.is_empty() {
            return Err(Errno::ESTALE.because("the file was removed"));
        }
        Ok(names)
    }

    /// The path of `node`, for people.
    pub(crate) fn path(&self, node: Node) -> Result<Vec<Name>> {
        self.table.path(node)
    }

    /// Whether `node` is `below` or one of the directories above it.
    pub(crate) fn is_above(&self, node: Node, mut below: Node) -> bool {
        while below != node {
            match self.table.names(below).ok().and_then(|names| names.into_iter().next()) {
                Some((dir, _)) => below = dir,
                None => return false,
            }
        }
        true
    }

    /// The node `name` is known to lead to.
    pub(crate) fn get(&self, dir: Node, name: &Name) -> Option<Node> {
        self.table.get(dir, name)
    }

    /// `name` in `dir` leads to `entry`: its number, with one more reference for the door and one for the program.
    ///
    /// # Errors
    /// `ESTALE` when `dir` is not known, `ENFILE` when there are too many files; the program's reference is not
    /// counted then.
    pub(crate) fn found(&self, dir: Node, name: &Name, entry: &EntryOut, kind: FileKind) -> Result<Node> {
        let (attr, _) = decode::attr(&entry.attr)?;
        let mut known = lock(&self.known);
        let same = known.ours.get(&entry.nodeid).copied();
        let same = same.filter(|node| known.theirs.get(node).is_some_and(|theirs| theirs.kind == kind));
        let same = same.filter(|&node| self.table.names(node).is_ok());
        let here = self.table.get(dir, name);
        let node = match (same, here) {
            (Some(node), Some(here)) if node == here => self.table.found(dir, name, None)?,
            (Some(node), _) => self.under_another_name(node, kind, dir, name)?,
            (None, Some(here)) if known.may_be(here, kind) => self.table.found(dir, name, None)?,
            (None, Some(_)) => {
                self.table.removed(dir, name);
                self.table.found(dir, name, None)?
            }
            (None, None) => self.table.found(dir, name, None)?,
        };
        known.note(node, entry, &attr, kind);
        Ok(node)
    }

    /// A known file has a further name, or was renamed by others.
    fn under_another_name(&self, node: Node, kind: FileKind, dir: Node, name: &Name) -> Result<Node> {
        if kind != FileKind::Directory {
            self.table.linked(node, dir, name)?;
            return Ok(node);
        }
        if let Some((old_dir, old_name)) = self.table.names(node)?.first() {
            self.table.renamed((*old_dir, old_name), (dir, name))?;
        }
        self.table.found(dir, name, None)
    }

    /// `node` was looked up again by path. The door's references stay as they are.
    ///
    /// # Errors
    /// `ESTALE` when it is a file of another kind now.
    pub(crate) fn found_again(&self, node: Node, entry: &EntryOut, kind: FileKind) -> Result<()> {
        let (attr, _) = decode::attr(&entry.attr)?;
        let mut known = lock(&self.known);
        let Some(theirs) = known.theirs.get(&node) else {
            return Err(Errno::ESTALE.because("the file was forgotten"));
        };
        if theirs.kind != kind {
            return Err(Errno::ESTALE.because("another kind of file has the name now"));
        }
        known.note(node, entry, &attr, kind);
        Ok(())
    }

    /// Attributes as the door shall see them.
    pub(crate) fn show(&self, node: Node, mut attr: Attr) -> Attr {
        if let Some(theirs) = lock(&self.known).theirs.get_mut(&node) {
            theirs.set_id = attr.mode & SET_ID != 0;
            theirs.size = attr.size;
            if theirs.unnumbered {
                attr.ino = node.0;
            }
            if theirs.hidden {
                attr.nlink = attr.nlink.saturating_sub(1);
            }
        }
        attr
    }

    /// The inode number of a name in a listing.
    pub(crate) fn listed_ino(&self, dir: Node, name: &Name, ino: u64) -> u64 {
        let node = self.table.get(dir, name);
        let known = lock(&self.known);
        match node.and_then(|node| known.theirs.get(&node).map(|theirs| (node, theirs.unnumbered))) {
            Some((node, true)) => node.0,
            _ => ino,
        }
    }

    /// Whether `node` had set-id bits when its attributes were last seen.
    pub(crate) fn has_set_id(&self, node: Node) -> bool {
        lock(&self.known).theirs.get(&node).is_some_and(|theirs| theirs.set_id)
    }

    /// Content of `node` up to `end` was acknowledged.
    pub(crate) fn written(&self, node: Node, end: u64) {
        if let Some(theirs) = lock(&self.known).theirs.get_mut(&node) {
            theirs.written = theirs.written.max(end);
            // Another write may have been flushed since this one was sent.
            theirs.identity.may_resize(u64::MAX, end);
        }
    }

    /// `node` was cut to `size`.
    pub(crate) fn cut(&self, node: Node, size: u64) {
        if let Some(theirs) = lock(&self.known).theirs.get_mut(&node) {
            theirs.written = theirs.written.min(size);
            theirs.size = size;
        }
    }

    /// Where `node` ends as far as it is known: the size last seen, and the end of acknowledged writes.
    pub(crate) fn ends(&self, node: Node) -> (u64, u64) {
        lock(&self.known).theirs.get(&node).map_or((0, 0), |theirs| (theirs.size, theirs.written))
    }

    /// The kind `node` has always had.
    pub(crate) fn kind(&self, node: Node) -> Option<FileKind> {
        lock(&self.known).theirs.get(&node).map(|theirs| theirs.kind)
    }

    /// `name` in `dir` leads to nothing.
    pub(crate) fn is_absent(&self, dir: Node, name: &Name) {
        self.table.removed(dir, name);
        let mut absent = lock(&self.absent);
        if absent.len() >= ABSENT {
            absent.clear();
        }
        absent.insert((dir, name.clone()));
    }

    /// Whether `name` leads to something, as far as it is known from the last look; asked once for each look.
    pub(crate) fn last_seen(&self, dir: Node, name: &Name) -> Option<bool> {
        let absent = lock(&self.absent).remove(&(dir, name.clone()));
        if self.table.get(dir, name).is_some() { Some(true) } else { absent.then_some(false) }
    }

    /// A rename is about to be asked for.
    pub(crate) fn may_move(&self, from: Place, to: Place) {
        let mut moves = lock(&self.moves);
        if !moves.iter().any(|(old, new)| *old == from && *new == to) {
            moves.push((from, to));
        }
    }

    /// It is known what became of it.
    pub(crate) fn has_moved(&self, from: &Place, to: &Place) {
        lock(&self.moves).retain(|(old, new)| old != from || new != to);
    }

    /// Where else a file may be.
    pub(crate) fn elsewhere(&self, place: &Place) -> Option<Place> {
        lock(&self.moves).iter().find(|(from, _)| from == place).map(|(_, to)| to.clone())
    }

    /// The path of `name` in `dir`, unless it is a hidden one.
    pub(crate) fn path_of(&self, dir: Node, name: &Name) -> Option<Names> {
        let mut path = self.table.path(dir).ok().filter(|_| !is_hidden_name(name))?;
        path.push(name.clone());
        Some(path)
    }

    /// The program has made `name`.
    pub(crate) fn made(&self, dir: Node, name: &Name) {
        if let Some(path) = self.path_of(dir, name) {
            self.stored.add(path, 0, self.epoch());
        }
    }

    /// The program has reported what was written to `node` stored; `everything` when no write is left that it has not.
    pub(crate) fn saved(&self, node: Node, everything: bool) {
        if everything {
            self.identity(node, Identity::settle);
        }
        let (_, written) = self.ends(node);
        let path = self.table.path(node).unwrap_or_default();
        if written > 0 && path.last().is_some_and(|name| !is_hidden_name(name)) {
            self.stored.add(path, written, self.epoch());
        }
    }

    /// `name` was removed.
    pub(crate) fn removed(&self, dir: Node, name: &Name) {
        if let Some(path) = self.path_of(dir, name) {
            self.stored.removed(&path);
        }
        self.table.removed(dir, name);
    }

    /// `from` became `to`.
    pub(crate) fn renamed(&self, from: (Node, &Name), to: (Node, &Name)) {
        match (self.path_of(from.0, from.1), self.path_of(to.0, to.1)) {
            (Some(from), Some(to)) => self.stored.renamed(&from, to, self.epoch()),
            (Some(from), None) => self.stored.removed(&from),
            (None, Some(to)) => self.stored.add(to, 0, self.epoch()),
            (None, None) => {}
        }
        if self.table.renamed(from, to).is_err() {
            // What is not known any more is looked up again.
            self.table.removed(from.0, from.1);
            self.table.removed(to.0, to.1);
        }
    }

    /// The two files changed places.
    pub(crate) fn exchanged(&self, one: (Node, &Name), other: (Node, &Name)) {
        for path in [one, other].iter().filter_map(|(dir, name)| self.path_of(*dir, name)) {
            self.stored.removed(&path);
        }
        if self.table.exchanged(one, other).is_err() {
            self.table.removed(one.0, one.1);
            self.table.removed(other.0, other.1);
        }
    }

    /// A handle of `node` was opened: which [version](Nodes::version) it has.
    pub(crate) fn opened(&self, node: Node) -> u32 {
        lock(&self.known).theirs.get_mut(&node).map_or(0, |theirs| {
            theirs.opened += 1;
            theirs.identity.version()
        })
    }

    /// A handle was closed: whether it was the last of a hidden file, which is now to be removed.
    pub(crate) fn closed(&self, node: Node) -> bool {
        let mut known = lock(&self.known);
        let Some(theirs) = known.theirs.get_mut(&node) else { return false };
        theirs.opened = theirs.opened.saturating_sub(1);
        theirs.opened == 0 && theirs.hidden
    }

    /// Whether `node` is a file with open handles, and whether it is hidden already.
    pub(crate) fn use_of(&self, node: Node) -> (bool, bool) {
        let known = lock(&self.known);
        let of = |theirs: &Theirs| (theirs.opened > 0 && theirs.kind != FileKind::Directory, theirs.hidden);
        known.theirs.get(&node).map_or((false, false), of)
    }

    /// `node` lives on under a hidden name; `nameless` when it never had another.
    pub(crate) fn hide(&self, node: Node, nameless: bool) {
        if let Some(theirs) = lock(&self.known).theirs.get_mut(&node) {
            theirs.hidden = true;
            theirs.nameless = nameless;
        }
    }

    /// `node` has a name that can be seen.
    pub(crate) fn unhide(&self, node: Node) {
        if let Some(theirs) = lock(&self.known).theirs.get_mut(&node) {
            theirs.hidden = false;
        }
    }

    /// Whether `node` was removed while open. A file that never had a name may get one.
    pub(crate) fn is_removed(&self, node: Node) -> bool {
        lock(&self.known).theirs.get(&node).is_some_and(|theirs| theirs.hidden && !theirs.nameless)
    }

    /// Names of hidden files in `dir`.
    pub(crate) fn hidden_in(&self, dir: Node) -> Vec<Name> {
        let known = lock(&self.known);
        let hidden = known.theirs.iter().filter(|(_, theirs)| theirs.hidden);
        let names = hidden.flat_map(|(&node, _)| self.table.names(node).unwrap_or_default());
        names.filter(|(at, _)| *at == dir).map(|(_, name)| name).collect()
    }

    /// The door returns `count` references: what to return to the program for files without references.
    pub(crate) fn forget(&self, node: Node, count: u64) -> Vec<Forgotten> {
        let last = self.table.references(node).is_some_and(|references| u64::from(references) <= count);
        let above = if last { self.above(node) } else { Vec::new() };
        self.table.forget(node, count);
        if !last || node == Node::ROOT {
            return Vec::new();
        }
        let mut known = lock(&self.known);
        if self.table.names(node).is_ok() {
            known.kept.insert(node, above);
            return Vec::new();
        }
        let mut gone = vec![(node, above)];
        let mut forgotten = Vec::new();
        while let Some((node, above)) = gone.pop() {
            known.kept.remove(&node);
            forgotten.extend(known.remove(node));
            for dir in above {
                if self.table.names(dir).is_err()
                    && let Some(above) = known.kept.remove(&dir)
                {
                    gone.push((dir, above));
                }
            }
        }
        forgotten
    }

    /// The directories with a name of `node`.
    fn above(&self, node: Node) -> Vec<Node> {
        self.table.names(node).unwrap_or_default().into_iter().map(|(dir, _)| dir).collect()
    }
}

impl Known {
    /// What to return to the program for `node`.
    fn remove(&mut self, node: Node) -> Option<Forgotten> {
        let theirs = self.theirs.remove(&node)?;
        if theirs.epoch != self.epoch {
            return None;
        }
        if self.ours.get(&theirs.id) == Some(&node) {
            self.ours.remove(&theirs.id);
        }
        Some((theirs.id, theirs.references))
    }

    /// Whether `node`, which the program does not know yet, may be the file of this kind that has its name now.
    fn may_be(&self, node: Node, kind: FileKind) -> bool {
        self.theirs.get(&node).is_none_or(|theirs| theirs.epoch != self.epoch && theirs.kind == kind)
    }

    /// Only regular files are compared: a handle of another kind writes nothing.
    fn observe(&mut self, node: Node, attr: &Attr, occasion: Occasion) {
        let (root, renumbered) = (self.root, &mut self.renumbered);
        let Some(theirs) = self.theirs.get_mut(&node) else { return };
        // No other process replaces a file under a hidden name.
        if theirs.kind == FileKind::Regular && !theirs.hidden {
            let seen = Seen::new(attr, theirs.id, root);
            theirs.identity.observe(seen, theirs.written, occasion, renumbered);
        }
    }

    fn note(&mut self, node: Node, entry: &EntryOut, attr: &Attr, kind: FileKind) {
        let (epoch, root) = (self.epoch, self.root);
        let before = self.theirs.get(&node).map_or(epoch, |theirs| theirs.epoch);
        let theirs = self.theirs.entry(node).or_insert_with(|| Theirs {
            epoch,
            id: entry.nodeid,
            references: 0,
            kind,
            unnumbered: entry.attr.ino == entry.nodeid,
            opened: 0,
            hidden: false,
            nameless: false,
            set_id: false,
            size: entry.attr.size,
            written: 0,
            identity: Identity::new(Seen::new(attr, entry.nodeid, root)),
        });
        if theirs.epoch != epoch || theirs.id != entry.nodeid {
            theirs.epoch = epoch;
            theirs.id = entry.nodeid;
            theirs.references = 0;
        }
        theirs.references += 1;
        theirs.set_id = entry.attr.mode & SET_ID != 0;
        self.ours.insert(entry.nodeid, node);
        self.observe(node, attr, if before == epoch { Occasion::SameLife } else { Occasion::NextLife });
    }
}

/// What an entry is, checked.
pub(crate) fn checked(entry: &EntryOut) -> Result<(Attr, FileKind), Fault> {
    Ok(decode::attr(&entry.attr)?)
}
