// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options: one of this driver, and those that the program gets.

use outrigger_core::option::{OptionTable, option};
use outrigger_core::registry::DriverInfo;
use outrigger_core::Result;
use std::time::Duration;

/// The driver as `outrigger drivers` shows it.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "program",
    opens: "what a program in any language serves, by messages on a socket",
    location: "NAME:REST, with --driver-program NAME=COMMAND",
    writable: true,
    options: &[&OPTIONS],
    others: "the program's own",
    ..DriverInfo::NONE
};

/// The options of this driver; all others are the program's.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "program",
    options: &[option(
        "timeout",
        "SECONDS",
        "30",
        "how long the program may take to answer a request; it is killed and started again then",
    )
    .also(&["patience"])],
};

/// How a program is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long it may take to answer.
    pub timeout: Duration,
    /// Keys and values for the program.
    pub passed: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Options { timeout: Duration::from_secs(30), passed: Vec::new() }
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
        self.timeout = OPTIONS.time_limit(key, value)?;
        Ok(())
    }
}
