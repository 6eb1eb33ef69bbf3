// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a tree before its image is made: how much there is of it, and how new it is.

use super::seed::Seed;
use super::source::{Found, Sink, Tally, stored};
use crate::copy::is_acl;
use crate::status::Failure;
use outrigger_core::{FileKind, Time};

/// The unit in which file systems store content, in bytes.
pub const BLOCK: u64 = 4096;
/// Attributes and targets of this length are stored with the file itself, in bytes, or nearly so.
const INLINE: u64 = 60;

/// Set-id bits and the sticky bit.
const SPECIAL: u32 = 0o7000;

/// Sums over a tree.
#[derive(Debug)]
pub struct Plan {
    /// Files of all kinds, each once.
    pub files: u64,
    /// Bytes of content, holes included: how much is read at most.
    pub bytes: u64,
    /// Blocks of 4 KiB for content, targets and attributes.
    pub blocks: u64,
    /// Blocks of 4 KiB for directories.
    pub directory_blocks: u64,
    /// The longest value of an extended attribute, in bytes.
    pub longest_attribute: u64,
    /// Files with extended attributes other than access lists.
    pub attributed: Tally,
    /// Files with access lists.
    pub listed: Tally,
    /// Files whose owner is not that of the root of the tree.
    pub owned: Tally,
    /// Files with set-id bits or the sticky bit.
    pub special: Tally,
    /// What is neither a regular file nor a directory, and further names of files.
    pub others: Tally,
    /// The newest time of modification.
    pub newest: Time,
    /// What makes this tree differ from others.
    pub seed: Seed,
    /// How users call the tree.
    pub shown: String,
    /// Whom it belongs to.
    owner: (u32, u32),
    /// Bytes of names in the directories on the way to what is looked at.
    names: Vec<u64>,
}

impl Plan {
    /// Of nothing, below a directory that users call `shown`.
    pub fn new(shown: String) -> Self {
        Plan {
            files: 0,
            bytes: 0,
            blocks: 0,
            directory_blocks: 0,
            longest_attribute: 0,
            attributed: Tally::default(),
            listed: Tally::default(),
            owned: Tally::default(),
            special: Tally::default(),
            others: Tally::default(),
            newest: Time::default(),
            seed: Seed::of_tree(),
            shown,
            owner: (0, 0),
            names: Vec::new(),
        }
    }

    /// Adds the blocks that extended attributes take.
    fn attributes(&mut self, found: &Found) -> Result<(), Failure> {
        let attributes = found.attributes(&self.shown)?;
        let mut bytes = 0;
        for (name, value) in &attributes {
            let length = value.len() as u64;
            self.longest_attribute = self.longest_attribute.max(length);
            self.blocks += if length > BLOCK / 2 { length.div_ceil(BLOCK) } else { 0 };
            bytes += name.len() as u64 + length;
        }
        self.blocks += u64::from(bytes > INLINE);
        if attributes.iter().any(|(name, _)| is_acl(name)) {
            self.listed.add(found);
        }
        if attributes.iter().any(|(name, _)| !is_acl(name)) {
            self.attributed.add(found);
        }
        Ok(())
    }

    /// Counts what not every type of image can hold.
    fn tally(&mut self, found: &Found) {
        let attr = &found.attr;
        if found.path.is_empty() {
            self.owner = (attr.uid, attr.gid);
        }
        if (attr.uid, attr.gid) != self.owner {
            self.owned.add(found);
        }
        let kind = attr.kind();
        if attr.permissions() & SPECIAL != 0 {
            self.special.add(found);
        }
        if !matches!(kind, FileKind::Regular | FileKind::Directory) {
            self.others.add(found);
        }
    }
}

impl Sink for Plan {
    fn put(&mut self, found: &Found) -> Result<(), Failure> {
        self.seed.take(found);
        if let Some(names) = self.names.last_mut() {
            // A directory entry of ext4: a head of 8 bytes, and the name in units of 4.
            *names += 8 + found.name().len().next_multiple_of(4) as u64;
        }
        if found.is_further_name() {
            self.others.add(found);
            return Ok(());
        }
        let (attr, kind) = (&found.attr, found.attr.kind());
        self.files += 1;
        self.newest = self.newest.max(attr.mtime);
        self.tally(found);
        match kind {
            FileKind::Directory => self.names.push(0),
            FileKind::Regular => {
                self.bytes += attr.size;
                self.blocks += stored(attr).div_ceil(BLOCK);
                // Trees of extents, for files in many pieces.
                self.blocks += stored(attr) >> 27;
            }
            FileKind::Symlink => self.blocks += u64::from(attr.size >= INLINE),
            _ => {}
        }
        self.attributes(found)
    }

    fn leave(&mut self, _directory: &Found) -> Result<(), Failure> {
        let names = self.names.pop().unwrap_or_default();
        // Blocks of an indexed directory are three quarters full.
        self.directory_blocks += 1 + (names * 4 / 3) / BLOCK;
        Ok(())
    }
}
