// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content alone, for those who make the files themselves.

use super::content::{Content, Fault, knows_holes};
use super::options::Options;
use super::shared::Shared;
use crate::context::Context;
use crate::progress::Progress;
use outrigger_client::File;
use outrigger_core::{Attr, Error};

/// Which side of a copy failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Reading.
    Source,
    /// Writing.
    Target,
}

/// Copies the content of one file after the other.
pub struct Contents(Shared);

impl Contents {
    /// Of a command that shows `progress`.
    pub fn new(context: &Context, progress: Progress) -> Self {
        let options = Options::plain(context.command, context.json);
        Contents(Shared::new(options, progress, context.cancel.clone(), context.umask))
    }

    /// Copies what is in `source`, which had these attributes when it was found, to `target`, which is empty and in another tree. Holes
    /// stay holes.
    ///
    /// # Errors
    /// What the tree of this side answers.
    pub fn copy(&self, (source, attr): (&File, &Attr), target: &File) -> Result<(), (Side, Error)> {
        let knows_holes = knows_holes(source.client());
        let content = Content {
            shared: &self.0,
            source,
            attr,
            target,
            same_tree: false,
            knows_holes,
            copies_inside: false,
        };
        content.copy().map_err(|fault| match fault {
            Fault::Read(error) => (Side::Source, error),
            Fault::Write(error) => (Side::Target, error),
        })
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        &self.0.progress
    }
}
