// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user may choose.

use crate::Local;
use outrigger_core::option::option;
use outrigger_core::registry::{DriverInfo, Given, Site};
use outrigger_core::reply::Ttl;
use outrigger_core::{Inline, OptionTable, Result, Service};
use std::path::Path;
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "local",
    opens: "directories of the host",
    location: "PATH",
    writable: true,
    options: &[&OPTIONS],
    directories: Some(open),
    ..DriverInfo::NONE
};

fn open(path: &Path, given: &dyn Given, site: &Site<'_>) -> Result<Arc<dyn Service>> {
    // A command starts at the host's root and works on whatever file system its files are on, where nodes are known by path anyway.
    let mut options = LocalOptions { handles: site.serves_others, ..LocalOptions::default() };
    given.apply(&mut |key, value| options.set(key, value))?;
    let driver = match site.keep {
        Some(keep) => Local::open_with_keep(path, options, Arc::clone(keep)),
        None => Local::open(path, options),
    };
    Ok(Arc::new(Inline::new(driver?, Arc::clone(site.runtime))))
}

/// What [`LocalOptions::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "local",
    options: &[
        option(
            "cache",
            "SECONDS",
            "1",
            "how long names and attributes are cached; others may change the directory",
        ),
        option(
            "passthrough",
            "on|off",
            "on",
            "lets the kernel read and write open files itself, where it can (root, Linux 6.9)",
        ),
        option("xattr", "on|off", "on", "serves extended attributes"),
        option(
            "xdev",
            "on|off",
            "on",
            "includes file systems mounted below the directory; off needs CAP_SYS_ADMIN",
        ),
        option(
            "handles",
            "on|off",
            "on",
            "finds inodes again by file handle where the host permits it; off remembers paths",
        ),
        option("descriptors", "N", "512", "how many descriptors of inodes stay open"),
    ],
};

/// Options of a [`crate::Local`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalOptions {
    /// How long names and attributes may be cached while others may change the directory (`cache=SECONDS`).
    pub cache: Ttl,
    /// Whether doors may pass reads and writes straight to the host's files (`passthrough=on|off`).
    pub passthrough: bool,
    /// Whether extended attributes are served (`xattr=on|off`).
    pub xattr: bool,
    /// Whether file systems mounted below the directory are part of the tree (`xdev=on|off`). With `off`, which needs
    /// `CAP_SYS_ADMIN`, the directories they cover are served instead.
    pub xdev: bool,
    /// Whether nodes may be found again through file handles where the host permits that (`handles=on|off`). With
    /// `off`, as without `CAP_DAC_READ_SEARCH`, they are remembered by path.
    pub handles: bool,
    /// How many descriptors of nodes may stay open (`descriptors=N`).
    pub descriptors: usize,
}

impl Default for LocalOptions {
    fn default() -> Self {
        LocalOptions {
            cache: Ttl::SECOND,
            passthrough: true,
            xattr: true,
            xdev: true,
            handles: true,
            descriptors: 512,
        }
    }
}

impl LocalOptions {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        OPTIONS.check(key)?;
        match key {
            "cache" => self.cache = OPTIONS.seconds(key, value)?.into(),
            "passthrough" => self.passthrough = OPTIONS.switch(key, value)?,
            "xattr" => self.xattr = OPTIONS.switch(key, value)?,
            "xdev" => self.xdev = OPTIONS.switch(key, value)?,
            "handles" => self.handles = OPTIONS.switch(key, value)?,
            "descriptors" => self.descriptors = OPTIONS.number(key, value, ..)?,
            _ => return Err(OPTIONS.unknown(key)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    #[test]
    fn options_are_parsed_or_refused_with_a_reason() {
        let mut options = LocalOptions::default();
        for (key, value) in [("cache", "0.25"), ("passthrough", "off"), ("xattr", ""), ("descriptors", "9")] {
            assert_eq!(options.set(key, value), Ok(()), "{key}={value}");
        }
        let expected =
            LocalOptions { cache: Ttl(250), passthrough: false, descriptors: 9, ..LocalOptions::default() };
        assert_eq!(options, expected);
        let wrong =
            [("cache", "-1"), ("cache", "NaN"), ("xdev", "maybe"), ("descriptors", "x"), ("colour", "red")];
        for (key, value) in wrong {
            let error = options.set(key, value).expect_err(key);
            assert_eq!(error.errno, Errno::EINVAL);
            assert!(error.reason.is_some_and(|reason| reason.contains(key)));
        }
    }
}
