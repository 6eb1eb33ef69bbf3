// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things are in the memory file that a server and whoever goes on with it both hold, in bytes from the place where their
//! part of the file starts. Numbers have eight bytes, little-endian.

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
