// SPDX-License-Identifier: MIT OR Apache-2.0
//! Async create: where it is known that there is no such name, and the tree below can predict what a new file will be
//! like, the caller need not wait until it has been created. What is done to the file waits instead, and so does what changes names
//! in a way that depends on it.
//!
//! `O_EXCL` waits, for that is how clients exclude each other, but where the tree below lets nobody else make names meanwhile
//! ([`Abilities::leases`](outrigger_core::Abilities::leases)).

use crate::clock::Asked;
use crate::delayed::{Job, Piece, WriteContext};
use crate::file::File;
use crate::inner::Inner;
use crate::moment::{Moment, after};
use crate::names::What;
use crate::options::Ttls;
use crate::set::DOUBTFUL;
use crate::table::Table;
use outrigger_core::ops::{Create, GetAttr, Lookup, OpenFlags, Release, TmpFile};
use outrigger_core::reply::{Created, OpenHow};
use outrigger_core::{
    Answer, Attr, Cx, Effect, Error, LockOwner, Name, Node, Notice, Opening, Reply, Request, Result, ask,
    lock,
};
use std::sync::Arc;
use std::time::Duration;

/// So many files are being made at most: servers have bounds for what is open at once.
const CREATING_MAX: usize = 128;

impl Inner {
    pub(crate) fn create<'a>(self: &'a Arc<Self>, cx: &'a Cx, mut op: Create) -> Answer<'a> {
        let (flags, name) = (op.flags, Lookup { dir: op.dir, name: op.name.clone() });
        op.flags.set(OpenFlags::ASYNC_CREATE, self.may_create_async(&op));
        Answer::later(async move {
            let mut reply = self.make_change(cx, op.into()).await;
            let behind = is_pending(&mut reply);
            match self.created(reply, flags) {
                Reply::Created(created) if behind => {
                    self.create_async(cx, created, (name, flags)).await.into()
                }
                reply => reply,
            }
        })
    }

