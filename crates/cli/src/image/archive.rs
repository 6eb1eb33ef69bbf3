// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images that are written from their beginning to their end.

use super::cpio::Cpio;
use super::keeps::Keeps;
use super::plan::Plan;
use super::source::Source;
use super::stream::Stream;
use super::tar::Tar;
use super::target::Target;
use crate::context::Context;
use crate::progress::Progress;
use crate::status::Failure;
use outrigger_core::Error;
use std::io::{BufWriter, Write};

/// The unit of writing, in bytes.
const PIECE: usize = 1 << 20;

/// A tree on its way into an archive.
pub struct Archived<'a> {
    /// The tree.
    pub source: &'a mut Source,
    /// How messages call it.
    pub shown: &'a str,
    /// What is known of it.
    pub plan: &'a Plan,
    /// How far the command is.
    pub progress: &'a Progress,
    /// Where it goes.
    pub target: &'a Target,
}

impl Archived<'_> {
    /// As a tar archive.
    ///
    /// # Errors
    /// What cannot be read, written, or put into such an archive.
    pub fn tar(mut self) -> Result<(), Failure> {
        let mut out = BufWriter::with_capacity(PIECE, &self.target.file);
        self.put_tar(&mut out)?;
        out.flush().map_err(|error| self.target.failure(Error::from(error)))
    }

    fn put_tar(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let mut tar = Tar::new(Stream::new(out, self.progress, self.shown.to_owned()));
        self.source.walk(&mut tar)?;
        tar.finish()
    }

    /// As a cpio archive.
    ///
    /// # Errors
    /// As [`Archived::tar`].
    pub fn cpio(self, context: &Context) -> Result<(), Failure> {
        Keeps::PLAIN.tell(context, "cpio", self.plan);
        let mut out = BufWriter::with_capacity(PIECE, &self.target.file);
        let mut cpio = Cpio::new(Stream::new(&mut out, self.progress, self.shown.to_owned()));
        self.source.walk(&mut cpio)?;
        cpio.finish()?;
        out.flush().map_err(|error| self.target.failure(Error::from(error)))
    }
}
