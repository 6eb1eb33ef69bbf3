// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits and the root directory's attributes, with the mount options of tmpfs(5).

use crate::Mem;
use outrigger_core::option::option;
use outrigger_core::registry::{DriverInfo, Follows, Lasts, Scheme};
use outrigger_core::reply::Ttl;
use outrigger_core::{Inline, OptionTable, Result, parse_size};
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "mem",
    opens: "memory; the tree lives as long as the mount",
    location: "mem:[PATH]",
    writable: true,
    options: &[&OPTIONS],
    schemes: &[Scheme {
        name: "mem",
        follows: Follows::Path,
        lasts: Lasts::Keep,
        open: |_, given, site| {
            let mut options = Options::default();
            given.apply(&mut |key, value| options.set(key, value))?;
            let clock = site.runtime.clone();
            let mem = match site.keep {
                Some(keep) => Mem::with_keep(options, clock, Arc::clone(keep))?,
                None => Mem::new(options, clock),
            };
            Ok(Arc::new(Inline::new(mem, site.runtime.clone())))
        },
    }],
    ..DriverInfo::NONE
};

/// What [`Options::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "mem",
    options: &[
        option(
            "size",
            "BYTES|%",
            "50%",
            "the most content, in bytes or as a share of the memory of the machine; 0 for no limit",
        ),
        option("nr_blocks", "N", "", "size= in blocks of 4096 bytes"),
        option("nr_inodes", "N", "one for each two pages of size=", "the most inodes; 0 for no limit")
            .also(&["inodes"]),
        option("mode", "OCTAL", "1777", "permissions of the root directory"),
        option("uid", "N", "0", "owner of the root directory"),
        option("gid", "N", "0", "group of the root directory"),
    ],
};

/// How a tree in memory is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The most bytes of file content (in pages of 4096 bytes) and extended attributes.
    pub size: u64,
    /// The most inodes.
    pub inodes: u64,
    /// The most names one file, and the most subdirectories (less two) one directory may have.
    pub links: u32,
    /// Permissions of the root directory.
    pub mode: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// How long doors may cache replies. For ever is right while one door makes all the changes.
    pub ttl: Ttl,
}

impl Default for Options {
    /// As tmpfs: half of the machine's memory, and one inode for each two pages of it.
    fn default() -> Self {
        let memory = total_memory();
        Options {
            size: memory / 2,
            inodes: memory / 2 / 4096,
            links: i32::MAX as u32,
            mode: 0o1777,
            uid: 0,
            gid: 0,
            ttl: Ttl::FOREVER,
        }
    }
}

/// The machine's memory in bytes; 2 GiB where the host does not tell.
fn total_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(2 << 30, |kib| kib.saturating_mul(1024))
}

impl Options {
    /// Sets one option: `size`, `nr_blocks`, `nr_inodes` (alias `inodes`), `mode`, `uid` or `gid`, spelt as tmpfs(5)
    /// has them. A size may end in `k`, `m`, `g`, `t` or, as a share of the machine's memory, `%`; 0 means no limit.
    ///
    /// # Errors
    /// `EINVAL` for an option that does not exist or a value it cannot have; the reason names both.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        OPTIONS.check(key)?;
        let wrong = || OPTIONS.unfit(key, value);
        match key {
            "size" => self.size = limit(size(value).ok_or_else(wrong)?),
            "nr_blocks" => self.size = limit(size(value).ok_or_else(wrong)?.saturating_mul(4096)),
            "nr_inodes" | "inodes" => self.inodes = limit(size(value).ok_or_else(wrong)?),
            "mode" => {
                let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777);
                self.mode = mode.ok_or_else(wrong)?;
            }
            "uid" => self.uid = OPTIONS.number(key, value, ..)?,
            "gid" => self.gid = OPTIONS.number(key, value, ..)?,
            _ => return Err(OPTIONS.unknown(key)),
        }
        Ok(())
    }
}

/// The largest limit: sums with it cannot overflow, and it is a whole number of pages.
const UNLIMITED: u64 = 1 << 62;

fn limit(amount: u64) -> u64 {
    if amount == 0 { UNLIMITED } else { amount.min(UNLIMITED) }
}

/// A size, also as a share of the machine's memory.
fn size(text: &str) -> Option<u64> {
    match text.strip_suffix('%') {
        Some(share) => Some(total_memory() / 100 * share.parse::<u64>().ok()?.min(1_000_000)),
        None => parse_size(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    #[test]
    fn sizes_are_spelt_as_for_tmpfs() {
        let cases = [
            ("4096", 4096),
            ("1k", 1024),
            ("2M", 2 << 20),
            ("3g", 3 << 30),
            ("1T", 1 << 40),
            ("0", UNLIMITED),
        ];
        for (text, size) in cases {
            let mut options = Options::default();
            options.set("size", text).unwrap();
            assert_eq!(options.size, size, "{text}");
        }
        let mut options = Options::default();
        options.set("size", "50%").unwrap();
        assert!(options.size.abs_diff(total_memory() / 2) < 100);
    }

    #[test]
    fn bad_options_are_refused_with_a_reason() {
        for (key, value) in [
            ("size", ""),
            ("size", "x"),
            ("size", "1e"),
            ("size", "99999999999t"),
            ("mode", "99"),
            ("colour", "red"),
        ] {
            let error = Options::default().set(key, value).unwrap_err();
            assert_eq!(error.errno, Errno::EINVAL);
            assert!(error.reason.is_some_and(|reason| reason.contains(key)), "{key}={value}");
        }
    }
}
