// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger rmdir`: empty directories go.

use crate::context::{Context, Place};
use crate::copy::target::{above, shown};
use crate::messages::announce;
use crate::run::Run;
use crate::say::{place, quoted, usage};
use crate::status::{Exits, Failure, Status};
use clap::Args;
use outrigger_core::Errno;
use std::ffi::OsString;

/// Arguments of `rmdir`.
#[derive(Debug, Args)]
pub struct Rmdir {
    /// A directory that is not empty is no failure.
    #[arg(long)]
    ignore_fail_on_non_empty: bool,
    /// Remove the directories above too: `rmdir -p a/b` is like `rmdir a/b a`.
    #[arg(short, long)]
    parents: bool,
    /// Name each directory.
    #[arg(short, long)]
    verbose: bool,
    /// The directories.
    #[arg(value_name = "LOCATION")]
    directories: Vec<OsString>,
}

impl Run for Rmdir {
    const NAME: &'static str = "rmdir";
    const EXITS: Exits = Exits::Plain;

    fn run(self, context: &Context) -> Result<(), Failure> {
        if self.directories.is_empty() {
            return Err(usage(Self::NAME, "missing operand"));
        }
        for directory in &self.directories {
            if let Some(place) = place(context, directory) {
                self.remove(context, place);
            }
        }
        Ok(())
    }
}

impl Rmdir {
    fn remove(&self, context: &Context, place: Place) {
        if !self.remove_one(context, &place, "failed to remove") || !self.parents {
            return;
        }
        let mut at = place;
        while let Some(above) = above(&at) {
            at = above;
            if !self.remove_one(context, &at, "failed to remove directory") {
                return;
            }
        }
    }

    fn remove_one(&self, context: &Context, place: &Place, failed: &str) -> bool {
        if self.verbose {
            announce(format_args!("outrigger rmdir: removing directory, {}", quoted(shown(place))));
        }
        match place.parent().and_then(|(dir, name)| dir.rmdir(&name)) {
            Ok(()) => true,
            // Some systems say that a directory exists when they mean that it is not empty.
            Err(error)
                if self.ignore_fail_on_non_empty
                    && matches!(error.errno, Errno::ENOTEMPTY | Errno::EEXIST) =>
            {
                false
            }
            Err(error) => {
                context.complain(Status::Minor, format_args!("{failed} {}: {error}", quoted(shown(place))));
                false
            }
        }
    }
}
