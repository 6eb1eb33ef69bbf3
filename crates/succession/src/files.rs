// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our numbers of files and open files, which stay what they are when a worker dies, and a worker's, which do not.
//!
//! A worker has memory for so many files only. Those that were not used for longest are returned to it, and found again by
//! path when they are used next, as after a death.

use crate::place::REMOVED;
use crate::recent::{Recent, Sequence};
use crate::silly_rename::Nameless;
use outrigger_core::node_table::{FileKey, NodeTable};
use outrigger_core::ops::{OpenFlags, RenameFlags};
use outrigger_core::paths::{Subject, subjects};
use outrigger_core::rebind::Bindings;
use outrigger_core::reply::{Entry, Opened};
use outrigger_core::wire::{Input, Malformed};
use outrigger_core::{Effect, Errno, FileKind, Handle, Name, Node, Reply, Request, Result, Wire};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Room for the names of nodes, in bytes; memory is used as it is needed.
const TABLE: usize = 8 << 30;
/// So many nodes without references, but that may have known names below them, are kept before they are looked at again.
const IDLE: usize = 64;

/// What no worker is numbered.
const NOBODY: u64 = 0;

/// See the [module](self).
#[derive(Wire)]
#[wire(internal)]
pub struct Files {
    table: NodeTable,
    known: HashMap<Node, Known>,
    /// The keys of this worker's nodes, and our number that had each last.
    keys: HashMap<Node, (FileKey, Node)>,
    next_key: u64,
    open: HashMap<Handle, Open>,
    next_handle: u64,
    /// Which worker it is, counted from 1.
    life: u64,
    idle: Vec<Node>,
    idle_most: usize,
    /// What may have lost its last name.
    removed: HashSet<Node>,
    /// What the worker holds.
    recent: Recent,
    /// How many nodes it is to hold at most,
    most: usize,
    /// and with how many that is looked at again: some may be in use.
    crowded: usize,
    /// Whether files have been found for a second time, and may have another inode number.
    found_twice: bool,
    /// What has or had several names, by inode number.
    linked: BTreeSet<(u64, Node)>,
    /// What is open, and what keeps a name therefore that it has lost.
    pub(crate) silly_rename: Nameless,
}

#[derive(Debug, Clone, Copy, Wire)]
#[wire(internal)]
struct Known {
    /// A worker's number, and which worker's; none's when the node was returned.
    theirs: Node,
    life: u64,
    /// When it was last used.
    used: Sequence,
    /// How many references the worker has counted.
    references: u64,
    /// The inode number in the first reply.
    ino: u64,
    /// The checkpoint since which the log of changes names the node.
    logged: Option<u64>,
}

/// An open file, or a directory, which has no flags.
#[derive(Debug, Clone, Copy, Wire)]
#[wire(internal)]
pub struct Open {
    /// What is open.
    pub node: Node,
    /// How.
    pub flags: Option<OpenFlags>,
    theirs: Handle,
    life: u64,
    /// Whether it is in use only by the request that closes it.
    closes: bool,
}

/// What is to be returned to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// Its node.
    pub theirs: Node,
    /// How many references.
    pub count: u64,
}

impl Files {
    /// The root alone, and the first worker, which is to hold so many nodes at most.
    pub fn new(most: usize) -> Result<Self> {
        Ok(Files {
            table: NodeTable::in_memory(TABLE)?,
            known: HashMap::new(),
            keys: HashMap::new(),
            next_key: 1,
            open: HashMap::new(),
            next_handle: 1,
            life: 1,
            idle: Vec::new(),
            idle_most: IDLE,
            removed: HashSet::new(),
            recent: Recent::default(),
            most,
            crowded: most,
            found_twice: false,
            linked: BTreeSet::new(),
            silly_rename: Nameless::default(),
        })
    }

    /// What another process has saved, for the same worker.
    ///
    /// # Errors
    /// [`Malformed`] when it is something else.
    pub fn restored(saved: &mut Input) -> Result<Self, Malformed> {
        let mut files: Files = Wire::get(saved)?;
        let held = files.known.iter().filter(|(_, known)| known.life == files.life);
        held.for_each(|(node, known)| files.recent.was_used(*node, known.used));
        Ok(files)
    }

