// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program has changed that was run with an overlay.

use crate::commands::commit::show as show_change;
use crate::context::Context;
use crate::cow::{Changes, Only, Overlay};
use crate::messages::warn;
use crate::output::Output;
use crate::status::{Failure, Status};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Whether one overlay is meant instead of two files.
pub(super) fn is_meant(operands: &[OsString]) -> bool {
    let dir = Overlay::dir(operands.first().map(Path::new));
    operands.len() < 2 && dir.is_ok_and(|dir| Overlay::is_at(&dir))
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
