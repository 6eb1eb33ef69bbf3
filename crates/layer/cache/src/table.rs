// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known about files: attributes, names in directories, targets of links; and who holds which references.
//!
//! # References
//! The tree below counts references to nodes, and this layer hands out references of its own when it answers from what it
//! knows. For each node, *balance* is how many references it holds below beyond those it has handed out. A node with a
//! record has at least one reference below, so that its number cannot come to mean another file. When a record is dropped, a
//! positive balance is given back; a negative one is remembered as a debt, which the next references to come back pay.
//!
//! # Answers that come late
//! A query that was on its way while a change happened may tell of the time before. So every change has a number, a query
//! carries the number of the last change when it set out, and what it tells of a file that changed since is not believed.

use crate::fill::Fill;
use crate::lru::Lru;
use crate::moment::{Moment, after, ttl};
use crate::names::{Names, Stamp, What};
use crate::options::{Belief, Options, Part, Parts};
use outrigger_core::reply::{Attrs, Entry};
use outrigger_core::{Attr, FileKind, Generation, Name, Node, Target, Time};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks; a panic elsewhere leaves nothing half done that matters.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a change.
pub(crate) type Ticket = u64;

/// Names of a directory that several may hold on to.
pub(crate) type SharedNames = Arc<Mutex<Names>>;

/// What is known about one file.
pub(crate) struct Record {
    pub(crate) node: Node,
    pub(crate) generation: Option<Generation>,
    /// References held below beyond those handed out.
    balance: i64,
    attr: Option<Attr>,
    attr_until: Moment,
    /// The last change there was when the attributes were asked for.
    attr_ticket: Ticket,
    /// The last change of ours that it was part of.
    changed: Ticket,
    /// Changes under way.
    pending: u32,
    /// What needs it to stay, such as open files.
    pins: u32,
    /// Where it was seen last.
    pub(crate) parent: Option<Node>,
    /// Whose policy holds.
    part: Option<Part>,
    /// It has no name any more: nothing of it is kept when nobody refers to it.
    dying: bool,
    pub(crate) body: Body,
    weight: usize,
}

/// What is known beside the attributes.
pub(crate) enum Body {
    /// Nothing.
    Nothing,
    /// Of a directory.
    Directory(Box<Directory>),
    /// Where a symbolic link points.
    Link(Target),
}

/// What is known of a directory.
#[derive(Default)]
pub(crate) struct Directory {
    pub(crate) names: SharedNames,
    /// The listing that is being received.
    pub(crate) fill: Option<Arc<Fill>>,
    /// Names that were asked for below one soon after the other, and when the last of them was.
    pub(crate) misses: (u32, Moment),
}

/// Everything that is known.
pub(crate) struct Table {
    places: HashMap<Node, u32>,
    records: Lru<Record>,
    /// References handed out beyond those held below, of nodes without a record.
    debts: HashMap<Node, u64>,
    /// References to give back below.
    returns: Vec<(Node, u64)>,
    /// The last change.
    last: Ticket,
    /// The last change of any file without a record.
    last_unknown: Ticket,
    /// A file with several names lost one, and it is not known which: the numbers of links learnt before are in doubt.
    links_in_doubt: Ticket,
    parts: Parts,
    entries_max: usize,
    bytes_max: usize,
    bytes: usize,
}

/// When something happens: moments decide what is believed, the time of day tells ages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct When {
    pub(crate) now: Moment,
    pub(crate) wall: Time,
}

/// What is known of a name.
pub(crate) enum Found {
    /// It leads here; a reference is handed out.
    Entry(Entry),
    /// There is no such name.
    Absent,
    /// That has to be asked.
    Unknown,
}

/// What a record costs beside itself: its places in the tables.
const RECORD_COST: usize = 48;
/// One directory may have this part of the memory.
const DIRECTORY_PARTS: usize = 4;

