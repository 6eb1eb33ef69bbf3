// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delayed permissions and times: of a file that is open for writing, and that belongs to the user as whom files are made
//! here, so that it will not be refused. Of a tree that may refuse them all the same ([`Abilities::attrs_may_fail`]) the first of each kind
//! is waited for.
//!
//! [`Abilities::attrs_may_fail`]: outrigger_core::Abilities::attrs_may_fail

use crate::delayed::{Job, Piece, WriteContext};
use crate::file::File;
use crate::inner::Inner;
use crate::moment::Moment;
use crate::options::Writes;
use crate::table::Table;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::SetAttr;
use outrigger_core::reply::{Attrs, Ttl};
use outrigger_core::{Answer, Attr, Cx, FileKind, Handle, Node, Reply, SetAttrs, SetTime, Time, lock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a tree has set.
#[derive(Debug, Default)]
pub(crate) struct Settable {
    modes: AtomicBool,
    times: AtomicBool,
}

impl Settable {
    /// These were set as they were wanted: a tree that sets no times may pass over the present one.
    fn learn(&self, attrs: &SetAttrs) {
        self.modes.fetch_or(attrs.mode.is_some(), Ordering::Relaxed);
        self.times.fetch_or(matches!(attrs.mtime, Some(SetTime::To(_))), Ordering::Relaxed);
    }

    /// Whether such attributes were set before.
    fn has(&self, attrs: &SetAttrs) -> bool {
        let times = attrs.mtime.is_some() || attrs.atime.is_some();
        (attrs.mode.is_none() || self.modes.load(Ordering::Relaxed))
            && (!times || self.times.load(Ordering::Relaxed))
    }
}

/// The bits of a mode of which a tree may keep less than was asked for.
pub(crate) const DOUBTFUL: u32 = 0o7000;

impl Inner {
    pub(crate) fn setattr<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: SetAttr) -> Answer<'a> {
        match self.set_later(cx, &op) {
            Some(attr) => Answer::Ready(Reply::Attrs(Attrs { attr, ttl: Ttl::NEVER })),
            None => Answer::later(async move {
                let may_fail = self.below().abilities.attrs_may_fail && !self.settable.has(&op.attrs);
                // What is set by an open file does not depend on its name.
                let node = op.handle.is_none().then_some(op.node);
                let kind = self.kind(op.node);
                // Times of a directory may be passed over.
                let may_fail = may_fail && kind == Some(FileKind::Regular);
                let attrs = may_fail.then(|| op.attrs.clone());
                let mut reply = self.make_change(cx, op.into()).await;
                node.into_iter().for_each(|node| self.check_kind(node, kind, &mut reply));
                match (&mut reply, attrs) {
                    (Reply::Attrs(_), Some(attrs)) => self.settable.learn(&attrs),
                    (Reply::Error(error), _) => {
                        node.into_iter().for_each(|node| self.note_displaced(node, error))
                    }
                    _ => {}
                }
                reply
            }),
        }
    }

    /// Learns from the reply to a request that fails where there is something already as whom files are made.
    pub(crate) fn learn_creator(&self, made: &Reply) {
        let attr = match made {
            Reply::Entry(entry) => &entry.attr,
            Reply::Created(created) => &created.entry.attr,
            _ => return,
        };
        *lock(&self.creator) = Some(attr.uid);
    }

    /// Notes what is to be set, if that may be done later; answers the attributes the file will have.
    fn set_later(self: &Arc<Self>, cx: &Cx, op: &SetAttr) -> Option<Attr> {
        if self.below().abilities.attrs_may_fail && !self.settable.has(&op.attrs) {
            return None;
        }
        let now = self.now();
        let mut table = lock(&self.table);
        let (file, attr) = self.may_set_later(&mut table, op.node, now)?;
        drop(table);
        let (handle, attrs) = (file.writer()?, self.to_be_set(&op.attrs, &attr)?);
        if attrs == SetAttrs::default() {
            return Some(attr);
        }
        let has_time = attrs.mtime.is_some();
        let piece = Piece::new(WriteContext::new(cx, handle), 0, Job::Set(attrs.into()));
        if !self.writeback.take(piece.weight) || !self.note(op.node, &file, piece, None) {
            return None;
        }
        let mut content = lock(&file.content);
        match has_time {
            true => content.has_our_time(),
            false => content.is_touched(),
        }
        drop(content);
        self.send_next(op.node, &file);
        let predicted = lock(&file.delayed).predicted(now);
        predicted.or(Some(attr))
    }

    /// A file whose attributes are known, and may be set without being refused.
    fn may_set_later(&self, table: &mut Table, node: Node, now: Moment) -> Option<(Arc<File>, Attr)> {
        if table.policy(node).writes == Writes::Through {
            return None;
        }
        let attrs = table.attrs(node, now).or_else(|| table.predicted(node, now))?;
        let file = table.known_file(node)?;
        let ours = *lock(&self.creator) == Some(attrs.attr.uid) && attrs.attr.kind() == FileKind::Regular;
        (ours && attrs.attr.mode & DOUBTFUL == 0).then_some((file, attrs.attr))
    }

    /// What has to be set of what is wanted of a file with these attributes; `None` when that cannot be done later.
    fn to_be_set(&self, wanted: &SetAttrs, attr: &Attr) -> Option<SetAttrs> {
        // There are no set-id bits that could be taken away.
        let SetAttrs { mode, uid, gid, size, atime, mtime, ctime, kill_setid: _, lock_owner: _ } = wanted;
        let owner_stays = uid.is_none_or(|uid| uid == attr.uid) && gid.is_none_or(|gid| gid == attr.gid);
        let doubtful = mode.is_some_and(|mode| mode & DOUBTFUL != 0);
        if size.is_some() || ctime.is_some() || !owner_stays || doubtful {
            return None;
        }
        let (atime, mtime) = (self.time(atime)?, self.time(mtime)?);
        let mode = mode.map(|mode| mode & MODE_PERMISSIONS).filter(|&mode| mode != attr.permissions());
        Some(SetAttrs { mode, atime, mtime, ..SetAttrs::default() })
    }

    /// A time as the tree below will have it; `None` when that is not known.
    fn time(&self, time: &Option<SetTime>) -> Option<Option<SetTime>> {
        let time = match time {
            None => return Some(None),
            Some(SetTime::Now) => self.runtime.coarse_wall(),
            Some(SetTime::To(time)) => *time,
        };
        // Others are not what every tree can have.
        u32::try_from(time.secs).ok()?;
        Some(Some(SetTime::To(self.in_units(time))))
    }

    /// A time as exact as those of the tree below.
    pub(crate) fn in_units(&self, time: Time) -> Time {
        Time::new(time.secs, time.nanos - time.nanos % self.below().abilities.time_unit.max(1))
    }
}

impl File {
    /// A handle of the tree below by which it is open for writing.
    pub(crate) fn writer(&self) -> Option<Handle> {
        lock(&self.writers).last().copied()
    }

    /// Whether that is one of these handles.
    pub(crate) fn is_written_by(&self, handle: Handle) -> bool {
        lock(&self.writers).contains(&handle)
    }
}
