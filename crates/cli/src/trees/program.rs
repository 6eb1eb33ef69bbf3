// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs serve: `fuse:COMMAND`, and `NAME:REST` of `--driver-program NAME=COMMAND`.

use super::{Trees, completed};
use crate::drivers::{DriverOptions, DriverProgram, opened, that_has};
use crate::status::Failure;
use outrigger_core::registry::Opened;
use outrigger_core::{Keep, Runtime, Service};
use std::ffi::OsString;
use std::sync::Arc;

/// Starts the program a `fuse:` LOCATION names, without a mountpoint of its own.
///
/// # Errors
/// A sentence about the command line, or what the program said; or what allows a LOCATION to start one.
pub(super) fn named(trees: &Trees, text: &str, options: &DriverOptions) -> Result<Opened, Failure> {
    if !trees.options().allow_programs {
        let command = trees.report.command();
        return Err(Failure::serious(format!(
            "fuse:{text}: no such file, and a LOCATION starts no program unless that is allowed: outrigger --allow-programs \
             {command} ..."
        )));
    }
    let words = shell_words::split(text)
        .map_err(|error| Failure::serious(format!("fuse:{text}: {error}: quote as for a shell")))?;
    let command = words.into_iter().map(OsString::from).collect();
    let (driver, open) = that_has(|driver| driver.commands, "programs")?;
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    let site = trees.site(&runtime, None);
    opened(
        driver,
        options,
        |given| open(command, b"", given, &site),
        |error| Failure::serious(error.to_string()),
    )
}

/// Starts the program of the command line for the tree `rest`.
///
/// # Errors
/// Why it cannot be started, or what it says.
pub(super) fn declared(
    trees: &Trees,
    program: &DriverProgram,
    rest: &[u8],
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    let (driver, open) = that_has(|driver| driver.declared, "driver programs")?;
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    let (site, command) = (trees.site(&runtime, keep), program.command.clone());
    let tree = opened(
        driver,
        options,
        |given| open(command, rest, given, &site),
        |error| {
            let rest = String::from_utf8_lossy(rest);
            Failure::serious(format!("cannot open '{}:{rest}': {error}", program.name))
        },
    );
    // What the program does not do is made of what it does.
    completed(tree?.service)
}
