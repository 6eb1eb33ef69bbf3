// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of extended attributes.
//!
//! `ls -l` asks for extended attributes of every file, which hardly any has. Where a program asks for those of one file of a
//! directory after the other, the names of all are asked for, many files at a time; and while one does, those of directories that
//! are listed as well. An attribute that is not among them is absent without asking.
//!
//! Before the kernel passes on the first write to a file, it asks for its capabilities (capabilities(7)). One that was made here has none, as long as
//! other things are believed that others could have changed.
//!
//! Names are known as long as the attributes of the file are fresh, and longer where these are asked for again and have not changed.

use crate::clock::Asked;
use crate::inner::Inner;
use crate::moment::{Moment, after};
use crate::table::Table;
use outrigger_core::gate::Gate;
use outrigger_core::ops::{GetXattr, ListXattr};
use outrigger_core::reply::Names;
use outrigger_core::{Answer, Cx, Errno, Error, Node, OpCode, Reply, ask, lock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// In these namespaces all attributes that exist are listed. Others have some that are not, as those of file systems.
const LISTED: &[&[u8]] = &[b"security.", b"system.posix_acl_", b"user."];
/// What the kernel asks for before it passes on a write.
const CAPABILITY: &[u8] = b"security.capability";
/// Files of how many a program asks one after the other until those of the others are expected to be asked for.
const ENOUGH: u32 = 2;
/// Of so many files at once.
const AT_ONCE: usize = 256;
/// A program that asked so short a time ago goes on.
const SOON: Duration = Duration::from_secs(1);

/// What is known of the names of one file.
#[derive(Clone)]
pub(crate) enum Xattrs {
    /// They are asked for.
    Coming(Arc<Coming>),
    /// These there are.
    Names(Names),
    /// The tree below has none for this file.
    Unsupported,
}

/// Names that are asked for.
#[derive(Default)]
pub(crate) struct Coming {
    gate: Gate,
    ended: AtomicBool,
}

/// Files of a directory whose attributes were asked for one after the other.
#[derive(Default)]
pub(crate) struct Row {
    last: Node,
    files: u32,
    until: Moment,
}

impl Row {
    /// Those of `node` are asked for; answers whether the others' are expected to be.
    fn advance(&mut self, node: Node, now: Moment) -> bool {
        self.files = match (now < self.until, node == self.last) {
            (false, _) => 1,
            (true, true) => self.files,
            (true, false) => self.files + 1,
        };
        (self.last, self.until) = (node, after(now, SOON));
        self.files >= ENOUGH
    }
}

impl Xattrs {
    fn weight(&self) -> usize {
        match self {
            Xattrs::Names(names) => names.iter().map(|name| size_of_val(name) + name.len()).sum(),
            Xattrs::Coming(_) => size_of::<Coming>(),
            Xattrs::Unsupported => 0,
        }
    }

    /// What the answer to a query says; `None` when that is nothing about the file.
    fn learn(answer: Result<Names, Error>) -> Option<Self> {
        match answer {
            Ok(names) => Some(Xattrs::Names(names)),
            Err(error) if error.errno == Errno::EOPNOTSUPP => Some(Xattrs::Unsupported),
            Err(_) => None,
        }
    }
}

/// What a record's names take in memory, in bytes.
pub(crate) fn weight(xattrs: Option<&Xattrs>) -> usize {
    xattrs.map_or(0, Xattrs::weight)
}

impl Table {
    /// Notes that a file was made just now: it has no capabilities.
    pub(crate) fn has_no_capability(&mut self, node: Node, now: Moment) {
        let until = after(now, self.ttls(node).least());
        if let Some(record) = self.record(node) {
            record.no_capability_until = until;
        }
    }

    /// What is known of the names of a file at `now`.
    fn xattrs(&mut self, node: Node, now: Moment) -> Option<Xattrs> {
        self.fresh_attr(node, now)?;
        self.record(node)?.xattrs.clone()
    }

    /// The files after `last` in the listing of `dir`, or its first ones, whose names are to be asked for now.
    fn without_xattrs(&mut self, dir: Node, last: Option<Node>, now: Moment) -> Vec<Node> {
        let Some(names) = self.names_of(dir) else { return Vec::new() };
        let names = lock(&names);
        let listed = names.from(0).map(|(_, slot)| slot.file.node);
        let from = listed.skip_while(|&node| last.is_some_and(|last| node != last)).take(AT_ONCE);
        let nodes: Vec<Node> = from.collect();
        drop(names);
        let is_unknown =
            |node: &Node| self.fresh_attr(*node, now).is_some() && self.xattrs(*node, now).is_none();
        nodes.into_iter().filter(is_unknown).collect()
    }

    /// Learns the names of a file that was pinned for as long as they were asked for.
    fn learn_xattrs(&mut self, node: Node, coming: &Arc<Coming>, learned: Option<Xattrs>, asked: Asked) {
        self.unpin(node);
        let Some(record) = self.record(node) else { return };
        if !matches!(&record.xattrs, Some(Xattrs::Coming(own)) if Arc::ptr_eq(own, coming)) {
            return;
        }
        let holds = record.pending == 0 && record.changed <= asked.sequence;
        record.xattrs = learned.filter(|_| holds);
        self.weigh(node);
    }
}

impl Inner {
    /// A value, or that there is none.
    pub(crate) fn getxattr<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: GetXattr) -> Answer<'a> {
        let now = self.now();
        let is_of_new =
            |table: &mut Table| table.record(op.node).is_some_and(|file| now < file.no_capability_until);
        if op.name.as_bytes() == CAPABILITY && self.has(OpCode::GetXattr) && is_of_new(&mut lock(&self.table))
        {
            return Answer::error(Errno::ENODATA);
        }
        if !self.has(OpCode::ListXattr) || !LISTED.iter().any(|space| op.name.starts_with(space)) {
            return self.pass(cx, op.into());
        }
        let absent = move |xattrs: &Xattrs, op: &GetXattr| match xattrs {
            Xattrs::Names(names) if !names.contains(&op.name) => Some(Reply::Error(Errno::ENODATA.into())),
            Xattrs::Unsupported => Some(Reply::Error(Errno::EOPNOTSUPP.into())),
            _ => None,
        };
        match self.known_xattrs(cx, op.node) {
            Some(Xattrs::Coming(coming)) => Answer::later(async move {
                let known = self.xattrs_to_come(op.node, &coming).await;
                match known.and_then(|xattrs| absent(&xattrs, &op)) {
                    Some(reply) => reply,
                    None => self.pass(cx, op.into()).await,
                }
            }),
            known => match known.and_then(|xattrs| absent(&xattrs, &op)) {
                Some(reply) => Answer::Ready(reply),
                None => self.pass(cx, op.into()),
            },
        }
    }

    pub(crate) fn listxattr<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: ListXattr) -> Answer<'a> {
        let listed = |xattrs: Xattrs| match xattrs {
            Xattrs::Names(names) => Some(Reply::Names(names)),
            Xattrs::Unsupported => Some(Reply::Error(Errno::EOPNOTSUPP.into())),
            Xattrs::Coming(_) => None,
        };
        match self.known_xattrs(cx, op.node) {
            Some(Xattrs::Coming(coming)) => Answer::later(async move {
                match self.xattrs_to_come(op.node, &coming).await.and_then(listed) {
                    Some(reply) => reply,
                    None => self.pass(cx, op.into()).await,
                }
            }),
            known => match known.and_then(listed) {
                Some(reply) => Answer::Ready(reply),
                None => self.pass(cx, op.into()),
            },
        }
    }

    /// What is known of the names of a file that a program asks for, or begins to be asked for now.
    fn known_xattrs(self: &Arc<Self>, cx: &Cx, node: Node) -> Option<Xattrs> {
        let now = self.now();
        let mut table = lock(&self.table);
        let known = table.xattrs(node, now);
        let dir = table.record(node)?.dir?;
        let walks = now < self.xattrs_wanted.load(Ordering::Relaxed);
        let goes_on = table.directory(dir).row.advance(node, now) || walks;
        if goes_on {
            self.xattrs_wanted.store(after(now, SOON), Ordering::Relaxed);
        }
        if known.is_some() || !goes_on {
            return known;
        }
        let more = table.without_xattrs(dir, Some(node), now);
        drop(table);
        self.list_xattrs(cx, more);
        lock(&self.table).xattrs(node, now)
    }

    /// A listing was received: if programs ask for extended attributes, those of its files are asked for.
    pub(crate) fn xattrs_of_listed(self: &Arc<Self>, cx: &Cx, dir: Node) {
        let now = self.now();
        if now >= self.xattrs_wanted.load(Ordering::Relaxed) {
            return;
        }
        let nodes = lock(&self.table).without_xattrs(dir, None, now);
        self.list_xattrs(cx, nodes);
    }

    /// Asks for the names of these files, side by side.
    fn list_xattrs(self: &Arc<Self>, cx: &Cx, nodes: Vec<Node>) {
        for node in nodes {
            let (when, coming) = (self.when(), Arc::new(Coming::default()));
            let mut table = lock(&self.table);
            let asked = table.asked(when);
            table.make(node).xattrs = Some(Xattrs::Coming(Arc::clone(&coming)));
            // Its number means this file until the answer has come.
            table.pin(node);
            drop(table);
            let (inner, cx) = (Arc::clone(self), Cx { ahead: true, ..self.cx(cx) });
            self.runtime.spawn(Box::pin(async move {
                let answer = ask(&*inner.below().service, &cx, ListXattr { node }).await;
                lock(&inner.table).learn_xattrs(node, &coming, Xattrs::learn(answer), asked);
                coming.ended.store(true, Ordering::Release);
                coming.gate.open();
                inner.settle(&cx).await;
            }));
        }
    }

    /// What is known of the names of a file when they have come.
    async fn xattrs_to_come(&self, node: Node, coming: &Coming) -> Option<Xattrs> {
        coming.gate.wait(|| coming.ended.load(Ordering::Acquire).then_some(())).await;
        lock(&self.table).xattrs(node, self.now())
    }
}