impl Table {
    pub(crate) fn new(options: &Options) -> Self {
        Table {
            places: HashMap::new(),
            records: Lru::default(),
            debts: HashMap::new(),
            returns: Vec::new(),
            last: 0,
            last_unknown: 0,
            links_in_doubt: 0,
            parts: Parts::new(options),
            entries_max: options.entries,
            bytes_max: options.names,
            bytes: 0,
        }
    }

    /// The record of `node`, which is used now.
    pub(crate) fn record(&mut self, node: Node) -> Option<&mut Record> {
        let &at = self.places.get(&node)?;
        self.records.touch(at);
        self.records.get_mut(at)
    }

    /// The record of `node`, a new one if there was none.
    pub(crate) fn make(&mut self, node: Node) -> &mut Record {
        if let Some(&at) = self.places.get(&node) {
            self.records.touch(at);
            return self.records.get_mut(at).expect("the places lead to records");
        }
        let debt = self.debts.remove(&node).unwrap_or(0);
        let weight = size_of::<Record>() + RECORD_COST;
        let at = self.records.insert(Record {
            node,
            generation: None,
            balance: -(debt as i64),
            attr: None,
            attr_until: 0,
            attr_ticket: 0,
            changed: self.last_unknown,
            pending: 0,
            pins: 0,
            parent: None,
            part: None,
            dying: false,
            body: Body::Nothing,
            weight,
        });
        self.places.insert(node, at);
        self.bytes += weight;
        self.shrink(at);
        self.records.get_mut(at).expect("the newest record stays")
    }

    /// The number of the last change, for a query that sets out now.
    pub(crate) fn ticket(&self) -> Ticket {
        self.last
    }

