// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that hold a tree: how a driver recognises and opens them.

use super::{Given, Lasts, Opened, Site};
use crate::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The content of a file that may hold a tree, on this machine or in another tree.
pub trait Content: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Size in bytes.
    fn size(&self) -> u64;

    /// Reads at most `buffer.len()` bytes at `offset` and returns how many; 0 only at the end.
    ///
    /// # Errors
    /// Those of the file, and a change since it was opened.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// What distinguishes this content from all other content, for an index on disk; `None` where nothing does.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Whether reads return at once, so that a door may wait for them.
    fn is_prompt(&self) -> bool {
        false
    }

    /// Its path on this machine; `None` for a file in another tree.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Whether the tree in it may be changed.
    fn may_write(&self) -> bool {
        false
    }
}

/// A file and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Names the file among all files.
    pub key: String,
    /// Time of the last change in nanoseconds since the epoch, or any other version number.
    pub version: i128,
}

/// The files a driver opens.
#[derive(Debug, Clone, Copy)]
pub struct Files {
    /// What they are: a noun for messages, as in "an archive (tar, zip)".
    pub what: &'static str,
    /// Options that say, when one is given, that a file on this machine is one of these, whatever is in it.
    pub chosen_by: &'static [&'static str],
    /// Whether the driver is asked after the others about a file of another tree, of which it may have to read all.
    pub reads_all: bool,
    /// Whether a file is one of these, by its content.
    pub recognise: Recognise,
    /// How long what is in the tree lasts. With [`Lasts::Process`] the driver itself guards a mount, given the option `guard`.
    pub lasts: Lasts,
    /// Opens one that is recognised.
    pub open: OpenFile,
}

/// Looks at a file.
pub type Recognise = fn(&Arc<dyn Content>) -> Result<Recognised, Error>;

/// Opens the tree in a file.
pub type OpenFile = fn(Arc<dyn Content>, &dyn Given, &Site<'_>) -> Result<Opened, Error>;

/// What a driver says about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recognised {
    /// Another driver may know it.
    No,
    /// The driver opens it.
    Yes,
    /// The driver knows what it is and does not open it; a clause that says so and what does.
    NotServed(String),
}
