// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layouts of all regions: the one place that says in which versions this build writes and reads what outlives a process.

use super::layout::Layout;
use crate::wire;

/// Every kind of region that a process may leave to the next one. A change of what is in a region raises its version here;
/// where the former version is still read, [`Layout::reading`] says so.
pub(super) const ALL: &[Layout] = &[
    Layout::new("cache-closing", 1),
    Layout::new("cache-log", 5),
    Layout::new("cache-open", 1),
    Layout::new("control", 2),
    Layout::new("crypt-key", 1),
    Layout::new("crypt-lock", 1),
    Layout::new("fault-generations", 2),
    Layout::new("fuse-backings", 3),
    // The hundreds are those of the layout, the rest is the version of the encoding of replies.
    Layout::new("journal", 400 + wire::VERSION as u32),
    Layout::new("keeper", 6),
    Layout::new("last-handle", 1),
    Layout::new("local-files", 3),
    Layout::new("local-held", 3),
    Layout::new("mem-log", 3),
    Layout::new("mount", 1),
    Layout::new("mount-root", 1),
    // Of `NodeTable`, whatever the region is called.
    Layout::new("nodes", 2),
    Layout::new("open-files", 3),
    Layout::new("portal", 1),
    Layout::new("program", 1),
    Layout::new("remote-handles", 1),
    Layout::new("remote-locks", 1),
    Layout::new("remote-login", 1),
    Layout::new("remote-pins", 3),
    Layout::new("remote-uncommitted", 1),
    Layout::new("sftp", 2),
    Layout::new("sftp-handles", 1),
    Layout::new("sftp-ids", 1),
    Layout::new("silly-names", 1),
    Layout::new("staging", 3),
    Layout::new("union", 1),
];
