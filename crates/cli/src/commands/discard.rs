// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger discard`: changes that were kept apart are given up.

use crate::context::Context;
use crate::cow::{Only, Overlay, discard};
use crate::run::Run;
use crate::status::Failure;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `discard`.
///
/// Removes an overlay of `outrigger run --cow` with all changes in it. The real files stay as they are.
///
/// With --only, the other changes stay, and the next program that is run with the overlay finds the real files at PATH. Changes below a
/// directory that the program has removed or replaced can only be given up together with that directory.
#[derive(Debug, Args)]
pub struct Discard {
    /// The overlay, in place of $XDG_STATE_HOME/outrigger/cow/default.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Give up what is at or below PATH only; may be given several times.
    #[arg(long, value_name = "PATH")]
    only: Vec<PathBuf>,
}

impl Run for Discard {
    const NAME: &'static str = "discard";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, _: &Context) -> Result<(), Failure> {
        let overlay = Overlay::open(&Overlay::dir(self.dir.as_deref())?)?;
        if self.only.is_empty() { overlay.discard() } else { discard(&overlay, &Only::these(&self.only)?) }
    }
}
