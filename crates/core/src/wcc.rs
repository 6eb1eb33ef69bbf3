// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes before and after a change, for callers that keep a cache: weak cache consistency (RFC 1813, section 2.6).
//!
//! A caller that knows them sees that between its own two changes of a directory there was no other, and keeps what it has
//! cached. They travel beside the reply, in [`Cx::wcc`](crate::Cx::wcc): requests of callers that do not ask cost nothing.

use crate::attr::{Attr, Time};
use crate::mutex::lock;
use crate::node::Node;
use std::sync::Mutex;

/// What tells two states of a file apart (`wcc_attr` of RFC 1813, `change_info4` of RFC 7530).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// Size in bytes.
    pub size: u64,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the content or of the attributes.
    pub ctime: Time,
    /// [`Attr::version`].
    pub version: u64,
}

impl From<&Attr> for Before {
    fn from(attr: &Attr) -> Self {
        Before { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, version: attr.version() }
    }
}

/// A file or directory around one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Around {
    /// The file.
    pub node: Node,
    /// What it was right before.
    pub before: Before,
    /// What it was right after: no other change happened in between.
    pub after: Attr,
}

/// Where a driver puts attributes around the change that it makes, in one step with the change. A driver that cannot leaves it empty:
/// the caller then knows nothing about changes by others.
#[derive(Debug, Default)]
pub struct Wcc(Mutex<Vec<Around>>);

impl Wcc {
    /// Adds one file; a change has at most two directories and one file.
    pub fn add(&self, around: Around) {
        lock(&self.0).push(around);
    }

    /// What there is of `node`.
    pub fn of(&self, node: Node) -> Option<Around> {
        let all = lock(&self.0);
        all.iter().find(|around| around.node == node).cloned()
    }
}