    /// From here on another worker serves, which knows nothing.
    pub fn next_life(&mut self) {
        self.life += 1;
        self.keys.clear();
        self.recent.clear();
        self.found_twice = true;
    }

    fn theirs(&mut self, node: Node) -> Result<Option<Node>> {
        if node == Node::ROOT || node == REMOVED {
            return Ok(Some(node));
        }
        let known = self.known.get_mut(&node).ok_or(Errno::ESTALE)?;
        if known.life != self.life {
            return Ok(None);
        }
        self.recent.touch(node, &mut known.used);
        Ok(Some(known.theirs))
    }

    fn is_held(&self, node: Node) -> bool {
        self.known.get(&node).is_some_and(|known| known.life == self.life)
    }

    /// What a request takes a name from, if that is known.
    pub fn victim(&self, request: &Request) -> Option<Node> {
        request.effects().into_iter().find_map(|effect| match effect {
            Effect::Removes { dir, name, .. } => self.table.get(dir, name),
            Effect::Moves { to_dir, to_name, .. } => self.table.get(to_dir, to_name),
            _ => None,
        })
    }

    /// The same, when the worker has to hold it first: an open file that is known by its place alone stays open without a name.
    pub fn victim_to_find(&self, request: &Request) -> Option<Node> {
        self.victim(request).filter(|node| self.known.contains_key(node) && !self.is_held(*node))
    }

