// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known about files: attributes, names in directories, targets of links; and who holds which references.
//!
//! # References
//! The tree below counts references to nodes, and this layer hands out references of its own when it answers from what it
//! knows. For each node, *balance* is how many references it holds below beyond those it has handed out. A node with a
//! record has at least one reference below, so that its number cannot come to mean another file. When a record is dropped, a
//! positive balance is given back; a negative one is remembered as a debt, which the next references to come back pay.

use crate::clock::{Altering, Asked};
use crate::file::{Content, File};
use crate::lru::Lru;
use crate::moment::{Moment, after, ttl};
use crate::names::{Names, What};
use crate::options::{Options, Policies, Policy, Ttls};
use crate::pool::ContentId;
use crate::prune::PruneList;
use crate::record::{Body, Directory, Record, Sequence, SharedNames};
use outrigger_core::reply::{Attrs, Entry, Ttl};
use outrigger_core::{Attr, FileKind, Generation, Name, Node, Notice, Target, Time, lock};
use std::collections::HashMap;
use std::sync::Arc;

/// Everything that is known.
pub(crate) struct Table {
    /// Whether listings may leave names out.
    pub(crate) hides_names: bool,
    pub(crate) records: Lru<Node, Record>,
    /// References handed out beyond those held below, of nodes without a record.
    debts: HashMap<Node, u64>,
    unneeded: PruneList,
    /// References to give back below.
    returns: Vec<(Node, u64)>,
    /// What doors have to learn.
    pub(crate) notices: Vec<Notice>,
    /// Content that will not be asked for any more.
    leftovers: Vec<ContentId>,
    /// The last name for content that was given out.
    last_content: ContentId,
    /// The last change that ended.
    pub(crate) last: Sequence,
    /// The last change that set out.
    pub(crate) last_begun: Sequence,
    /// The last change of any file without a record.
    pub(crate) last_unknown: Sequence,
    /// Changes under way that alter names.
    pub(crate) altering: Vec<Altering>,
    /// A file lost a name, and it is not known which: attributes asked for before this change are in doubt.
    pub(crate) in_doubt: Sequence,
    policies: Policies,
    entries_max: usize,
    bytes_max: usize,
    bytes: usize,
}

/// When something happens: moments decide what is fresh, the time of day tells ages.
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

/// One directory may have this part of the memory.
const DIRECTORY_PARTS: usize = 4;

impl Table {
    pub(crate) fn new(options: &Options) -> Self {
        Table {
            hides_names: false,
            records: Lru::default(),
            debts: HashMap::new(),
            unneeded: PruneList::default(),
            returns: Vec::new(),
            notices: Vec::new(),
            leftovers: Vec::new(),
            last_content: 0,
            last: 0,
            last_begun: 0,
            last_unknown: 0,
            altering: Vec::new(),
            in_doubt: 0,
            policies: Policies::new(options),
            entries_max: options.entries,
            bytes_max: options.names,
            bytes: 0,
        }
    }

    /// Until when names are known to be absent that a listing does not have.
    pub(crate) fn absent_until(&self, ttls: Ttls, now: Moment) -> Moment {
        if self.hides_names { 0 } else { after(now, ttls.negative()) }
    }

    /// The record of `node`, which is used now.
    pub(crate) fn record(&mut self, node: Node) -> Option<&mut Record> {
        self.records.get(&node)
    }

    /// The record of `node`, a new one if there was none.
    pub(crate) fn make(&mut self, node: Node) -> &mut Record {
        if self.records.peek(&node).is_none() {
            let debt = self.debts.remove(&node).unwrap_or(0);
            self.unneeded.remove(node);
            self.records.insert(node, Record::new(node, debt, self.last_unknown));
            self.weigh(node);
        }
        self.records.get(&node).expect("the newest record stays")
    }

    /// Learns which file the number of `node` means; nothing is known of one that only had the same number.
    pub(crate) fn identify(&mut self, node: Node, generation: Generation) {
        let record = self.make(node);
        if record.generation.replace(generation).is_some_and(|known| known != generation) {
            (record.attr, record.attr_until, record.body) = (None, 0, Body::Nothing);
            (record.dir, record.path, record.dying, record.xattrs) = (None, None, false, None);
            if let Some(file) = record.file.take() {
                let content = lock(&file.content).id;
                self.leftovers.push(content);
            }
            self.weigh(node);
        }
    }

    /// References to give back below one day.
    pub(crate) fn return_references(&mut self, node: Node, count: u64) {
        self.returns.push((node, count));
    }

