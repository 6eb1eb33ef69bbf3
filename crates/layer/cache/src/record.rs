// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known about one file.

use crate::clock::Asked;
use crate::file::File;
use crate::fill::{Fill, is_settled};
use crate::moment::Moment;
use crate::names::{Names, Stamp};
use crate::siblings::Siblings;
use crate::table::When;
use crate::xattrs::{self, Row, Xattrs};
use outrigger_core::{Attr, FileKind, Generation, Node, Target, lock};
use std::sync::{Arc, Mutex};

/// What a record costs beside itself: its places in the tables.
const RECORD_COST: usize = 48;

/// The number of a change.
pub(crate) type Sequence = u64;

/// Names of a directory that several may hold on to.
pub(crate) type SharedNames = Arc<Mutex<Names>>;

/// What is known about one file.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) node: Node,
    pub(crate) generation: Option<Generation>,
    /// References held below beyond those handed out.
    pub(crate) balance: i64,
    pub(crate) attr: Option<Attr>,
    pub(crate) attr_until: Moment,
    /// A change after they were asked for is sure to give other ones.
    pub(crate) attr_settled: bool,
    /// The last change there was when the attributes were asked for.
    pub(crate) attr_sequence: Sequence,
    /// When the attributes were asked for.
    pub(crate) attr_asked: Moment,
    /// The last change of ours that it was part of.
    pub(crate) changed: Sequence,
    /// Changes under way.
    pub(crate) pending: u32,
    /// What needs it to stay, such as open files.
    pub(crate) pins: u32,
    /// Its content, when any of that is known.
    pub(crate) file: Option<Arc<File>>,
    /// The directory in which it was last found.
    pub(crate) dir: Option<Node>,
    /// Its path, where the policy depends on that.
    pub(crate) path: Option<Box<[u8]>>,
    /// It has no name any more: nothing of it is kept when no reference is left.
    pub(crate) dying: bool,
    pub(crate) body: Body,
    /// The names of its extended attributes.
    pub(crate) xattrs: Option<Xattrs>,
    /// Until when it is known to have no capabilities: it was made here.
    pub(crate) no_capability_until: Moment,
    /// Memory in bytes.
    pub(crate) weight: usize,
}

/// What is known beside the attributes.
#[derive(Default)]
pub(crate) enum Body {
    /// Nothing.
    #[default]
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
    pub(crate) siblings: Siblings,
    pub(crate) row: Row,
}

impl Record {
    /// Nothing but that there is a file; `debt` references to it were handed out beyond those held below.
    pub(crate) fn new(node: Node, debt: u64, changed: Sequence) -> Self {
        Record { node, balance: -(debt as i64), changed, ..Record::default() }
    }

    /// What it takes, in bytes.
    pub(crate) fn measure(&self) -> usize {
        let body = match &self.body {
            Body::Nothing => 0,
            Body::Directory(directory) => size_of::<Directory>() + lock(&directory.names).weight(),
            Body::Link(target) => target.len(),
        };
        let file = if self.file.is_some() { size_of::<File>() } else { 0 };
        let path = self.path.as_ref().map_or(0, |path| path.len());
        let xattrs = xattrs::weight(self.xattrs.as_ref());
        size_of::<Record>() + RECORD_COST + body + file + path + xattrs
    }

    /// Whether it must not be dropped.
    pub(crate) fn is_needed(&self) -> bool {
        self.pins > 0 || self.pending > 0
    }

    /// Learns attributes that were asked for then, fresh until some moment; until `absent`, that a directory has no names
    /// but those that are known.
    pub(crate) fn learn_attr(&mut self, attr: &Attr, asked: Asked, (until, absent): (Moment, Moment)) {
        let When { now, wall } = asked.when;
        (self.attr_sequence, self.attr_asked, self.attr_until) = (asked.sequence, now, until);
        let was_settled = std::mem::replace(&mut self.attr_settled, is_settled(attr, wall));
        self.dying = attr.nlink == 0;
        let is_same = |old: &Attr| (stamp(old), old.change) == (stamp(attr), attr.change);
        let stays = was_settled && self.attr.as_ref().is_some_and(is_same);
        if !stays {
            self.xattrs = None;
        }
        match &self.body {
            Body::Directory(directory) if attr.is_dir() => {
                lock(&directory.names).confirm(stamp(attr), now, (until, absent));
            }
            Body::Link(_) if stays => {}
            // Where a node is a place in the tree, another file may have come to that place.
            _ => self.body = Body::Nothing,
        }
        self.attr = Some(attr.clone());
    }

    /// The attributes, if they are fresh at `now`; those asked for before the change `in_doubt` are not.
    pub(crate) fn fresh_attr(&self, now: Moment, in_doubt: Sequence) -> Option<&Attr> {
        let holds = now < self.attr_until && self.pending == 0 && self.attr_sequence >= in_doubt;
        self.attr.as_ref().filter(|_| holds)
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
