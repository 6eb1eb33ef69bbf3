// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was saved becomes known again.

use super::form::{Known, Learnt, SavedDir, SavedEntry, SavedTree};
use super::{Metadata, millis};
use crate::fill::is_settled;
use crate::inner::Inner;
use crate::moment::{Moment, after};
use crate::names::{File, Names, Placing, Slot, What};
use crate::record::Body;
use crate::table::{Table, When};
use bytes::Bytes;
use outrigger_core::{FileKind, Generation, Node, Recalled, Service, Target, Time, lock};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The moment until which something is fresh that is not, and was not called in question either.
const EXPIRED: Moment = 1;

impl Inner {
    /// Knows again what a former process has saved, before anything else is done.
    pub(crate) fn recall(&self) {
        let Some(Metadata(shared)) = &self.metadata else { return };
        if shared.recalled.load(Ordering::Acquire) {
            return;
        }
        // Others wait for this lock before they ask what is known.
        let mut table = lock(&self.table);
        let Some(saved) = lock(&shared.found).take() else {
            return shared.recalled.store(true, Ordering::Release);
        };
        let below = self.below();
        if below.abilities.recalls {
            let (service, placing) = (&*below.service, self.placing());
            let mut recall = Recall { table: &mut table, service, placing, when: self.when(), names: 0 };
            recall.tree(saved);
            lock(&shared.state).usage.recalled = recall.names;
        }
        shared.recalled.store(true, Ordering::Release);
    }
}

struct Recall<'a> {
    table: &'a mut Table,
    service: &'a dyn Service,
    placing: Placing,
    when: When,
    names: u64,
}

impl Recall<'_> {
    fn tree(&mut self, saved: SavedTree) {
        if let Some(root) = saved.root.filter(|root| root.attr.is_dir()) {
            self.attr(Node::ROOT, root);
        }
        let mut open = VecDeque::from([Some(Node::ROOT)]);
        for dir in saved.dirs {
            let announced = dir.entries.iter().filter(|entry| entry.is_open).count();
            match open.pop_front().flatten() {
                Some(node) => self.dir(node, dir, &mut open),
                // The tree below has no node for it.
                None => open.extend((0..announced).map(|_| None)),
            }
        }
    }

    fn dir(&mut self, dir: Node, saved: SavedDir, open: &mut VecDeque<Option<Node>>) {
        let (ttls, now) = (self.table.ttls(dir), self.when.now);
        let attr = self.table.record(dir).and_then(|record| record.attr.clone());
        let learnt = saved.listed.unwrap_or_default();
        let asked_at = Time::new((learnt / 1000) as i64, 0);
        let period = attr.map_or(ttls.least(), |attr| ttls.period(&attr, asked_at));
        let times = (self.asked(learnt), self.until(learnt, period));
        let mut names = match saved.listed {
            Some(_) => Names::filling(saved.stamp, times, self.placing),
            None => Names::default(),
        };
        let absent = self.table.absent_until(ttls, now);
        names.negative_until = if absent == 0 { 0 } else { self.until(learnt, ttls.negative()) };
        for entry in saved.entries {
            let (name, cookie, is_open) = (entry.name.clone(), entry.cookie, entry.is_open);
            let (file, until) = self.file(dir, entry);
            if is_open {
                open.push_back(Some(file.node).filter(|&node| node != Node::default()));
            }
            if saved.listed.is_some() {
                names.receive(Slot { name: Some(name), cookie, file });
                names.attrs_hold(until);
            } else if until > now {
                names.learn(&name, What::File(file), (now, until));
            }
            self.names += 1;
        }
        if saved.listed.is_some() {
            names.finish();
        }
        self.table.install(dir, Arc::new(Mutex::new(names)));
    }

    /// The file that a name in `dir` leads to, and until when its attributes are fresh.
    fn file(&mut self, dir: Node, entry: SavedEntry) -> (File, Moment) {
        let SavedEntry { name, ino, kind, known, is_open, .. } = entry;
        let unknown = File { node: Node::default(), generation: Generation::default(), ino, kind };
        let Some(kind) = kind.filter(|_| known.is_some() || is_open) else { return (unknown, 0) };
        let Ok(recalled) = self.service.recall(dir, &name, kind) else { return (unknown, 0) };
        let Recalled { node, generation, ino } = recalled;
        self.table.received(node);
        self.table.identify(node, generation);
        self.table.learn_place(node, dir, &name);
        let until = known.map_or(0, |mut known| {
            known.attr.ino = ino;
            self.attr(node, known)
        });
        (File { node, generation, ino, kind: Some(kind) }, until)
    }

    /// Attributes of a file are known again; answers until when they are fresh.
    fn attr(&mut self, node: Node, known: Known) -> Moment {
        let Known { learnt, attr, target } = known;
        let asked_at = Time::new((learnt / 1000) as i64, 0);
        let period = self.table.ttls(node).period(&attr, asked_at);
        let (asked, until) = (self.asked(learnt), self.until(learnt, period));
        let record = self.table.make(node);
        (record.attr_asked, record.attr_until) = (asked, until);
        record.attr_settled = learnt > 0 && is_settled(&attr, asked_at);
        // The target has the memory of the whole file behind it.
        let own = target.and_then(|target| Target::new(Bytes::copy_from_slice(&target)).ok());
        if let Some(target) = own.filter(|_| attr.kind() == FileKind::Symlink) {
            record.body = Body::Link(target);
        }
        record.attr = Some(attr);
        self.table.weigh(node);
        until
    }

    /// When something was asked that was learnt then.
    fn asked(&self, learnt: Learnt) -> Moment {
        self.when.now.saturating_sub(millis(self.when.wall).saturating_sub(learnt))
    }

    /// Until when something is fresh that was learnt then, for so long. What was learnt later than now is not fresh, or a clock that was
    /// wrong would make it so for long.
    fn until(&self, learnt: Learnt, period: Duration) -> Moment {
        let wall = millis(self.when.wall);
        let end = after(learnt, period);
        match learnt {
            0 => EXPIRED,
            _ if learnt > wall || end <= wall => EXPIRED,
            _ if end == Moment::MAX => Moment::MAX,
            _ => self.when.now.saturating_add(end - wall),
        }
    }
}