    /// How many files are known, and how many bytes that takes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.records.len(), self.bytes)
    }

    /// The most memory, and the most names, that one directory may have.
    pub(crate) fn directory_max(&self) -> (usize, usize) {
        (self.bytes_max / DIRECTORY_PARTS, self.entries_max / DIRECTORY_PARTS)
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

    /// The entry of a file whose attributes were fresh as of some moment, with a reference; as answered at `now` of a name
    /// that is fresh `until` then.
    pub(crate) fn hand_out(
        &mut self,
        node: Node,
        generation: Generation,
        as_of: Moment,
        (now, until): (Moment, Moment),
    ) -> Option<Entry> {
        let in_doubt = self.in_doubt;
        let record = self.record(node)?;
        if record.generation != Some(generation) {
            return None;
        }
        let (attr, attr_until) = match record.fresh_attr(as_of, in_doubt) {
            Some(attr) => (attr.clone(), record.attr_until),
            None => (self.predicted(node, as_of)?.attr, 0),
        };
        self.record(node)?.balance -= 1;
        let (entry_ttl, attr_ttl) = (ttl(now, until), ttl(now, attr_until));
        Some(Entry { node, generation, attr, entry_ttl, attr_ttl })
    }

    /// The attributes of a file, if they are fresh at `now`.
    pub(crate) fn attrs(&mut self, node: Node, now: Moment) -> Option<Attrs> {
        let (attr, until) = self.fresh_attr(node, now)?;
        Some(Attrs { attr, ttl: ttl(now, until) })
    }

    /// The attributes of a file and until when they are fresh, if they are at `now`.
    pub(crate) fn fresh_attr(&mut self, node: Node, now: Moment) -> Option<(Attr, Moment)> {
        let in_doubt = self.in_doubt;
        let record = self.record(node)?;
        record.fresh_attr(now, in_doubt).map(|attr| (attr.clone(), record.attr_until))
    }

    /// The attributes that a file will have when the changes have been made that were answered, if that is known at `now`.
    pub(crate) fn predicted(&mut self, node: Node, now: Moment) -> Option<Attrs> {
        let file = self.known_file(node)?;
        let attr = lock(&file.delayed).predicted(now)?;
        let record = self.record(node).filter(|record| record.pending == 0)?;
        (!record.dying).then_some(Attrs { attr, ttl: Ttl::NEVER })
    }

    /// The last change of ours that a file was part of.
    pub(crate) fn last_change_of(&mut self, node: Node) -> Sequence {
        self.make(node).changed
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

    /// The file is not where it was found last: others have changed that directory.
    pub(crate) fn displaced(&mut self, node: Node) {
        self.invalidate_attr(node);
        let Some(dir) = self.record(node).and_then(|record| record.dir) else { return };
        self.invalidate_attr(dir);
        self.change_names(dir, Names::invalidate);
    }

    /// Learns from an answer to a query what a name leads to, which is fresh `until` then; returns until when it
    /// is fresh indeed.
    pub(crate) fn learn_name(
        &mut self,
        dir: Node,
        name: &Name,
        what: What,
        asked: Asked,
        until: Moment,
    ) -> Moment {
        let record = self.make(dir);
        let now = asked.when.now;
        if record.pending > 0 || record.changed > asked.sequence {
            return now;
        }
        let (limit, _) = self.directory_max();
        let directory = self.directory(dir);
        let mut names = lock(&directory.names);
        names.learn(name, what, (now, until));
        // Names that a client makes up do not fill the memory.
        if names.weight() > limit {
            *names = Names::default();
        }
        drop(names);
        self.weigh(dir);
        until
    }

    /// Learns where a symbolic link points from an answer to a query.
    pub(crate) fn learn_target(&mut self, node: Node, target: &Target, asked: Asked) {
        if let Some(record) = self.record(node)
            && record.pending == 0
            && record.changed <= asked.sequence
            && record.kind() == Some(FileKind::Symlink)
        {
            record.body = Body::Link(target.clone());
            self.weigh(node);
        }
    }

    /// Whether these names of `dir` are those that follow our changes.
    pub(crate) fn follows(&mut self, dir: Node, names: &SharedNames) -> bool {
        let Some(Record { body: Body::Directory(directory), .. }) = self.record(dir) else { return false };
        let fill = directory.fill.as_ref().map(|fill| &fill.names);
        [Some(&directory.names), fill].into_iter().flatten().any(|own| Arc::ptr_eq(own, names))
    }

    /// Puts a listing that was received in place of what was known.
    pub(crate) fn install(&mut self, dir: Node, names: SharedNames) {
        let directory = self.directory(dir);
        directory.names = names;
        self.weigh(dir);
    }

    /// Counts anew what the record of `node` takes.
    pub(crate) fn weigh(&mut self, node: Node) {
        let Some(record) = self.records.peek_mut(&node) else { return };
        let weight = record.measure();
        self.bytes = self.bytes - record.weight + weight;
        record.weight = weight;
        self.shrink(node);
    }

    /// Drops what was unused for longest until everything fits; spares `kept`.
    fn shrink(&mut self, kept: Node) {
        let mut patience = self.records.len();
        while (self.records.len() > self.entries_max || self.bytes > self.bytes_max) && patience > 0 {
            patience -= 1;
            let Some(node) = self.records.oldest() else { return };
            if node == kept || self.records.peek(&node).is_some_and(Record::is_needed) {
                self.records.get(&node);
            } else {
                self.evict(node);
            }
        }
    }

    /// Drops a record, and has references given back.
    fn evict(&mut self, node: Node) {
        let returned = self.drop_record(node);
        self.returns.extend(returned);
    }

    /// Drops a record; answers the references that are to be given back.
    fn drop_record(&mut self, node: Node) -> Option<(Node, u64)> {
        let record = self.records.remove(&node)?;
        self.bytes -= record.weight;
        self.last_unknown = self.last_unknown.max(record.changed);
        self.leftovers.extend(record.file.map(|file| lock(&file.content).id));
        if record.node == Node::ROOT {
            return None;
        }
        let count = record.balance.unsigned_abs();
        if record.balance > 0 {
            return Some((record.node, count));
        }
        if count > 0 {
            self.debts.insert(record.node, count);
        }
        // As no reference is held for this layer, all there are were handed out.
        let nodes = self.unneeded.add(record.node);
        self.notices.extend(nodes.map(|nodes| Notice::Prune { nodes }));
        None
    }

    /// References came back from above; answers how many to give back below.
    pub(crate) fn forget(&mut self, node: Node, count: u64) -> u64 {
        if node == Node::ROOT {
            return count;
        }
        self.unneeded.remove(node);
        // All there are, after a process died that knew how many; those of this layer among them.
        if count == u64::MAX {
            self.drop_record(node);
            self.debts.remove(&node);
            self.unneeded.remove(node);
            return count;
        }
        if let Some(record) = self.records.peek_mut(&node) {
            record.balance = record.balance.saturating_add_unsigned(count);
            if record.dying && !record.is_needed() {
                return self.drop_record(node).map_or(0, |(_, count)| count);
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

    /// What is to be done without the lock: references to give back below, content to forget.
    pub(crate) fn take_outstanding(&mut self) -> (Vec<(Node, u64)>, Vec<ContentId>) {
        (std::mem::take(&mut self.returns), std::mem::take(&mut self.leftovers))
    }

    /// Nothing is fresh any more; drops everything that is not in use.
    pub(crate) fn clear(&mut self) {
        // What was asked before is not used either.
        self.last += 1;
        self.last_unknown = self.last;
        let idle = self.records.iter_mut().filter(|(_, record)| !record.is_needed()).map(|(node, _)| node);
        for node in idle.collect::<Vec<_>>() {
            self.evict(node);
        }
        let last = self.last;
        let rest = self.records.iter_mut().map(|(node, record)| {
            (record.attr, record.changed) = (None, last);
            if let Body::Directory(directory) = &mut record.body {
                (directory.names, directory.fill) = (SharedNames::default(), None);
            }
            node
        });
        for node in rest.collect::<Vec<_>>() {
            self.forget_predicted(node);
            self.replace_content(node);
        }
    }

    /// Whether the policy of `node` depends on its path, which is not known.
    pub(crate) fn needs_path(&mut self, node: Node) -> bool {
        self.policies.differ() && self.path(node).is_none()
    }

    /// The path of `node`, if it is known, where policies depend on it.
    fn path(&mut self, node: Node) -> Option<&[u8]> {
        if node == Node::ROOT { Some(b"") } else { self.record(node)?.path.as_deref() }
    }

    fn path_below(&mut self, dir: Node, name: &Name) -> Option<Box<[u8]>> {
        if !self.policies.differ() {
            return None;
        }
        match self.path(dir)? {
            b"" => Some(name[..].into()),
            path => Some([path, name].join(&b'/').into()),
        }
    }

    /// Learns the path of a node.
    pub(crate) fn learn_path(&mut self, node: Node, path: &[u8]) {
        let names = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
        self.make(node).path = Some(path[names..].into());
        self.weigh(node);
    }

    /// Learns that `node` is where `name` in `dir` leads to.
    pub(crate) fn learn_place(&mut self, node: Node, dir: Node, name: &Name) {
        let path = self.path_below(dir, name);
        let record = self.make(node);
        (record.dir, record.path) = (Some(dir), path);
    }

    /// A directory was moved: what is below it may have another path now.
    pub(crate) fn forget_paths(&mut self) {
        if self.policies.differ() {
            self.records.iter_mut().for_each(|(_, record)| record.path = None);
        }
    }

    /// How long answers about `node` are fresh.
    pub(crate) fn ttls(&mut self, node: Node) -> Ttls {
        self.policy(node).ttls
    }

    /// How `node` is cached.
    pub(crate) fn policy(&mut self, node: Node) -> Policy {
        if !self.policies.differ() {
            return self.policies.of(b"");
        }
        let path = self.path(node).unwrap_or_default().to_vec();
        self.policies.of(&path)
    }

    /// How what `name` in `dir` leads to is cached, where the path of `dir` is known.
    pub(crate) fn policy_below(&mut self, dir: Node, name: &Name) -> Option<Policy> {
        let path = self.path_below(dir, name);
        let is_known = path.is_some() || !self.policies.differ();
        is_known.then(|| self.policies.of(&path.unwrap_or_default()))
    }

    /// Learns attributes from an answer to a query; answers until when they are fresh, which counts from when the query
    /// set out. Delayed writes count as made.
    pub(crate) fn learn_attr(&mut self, node: Node, attr: &mut Attr, asked: Asked) -> Moment {
        if let Some(file) = self.known_file(node) {
            // A prediction is not fresh for longer than now.
            if lock(&file.delayed).correct(attr, asked.sequence) {
                return asked.when.now;
            }
        }
        let (ttls, When { now, wall }) = (self.ttls(node), asked.when);
        let until = after(now, ttls.period(attr, wall));
        let absent = self.absent_until(ttls, now);
        let record = self.make(node);
        if record.pending > 0 || record.changed.max(record.attr_sequence) > asked.sequence {
            return now;
        }
        // Of two answers between the same changes the one that was asked for later is newer; the reply to a change, which may
        // have set out before a query, is newer than what was asked for before it ended.
        if asked.sequence == record.attr_sequence
            && now < record.attr_asked
            && now < record.attr_until
            && let Some(newer) = &record.attr
        {
            *attr = newer.clone();
            return record.attr_until;
        }
        record.learn_attr(attr, asked, (until, absent));
        let settled = record.attr_settled;
        if let Some(file) = record.file.clone() {
            self.learn_content(node, &file, attr, settled, (now, until));
        }
        self.weigh(node);
        until
    }

    /// Learns about content from attributes of its file.
    fn learn_content(
        &mut self,
        node: Node,
        file: &File,
        attr: &Attr,
        settled: bool,
        times: (Moment, Moment),
    ) {
        let mut content = lock(&file.content);
        let is_changed = content.is_changed_since_told(attr);
        if !content.learn(attr, settled, times) {
            self.give_up(node, &mut content);
        } else if is_changed {
            self.notices.push(Notice::InvalidateNode { node, offset: -1, len: 0 });
        }
    }

    /// What is known of content is not right any more, and neither is what the kernel has: pages, or attributes only.
    fn give_up(&mut self, node: Node, content: &mut Content) {
        let offset = content.kernel.map_or(-1, |_| 0);
        self.notices.push(Notice::InvalidateNode { node, offset, len: 0 });
        self.leftovers.push(content.id);
        content.replace(self.new_content());
    }

    /// Gives up content that no version of the tree below is known to have.
    pub(crate) fn doubt_ours(&mut self, node: Node) {
        let Some(file) = self.known_file(node) else { return };
        let mut content = lock(&file.content);
        if !content.has_version() {
            self.give_up(node, &mut content);
        }
    }

    /// A name for content.
    fn new_content(&mut self) -> ContentId {
        self.last_content += 1;
        self.last_content
    }

    /// The content of `node` as a file to be read and written.
    pub(crate) fn file(&mut self, node: Node, now: Moment) -> Arc<File> {
        if let Some(file) = self.known_file(node) {
            return file;
        }
        let file = Arc::new(File::new(self.new_content()));
        let in_doubt = self.in_doubt;
        let record = self.make(node);
        record.file = Some(Arc::clone(&file));
        if let Some(attr) = record.fresh_attr(now, in_doubt) {
            lock(&file.content).learn(attr, record.attr_settled, (now, record.attr_until));
        }
        self.weigh(node);
        file
    }

    /// The content of `node`, if any is known.
    pub(crate) fn known_file(&mut self, node: Node) -> Option<Arc<File>> {
        self.record(node)?.file.clone()
    }

    /// What is known of the content of `node` is of no use any more.
    pub(crate) fn replace_content(&mut self, node: Node) {
        let Some(file) = self.known_file(node) else { return };
        let mut content = lock(&file.content);
        self.leftovers.push(content.id);
        content.replace(self.new_content());
        (content.until, content.size) = (0, None);
    }

    /// Something needs the record of `node` to stay.
    pub(crate) fn pin(&mut self, node: Node) {
        self.make(node).pins += 1;
    }

    /// It needs it no more.
    pub(crate) fn unpin(&mut self, node: Node) {
        let Some(record) = self.records.peek_mut(&node) else { return };
        record.pins = record.pins.saturating_sub(1);
        if record.dying && !record.is_needed() && record.balance > 0 {
            self.evict(node);
        }
    }
}
