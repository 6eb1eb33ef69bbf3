// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of the driver.

use crate::LibFuse;
use crate::launch::{Launch, Mountpoint};
use outrigger_core::option::option;
use outrigger_core::registry::{Control, DriverInfo, Given, Opened, Site};
use outrigger_core::{Error, OptionTable, Result};
use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::time::Duration;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "fuse",
    opens: "what any FUSE program serves (sshfs, bindfs, squashfuse, ...), started without a mount and again when it dies",
    location: "fuse:COMMAND",
    writable: true,
    options: &[&OPTIONS],
    commands: Some(open),
    ..DriverInfo::NONE
};

/// Starts the program without a mountpoint of its own.
fn open(command: Vec<OsString>, _: &[u8], given: &dyn Given, site: &Site<'_>) -> Result<Opened> {
    let launch = Launch { mountpoint: Mountpoint::Private, ..Launch::new(command) };
    let program = Arc::new(LibFuse::open(launch, given, site)?);
    Ok(Opened { service: program.clone(), control: Some(program), warnings: Vec::new() })
}

impl LibFuse {
    /// Starts the program with the options that are `given`. Blocks until it answers.
    ///
    /// # Errors
    /// As [`LibFuse::start`], and what is wrong with an option.
    pub fn open(mut launch: Launch, given: &dyn Given, site: &Site<'_>) -> Result<Self> {
        let mut options = Options::default();
        if let Some(timeout) = site.timeout {
            options.timeout = (!timeout.is_zero()).then_some(timeout);
        }
        given.apply(&mut |key, value| options.set(key, value))?;
        // Only the first start can ask for passwords: it may have a terminal.
        launch.terminal = stderr().is_terminal();
        LibFuse::start(launch, options, Arc::clone(site.runtime))
    }
}

impl Control for LibFuse {
    fn close(&self) -> Result<()> {
        LibFuse::close(self)
    }

    fn why_no_upgrade(&self) -> Option<&'static str> {
        Some(
            "a mount that `outrigger guard` made cannot be upgraded: unmount it and make it again; `outrigger guard --replace` \
             exchanges the program alone",
        )
    }
}

/// What [`Options::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "fuse",
    options: &[
        option("timeout", "SECONDS", "60", "after this a request fails with ETIMEDOUT; 0 for never"),
        option(
            "restart-on-hang",
            "SECONDS",
            "never",
            "a request this old has the program killed and started again",
        ),
        option("start-timeout", "SECONDS", "60", "how long a start may take"),
        option("retry", "SECONDS", "60", "for so long starts are tried again before requests fail with EIO"),
        option(
            "kept-writes",
            "BYTES",
            "67108864",
            "acknowledged writes kept for a restart; beyond that the program is asked to flush",
        ),
        option(
            "unsafe-cache",
            "",
            "",
            "accepts programs whose own cache loses acknowledged changes in a crash",
        ),
    ],
};

/// How a program is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// After this a request fails with `ETIMEDOUT`; what was begun goes on. `None` for never.
    pub timeout: Option<Duration>,
    /// A request this old has the program killed and started again. `None` for never.
    pub restart_on_hang: Option<Duration>,
    /// How long a start may take.
    pub start_timeout: Duration,
    /// For so long a program that died is started again and again, and requests wait for it; then they fail with `EIO`.
    pub retry: Duration,
    /// Acknowledged writes kept for a restart, in bytes; beyond that the program is asked to flush.
    pub kept_writes: usize,
    /// Accept programs whose own cache makes a crash lose what they acknowledged.
    pub unsafe_cache: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            timeout: Some(Duration::from_secs(60)),
            restart_on_hang: None,
            start_timeout: Duration::from_secs(60),
            retry: Duration::from_secs(60),
            kept_writes: 64 << 20,
            unsafe_cache: false,
        }
    }
}

/// How long a program may take to end where a request may take for ever.
const ENDING: Duration = Duration::from_secs(3600);

impl Options {
    /// How long a program may take to end in order.
    pub(crate) fn patience(&self) -> Duration {
        self.timeout.unwrap_or(ENDING)
    }

    /// Sets one option from text: durations in seconds, 0 for never; sizes in bytes.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or an unfit value, with the sentence for the user.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        OPTIONS.check(key)?;
        let seconds = || OPTIONS.seconds(key, value);
        let unless_zero = |duration: Duration| (!duration.is_zero()).then_some(duration);
        match key {
            "timeout" => self.timeout = unless_zero(seconds()?),
            "restart-on-hang" => self.restart_on_hang = unless_zero(seconds()?),
            "start-timeout" => self.start_timeout = OPTIONS.time_limit(key, value)?,
            "retry" => self.retry = seconds()?,
            "kept-writes" => self.kept_writes = OPTIONS.bytes(key, value)?,
            "unsafe-cache" if value.is_empty() => self.unsafe_cache = true,
            _ => return Err(OPTIONS.unfit(key, value)),
        }
        Ok(())
    }
}

/// Why a program is refused unless the user insists, if it is.
pub(crate) fn risk(program: &std::path::Path) -> Option<String> {
    let name = program.file_name()?.to_str()?;
    let caches = matches!(name, "fuse2fs" | "fuse-ext2")
        || ["fuse.ext", "mount.fuse.ext"].iter().any(|prefix| name.starts_with(prefix));
    caches.then(|| {
        format!(
            "{name} keeps changes in a cache of its own and writes them back late, in any order: when it is killed, \
             what it has acknowledged is lost and its image may need e2fsck; --opt unsafe-cache (mount: -o unsafe-cache) accepts that"
        )
    })
}

/// What is lost when this program dies, if it is known to keep changes in memory until it ends.
#[must_use]
pub fn keeps_changes(program: &std::path::Path) -> Option<String> {
    let name = program.file_name()?.to_str()?;
    matches!(name, "fuse-zip" | "archivemount").then(|| {
        format!("{name} writes changes to its archive when it is unmounted: when it dies, those since its start are lost")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn options_are_read_and_checked() {
        let mut options = Options::default();
        for (key, value) in
            [("timeout", "0"), ("restart-on-hang", "2.5"), ("kept-writes", "7"), ("unsafe-cache", "")]
        {
            options.set(key, value).unwrap();
        }
        assert_eq!((options.timeout, options.restart_on_hang), (None, Some(Duration::from_millis(2500))));
        assert!(options.unsafe_cache && options.kept_writes == 7);
        for (key, value) in [("timeout", "-1"), ("start-timeout", "0"), ("kept-writes", "x"), ("cache", "1")]
        {
            assert!(options.set(key, value).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn programs_with_a_cache_are_known_by_name() {
        for name in ["/usr/bin/fuse2fs", "fuse.ext4", "mount.fuse.ext3"] {
            assert!(risk(Path::new(name)).is_some(), "{name}");
        }
        assert_eq!(risk(Path::new("sshfs")), None);
        assert!(keeps_changes(Path::new("/usr/bin/fuse-zip")).is_some());
        assert_eq!(keeps_changes(Path::new("sshfs")), None);
    }
}