    /// How many files are known, and how many bytes that takes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.records.len(), self.bytes)
    }

    /// The most memory one directory may have.
    pub(crate) fn directory_max(&self) -> usize {
        self.bytes_max / DIRECTORY_PARTS
    }

    /// The most names one directory may have.
    pub(crate) fn directory_names_max(&self) -> usize {
        self.entries_max / DIRECTORY_PARTS
    }

    /// What is known about a name, with a reference.
    pub(crate) fn find(&mut self, dir: Node, name: &Name, now: Moment) -> Found {
        let Some(names) = self.names_of(dir) else { return Found::Unknown };
        let (what, until) = lock(&names).find(name, now);
        match what {
            What::Absent => Found::Absent,
            What::Unknown => Found::Unknown,
            What::File(file) => match self.hand_out(file.node, file.generation, now, (now, until)) {
                Some(entry) => Found::Entry(entry),
                None => Found::Unknown,
            },
        }
    }

    /// The entry of a file whose attributes were believed as of some moment, with a reference; as told at `now` of a name
    /// that is believed `until` then.
    pub(crate) fn hand_out(
        &mut self,
        node: Node,
        generation: Generation,
        as_of: Moment,
        (now, until): (Moment, Moment),
    ) -> Option<Entry> {
        let in_doubt = self.links_in_doubt;
        let record = self.record(node)?;
        if record.generation != Some(generation) {
            return None;
        }
        let attr = record.believed(as_of, in_doubt)?.clone();
        record.balance -= 1;
        let (entry_ttl, attr_ttl) = (ttl(now, until), ttl(now, record.attr_until));
        Some(Entry { node, generation, attr, entry_ttl, attr_ttl })
    }

    /// The attributes of a file, if they are believed at `now`.
    pub(crate) fn attrs(&mut self, node: Node, now: Moment) -> Option<Attrs> {
        let in_doubt = self.links_in_doubt;
        let record = self.record(node)?;
        let attr = record.believed(now, in_doubt)?.clone();
        Some(Attrs { attr, ttl: ttl(now, record.attr_until) })
    }

    /// The names of a directory, as far as any are known.
    pub(crate) fn names_of(&mut self, dir: Node) -> Option<SharedNames> {
        match &self.record(dir)?.body {
            Body::Directory(directory) => Some(Arc::clone(&directory.names)),
            _ => None,
        }
    }

    /// What is known of a directory, to be added to.
    pub(crate) fn directory(&mut self, dir: Node) -> &mut Directory {
        let record = self.make(dir);
        if !matches!(record.body, Body::Directory(_)) {
            record.body = Body::Directory(Box::default());
        }
        match &mut record.body {
            Body::Directory(directory) => directory,
            _ => unreachable!("it was made a directory above"),
        }
    }

    /// Changes what is known of the names of `dir`, in the listing that is being received as well.
    pub(crate) fn change_names(&mut self, dir: Node, mut change: impl FnMut(&mut Names)) {
        let directory = self.directory(dir);
        if let Some(fill) = &directory.fill {
            change(&mut lock(&fill.names));
        }
        change(&mut lock(&directory.names));
        self.weigh(dir);
    }

    /// Learns from an answer to a query that set out with `ticket` what a name leads to; answers until when that is
    /// believed.
    pub(crate) fn learn_name(
        &mut self,
        dir: Node,
        name: &Name,
        what: What,
        ticket: Ticket,
        (now, until): (Moment, Moment),
    ) -> Moment {
        let record = self.make(dir);
        if record.pending > 0 || record.changed > ticket {
            return now;
        }
        let limit = self.directory_max();
        let directory = self.directory(dir);
        let mut names = lock(&directory.names);
        names.learn(name, what, (now, until));
        // Names that somebody makes up do not fill the memory.
        if names.weight() > limit {
            *names = Names::default();
        }
        drop(names);
        self.weigh(dir);
        until
    }

    /// Learns where a symbolic link points from an answer to a query that set out with `ticket`.
    pub(crate) fn learn_target(&mut self, node: Node, target: &Target, ticket: Ticket) {
        if let Some(record) = self.record(node)
            && record.pending == 0
            && record.changed <= ticket
            && record.kind() == Some(FileKind::Symlink)
        {
            record.body = Body::Link(target.clone());
            self.weigh(node);
        }
    }

    /// Puts a listing that was received in place of what was known.
    pub(crate) fn install(&mut self, dir: Node, names: SharedNames) {
        let directory = self.directory(dir);
        directory.names = names;
        self.weigh(dir);
    }

    /// Counts anew what the record of `node` takes.
    fn weigh(&mut self, node: Node) {
        let Some(&at) = self.places.get(&node) else { return };
        let Some(record) = self.records.get_mut(at) else { return };
        let body = match &record.body {
            Body::Nothing => 0,
            Body::Directory(directory) => size_of::<Directory>() + lock(&directory.names).weight(),
            Body::Link(target) => target.len(),
        };
        let weight = size_of::<Record>() + RECORD_COST + body;
        self.bytes = self.bytes - record.weight + weight;
        record.weight = weight;
        self.shrink(at);
    }

    /// Drops what was unused for longest until everything fits; spares `kept`.
    fn shrink(&mut self, kept: u32) {
        let mut patience = self.records.len();
        while (self.records.len() > self.entries_max || self.bytes > self.bytes_max) && patience > 0 {
            patience -= 1;
            let Some(at) = self.records.oldest() else { return };
            let stays = |record: &Record| record.pins > 0 || record.pending > 0;
            if at == kept || self.records.get(at).is_some_and(stays) {
                self.records.touch(at);
            } else {
                let returned = self.drop_record(at);
                self.returns.extend(returned);
            }
        }
    }

    /// Drops a record; answers the references that are to be given back.
    fn drop_record(&mut self, at: u32) -> Option<(Node, u64)> {
        let record = self.records.remove(at)?;
        self.places.remove(&record.node);
        self.bytes -= record.weight;
        self.last_unknown = self.last_unknown.max(record.changed);
        if record.node == Node::ROOT || record.balance == 0 {
            return None;
        }
        let count = record.balance.unsigned_abs();
        if record.balance > 0 {
            return Some((record.node, count));
        }
        self.debts.insert(record.node, count);
        None
    }

    /// References came back from above; answers how many to give back below.
    pub(crate) fn forget(&mut self, node: Node, count: u64) -> u64 {
        if node == Node::ROOT {
            return count;
        }
        if let Some(&at) = self.places.get(&node) {
            let Some(record) = self.records.get_mut(at) else { return count };
            record.balance = record.balance.saturating_add_unsigned(count);
            if record.dying && record.pins == 0 && record.pending == 0 {
                return self.drop_record(at).map_or(0, |(_, count)| count);
            }
            return 0;
        }
        match self.debts.get_mut(&node) {
            Some(debt) if *debt > count => {
                *debt -= count;
                0
            }
            Some(_) => count - self.debts.remove(&node).unwrap_or(0),
            None => count,
        }
    }

    /// References that were received for this layer, not for a door.
    pub(crate) fn received(&mut self, node: Node) {
        self.make(node).balance += 1;
    }

    /// What has to be given back below.
    pub(crate) fn take_returns(&mut self) -> Vec<(Node, u64)> {
        std::mem::take(&mut self.returns)
    }

    /// Drops everything that is not in use.
    pub(crate) fn clear(&mut self) {
        let places: Vec<u32> = self.places.values().copied().collect();
        for at in places {
            match self.records.get_mut(at) {
                Some(record) if record.pins > 0 || record.pending > 0 => {
                    record.attr = None;
                    record.changed = self.last;
                    if let Body::Directory(directory) = &mut record.body {
                        directory.names = SharedNames::default();
                    }
                }
                _ => {
                    let returned = self.drop_record(at);
                    self.returns.extend(returned);
                }
            }
        }
        self.distrust_fills();
    }

    fn distrust_fills(&mut self) {
        for record in self.records.iter_mut() {
            if let Body::Directory(directory) = &mut record.body {
                directory.fill = None;
            }
        }
    }

    /// The part of the tree `node` belongs to, when it is known.
    pub(crate) fn part(&mut self, node: Node) -> Option<Part> {
        if node == Node::ROOT || self.parts.are_one() {
            return Some(Part::ROOT);
        }
        self.record(node)?.part
    }

    /// Learns the path of a node.
    pub(crate) fn learn_path(&mut self, node: Node, path: &[u8]) {
        let part = self.parts.of_path(path);
        self.make(node).part = Some(part);
    }

    /// Learns that `node` is where `name` in `dir` leads to.
    pub(crate) fn learn_place(&mut self, node: Node, dir: Node, name: &Name) {
        let part = self.part(dir).map(|part| self.parts.below(part, name));
        let record = self.make(node);
        (record.parent, record.part) = (Some(dir), part);
    }

    /// A directory was moved: what is below it may belong to other parts now.
    pub(crate) fn forget_parts(&mut self) {
        if !self.parts.are_one() {
            self.records.iter_mut().for_each(|record| record.part = None);
        }
    }

    /// How long answers about `node` are believed.
    pub(crate) fn belief(&mut self, node: Node) -> Belief {
        let part = self.part(node).unwrap_or(Part::ROOT);
        self.parts.policy(part).belief
    }

    /// Learns attributes from an answer to a query that set out with `ticket`; answers until when they are believed.
    pub(crate) fn learn_attr(&mut self, node: Node, attr: &Attr, ticket: Ticket, when: When) -> Moment {
        let belief = self.belief(node);
        let until = after(when.now, belief.period(attr, when.wall));
        let record = self.make(node);
        if record.pending > 0 || record.changed.max(record.attr_ticket) > ticket {
            return when.now;
        }
        record.attr_ticket = ticket;
        record.attr_until = until;
        record.dying = attr.nlink == 0;
        match &record.body {
            Body::Directory(directory) if attr.is_dir() => {
                lock(&directory.names).confirm(stamp(attr), until);
            }
            Body::Link(_) if record.attr.as_ref().is_some_and(|old| stamp(old) == stamp(attr)) => {}
            // Where a node is a place in the tree, another file may have come to that place.
            _ => record.body = Body::Nothing,
        }
        record.attr = Some(attr.clone());
        self.weigh(node);
        until
    }

    /// A change of ours that concerns `nodes` sets out.
    pub(crate) fn begin(&mut self, nodes: &[Node]) {
        for &node in nodes {
            self.make(node).pending += 1;
        }
    }

    /// It has ended: what set out before it tells nothing about them any more.
    pub(crate) fn end(&mut self, nodes: &[Node]) {
        self.last += 1;
        let last = self.last;
        for &node in nodes {
            let record = self.make(node);
            record.pending = record.pending.saturating_sub(1);
            record.changed = last;
        }
    }

    /// Somebody else changed `node`.
    pub(crate) fn changed_elsewhere(&mut self, node: Node) {
        self.last += 1;
        let last = self.last;
        match self.record(node) {
            Some(record) => (record.attr_until, record.changed) = (0, last),
            None => self.last_unknown = last,
        }
    }

    /// Anything may have happened to the names in `dir`.
    pub(crate) fn distrust_names(&mut self, dir: Node) {
        if let Some(Record { body: Body::Directory(directory), .. }) = self.record(dir) {
            directory.fill = None;
            lock(&directory.names).distrust();
        }
    }

    /// The attributes of `node` are not what they were.
    pub(crate) fn forget_attr(&mut self, node: Node) {
        let Some(record) = self.record(node) else { return };
        record.attr_until = 0;
        if let Body::Directory(directory) = &record.body {
            lock(&directory.names).restamp();
        }
    }

    /// A name of `node` was removed by us.
    pub(crate) fn lost_a_name(&mut self, node: Node, is_dir: bool) {
        let Some(record) = self.record(node) else { return };
        record.attr_until = 0;
        let is_dir = is_dir || record.kind() == Some(FileKind::Directory);
        if let (Some(attr), false) = (&mut record.attr, is_dir)
            && attr.nlink > 1
        {
            attr.nlink -= 1;
            return;
        }
        record.dying = true;
        if record.balance > 0 && node != Node::ROOT {
            let balance = std::mem::take(&mut record.balance).unsigned_abs();
            self.returns.push((node, balance));
        }
    }

    /// A name was removed by us, and it is not known of which file; `perhaps` of this one.
    pub(crate) fn somebody_lost_a_name(&mut self, perhaps: Option<Node>) {
        self.links_in_doubt = self.last;
        if let Some(node) = perhaps {
            // If it was another, nothing is lost but what is known.
            self.lost_a_name(node, true);
        }
    }

    /// `node` was given a name by us.
    pub(crate) fn has_a_name(&mut self, node: Node) {
        if let Some(record) = self.record(node) {
            record.dying = false;
        }
    }

    /// Whether `node` may have other names than the one it was found under.
    pub(crate) fn has_several_names(&mut self, node: Node) -> bool {
        let attr = self.record(node).and_then(|record| record.attr.as_ref());
        attr.is_none_or(|attr| attr.nlink > 1 && !attr.is_dir())
    }

    /// Where a name led to when it was last known.
    pub(crate) fn last_known(&mut self, dir: Node, name: &Name) -> What {
        match self.names_of(dir) {
            Some(names) => lock(&names).last_known(name),
            None => What::Unknown,
        }
    }
}

impl Record {
    /// The attributes, if they are believed at `now`.
    fn believed(&self, now: Moment, links_in_doubt: Ticket) -> Option<&Attr> {
        let attr = self.attr.as_ref().filter(|_| now < self.attr_until && self.pending == 0)?;
        let doubtful = attr.nlink > 1 && !attr.is_dir() && self.attr_ticket < links_in_doubt;
        (!doubtful).then_some(attr)
    }

    /// The kind of file, when it was ever known.
    pub(crate) fn kind(&self) -> Option<FileKind> {
        self.attr.as_ref().map(Attr::kind)
    }
}

/// What changes when a file or a directory does.
pub(crate) fn stamp(attr: &Attr) -> Stamp {
    (attr.mtime, attr.ctime)
}