    /// What a request takes a name from, unless it has kept one already.
    pub fn loses_name(&self, request: &Request) -> Option<Node> {
        let node = self.victim(request).filter(|node| self.silly_rename.lacks(*node))?;
        let loses = |effect: Effect<'_>| match effect {
            Effect::Moves { dir, name, flags, .. } => {
                !flags.contains(RenameFlags::NOREPLACE) && self.table.get(dir, name) != Some(node)
            }
            _ => true,
        };
        let mut effects = request.effects().into_iter();
        effects.any(|effect| effect.lost_name().is_some() && loses(effect)).then_some(node)
    }

    /// What may be a file that a reply shows under a number which is new: one with several names that is not held.
    pub fn perhaps_in(&self, reply: &Reply) -> Option<Node> {
        if self.linked.is_empty() {
            return None;
        }
        let linked = |entry: &&Entry| entry.attr.nlink > 1 && !self.keys.contains_key(&entry.node);
        let of = |ino: u64| self.linked.range((ino, Node(0))..=(ino, Node(u64::MAX)));
        let is_one = |node: &Node| !self.is_held(*node) && self.path(*node).is_ok();
        entries(reply).filter(linked).find_map(|entry| of(entry.attr.ino).map(|pair| pair.1).find(is_one))
    }

    /// A file with several names is not where it should be: nothing is taken for it.
    pub fn no_longer_linked(&mut self, node: Node) {
        let ino = self.ino(node).unwrap_or(0);
        self.linked.remove(&(ino, node));
    }

    /// The way to a node from the root.
    ///
    /// # Errors
    /// `ESTALE` when it has no name any more.
    pub fn path(&self, node: Node) -> Result<Vec<Name>> {
        self.silly_rename.path(node).map_or_else(|| self.table.path(node), Ok)
    }

    /// The file with a name, if it is known.
    pub fn get(&self, dir: Node, name: &Name) -> Option<Node> {
        self.table.get(dir, name)
    }

    /// Whether there are references to the node.
    pub fn is_known(&self, node: Node) -> bool {
        node == Node::ROOT || self.known.contains_key(&node)
    }

    /// Notes that the log of changes since this checkpoint names the node; false when it did already.
    pub fn log(&mut self, node: Node, checkpoint: u64) -> bool {
        match self.known.get_mut(&node) {
            Some(known) => known.logged.replace(checkpoint) != Some(checkpoint),
            None => node != Node::ROOT,
        }
    }

    /// The worker found a node again, under `theirs`, with so many references. What is too much comes back.
    pub fn found_again(&mut self, node: Node, theirs: Node, references: u64) -> Option<Returned> {
        let key = self.table.key(node).ok().flatten();
        let Some(known) = self.known.get_mut(&node) else {
            return Some(Returned { theirs, count: references }).filter(|_| node != Node::ROOT);
        };
        let counted = if known.life == self.life { known.references } else { 0 };
        *known = Known { theirs, life: self.life, references: counted + references, ..*known };
        self.recent.touch(node, &mut known.used);
        if let Some(key) = key {
            self.keys.insert(theirs, (key, node));
        }
        None
    }

    /// An open file whose handle was in a reply.
    ///
    /// # Errors
    /// `EBADF` when there is no such handle.
    pub fn open(&self, handle: Handle) -> Result<Open> {
        self.open.get(&handle).copied().ok_or(Errno::EBADF.into())
    }

    /// The worker opened a file again. A handle that is not needed comes back.
    pub fn opened_again(&mut self, handle: Handle, theirs: Handle) -> Option<Handle> {
        match self.open.get_mut(&handle) {
            Some(open) if open.life != self.life => {
                (open.theirs, open.life) = (theirs, self.life);
                None
            }
            _ => Some(theirs),
        }
    }

    /// Whether this worker has the file open.
    pub fn is_open(&self, handle: Handle) -> bool {
        self.open.get(&handle).is_some_and(|open| open.life == self.life)
    }

    /// A handle that only the request which closes it still uses.
    pub fn closes(&mut self, handle: Handle) {
        if let Some(open) = self.open.get_mut(&handle)
            && !std::mem::replace(&mut open.closes, true)
            && open.flags.is_some()
        {
            self.silly_rename.closed(open.node);
        }
    }

    /// A handle that is not in use any more; gives what was open.
    pub fn close(&mut self, handle: Handle) -> Option<Node> {
        self.closes(handle);
        self.open.remove(&handle).map(|open| open.node)
    }

    /// Puts our numbers into a reply, and follows what the request did to names.
    ///
    /// # Errors
    /// `ESTALE` when the directory is not known any more.
    pub fn learn(&mut self, request: &mut Request, reply: &mut Reply) -> Result<()> {
        if reply.error().is_some() {
            return Ok(());
        }
        self.removed.extend(self.victim(request));
        for effect in request.effects() {
            match effect {
                Effect::Removes { dir: REMOVED, name, .. } => self.silly_rename.gone(name),
                Effect::Removes { dir, name, .. } => self.table.removed(dir, name),
                Effect::Moves { dir, name, to_dir, to_name, flags } => {
                    let (from, to) = ((dir, name), (to_dir, to_name));
                    match flags.contains(RenameFlags::EXCHANGE) {
                        true => self.table.exchanged(from, to)?,
                        false => self.table.renamed(from, to)?,
                    }
                }
                _ => {}
            }
        }
        let about = subjects(request);
        let node = about.first().map_or(Node::ROOT, |subject| subject.node);
        let place = about.last().and_then(|subject| match &subject.names[..] {
            [name] => Some((subject.node, name)),
            _ => None,
        });
        match reply {
            Reply::Entry(entry) if place.is_some() => self.appear(place, entry)?,
            Reply::Entry(entry) => self.appear_above(node, entry)?,
            Reply::Entries(entries) => {
                let Some(Subject { node, names }) = about.last() else { return Ok(()) };
                let mut dir = *node;
                for (name, entry) in names.iter().zip(entries) {
                    self.appear(Some((dir, name)), entry)?;
                    dir = entry.node;
                }
            }
            Reply::Created(created) => {
                self.appear(place, &mut created.entry)?;
                self.opened(created.entry.node, request, &mut created.opened);
            }
            Reply::Opened(opened) => self.opened(node, request, opened),
            Reply::DirentsPlus(list) => {
                for dirent in list.entries.iter_mut().filter(|dirent| dirent.entry.node != Node::default()) {
                    self.appear(Some((node, &dirent.name)), &mut dirent.entry)?;
                }
            }
            Reply::Dirents(list) if self.found_twice => {
                for dirent in &mut list.entries {
                    let known = self.table.get(node, &dirent.name).and_then(|node| self.known.get(&node));
                    dirent.ino = known.map_or(dirent.ino, |known| known.ino);
                }
            }
            Reply::Attrs(attrs) => {
                attrs.attr.ino = self.ino(node).unwrap_or(attrs.attr.ino);
                attrs.attr.nlink = self.silly_rename.visible_links(node, attrs.attr.nlink);
            }
            _ => {}
        }
        Ok(())
    }

    fn ino(&self, node: Node) -> Option<u64> {
        self.known.get(&node).map(|known| known.ino)
    }

    /// Gives the directory that the worker found above `dir` the number that it is known by: another one would be another file to who
    /// has that.
    fn appear_above(&mut self, dir: Node, entry: &mut Entry) -> Result<()> {
        let above = match self.table.names(dir)?.into_iter().next() {
            Some((above, _)) => above,
            None if dir == Node::ROOT => dir,
            None => return Err(Errno::ESTALE.into()),
        };
        match self.table.names(above)?.into_iter().next() {
            Some((dir, name)) => self.appear(Some((dir, &name)), entry),
            // The root is not counted.
            None if above == Node::ROOT => {
                (entry.node, entry.generation) = (Node::ROOT, NodeTable::generation(Node::ROOT));
                Ok(())
            }
            None => Err(Errno::ESTALE.into()),
        }
    }

    /// Gives what the worker found at a place, if it has one, our number.
    fn appear(&mut self, place: Option<(Node, &Name)>, entry: &mut Entry) -> Result<()> {
        let theirs = entry.node;
        let known = self.keys.get(&theirs).map(|known| known.0);
        let key = known.or_else(|| self.same_as(place)).unwrap_or_else(|| {
            self.next_key += 1;
            FileKey::MIN.saturating_add(self.next_key)
        });
        let node = match place {
            Some((dir, name)) => self.table.found(dir, name, Some(key))?,
            None => self.table.found_nameless(Some(key))?,
        };
        self.keys.insert(theirs, (key, node));
        let (life, ino) = (self.life, entry.attr.ino);
        let fresh = Known { theirs, life, used: 0, references: 0, ino, logged: None };
        let known = self.known.entry(node).or_insert(fresh);
        if known.life != self.life {
            (known.theirs, known.life, known.references) = (theirs, self.life, 0);
        }
        known.references += 1;
        self.recent.touch(node, &mut known.used);
        if entry.attr.nlink > 1 && entry.attr.kind() != FileKind::Directory {
            self.linked.insert((known.ino, node));
        }
        entry.attr.ino = known.ino;
        entry.attr.nlink = self.silly_rename.visible_links(node, entry.attr.nlink);
        (entry.node, entry.generation) = (node, NodeTable::generation(node));
        Ok(())
    }

    /// The key of what had this name when the worker last held it: no other process changes the tree.
    fn same_as(&self, place: Option<(Node, &Name)>) -> Option<FileKey> {
        let (dir, name) = place?;
        let node = self.table.get(dir, name)?;
        let known = self.known.get(&node).filter(|known| known.life != self.life)?;
        self.table.key(node).ok().flatten().filter(|_| known.references > 0)
    }

    fn opened(&mut self, node: Node, request: &Request, opened: &mut Opened) {
        let flags = request.opens().and_then(|opens| opens.flags);
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        let (theirs, life) = (opened.handle, self.life);
        self.open.insert(handle, Open { node, flags, theirs, life, closes: false });
        if flags.is_some() {
            self.silly_rename.opened(node);
        }
        opened.handle = handle;
    }

    /// Gives up files that have no name and are neither open nor being opened: what a checkpoint holds could not be freed after a death.
    pub fn give_up_removed(&mut self, being_opened: HashSet<Node>) -> Vec<Returned> {
        let mut returned = self.sweep();
        let mut open = self.open_nodes();
        open.extend(being_opened);
        let removed = std::mem::take(&mut self.removed);
        let (kept, gone): (HashSet<Node>, HashSet<Node>) = removed
            .into_iter()
            .filter(|&node| self.table.path(node).is_err())
            .partition(|node| open.contains(node));
        self.removed = kept;
        returned.extend(gone.into_iter().filter_map(|node| self.drop_known(node)));
        returned
    }

    fn open_nodes(&self) -> HashSet<Node> {
        self.open.values().map(|open| open.node).collect()
    }

    /// How many nodes the worker is to hold at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether the worker holds more than it should.
    pub fn is_crowded(&self) -> bool {
        self.recent.len() > self.crowded
    }

    /// Chooses what was not used for longest, so that there is room for a while when the worker gets it back. What is in use
    /// stays, and what could not be found again.
    pub fn make_room(&mut self, in_use: &HashSet<Node>) -> Vec<Node> {
        let (open, part) = (self.open_nodes(), self.most / 8);
        let excess = self.recent.len().saturating_sub(self.most - part);
        let chosen = self
            .recent
            .oldest()
            .filter(|node| !in_use.contains(node) && !open.contains(node) && self.can_be_found_again(*node));
        let chosen: Vec<Node> = chosen.take(excess).collect();
        self.crowded = self.most.max(self.recent.len() - chosen.len() + part);
        chosen
    }

    /// The worker needs not hold these any more.
    pub fn give_back(&mut self, nodes: &[Node]) -> Vec<Returned> {
        self.found_twice = true;
        nodes.iter().filter_map(|&node| self.return_to_worker(node)).collect()
    }

    fn can_be_found_again(&self, node: Node) -> bool {
        // Where files have one name only a second one is another spelling, which may go with the first.
        let is_sure =
            || self.table.links(node) == 1 || self.linked.contains(&(self.ino(node).unwrap_or(0), node));
        is_sure() && self.table.path(node).is_ok()
    }

    fn return_to_worker(&mut self, node: Node) -> Option<Returned> {
        let known = self.known.get_mut(&node)?;
        let returned = Returned { theirs: known.theirs, count: known.references };
        known.life = NOBODY;
        self.recent.remove(known.used);
        self.forget_key(returned.theirs, node);
        Some(returned)
    }

    /// Takes references back; gives what is to be returned to the worker.
    pub fn forget(&mut self, node: Node, count: u64) -> Vec<Returned> {
        self.table.forget(node, count);
        match self.table.references(node) {
            None => self.drop_known(node).into_iter().collect(),
            Some(0) => {
                self.idle.push(node);
                if self.idle.len() > self.idle_most { self.sweep() } else { Vec::new() }
            }
            Some(_) => Vec::new(),
        }
    }

    /// Looks which of the nodes that had names below them have gone meanwhile.
    fn sweep(&mut self) -> Vec<Returned> {
        let idle = std::mem::take(&mut self.idle);
        let (kept, gone): (Vec<Node>, Vec<Node>) =
            idle.into_iter().partition(|&node| self.table.references(node).is_some());
        self.idle = kept.into_iter().filter(|&node| self.table.references(node) == Some(0)).collect();
        self.idle_most = (2 * self.idle.len()).max(IDLE);
        gone.into_iter().filter_map(|node| self.drop_known(node)).collect()
    }

    fn drop_known(&mut self, node: Node) -> Option<Returned> {
        self.removed.remove(&node);
        let known = self.known.remove(&node)?;
        self.linked.remove(&(known.ino, node));
        if known.life != self.life {
            return None;
        }
        self.recent.remove(known.used);
        self.forget_key(known.theirs, node);
        Some(Returned { theirs: known.theirs, count: known.references })
    }

    fn forget_key(&mut self, theirs: Node, node: Node) {
        // A file may have got another number before it was seen that this one has no references.
        if self.keys.get(&theirs).is_some_and(|(_, last)| *last == node) {
            self.keys.remove(&theirs);
        }
    }
}

/// What a reply shows.
fn entries(reply: &Reply) -> Box<dyn Iterator<Item = &Entry> + '_> {
    match reply {
        Reply::Entry(entry) => Box::new(std::iter::once(entry)),
        Reply::Entries(entries) => Box::new(entries.iter()),
        Reply::Created(created) => Box::new(std::iter::once(&created.entry)),
        Reply::DirentsPlus(list) => Box::new(list.entries.iter().map(|dirent| &dirent.entry)),
        _ => Box::new(std::iter::empty()),
    }
}

/// The numbers of the present worker.
impl Bindings for Files {
    fn node(&mut self, node: Node) -> Result<Option<Node>> {
        self.theirs(node)
    }

    fn handle(&mut self, handle: Handle) -> Result<Option<Handle>> {
        let open = self.open(handle)?;
        Ok((open.life == self.life).then_some(open.theirs))
    }
}
