// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are known, and what each is called in the upper tree and in the lower one.
//!
//! All of it is in memory that outlives the process, where there is any: the next process goes on with the same numbers, also of
//! files that have lost their names.

use outrigger_core::hash::siphash13;
use outrigger_core::node_table::FileKey;
use outrigger_core::reply::Entry;
use outrigger_core::survive::{Area, Layout, Slots, Stored};
use outrigger_core::{Attr, Errno, HeapRegion, Keep, Name, Node, NodeTable, Region, Result, lock};
use std::sync::{Arc, Mutex};

/// Room for the nodes known, in bytes; taken as it fills.
const NODES: usize = 1 << 28;
/// No node of the table takes less.
const NODE_BYTES: usize = 32;
/// Beside the permissions of a file that is known in the lower tree.
const KNOWN: u32 = 1 << 31;
/// How many copies can be noted that were not finished.
const COPIES: usize = 64;

/// One of the two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that changes.
    Upper,
    /// The one that stays as it is.
    Lower,
}

/// What a file is in the trees. The table holds one reference to each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// In the upper tree.
    pub(crate) upper: Option<Node>,
    /// In the lower tree. A file that has an upper node as well was copied, a directory is merged.
    pub(crate) lower: Option<Node>,
    /// The inode number it shows.
    pub(crate) ino: u64,
    /// Who owns it in the lower tree, where it is known there.
    pub(crate) belongs: Option<Belongs>,
}

/// Owner and permissions of a file of the lower tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Belongs {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) permissions: u32,
}

impl Belongs {
    fn of(attr: &Attr) -> Self {
        Belongs { uid: attr.uid, gid: attr.gid, permissions: attr.permissions() }
    }
}

impl Bound {
    /// The tree that its content and attributes come from, and what it is called there.
    pub(crate) fn shown(&self) -> Result<(Side, Node)> {
        let lower = self.lower.map(|node| (Side::Lower, node));
        self.upper.map(|node| (Side::Upper, node)).or(lower).ok_or_else(|| Errno::ESTALE.into())
    }
}

/// References that the layer has no use for.
pub(crate) type Spare = Vec<(Side, Node)>;

outrigger_core::fields! {
    struct Row {
        /// The node that the row is of; 0 while the others change.
        node: u64,
        upper: u64,
        lower: u64,
        ino: u64,
        /// User and group in the lower tree.
        owner: u64,
        /// Permissions in the lower tree; 0 where it is not known there.
        permissions: u64,
    }
}

outrigger_core::record! {
    /// A copy that is not finished: so much of the content is in the temporary file. The file is known by a hash of its path.
    #[derive(Clone, Copy)]
    struct Copying { file: u64, version: u64, done: u64 }
}

/// The table.
pub(crate) struct Nodes {
    table: NodeTable,
    rows: Area,
    copies: Mutex<Slots<Copying>>,
    /// Held while the table and its rows change together.
    naming: Mutex<()>,
}

fn node(number: u64) -> Option<Node> {
    (number != 0).then_some(Node(number))
}

/// The inode number that is shown for one of a tree: numbers of the two trees never meet.
pub(crate) fn ino(side: Side, ino: u64, dev: u64) -> u64 {
    let number = match dev == 0 && ino < 1 << 62 {
        true => ino,
        false => siphash13(&[ino.to_le_bytes(), dev.to_le_bytes()].concat()),
    };
    number << 1 | u64::from(side == Side::Lower)
}

impl Nodes {
    /// The table, with what former processes left in `keep`.
    ///
    /// # Errors
    /// Those of [`NodeTable::attach`] and [`Layout::attach`].
    pub(crate) fn open(keep: Option<&dyn Keep>) -> Result<Self> {
        let layout = Layout::of("union");
        let words = Slots::<Copying>::words(COPIES) + NODES / NODE_BYTES * <Row<'_> as Stored>::WORDS;
        let (table, mut area) = match keep {
            Some(keep) => {
                let table = NodeTable::attach(keep.region("union-nodes", NODES / 8)?)?;
                (table, layout.attach(keep, words)?.area)
            }
            None => {
                let region: Arc<dyn Region> = Arc::new(HeapRegion::new(Layout::words(words)));
                (NodeTable::in_memory(NODES)?, layout.open(region)?.area)
            }
        };
        let copies = Mutex::new(Slots::open(area.take(Slots::<Copying>::words(COPIES))?));
        let nodes = Nodes { table, rows: area, copies, naming: Mutex::new(()) };
        let root = nodes.row(Node::ROOT);
        if root.node().get() == 0 {
            root.upper().set(Node::ROOT.0);
            root.lower().set(Node::ROOT.0);
            root.ino().set(Node::ROOT.0);
            root.node().set(Node::ROOT.0);
        }
        Ok(nodes)
    }

