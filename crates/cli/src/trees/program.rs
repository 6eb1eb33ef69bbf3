// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE programs as trees.

use super::Trees;
use crate::drivers::DriverOptions;
use crate::status::Failure;
use outrigger_driver_libfuse::launch::{Launch, Mountpoint};
use outrigger_driver_libfuse::{LibFuse, Options};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Starts the program a `fuse:` LOCATION names, without a mountpoint of its own.
///
/// # Errors
/// A sentence about the command line, or what the program said; or what allows a LOCATION to start one.
pub fn nowhere(trees: &Trees, text: &str, options: &DriverOptions) -> Result<LibFuse, Failure> {
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
    start(trees, Launch { mountpoint: Mountpoint::Private, ..Launch::new(command) }, options)
}

/// Starts the program that a user wants guarded, with the mountpoint it names.
///
/// # Errors
/// As [`nowhere`].
pub fn named(trees: &Trees, command: Vec<OsString>, options: &DriverOptions) -> Result<LibFuse, Failure> {
    start(trees, Launch::new(command), options)
}

/// A program that is to take the place of another one, which is mounted already: it gets a private directory to mount on,
/// in place of the word number `argument`, where one names the mount.
pub fn replacement(command: Vec<OsString>, directory: PathBuf, argument: Option<usize>) -> Launch {
    let mountpoint = argument.map_or(Mountpoint::Private, Mountpoint::Replaced);
    Launch { directory: Some(directory), mountpoint, ..Launch::new(command) }
}

fn start(trees: &Trees, mut launch: Launch, options: &DriverOptions) -> Result<LibFuse, Failure> {
    let mut settings = Options::default();
    if let Some(timeout) = trees.options().timeout {
        settings.timeout = (!timeout.is_zero()).then_some(timeout);
    }
    options.apply(|key, value| settings.set(key, value))?;
    // Only the first start can ask for passwords: it may have a terminal.
    launch.terminal = std::io::stderr().is_terminal();
    LibFuse::start(launch, settings, trees.runtime.clone())
        .map_err(|error| Failure::serious(error.to_string()))
}
