// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading what is stored without a tree: for programs that look at one, and for fuzz targets.

use crate::format::{Record, read_header};
use crate::keys::{Id, Keys};
use outrigger_core::{Name, Target};

/// Reads what was stored with some keys. `None` is the answer to everything else.
pub struct Reader(Keys);

impl Reader {
    /// A reader with these keys.
    pub fn new(keys: Keys) -> Self {
        Reader(keys)
    }

    /// What the header at the beginning of a file vouches for.
    pub fn header(&self, bytes: &[u8]) -> Option<Record> {
        read_header(&self.0, bytes).map(|known| known.record)
    }

    /// The number of a directory, from the file that has it.
    pub fn directory(&self, bytes: &[u8]) -> Option<Id> {
        self.0.read_directory(bytes)
    }

    /// The name that is stored so in the directory with this number; a long one as it is written down.
    pub fn name(&self, directory: &Id, stored: &[u8]) -> Option<Name> {
        self.0.name(directory, stored)
    }

    /// The target of a symbolic link that is stored so.
    pub fn target(&self, stored: &[u8]) -> Option<Target> {
        self.0.target(stored)
    }
}
