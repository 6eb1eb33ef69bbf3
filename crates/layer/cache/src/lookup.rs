// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names and attributes.

use crate::clock::Asked;
use crate::inner::Inner;
use crate::moment::{Moment, after, ttl};
use crate::names::{File, What};
use crate::open::own_handles;
use crate::record::Body;
use crate::table::{Found, Table};
use outrigger_core::ops::{GetAttr, Lookup, ReadLink, Walk};
use outrigger_core::reply::Entry;
use outrigger_core::{Answer, Cx, Errno, FileKind, Name, Node, OpCode, Reply, Request, ask, lock};
use std::sync::Arc;

/// After so many names of a directory were asked for below, all of them are; with the attributes of all files, where that costs, after
/// so many that are listed, or twice as many.
const MISSES: u32 = 3;
/// As long as no more time passes between two of them, in milliseconds.
const SOON: u64 = 1000;

impl Inner {
    pub(crate) fn lookup<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Lookup) -> Answer<'a> {
        let found = lock(&self.table).find(op.dir, &op.name, self.now());
        match found {
            Found::Entry(entry) => Answer::Ready(Reply::Entry(entry)),
            Found::Absent => Answer::error(Errno::ENOENT),
            Found::Unknown => Answer::later(self.lookup_below(cx, op)),
        }
    }

    /// The file under a name, as far as that is known.
    pub(crate) fn leads_to(&self, dir: Node, name: &Name) -> Option<Node> {
        let names = lock(&self.table).names_of(dir)?;
        let what = lock(&names).last_known(name);
        what.node()
    }

    async fn lookup_below(self: &Arc<Self>, cx: &Cx, op: Lookup) -> Reply {
        self.know_path(cx, op.dir).await;
        let asked = self.miss(cx, op.dir, &op.name);
        let (dir, name) = (op.dir, op.name.clone());
        let mut reply = self.below().service.call(cx, op.into()).await;
        match &mut reply {
            Reply::Entry(entry) => self.learn_entry(&mut lock(&self.table), dir, &name, entry, asked),
            Reply::Error(error) if error.errno == Errno::ENOENT => {
                let mut table = lock(&self.table);
                let until = after(asked.when.now, table.ttls(dir).negative());
                table.learn_name(dir, &name, What::Absent, asked, until);
            }
            _ => {}
        }
        self.settle(cx).await;
        reply
    }

    /// A name of `dir` has to be asked for below. When that happens often, it is quicker to ask for all of them.
    fn miss(self: &Arc<Self>, cx: &Cx, dir: Node, name: &Name) -> Asked {
        let when = self.when();
        let mut table = lock(&self.table);
        let (asked, now) = (table.asked(when), when.now);
        let believes = !table.ttls(dir).negative().is_zero();
        let alone = self.lists_names_alone();
        let directory = table.directory(dir);
        let listed = lock(&directory.names).listed(name, now);
        if alone && listed.is_some_and(|file| file.kind == Some(FileKind::Directory)) {
            // A program that walks into directories may want to know nothing of the files beside them.
            return asked;
        }
        let (misses, last) = directory.misses;
        let misses = if now.saturating_sub(last) < SOON { misses + 1 } else { 1 };
        directory.misses = (misses, now);
        let many = misses == MISSES || alone && misses == 2 * MISSES;
        let many = many && directory.fill.is_none();
        drop(table);
        if believes && many && self.has(OpCode::ReadDirPlus) {
            self.fill(cx, dir, listed.is_some());
        }
        asked
    }

    /// Learns where a name leads, from an answer that is handed out.
    pub(crate) fn learn_entry(
        &self,
        table: &mut Table,
        dir: Node,
        name: &Name,
        entry: &mut Entry,
        asked: Asked,
    ) {
        let until = self.learn_file(table, dir, name, entry, asked);
        let Entry { node, generation, attr, .. } = entry;
        let file = File { node: *node, generation: *generation, ino: attr.ino, kind: Some(attr.kind()) };
        let until = table.learn_name(dir, name, What::File(file), asked, until);
        entry.entry_ttl = ttl(self.now(), until);
    }

    /// Learns about the file of an entry; answers until when its attributes are fresh.
    pub(crate) fn learn_file(
        &self,
        table: &mut Table,
        dir: Node,
        name: &Name,
        entry: &mut Entry,
        asked: Asked,
    ) -> Moment {
        table.identify(entry.node, entry.generation);
        table.learn_place(entry.node, dir, name);
        let until = table.learn_attr(entry.node, &mut entry.attr, asked);
        entry.attr_ttl = ttl(self.now(), until);
        until
    }

    pub(crate) fn walk<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Walk) -> Answer<'a> {
        let now = self.now();
        let mut found: Vec<Entry> = Vec::with_capacity(op.names.len());
        let mut table = lock(&self.table);
        for name in &op.names {
            let dir = found.last().map_or(op.dir, |entry| entry.node);
            match table.find(dir, name, now) {
                Found::Entry(entry) => found.push(entry),
                Found::Absent if found.is_empty() => return Answer::error(Errno::ENOENT),
                Found::Absent => return Answer::Ready(Reply::Entries(found)),
                Found::Unknown => {
                    drop(table);
                    return Answer::later(self.walk_below(cx, op, found));
                }
            }
        }
        Answer::Ready(Reply::Entries(found))
    }

    /// Asks below for the rest of a path of which the first names are known.
    async fn walk_below(self: &Arc<Self>, cx: &Cx, op: Walk, mut found: Vec<Entry>) -> Reply {
        let mut dir = found.last().map_or(op.dir, |entry| entry.node);
        let names = op.names[found.len()..].to_vec();
        self.know_path(cx, dir).await;
        let asked = self.miss(cx, dir, &names[0]);
        match ask(&*self.below().service, cx, Walk { dir, names: names.clone() }).await {
            Ok(entries) => {
                let mut table = lock(&self.table);
                for (name, mut entry) in names.iter().zip(entries) {
                    self.learn_entry(&mut table, dir, name, &mut entry, asked);
                    dir = entry.node;
                    found.push(entry);
                }
            }
            Err(error) if found.is_empty() => return Reply::Error(error),
            Err(_) => {}
        }
        self.settle(cx).await;
        Reply::Entries(found)
    }

    pub(crate) fn getattr<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: GetAttr) -> Answer<'a> {
        if cx.fresh {
            return Answer::later(async move {
                if let Some(file) = self.writeback.file(op.node) {
                    self.written(op.node, &file).await;
                }
                self.getattr_below(cx, op).await
            });
        }
        let (now, mut table) = (self.now(), lock(&self.table));
        let known = table.attrs(op.node, now).or_else(|| table.predicted(op.node, now));
        drop(table);
        match known {
            Some(attrs) => Answer::Ready(Reply::Attrs(attrs)),
            None => Answer::later(self.getattr_below(cx, op)),
        }
    }

    pub(crate) async fn getattr_below(self: &Arc<Self>, cx: &Cx, op: GetAttr) -> Reply {
        self.know_path(cx, op.node).await;
        let node = op.node;
        let mut request = op.into();
        if let Err(error) = self.translate(cx, &mut request).await {
            return Reply::Error(error);
        }
        let asked = self.asked();
        let mut reply = self.below().service.call(cx, request).await;
        self.check_kind(node, self.kind(node), &mut reply);
        if let Reply::Attrs(attrs) = &mut reply {
            let until = lock(&self.table).learn_attr(node, &mut attrs.attr, asked);
            attrs.ttl = ttl(self.now(), until);
        }
        self.settle(cx).await;
        reply
    }

    pub(crate) fn readlink<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: ReadLink) -> Answer<'a> {
        let (when, node) = (self.when(), op.node);
        let mut table = lock(&self.table);
        if table.attrs(node, when.now).is_some()
            && let Some(record) = table.record(node)
            && let Body::Link(target) = &record.body
        {
            return Answer::Ready(Reply::Target(target.clone()));
        }
        let asked = table.asked(when);
        drop(table);
        Answer::later(async move {
            let reply = self.below().service.call(cx, op.into()).await;
            if let Reply::Target(target) = &reply {
                lock(&self.table).learn_target(node, target, asked);
            }
            reply
        })
    }

    /// Passes on what nothing is known about here.
    pub(crate) fn pass<'a>(self: &'a Arc<Self>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let first = self.written_first(&mut request);
        if first.is_empty() && own_handles(&mut request).is_empty() {
            return self.below().service.call(cx, request);
        }
        Answer::later(async move {
            for (node, file) in first {
                self.written(node, &file).await;
            }
            match self.translate(cx, &mut request).await {
                Ok(()) => self.below().service.call(cx, request).await,
                Err(error) => Reply::Error(error),
            }
        })
    }
}
