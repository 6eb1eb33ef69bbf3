// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger commit`: changes that were kept apart are applied to the real files.

use crate::context::Context;
use crate::cow::{Change, Only, Overlay, shown};
use crate::messages::record;
use crate::output::Output;
use crate::run::Run;
use crate::status::{Failure, Status};
use clap::Args;
use outrigger_core::Error;
use std::path::PathBuf;

/// Arguments of `commit`.
///
/// Changes the real files to what the program of `outrigger run --cow` saw, prints each change, and removes the overlay. Each file is
/// written under a temporary name, stored and renamed; removals come last.
///
/// A real file that was changed after the program had changed it in the overlay is a conflict: then nothing is done. One that is changed
/// while the commit runs ends it, as each step that fails. The overlay has everything still, and the commit can be repeated, also after a crash.
///
/// With --only, the other changes stay in the overlay, and can be committed later. Directories that the program has made above PATH are
/// made, too.
#[derive(Debug, Args)]
pub struct Commit {
    /// The overlay, in place of $XDG_STATE_HOME/outrigger/cow/default.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Take the overlay's side where a real file was changed meanwhile.
    #[arg(short, long)]
    force: bool,
    /// Apply what is at or below PATH only, and keep the rest; may be given several times.
    #[arg(long, value_name = "PATH")]
    only: Vec<PathBuf>,
}

impl Run for Commit {
    const NAME: &'static str = "commit";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let overlay = Overlay::open(&Overlay::dir(self.dir.as_deref())?)?;
        let mut output = Output::new(context);
        // Users see how far it is, and each line was done, also if the next change ends it.
        let mut tell = |change: &Change| {
            show(context, &mut output, change)?;
            output.flush()
        };
        let commit = crate::cow::Commit::new(&overlay, &Only::these(&self.only)?, &mut tell)?;
        let mounts = commit.mounts_in_the_way();
        if let Some(mount) = mounts.map_err(|error| Failure::serious(error.to_string()))?.first() {
            return Err(Failure::new(format!(
                "nothing was committed: '{}', which the changes remove, is a mount point (umount it first, or discard the changes)",
                mount.display()
            )));
        }
        let mounted = commit.mounted_since().map_err(|error| Failure::serious(error.to_string()))?;
        if let Some(mount) = mounted {
            return Err(Failure::new(format!(
                "nothing was committed: on '{}', in which the program changed something, something else is mounted now, or it is mounted no more (restore that, or name other files with --only)",
                shown(&mount)
            )));
        }
        if let Some((path, error)) = commit.impossible() {
            let why = Error::from(error).why();
            return Err(Failure::new(format!(
                "nothing was committed: '{}' cannot be changed: {why}",
                shown(path)
            )));
        }
        if !self.force {
            refuse(context, &commit.conflicts())?;
        }
        let is_all = commit.apply(self.force)?;
        if is_all { overlay.remove() } else { Ok(()) }
    }
}

/// One line about a change.
///
/// # Errors
/// Those of [`Output::write`].
pub fn show(context: &Context, output: &mut Output<'_>, change: &Change) -> Result<(), Failure> {
    match context.json {
        true => output.write(record(&change.json()).as_bytes()),
        false => output.line(change.line()),
    }
}

fn refuse(context: &Context, conflicts: &[(&Change, &str)]) -> Result<(), Failure> {
    for (change, how) in conflicts {
        context.complain(Status::Minor, format_args!("'{}' {how}", change.path.display()));
    }
    match conflicts.len() {
        0 => Ok(()),
        _ => Err(Failure::new("nothing was committed: --force takes the overlay's side")),
    }
}
