// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a tree before its image is made: how much there is of it, and how new it is.

use super::failed;
use super::seed::Seed;
use super::source::{Found, Sink, stored};
use crate::status::Failure;
use outrigger_core::{Errno, FileKind, Time};

/// The unit in which file systems store content, in bytes.
pub const BLOCK: u64 = 4096;
/// Attributes and targets of this length are stored with the file itself, in bytes, or nearly so.
const INLINE: u64 = 60;

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
    /// The path of a file with extended attributes, if there is one.
    pub attributed: Option<Vec<u8>>,
    /// The path of the first file of each kind.
    first: Vec<(FileKind, Vec<u8>)>,
    /// The path of the second name of a file, if there is one.
    pub linked: Option<Vec<u8>>,
    /// The newest time of modification.
    pub newest: Time,
    /// What makes this tree differ from others.
    pub seed: Seed,
    shown: String,
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
            attributed: None,
            first: Vec::new(),
            linked: None,
            newest: Time::default(),
            seed: Seed::of_tree(),
            shown,
            names: Vec::new(),
        }
    }

    /// The path of a file of this kind, if there is one.
    pub fn first(&self, kind: FileKind) -> Option<&[u8]> {
        self.first.iter().find(|(known, _)| *known == kind).map(|(_, path)| &path[..])
    }

    /// Adds the blocks that extended attributes take.
    fn attributes(&mut self, found: &Found) -> Result<(), Failure> {
        let cannot =
            |error| failed("cannot read the extended attributes of", &self.shown, &found.path, &error);
        let names = match found.inode.xattrs() {
            Err(error) if error.errno == Errno::EOPNOTSUPP => return Ok(()),
            names => names.map_err(cannot)?,
        };
        let mut bytes = 0;
        for name in names {
            match found.inode.xattr(&name) {
                Ok(value) => {
                    let length = value.len() as u64;
                    self.longest_attribute = self.longest_attribute.max(length);
                    self.blocks += if length > BLOCK / 2 { length.div_ceil(BLOCK) } else { 0 };
                    bytes += name.len() as u64 + length;
                }
                Err(error) if error.errno == Errno::ENODATA => {}
                Err(error) => return Err(cannot(error)),
            }
        }
        if bytes > 0 && self.attributed.is_none() {
            self.attributed = Some(found.path.clone());
        }
        self.blocks += u64::from(bytes > INLINE);
        Ok(())
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
            self.linked.get_or_insert_with(|| found.path.clone());
            return Ok(());
        }
        let (attr, kind) = (&found.attr, found.attr.kind());
        self.files += 1;
        self.newest = self.newest.max(attr.mtime);
        if self.first(kind).is_none() {
            self.first.push((kind, found.path.clone()));
        }
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
