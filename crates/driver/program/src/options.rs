// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options: one of this driver, and those that the program gets.

use crate::Program;
use outrigger_core::Result;
use outrigger_core::option::{OptionTable, option};
use outrigger_core::registry::{DriverInfo, Given, Opened, Site};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

/// The driver as `outrigger drivers` shows it.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "program",
    opens: "what a program in any language serves, by messages on a socket",
    location: "NAME:REST, with --driver-program NAME=COMMAND",
    writable: true,
    options: &[&OPTIONS],
    others: "the program's own",
    declared: Some(open),
    ..DriverInfo::NONE
};

fn open(command: Vec<OsString>, location: &[u8], given: &dyn Given, site: &Site<'_>) -> Result<Opened> {
    let mut options = Options::default();
    options.timeout = site.limit(options.timeout);
    given.apply(&mut |key, value| options.set(key, value))?;
    let started = site.wait_for(Program::start(command, location, options, site));
    Ok(Opened { service: Arc::new(started?), control: None, warnings: Vec::new() })
}

/// The options of this driver; all others are the program's.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "program",
    options: &[
        option(
            "timeout",
            "SECONDS",
            "30",
            "how long the program may take to answer a request; it is killed and started again then",
        )
        .also(&["patience"]),
        option("max_listing", "BYTES", "256m", "the most memory that the names of one directory may take"),
    ],
};

/// How a program is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long it may take to answer.
    pub timeout: Duration,
    /// The most bytes of memory that the names of one directory may take (`max_listing=BYTES`).
    pub max_listing: usize,
    /// Keys and values for the program.
    pub passed: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Options { timeout: Duration::from_secs(30), max_listing: 256 << 20, passed: Vec::new() }
    }
}

impl Options {
    /// Sets the option `key`, or keeps it for the program.
    ///
    /// # Errors
    /// `EINVAL` for a value that cannot be meant.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if !OPTIONS.has(key) {
            self.passed.push((key.to_owned(), value.to_owned()));
            return Ok(());
        }
        match key {
            "max_listing" => self.max_listing = OPTIONS.bytes(key, value)?,
            _ => self.timeout = OPTIONS.time_limit(key, value)?,
        }
        Ok(())
    }
}
