// SPDX-License-Identifier: MIT OR Apache-2.0
//! Telling what the upper tree hides of the lower one.

use crate::Both;
use outrigger_core::{Attr, Name, Node, Result};

/// Is told what the upper tree is about to hide of the lower one: who applies the changes to the lower tree later has to know
/// which version of a file they were made to.
pub trait Hides: Send + Sync {
    /// The file at `path` is hidden by a copy of it, in this version. An earlier attempt may have failed.
    ///
    /// # Errors
    /// Those of writing it down: nothing is hidden then.
    fn copies(&self, path: &[Name], from: &Attr) -> Result<()>;

    /// The name at `path` leads to something else from now on, or to nothing. It may have been copied before.
    ///
    /// # Errors
    /// Those of writing it down: nothing is hidden then.
    fn hides(&self, path: &[Name], lower: &Attr) -> Result<()>;
}

impl Both<'_> {
    /// Tells that a file of the lower tree gets a copy.
    pub(crate) fn tell_copy(&self, node: Node, from: &Attr) -> Result<()> {
        let Some(hidden) = &self.union.hidden else { return Ok(()) };
        hidden.copies(&self.nodes().table().path(node)?, from)
    }

    /// Tells that a name of the lower tree is hidden.
    pub(crate) fn tell_hidden(&self, dir: Node, name: &Name, lower: &Attr) -> Result<()> {
        let Some(hidden) = &self.union.hidden else { return Ok(()) };
        let mut path = self.nodes().table().path(dir)?;
        path.push(name.clone());
        hidden.hides(&path, lower)
    }
}
