// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers and names that a server and its successor agree on.

use outrigger_core::Node;

/// Frames of changes have numbers from here on, one after the other; those of other requests are below.
pub const FIRST_CHANGE: u64 = 1 << 63;
/// A bit of the number of a change by which an open file loses a name, or that makes one without a name: the file keeps a name that
/// programs do not see, the other bits of the number. In the number of a link: the file has kept one, and gets no other unless it has
/// another.
pub const KEEPS: u64 = 1 << 62;
/// The directory of these names, in requests that remove one.
pub const REMOVED: Node = Node(u64::MAX);
/// What it is called, in the root.
pub const REMOVED_NAME: &str = ".outrigger-removed";
