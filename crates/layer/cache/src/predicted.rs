// SPDX-License-Identifier: MIT OR Apache-2.0
//! What attributes a file will have when the changes have been made that were answered before: those it had, and what each of
//! these changes does to them.

use crate::moment::Moment;
use outrigger_core::attr::{MODE_KIND, MODE_PERMISSIONS, SET_ID};
use outrigger_core::{Attr, SetAttrs, SetTime, Time};

/// What changes that were answered do to attributes, and what those were before.
#[derive(Debug, Default)]
pub(crate) struct PredictedAttrs {
    /// The attributes before the first of them, and until when these would have been fresh.
    base: Option<(Attr, Moment)>,
    /// How many bytes were written.
    bytes: u64,
    /// How far the file reaches by that.
    reach: u64,
    /// When something was written last.
    came: Time,
    /// What was set since.
    set: SetAttrs,
}

impl PredictedAttrs {
    /// Nothing was answered yet that is not known to the tree below; attributes are those of before, if they were fresh.
    pub(crate) fn begin(&mut self, base: Option<(Attr, Moment)>) {
        // Writing takes set-id bits away, or not.
        let base = base.filter(|(attr, _)| attr.mode & SET_ID == 0);
        *self = PredictedAttrs { base, ..PredictedAttrs::default() };
    }

    /// Whether the attributes before are known, and would still be fresh at `now`.
    pub(crate) fn has_base(&self, now: Moment) -> bool {
        self.base.as_ref().is_some_and(|&(_, until)| now < until)
    }

    /// The attributes before were predicted, and are known now.
    pub(crate) fn know_base(&mut self, attr: &Attr, until: Moment) {
        if self.base.is_some() {
            self.base = Some((attr.clone(), until));
        }
    }

    /// The attributes before are not what was cached, or can be asked for again.
    pub(crate) fn forget_base(&mut self) {
        self.base = None;
    }

    /// So many bytes up to `end` were written at a time of day.
    pub(crate) fn written(&mut self, bytes: u64, end: u64, came: Time) {
        self.bytes += bytes;
        self.reach = self.reach.max(end);
        self.came = came;
        self.set.mtime = None;
    }

    /// Attributes were set.
    pub(crate) fn set(&mut self, attrs: &SetAttrs) {
        put(&mut self.set, attrs);
    }

    /// Makes of attributes from before what they will be.
    pub(crate) fn correct(&self, attr: &mut Attr) {
        let SetAttrs { mode, atime, mtime, .. } = self.set;
        attr.size = attr.size.max(self.reach);
        (attr.mtime, attr.ctime) = (attr.mtime.max(self.came), attr.ctime.max(self.came));
        if let Some(mode) = mode {
            attr.mode = attr.mode & MODE_KIND | mode & MODE_PERMISSIONS;
        }
        if let Some(SetTime::To(time)) = atime {
            attr.atime = time;
        }
        if let Some(SetTime::To(time)) = mtime {
            attr.mtime = time;
        }
    }

    /// The attributes it will have, if those before are known and would still be fresh at `now`.
    pub(crate) fn attr(&self, now: Moment) -> Option<Attr> {
        let (mut attr, _) = self.base.clone().filter(|&(_, until)| now < until)?;
        self.correct(&mut attr);
        // What was written may have been there before.
        attr.blocks = (attr.blocks + self.bytes.div_ceil(512)).min(attr.blocks.max(attr.size.div_ceil(512)));
        Some(attr)
    }
}

/// Puts permissions and times over others that were to be set before.
pub(crate) fn put(before: &mut SetAttrs, attrs: &SetAttrs) {
    before.mode = attrs.mode.or(before.mode);
    before.atime = attrs.atime.or(before.atime);
    before.mtime = attrs.mtime.or(before.mtime);
}
