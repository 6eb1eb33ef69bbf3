// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{OptionTable, Result};
use outrigger_toolkit_remote::{FILE_OPTIONS, FileOptions};

/// What [`Options::set`] takes, but for those of the protocol.
pub const SHARED: OptionTable = OptionTable { owner: "ftp", options: FILE_OPTIONS };

/// What [`Options::set`] takes beside those that all drivers of whole files have.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "ftp",
    options: &[
        option("no_mlsd", "", "", "directories are listed with LIST, also where the server has MLSD"),
        option("no_utf8", "", "", "the server is not asked for names in UTF-8"),
    ],
};

/// Options of an [`crate::Ftp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Those that all drivers of whole files have.
    pub files: FileOptions,
    /// Whether MLSD is used where it is offered (`no_mlsd`).
    pub mlsd: bool,
    /// Whether the server is asked for UTF-8 (`no_utf8`).
    pub utf8: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { files: FileOptions::default(), mlsd: true, utf8: true }
    }
}

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "no_mlsd" => self.mlsd = !OPTIONS.switch(key, value)?,
            "no_utf8" => self.utf8 = !OPTIONS.switch(key, value)?,
            _ if self.files.set(&SHARED, key, value)? => {}
            _ => return Err(SHARED.unknown_beside(key, OPTIONS.options.iter().map(|option| option.name))),
        }
        Ok(())
    }
}
