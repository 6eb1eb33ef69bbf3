// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger cp`: copies between any two places, as cp(1) does.
//!
//! Two things differ from GNU cp, both for safety: a symbolic link that stands inside a destination directory is not
//! written through (`-f` replaces it), and a new file whose copy fails is removed, which is said.

mod options;
mod table;

use crate::context::{Context, Place};
use crate::copy::Copier;
use crate::copy::target::{Destination, shown};
use crate::getopt::Arguments;
use crate::location::end_of_trees;
use crate::progress::Progress;
use crate::run::Run;
use crate::say::{place, usage};
use crate::status::{Exits, Failure};
use clap::Args;
use options::Settings;
pub use options::when;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `cp`.
#[derive(Debug, Args)]
pub struct Cp {
    #[command(flatten)]
    arguments: Arguments<table::Cp>,
}

impl Run for Cp {
    const NAME: &'static str = "cp";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let settings = Settings::new(&self.arguments.given, context.json)?;
        context.trees.only_writes(settings.target.named(&self.arguments.operands));
        context.has_sides();
        let (sources, destination) = settings.target.destination(context, self.arguments.operands)?;
        let progress = Progress::new(settings.progress);
        let mut copier = Copier::new(context, settings.options, progress);
        let sources: Vec<Place> = sources.iter().filter_map(|source| place(context, source)).collect();
        context.all_options_taken()?;
        copier.expect(sources.clone());
        for source in sources {
            if context.cancel.is_raised() {
                break;
            }
            if settings.parents {
                copy_with_parents(&mut copier, &source, &destination)?;
            } else {
                copier.copy(&source, &destination.place_of(&source));
            }
        }
        copier.wait();
        Ok(())
    }
}

/// Copies `a/b/c` to `DIRECTORY/a/b/c`.
fn copy_with_parents(
    copier: &mut Copier<'_>,
    source: &Place,
    destination: &Destination,
) -> Result<(), Failure> {
    let Destination::Into(target) = destination else {
        return Err(usage(Cp::NAME, "with --parents, the destination must be a directory"));
    };
    // What the user wrote, inside the innermost tree.
    let written = shown(source);
    let start = end_of_trees(written);
    let components: Vec<&[u8]> =
        written[start..].split(|&byte| byte == b'/').filter(|component| !component.is_empty()).collect();
    let Some((_, above)) = components.split_last() else {
        copier.copy(source, target);
        return Ok(());
    };
    let mut from = root_of(source, components.len());
    let mut to = target.clone();
    for component in above {
        (from, to) = (from.child(component), to.child(component));
        if !copier.make_parent(&from, &to) {
            return Ok(());
        }
    }
    if let Some(last) = components.last() {
        to = to.child(last);
    }
    copier.copy(source, &to);
    Ok(())
}

/// The place `depth` components above `source`.
fn root_of(source: &Place, depth: usize) -> Place {
    let mut path = source.path.as_slice();
    for _ in 0..depth {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let slash = path[..end].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        path = &path[..slash];
    }
    let absolute = source.shown.as_bytes().starts_with(b"/");
    let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
    source.at(path, if absolute { "/".into() } else { Default::default() })
}
