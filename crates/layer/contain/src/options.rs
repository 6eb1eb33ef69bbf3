// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the user chooses.

use outrigger_core::option::option;
use outrigger_core::{OptionTable, Result};

/// The options of this layer.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "hosts",
    options: &[
        option(
            "contain_symlinks",
            "",
            "",
            "EPERM for symbolic links that lead out of the tree; absolute ones that stay in it become relative. Mounts \
             do this unless no_contain_symlinks is given; commands show links as they are",
        ),
        option("no_contain_symlinks", "", "", "symbolic links as the server has them, also in mounts"),
        option(
            "transform_symlinks",
            "",
            "",
            "absolute link targets inside the tree are shown as relative ones",
        ),
    ],
};

/// What becomes of symbolic links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Those that lead out of the tree are refused, and absolute ones shown as relative ones (`contain_symlinks`).
    pub contain: bool,
    /// Absolute ones are shown as relative ones (`transform_symlinks`).
    pub transform: bool,
}

impl Options {
    /// Whether there is an option `key`.
    pub fn knows(key: &str) -> bool {
        OPTIONS.name(key).is_some()
    }

    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for one that there is not, or a value it does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "contain_symlinks" => self.contain = OPTIONS.switch(key, value)?,
            "no_contain_symlinks" => self.contain = !OPTIONS.switch(key, value)?,
            "transform_symlinks" => self.transform = OPTIONS.switch(key, value)?,
            _ => return Err(OPTIONS.unknown(key)),
        }
        Ok(())
    }

    /// Whether targets are shown otherwise than the server has them.
    pub fn change_targets(&self) -> bool {
        self.contain || self.transform
    }
}
