// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose, and how a tree is opened.

use crate::Portal;
use outrigger_core::option::{OptionTable, option};
use outrigger_core::registry::{DriverInfo, Follows, Given, Lasts, Scheme, Site};
use outrigger_core::{Result, Serve, Service};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The driver as `outrigger drivers` shows it.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "portal",
    opens: "connections: opening a file connects to a server or starts a program",
    location: "portal:[FILE][::PATH], FILE says what paths lead to",
    writable: true,
    options: &[&OPTIONS],
    schemes: &[Scheme { name: "portal", follows: Follows::Argument, lasts: Lasts::Stored, open }],
    ..DriverInfo::NONE
};

fn open(file: &str, given: &dyn Given, site: &Site<'_>) -> Result<Arc<dyn Service>> {
    let mut options = Options::default();
    options.timeout = site.limit(options.timeout);
    given.apply(&mut |key, value| options.set(key, value))?;
    Ok(Arc::new(Serve(Portal::open(file, options, site)?)))
}

/// What [`Options::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "portal",
    options: &[
        option("timeout", "SECONDS", "30", "how long a connection may take to be made")
            .also(&["connect_timeout"]),
        option(
            "linger",
            "SECONDS",
            "10",
            "how long the other end may still take what was written when a file is closed, and a program may take to end",
        ),
        option(
            "connections",
            "N",
            "256",
            "the most files that can be open at once (1 to 65536), those included that linger after they were closed",
        ),
        option("ca", "FILE", "", "certificates in PEM that tls trusts in place of those of the system")
            .also(&["cafile"]),
        option(
            "mode",
            "OCTAL",
            "600",
            "permissions of the files; directories can be searched by whom a file can be read",
        ),
    ],
};

/// How a tree is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long a connection may take to be made (`timeout=SECONDS`).
    pub timeout: Duration,
    /// How long the other end may take what was written after a file is closed (`linger=SECONDS`).
    pub linger: Duration,
    /// The most files that can be open at once (`connections=N`).
    pub connections: usize,
    /// Certificates that TLS trusts (`ca=FILE`).
    pub ca: Option<PathBuf>,
    /// Permissions of files (`mode=OCTAL`).
    pub mode: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            timeout: Duration::from_secs(30),
            linger: Duration::from_secs(10),
            connections: 256,
            ca: None,
            mode: 0o600,
        }
    }
}

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an option that does not exist or a value it cannot have; the reason names both.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        OPTIONS.check(key)?;
        match OPTIONS.name(key).unwrap_or(key) {
            "timeout" => self.timeout = OPTIONS.time_limit(key, value)?,
            "linger" => self.linger = OPTIONS.seconds(key, value)?,
            "connections" => self.connections = OPTIONS.number(key, value, 1..=CONNECTIONS_MAX)?,
            "ca" if value.is_empty() => return Err(OPTIONS.unfit(key, value)),
            "ca" => self.ca = Some(value.into()),
            "mode" => {
                let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o777);
                self.mode = mode.ok_or_else(|| OPTIONS.unfit(key, value))?;
            }
            _ => return Err(OPTIONS.unknown(key)),
        }
        Ok(())
    }
}

/// More connections than this need other limits of the system first.
const CONNECTIONS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_options_are_refused_with_a_reason() {
        for (key, value) in [
            ("timeout", "soon"),
            ("connections", "0"),
            ("connections", "x"),
            ("mode", "7777"),
            ("ca", ""),
            ("speed", "1"),
        ] {
            let error = Options::default().set(key, value).expect_err(key);
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
