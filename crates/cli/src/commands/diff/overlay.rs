// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program has changed that was run with an overlay.

use super::usage;
use crate::commands::commit::show as show_change;
use crate::context::Context;
use crate::cow::{Changes, Only, Overlay};
use crate::location::{Base, Location};
use crate::messages::warn;
use crate::output::Output;
use crate::say::operand as quoted;
use crate::status::{Failure, Status};
use outrigger_core::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether one overlay is meant instead of two files.
pub(super) fn is_meant(operands: &[OsString]) -> bool {
    let dir = Overlay::dir(operands.first().map(Path::new));
    operands.len() < 2 && dir.is_ok_and(|dir| Overlay::is_at(&dir))
}

/// Why fewer than two operands show nothing, where [no overlay is meant](is_meant).
pub(super) fn missing(operand: Option<&OsString>) -> Failure {
    let Some(only) = operand else {
        return match Overlay::dir(None) {
            Ok(dir) => usage(format!("missing operand after 'diff': {}", Overlay::missing(&dir))),
            Err(failure) => failure,
        };
    };
    if let Location { base: Base::Host(path), nested } = Location::parse(only)
        && nested.is_empty()
        && let Err(error) = fs::symlink_metadata(path)
    {
        return Failure::serious(format!("{}: {}", quoted(only), Error::from(error)));
    }
    usage(format!(
        "missing operand after {}: alone it would be an overlay of `outrigger run --cow`, which it is not",
        quoted(only)
    ))
}

/// Shows the changes.
pub(super) fn show(context: &Context, operand: Option<&OsString>, only: &[PathBuf]) -> Result<(), Failure> {
    let dir = Overlay::dir(operand.map(Path::new))?;
    let only = Only::these(only)?;
    let mut changes = Changes::of(&dir)?;
    changes.list.retain(|change| only.has(change));
    // That nothing differs there is no error, but it may be another path than the user meant.
    only.unfound(&changes.list).for_each(|sentence| warn(format_args!("outrigger diff: {sentence}")));
    let mut output = Output::new(context);
    for change in &changes.list {
        show_change(context, &mut output, change)?;
    }
    if !changes.list.is_empty() {
        context.fail(Status::Minor);
    }
    output.flush()
}
