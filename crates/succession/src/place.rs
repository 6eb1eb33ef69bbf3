// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things are in the memory file that a server and whoever goes on with it both hold, in bytes from the place where their
//! part of the file starts. Numbers have eight bytes, little-endian.

use outrigger_core::Node;

/// How many checkpoints there were.
pub const CHECKPOINTS: u64 = 0;
/// Where the list of sealed writes is, and behind it how long it is; both zero when none are sealed.
pub const SEALED: u64 = 8;
/// The time of day at which the next change is to happen: seconds and nanoseconds; all ones when changes happen now.
pub const CLOCK: u64 = 24;
/// How the image was found by the first server.
pub const FOUND: u64 = 40;
/// Up to where the [record](crate::record) was read.
pub const CONSUMED: u64 = 48;
/// The ring with the times of changes,
pub const RING: u64 = 4096;
/// how many it holds,
pub const CHANGES: u64 = 1 << 16;
/// and how much of it one takes.
pub const CHANGE: u64 = 16;
/// Where the record is,
pub const RECORD: u64 = RING + CHANGES * CHANGE;
/// and how long.
pub const RECORD_SIZE: u64 = 16 << 20;
/// Where blocks of content start.
pub const BLOCKS: u64 = RECORD + RECORD_SIZE;

/// Frames of changes have numbers from here on, one after the other; those of other requests are below.
pub const FIRST_CHANGE: u64 = 1 << 63;
/// A bit of the number of a change by which an open file loses a name, or that makes one without a name: the file keeps a name that
/// nobody is shown, the other bits of the number. In the number of a link: the file has kept one, and gets no other unless it has
/// another.
pub const KEEPS: u64 = 1 << 62;
/// The directory of these names, in requests that remove one.
pub const REMOVED: Node = Node(u64::MAX);
/// What it is called, in the root.
pub const REMOVED_NAME: &str = ".outrigger-removed";