    pub(crate) fn tmpfile<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: TmpFile) -> Answer<'a> {
        let flags = op.flags;
        Answer::later(async move { self.created(self.make_change(cx, op.into()).await, flags) })
    }

    fn created(&self, mut reply: Reply, flags: OpenFlags) -> Reply {
        if let Reply::Created(created) = &mut reply {
            self.note_opened(created.entry.node, (flags, Duration::ZERO), &mut created.opened);
        }
        reply
    }

    /// Whether a file may be created after the reply.
    fn may_create_async(&self, op: &Create) -> bool {
        let mut waits = OpenFlags::APPEND | OpenFlags::DSYNC | OpenFlags::DIRECT;
        waits.set(OpenFlags::EXCL, !self.below().abilities.leases);
        if !op.flags.writes()
            || op.flags.intersects(waits)
            || op.mode & DOUBTFUL != 0
            || !self.below().abilities.async_create
            || self.writeback.creating() >= CREATING_MAX
        {
            return false;
        }
        let now = self.now();
        let mut table = lock(&self.table);
        let Some(policy) = table.policy_below(op.dir, &op.name) else { return false };
        let Some(names) = table.names_of(op.dir) else { return false };
        policy.writes.is_behind()
            && policy.ttls != Ttls::Never
            && lock(&names).find(&op.name, now).0 == What::Absent
            && !table.is_altering(op.dir, &op.name)
    }

    /// Has a file made whose attributes were predicted. Where that cannot be noted, this waits until it has been.
    async fn create_async(
        self: &Arc<Self>,
        cx: &Cx,
        mut created: Created,
        (name, flags): (Lookup, OpenFlags),
    ) -> Result<Created> {
        let (node, handle) = (created.entry.node, created.opened.handle);
        let context = WriteContext::new(cx, handle);
        let piece = Piece::new(context.clone(), 0, Job::Create(name.clone().into()));
        let file = Arc::clone(&self.open_file(node, handle).file);
        let attr = created.entry.attr.clone();
        let until = self.predicted_until(&mut lock(&self.table), node, &attr);
        if self.writeback.take(piece.weight) && self.note(node, &file, piece, Some((attr, until))) {
            self.send_next(node, &file);
            return Ok(created);
        }
        match self.outcome(node, &context, &name).await {
            Ok(attr) => {
                created.entry.attr = attr;
                Ok(created)
            }
            Err(error) => {
                not_created(&mut lock(&self.table), node, &name);
                let owner = LockOwner::default();
                self.close(cx, Release { node, handle, flags, owner, flock_release: false }).await;
                Err(error)
            }
        }
    }

    /// Waits until the file has been made that is to have this name; its attributes.
    pub(crate) async fn outcome(&self, node: Node, context: &WriteContext, name: &Lookup) -> Result<Attr> {
        let (cx, handle) = (self.own_cx(&context.cred, context.pid), Some(context.handle));
        match ask(&*self.below().service, &cx, GetAttr { node, handle }).await {
            Ok(attrs) => Ok(attrs.attr),
            Err(error) => Err(creation_error(&name.name, error)),
        }
    }

    /// Until when attributes are fresh that were predicted now.
    pub(crate) fn predicted_until(&self, table: &mut Table, node: Node, attr: &Attr) -> Moment {
        let period = table.ttls(node).period(attr, self.runtime.wall());
        after(self.now(), period)
    }

    /// The files that must have been made before a request.
    pub(crate) fn created_first(&self, request: &Request) -> Vec<Arc<File>> {
        if self.writeback.creating() == 0 {
            return Vec::new();
        }
        let of_directories =
            |effect| matches!(effect, Effect::Moves { .. } | Effect::Removes { directory: true, .. });
        if request.effects().into_iter().any(of_directories) {
            return self.writeback.files().into_iter().map(|(_, file)| file).collect();
        }
        let lost = request.effects().into_iter().find_map(Effect::lost_name);
        let unlinked = lost.and_then(|(dir, name)| self.leads_to(dir, name));
        let one = request.opens().and_then(Opening::file).or(unlinked);
        one.and_then(|node| self.writeback.file(node)).into_iter().collect()
    }

    /// Notifies the door that a name leads nowhere after all.
    pub(crate) fn notify_not_created(&self, name: &Lookup) {
        let Lookup { dir, name } = name.clone();
        if let Some(above) = self.above.get() {
            above.notify(Notice::InvalidateEntry { dir, name });
        }
    }
}

impl Table {
    /// Learns attributes that are predicted: they are not fresh, but the kind of file is known.
    pub(crate) fn learn_predicted(&mut self, node: Node, attr: &Attr, asked: Asked) {
        self.make(node).learn_attr(attr, asked, (asked.when.now, asked.when.now));
    }
}

/// Whether a creation is pending, of which the reply above says nothing.
fn is_pending(reply: &mut Reply) -> bool {
    let Reply::Created(created) = reply else { return false };
    let behind = created.opened.how.contains(OpenHow::PENDING_CREATE);
    created.opened.how -= OpenHow::PENDING_CREATE;
    behind
}

/// Why a file could not be made, for people who cannot be shown where it is.
fn creation_error(name: &Name, Error { errno, reason }: Error) -> Error {
    let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    errno.because(format!("'{}' could not be made{why}", name.escape_ascii()))
}

/// A file could not be made: its name leads elsewhere, or nowhere.
pub(crate) fn not_created(table: &mut Table, node: Node, name: &Lookup) {
    let Lookup { dir, name } = name;
    table.changed_elsewhere(*dir);
    let known = table.names_of(*dir).map(|names| lock(&names).last_known(name).node());
    if known == Some(Some(node)) {
        table.change_names(*dir, |names| names.learn(name, What::Unknown, (0, 0)));
        table.unlinked(node, false);
    }
}
