// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of drivers that are programs.

use super::{Trees, completed};
use crate::drivers::{DriverOptions, DriverProgram};
use crate::status::Failure;
use outrigger_core::{Keep, Runtime, Service};
use outrigger_driver_program::{Options, Program};
use std::sync::Arc;

/// Starts the program for the tree `rest`.
///
/// # Errors
/// Why it cannot be started, or what it says.
pub(super) fn serve(
    trees: &Trees,
    program: &DriverProgram,
    rest: &[u8],
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    let mut settings = Options::default();
    if let Some(timeout) = trees.options().timeout.filter(|timeout| !timeout.is_zero()) {
        settings.timeout = timeout;
    }
    options.apply(|key, value| settings.set(key, value))?;
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    let site = trees.site(&runtime, keep);
    let started = Program::start(program.command.clone(), rest, settings, &site);
    match trees.wait_for(started) {
        // What the program does not do is made of what it does.
        Ok(tree) => completed(Arc::new(tree)),
        Err(error) => Err(Failure::serious({
            let rest = String::from_utf8_lossy(rest);
            format!("cannot open '{}:{rest}': {error}", program.name)
        })),
    }
}