    fn row(&self, node: Node) -> Row<'_> {
        self.rows.row::<Row<'_>>().at(node.0 as u32 as usize)
    }

    fn known(&self, of: Node) -> Option<Bound> {
        let in_range = (of.0 as u32 as usize) < NODES / NODE_BYTES;
        let row = in_range.then(|| self.row(of)).filter(|row| row.node().get() == of.0)?;
        let [upper, lower] = [row.upper(), row.lower()].map(|word| node(word.get()));
        Some(Bound { upper, lower, ino: row.ino().get(), belongs: Self::belongs(row) })
    }

    fn belongs(row: Row<'_>) -> Option<Belongs> {
        let (owner, permissions) = (row.owner().get(), row.permissions().get());
        let (uid, gid, permissions) = ((owner >> 32) as u32, owner as u32, permissions as u32 & !KNOWN);
        (row.permissions().get() != 0).then_some(Belongs { uid, gid, permissions })
    }

    fn set_belongs(row: Row<'_>, belongs: Option<Belongs>) {
        row.permissions().set(0);
        if let Some(Belongs { uid, gid, permissions }) = belongs {
            row.owner().set(u64::from(uid) << 32 | u64::from(gid));
            row.permissions().set((permissions | KNOWN).into());
        }
    }

    /// The root of the lower tree has these attributes.
    pub(crate) fn root_is_of(&self, attr: &Attr) {
        Self::set_belongs(self.row(Node::ROOT), Some(Belongs::of(attr)));
    }

    /// What a node is in the trees.
    ///
    /// # Errors
    /// `ESTALE` when it is not known.
    pub(crate) fn bound(&self, node: Node) -> Result<Bound> {
        let bound = self.known(node).filter(|_| node != Node(0));
        bound.ok_or_else(|| Errno::ESTALE.because(format!("{node:?} is not known any more")))
    }

    /// The nodes and their names.
    pub(crate) fn table(&self) -> &NodeTable {
        &self.table
    }

    /// The directory and the name of a node.
    ///
    /// # Errors
    /// `ESTALE` when it has none.
    pub(crate) fn place(&self, node: Node) -> Result<(Node, Name)> {
        let removed = || Errno::ESTALE.because("the file was removed");
        self.table.names(node)?.into_iter().next().ok_or_else(removed)
    }

    /// What is known of a name.
    pub(crate) fn at(&self, dir: Node, name: &Name) -> Option<Bound> {
        self.table.get(dir, name).and_then(|node| self.known(node))
    }

    /// Whether what is known of a file agrees with what a lookup has found. A file that was being copied meanwhile may have been
    /// found in the lower tree alone.
    fn fits(bound: &Bound, upper: Option<Node>, lower: Option<Node>) -> bool {
        match (bound.upper, upper) {
            (Some(known), Some(found)) => known == found,
            (None, Some(_)) => true,
            (_, None) => lower.is_some() && bound.lower == lower,
        }
    }

    /// `name` in `dir` leads to these: the node, with one more reference, and references that are left over.
    ///
    /// # Errors
    /// `ESTALE` when `dir` is not known, `ENFILE` when too many files are known.
    pub(crate) fn found(
        &self,
        dir: Node,
        name: &Name,
        upper: Option<&Entry>,
        lower: Option<&Entry>,
    ) -> Result<(Node, Spare)> {
        let _naming = lock(&self.naming);
        let nodes = [upper, lower].map(|entry| entry.map(|entry| entry.node));
        if let Some(known) = self.table.get(dir, name)
            && !self.known(known).is_some_and(|bound| Self::fits(&bound, nodes[0], nodes[1]))
        {
            self.table.removed(dir, name);
        }
        let key = nodes[0].and_then(|upper| FileKey::new(upper.0));
        let node = self.table.found(dir, name, key)?;
        Ok((node, self.bind(node, upper, lower)))
    }

    /// A file without a name in the upper tree.
    ///
    /// # Errors
    /// `ENFILE` when too many files are known.
    pub(crate) fn found_nameless(&self, upper: &Entry) -> Result<(Node, Spare)> {
        let _naming = lock(&self.naming);
        let node = self.table.found_nameless(FileKey::new(upper.node.0))?;
        Ok((node, self.bind(node, Some(upper), None)))
    }

    fn bind(&self, node: Node, upper: Option<&Entry>, lower: Option<&Entry>) -> Spare {
        let row = self.row(node);
        let mut spare = Vec::new();
        let [first, second] = [upper, lower].map(|entry| entry.map_or(0, |entry| entry.node.0));
        if row.node().get() == node.0 {
            if row.upper().get() == 0 {
                row.upper().set(first);
            } else {
                spare.extend(upper.map(|entry| (Side::Upper, entry.node)));
            }
            spare.extend(lower.map(|entry| (Side::Lower, entry.node)));
            return spare;
        }
        spare.extend(Self::take(row));
        let shown = upper.map(|entry| (Side::Upper, entry)).or(lower.map(|entry| (Side::Lower, entry)));
        row.upper().set(first);
        row.lower().set(second);
        Self::set_belongs(row, lower.map(|entry| Belongs::of(&entry.attr)));
        row.ino().set(shown.map_or(0, |(side, entry)| ino(side, entry.attr.ino, entry.attr.dev)));
        row.node().set(node.0);
        spare
    }

    /// What a row holds that is of use no more.
    fn take(row: Row<'_>) -> Spare {
        let was = row.node().get();
        row.node().set(0);
        let held = [(Side::Upper, row.upper().get()), (Side::Lower, row.lower().get())];
        let held = held.into_iter().filter(|_| was != 0);
        held.filter_map(|(side, number)| Some((side, node(number)?))).collect()
    }

    /// The file got a copy in the upper tree, called `upper` there, whose reference the table takes over. With `ino` it shows
    /// another inode number from now on.
    ///
    /// # Errors
    /// `ESTALE` when it is not known.
    pub(crate) fn copied(&self, of: Node, upper: Node, ino: Option<u64>) -> Result<()> {
        let _naming = lock(&self.naming);
        let (dir, name) = self.place(of)?;
        let row = self.row(of);
        ino.into_iter().for_each(|ino| row.ino().set(ino));
        row.upper().set(upper.0);
        let node = self.table.found(dir, &name, FileKey::new(upper.0))?;
        self.table.forget(node, 1);
        Ok(())
    }

    /// The directory that has a name shows nothing of the lower tree any more; gives the reference to what it was there.
    pub(crate) fn parted(&self, dir: Node, name: &Name) -> Spare {
        let _naming = lock(&self.naming);
        let known = self.table.get(dir, name).filter(|&node| self.known(node).is_some());
        let row = known.map(|node| self.row(node)).filter(|row| row.upper().get() != 0);
        let lower = row.and_then(|row| {
            let lower = node(row.lower().get());
            row.lower().set(0);
            Self::set_belongs(row, None);
            lower
        });
        lower.map(|lower| (Side::Lower, lower)).into_iter().collect()
    }

    /// A name is gone.
    pub(crate) fn removed(&self, dir: Node, name: &Name) {
        let _naming = lock(&self.naming);
        self.table.removed(dir, name);
    }

    /// The file got a further name, and the caller a reference.
    ///
    /// # Errors
    /// Those of [`NodeTable::linked`].
    pub(crate) fn linked(&self, node: Node, dir: Node, name: &Name) -> Result<()> {
        let _naming = lock(&self.naming);
        self.table.linked(node, dir, name)
    }

    /// A name moved, or two changed places.
    ///
    /// # Errors
    /// Those of [`NodeTable::renamed`].
    pub(crate) fn moved(&self, from: (Node, &Name), to: (Node, &Name), exchange: bool) -> Result<()> {
        let _naming = lock(&self.naming);
        if exchange { self.table.exchanged(from, to) } else { self.table.renamed(from, to) }
    }

    /// Returns references; gives those that the table held for what is not known any more.
    pub(crate) fn forget(&self, node: Node, count: u64) -> Spare {
        let _naming = lock(&self.naming);
        let is_last = self.table.references(node).is_some_and(|refs| u64::from(refs) <= count);
        // A directory without references is dropped with the last name that is known in it.
        let mut above = if is_last && !self.table.has_names_below(node) { vec![node] } else { Vec::new() };
        let mut next = 0;
        while let Some(&one) = above.get(next) {
            let dirs = self.table.names(one).unwrap_or_default().into_iter().map(|(dir, _)| dir);
            above.extend(dirs.filter(|&dir| self.table.references(dir) == Some(0)));
            next += 1;
        }
        self.table.forget(node, count);
        let dropped = above.into_iter().filter(|&one| self.table.key(one).is_err());
        let rows = dropped.filter(|&one| self.known(one).is_some()).map(|one| self.row(one));
        rows.flat_map(Self::take).collect()
    }

    /// How much of a file's content a copy has that was not finished, if the file is still in this version.
    pub(crate) fn progress(&self, file: u64, version: u64) -> u64 {
        let copies = lock(&self.copies);
        let found = copies.iter().find(|(_, copy)| copy.file == file && copy.version == version);
        found.map_or(0, |(_, copy)| copy.done)
    }

    /// Notes how much there is; nothing when the copy has ended. What finds no room starts anew after a death.
    pub(crate) fn note(&self, file: u64, version: u64, done: Option<u64>) {
        let mut copies = lock(&self.copies);
        let slot = copies.iter().find(|(_, copy)| copy.file == file).map(|(slot, _)| slot.index);
        match (slot, done) {
            (Some(slot), Some(done)) => copies.update(slot, &Copying { file, version, done }),
            (Some(slot), None) => copies.remove(slot),
            (None, Some(done)) => drop(copies.insert(&Copying { file, version, done })),
            (None, None) => {}
        }
    }
}
