// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of all that is known is saved.

use super::fit::Used;
use super::form::{Known, Learnt, SavedDir, SavedEntry, SavedTree};
use super::millis;
use crate::moment::Moment;
use crate::names::{File, Stamp};
use crate::record::{Body, Record};
use crate::table::{Table, When};
use outrigger_core::{FileKind, Name, Node, lock};
use std::collections::{HashMap, HashSet, VecDeque};

impl Table {
    /// All that the tree below has told and that nothing has called in question since, of what names from the root on lead to. Of the
    /// files that are `ahead` it has not got all yet. And how long ago it was used.
    pub(crate) fn collect(&self, when: When, ahead: &HashSet<Node>) -> (SavedTree, Used) {
        Collector { table: self, when, ahead }.tree()
    }
}

/// Collects what is known at some moment.
struct Collector<'a> {
    table: &'a Table,
    when: When,
    ahead: &'a HashSet<Node>,
}

impl Collector<'_> {
    fn tree(&self) -> (SavedTree, Used) {
        let order: HashMap<Node, usize> = self.table.records.newest_first().zip(0..).collect();
        let used_at = |node: Node| order.get(&node).copied().unwrap_or(usize::MAX);
        let (mut dirs, mut used) = (Vec::new(), Used::default());
        // A server may say that a directory is in itself.
        let (mut seen, mut queue) = (HashSet::from([Node::ROOT]), VecDeque::from([Node::ROOT]));
        while let Some(node) = queue.pop_front() {
            let mut dir = self.dir(node).unwrap_or_default();
            for (entry, child) in &mut dir.entries {
                entry.is_open =
                    entry.kind == Some(FileKind::Directory) && self.is_listed(*child) && seen.insert(*child);
                if entry.is_open {
                    queue.push_back(*child);
                }
            }
            let Collected { listed, stamp, entries } = dir;
            used.dirs.push(used_at(node));
            used.entries.push(entries.iter().map(|(_, child)| used_at(*child)).collect());
            let entries = entries.into_iter().map(|(entry, _)| entry).collect();
            dirs.push(SavedDir { listed, stamp, entries });
        }
        let root = self.table.records.peek(&Node::ROOT).and_then(|record| self.known(record));
        (SavedTree { root, dirs, ..SavedTree::default() }, used)
    }

    /// Whether names in a directory are known.
    fn is_listed(&self, node: Node) -> bool {
        self.table.records.peek(&node).is_some_and(|record| matches!(record.body, Body::Directory(_)))
    }

    fn dir(&self, node: Node) -> Option<Collected> {
        let record = self.table.records.peek(&node).filter(|record| record.pending == 0)?;
        let Body::Directory(directory) = &record.body else { return None };
        let names = lock(&directory.names);
        let is_made = names.from(0).all(|(_, slot)| !self.is_ahead(slot.file));
        if let Some((asked, stamp)) = names.undoubted().filter(|_| is_made) {
            let slots = names.from(0).map(|(name, slot)| (name.clone(), slot.cookie, slot.file));
            let entries = slots.map(|slot| self.entry(slot)).collect();
            return Some(Collected { listed: Some(self.learnt(asked)), stamp, entries });
        }
        let single = names.single(self.when.now).filter(|(_, file)| !self.is_ahead(*file));
        let single = single.filter_map(|(name, file)| Some((Name::new(name.clone()).ok()?, 0, file)));
        let entries = single.map(|name| self.entry(name)).collect();
        Some(Collected { listed: None, stamp: None, entries })
    }

    /// What is saved of a name, and the node of the file if something is known of that.
    fn entry(&self, (name, cookie, file): (Name, u64, File)) -> (SavedEntry, Node) {
        let record =
            self.table.records.peek(&file.node).filter(|record| record.generation == Some(file.generation));
        let known = record.and_then(|record| self.known(record));
        let kind = known.as_ref().map(|known| known.attr.kind()).or(file.kind);
        let entry = SavedEntry { name, cookie, ino: file.ino, kind, known, is_open: false };
        (entry, record.map_or(Node::default(), |record| record.node))
    }

    /// Attributes, unless something has happened to the file since they were asked for.
    fn known(&self, record: &Record) -> Option<Known> {
        let holds = record.attr_until > 0
            && record.pending == 0
            && !record.dying
            && record.attr_sequence >= self.table.in_doubt;
        let is_written = self.ahead.contains(&record.node)
            || record.file.as_ref().is_some_and(|file| !lock(&file.delayed).is_empty());
        if !holds || is_written {
            return None;
        }
        let target = if let Body::Link(target) = &record.body { Some(target.clone()) } else { None };
        let attr = record.attr.clone().filter(|attr| FileKind::of_mode(attr.mode).is_some())?;
        Some(Known { learnt: self.learnt(record.attr_asked), attr, target })
    }

    /// Whether a file may be one that the tree below does not have yet.
    fn is_ahead(&self, file: File) -> bool {
        if self.ahead.contains(&file.node) {
            return true;
        }
        let record = self.table.records.peek(&file.node);
        let file = record.and_then(|record| record.file.as_ref());
        file.is_some_and(|file| lock(&file.delayed).is_being_created())
    }

    /// The time of day of a moment before now.
    fn learnt(&self, asked: Moment) -> Learnt {
        let When { now, wall } = self.when;
        if asked == 0 { 0 } else { millis(wall).saturating_sub(now.saturating_sub(asked)) }
    }
}

/// As [`SavedDir`], with the nodes of its entries.
#[derive(Default)]
struct Collected {
    listed: Option<Learnt>,
    stamp: Option<Stamp>,
    entries: Vec<(SavedEntry, Node)>,
}
