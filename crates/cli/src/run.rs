// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a command is.

use crate::context::Context;
use crate::status::{Exits, Failure};
use crate::tree_options::GLOBALS;

/// What a command does. Errors about one of several things go through [`Context::complain`]; only what ends the
/// whole command is returned.
pub trait Run {
    /// The command's name.
    const NAME: &'static str;

    /// Its exit statuses.
    const EXITS: Exits = Exits::Own;

    /// The options for trees that mean something to it ([`crate::tree_options::GLOBALS`]); others are refused, and not in its help.
    const GLOBALS: &'static [&'static str] = GLOBALS;

    /// Whether Ctrl-C raises the context's cancel token, so that the command can tidy up; otherwise signals have their
    /// default effect, or the command deals with them by itself.
    const INTERRUPTIBLE: bool = false;

    /// Whether it only looks: images it names are opened for reading, as several may at once, and stay as they are.
    fn only_looks(&self) -> bool {
        false
    }

    /// Does it.
    ///
    /// # Errors
    /// Whatever ends the command at once.
    fn run(self, context: &Context) -> Result<(), Failure>;
}
