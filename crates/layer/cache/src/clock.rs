// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of ours that are under way, and what answers are worth that come while there are any.
//!
//! A query that was on its way while a change happened may tell of the time before. So every change has a number, a query
//! carries the number of the last change when it set out ([`Asked`]), and what it says of a file that changed since is not
//! cached. The same holds for what the reply to a change says. Of two changes to one name that were under way at once it
//! is not known which came last: then nothing is cached about that name.

use crate::record::{Body, Record, Sequence};
use crate::table::{Table, When};
use outrigger_core::attr::SET_ID;
use outrigger_core::{FileKind, Name, Node, lock};

/// When something was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// The last change there was.
    pub(crate) sequence: Sequence,
    pub(crate) when: When,
}

/// A name in a directory.
pub(crate) type Place = (Node, Name);

/// A change that has set out.
pub(crate) struct Begun {
    number: Sequence,
    asked: Asked,
    nodes: Vec<Node>,
}

/// A change that has ended.
pub(crate) struct Ended {
    /// Another change to one of its names was under way at the same time.
    pub(crate) crossed: bool,
    begun: Asked,
    /// The files it concerned that no other change concerned meanwhile.
    alone: Vec<Node>,
    last: Sequence,
}

/// The names a change alters.
pub(crate) struct Altering {
    number: Sequence,
    places: Vec<Place>,
    crossed: bool,
}

impl Ended {
    /// When that counts as asked which its reply tells of `node`.
    pub(crate) fn asked(&self, node: Node) -> Asked {
        let sequence = if self.alone.contains(&node) { self.last } else { self.begun.sequence };
        Asked { sequence, ..self.begun }
    }
}

impl Table {
    /// For a query that sets out now.
    pub(crate) fn asked(&self, when: When) -> Asked {
        Asked { sequence: self.last, when }
    }

    /// A change of ours sets out that concerns `nodes` and alters `places`.
    pub(crate) fn begin(&mut self, nodes: Vec<Node>, places: Vec<Place>, when: When) -> Begun {
        for &node in &nodes {
            self.make(node).pending += 1;
        }
        self.last_begun += 1;
        let (number, mut crossed) = (self.last_begun, false);
        for other in &mut self.altering {
            if other.places.iter().any(|place| places.contains(place)) {
                (other.crossed, crossed) = (true, true);
            }
        }
        if !places.is_empty() {
            self.altering.push(Altering { number, places, crossed });
        }
        Begun { number, asked: self.asked(when), nodes }
    }

    /// Whether a change is under way that alters a name.
    pub(crate) fn is_altering(&self, dir: Node, name: &Name) -> bool {
        let is_it = |(place, its): &Place| *place == dir && its == name;
        self.altering.iter().any(|altering| altering.places.iter().any(is_it))
    }

    /// It has ended: what set out before tells nothing any more about what it concerned.
    pub(crate) fn end(&mut self, change: Begun) -> Ended {
        let Begun { number, asked: begun, nodes } = change;
        self.last += 1;
        let (last, mut alone) = (self.last, Vec::new());
        for node in nodes {
            let record = self.make(node);
            record.pending = record.pending.saturating_sub(1);
            if record.pending == 0 && record.changed <= begun.sequence {
                alone.push(node);
            }
            record.changed = last;
            (record.xattrs, record.no_capability_until) = (None, 0);
        }
        let at = self.altering.iter().position(|other| other.number == number);
        let crossed = at.is_some_and(|at| self.altering.swap_remove(at).crossed);
        Ended { crossed, begun, alone, last }
    }

    /// A delayed write to `node` was answered, or has been made; answers the number of that change.
    pub(crate) fn was_written(&mut self, node: Node) -> Sequence {
        self.last += 1;
        let last = self.last;
        let record = self.make(node);
        (record.changed, record.attr_until) = (last, 0);
        last
    }

    /// `node` was changed by others.
    pub(crate) fn changed_elsewhere(&mut self, node: Node) {
        self.last += 1;
        let last = self.last;
        match self.record(node) {
            Some(record) => {
                (record.attr_until, record.changed, record.no_capability_until) = (0, last, 0);
                if let Some(file) = &record.file {
                    lock(&file.delayed).forget_predicted();
                    lock(&file.content).until = 0;
                }
            }
            None => self.last_unknown = last,
        }
    }

    /// Anything may have happened to the names in `dir`.
    pub(crate) fn invalidate_names(&mut self, dir: Node) {
        if let Some(Record { body: Body::Directory(directory), .. }) = self.record(dir) {
            directory.fill = None;
            lock(&directory.names).invalidate();
        }
    }

    /// The attributes of `node` are not what they were.
    pub(crate) fn invalidate_attr(&mut self, node: Node) {
        let Some(record) = self.record(node) else { return };
        record.attr_until = 0;
        if let Body::Directory(directory) = &record.body {
            lock(&directory.names).restamp();
            if let Some(fill) = &directory.fill {
                lock(&fill.names).restamp();
            }
        }
    }

    /// A name of `node` was removed by us.
    pub(crate) fn unlinked(&mut self, node: Node, is_dir: bool) {
        self.touch_content(node);
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
            self.return_references(node, balance);
        }
    }

    /// A name was removed by us, and it is not known of which file; `perhaps` of this one.
    pub(crate) fn unlinked_some(&mut self, perhaps: Option<Node>) {
        self.in_doubt = self.last;
        if let Some(node) = perhaps {
            // If it was another, nothing is lost but what is known.
            self.unlinked(node, true);
        }
    }

    /// `node` was given a name by us.
    pub(crate) fn linked(&mut self, node: Node) {
        if let Some(record) = self.record(node) {
            record.dying = false;
        }
    }

    /// Whether writing to `node` may take set-id bits from it.
    pub(crate) fn may_have_setid(&mut self, node: Node) -> bool {
        let attr = self.record(node).and_then(|record| record.attr.as_ref());
        attr.is_none_or(|attr| attr.permissions() & SET_ID != 0)
    }

    /// Whether `node` may have other names than the one it was found under.
    pub(crate) fn has_several_names(&mut self, node: Node) -> bool {
        let attr = self.record(node).and_then(|record| record.attr.as_ref());
        attr.is_none_or(|attr| attr.nlink > 1 && !attr.is_dir())
    }

    /// We changed names or attributes of `node`: that is no change of its content.
    pub(crate) fn touch_content(&mut self, node: Node) {
        if let Some(file) = self.known_file(node) {
            lock(&file.content).is_touched();
        }
    }

    /// The attributes of a file are not what was cached, or can be asked for.
    pub(crate) fn forget_predicted(&mut self, node: Node) {
        if let Some(file) = self.known_file(node) {
            lock(&file.delayed).forget_predicted();
        }
    }
}
