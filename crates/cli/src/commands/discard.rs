// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger discard`: changes that were kept apart are given up.

use crate::context::Context;
use crate::cow::Overlay;
use crate::run::Run;
use crate::status::Failure;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `discard`.
///
/// Removes an overlay of `outrigger run --cow` with all changes in it. The real files stay as they are.
#[derive(Debug, Args)]
pub struct Discard {
    /// The overlay, in place of $XDG_STATE_HOME/outrigger/cow/default.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Run for Discard {
    const NAME: &'static str = "discard";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, _: &Context) -> Result<(), Failure> {
        Overlay::open(&Overlay::dir(self.dir.as_deref())?)?.remove()
    }
}
