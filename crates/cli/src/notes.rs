// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the first process of a mount leaves to its successors.

use outrigger_core::survive::{Area, Layout, Stored, Text};
use outrigger_core::{Keep, Result};

const LAYOUT: Layout = Layout::of("mount");
const ROOT: Layout = Layout::of("mount-root");

outrigger_core::fields! {
    pub struct Notes {
        /// When the mount began, in milliseconds since 1970.
        began: u64,
        /// The number of the FUSE connection, if it is known: a directory above a mount may be renamed.
        connection: u64,
        origin: Origin<'static>,
    }
}

outrigger_core::fields! {
    /// What the mount was made of: see `trees/origin.rs`.
    pub struct Origin {
        /// The others are noted. Then the LOCATION names a file of this machine if there is a path.
        is_known: u64,
        /// The descriptor of the file.
        descriptor: u64,
        /// How many trees inside of the file, and of the one before, the LOCATION opens.
        nested: u64,
        /// Which file it is.
        fingerprint: [u64; 5],
        /// The longest path that can be opened has 4096 bytes.
        path: Text<'static, 512>,
    }
}

outrigger_core::fields! {
    /// Which directory of another host is mounted.
    pub struct Root {
        /// Its node in the tree of its driver; 0 when that was not found yet.
        node: u64,
    }
}

/// The note in `keep` of the directory that is mounted.
///
/// # Errors
/// Those of [`Layout::attach`].
pub fn root(keep: &dyn Keep) -> Result<Area> {
    Ok(ROOT.attach(keep, Root::WORDS)?.area)
}

/// The notes in `keep`.
///
/// # Errors
/// Those of [`Layout::attach`].
pub fn of(keep: &dyn Keep) -> Result<Area> {
    Ok(LAYOUT.attach(keep, Notes::WORDS)?.area)
}
