// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of an archive as `-o key=value` spells them.

use crate::{Options, files};
use outrigger_core::option::option;
use outrigger_core::registry::DriverInfo;
use outrigger_core::{OptionTable, Result};

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "archive",
    opens: "tar, tar.gz, tar.bz2, tar.xz, tar.zst, zip, cpio, ar and deb; gz, bz2, xz and zst files",
    location: "FILE::/PATH",
    writable: false,
    options: &[&OPTIONS],
    files: Some(files::FILES),
    ..DriverInfo::NONE
};

/// What [`Options::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "archive",
    options: &[
        option("partial", "", "", "shows what comes before the damage of a damaged archive"),
        option("nocache", "", "", "keeps no index of the archive on disk"),
        option("cache_size", "BYTES", "2g", "the most room for indexes on disk"),
        option("max_entries", "N", "10000000", "the most entries"),
        option("max_names", "BYTES", "1g", "the most memory for names, link targets and attributes"),
        option("max_ratio", "N", "1000", "the most bytes of output for each byte of input, after 4 GiB"),
        option(
            "max_index_ratio",
            "N",
            "64",
            "the largest ratio of index to archive, for an index of more than 64 MiB",
        ),
        option("decoder_memory", "BYTES", "256m", "the most memory of one decompressor"),
        option("block_cache", "BYTES", "32m", "memory for content that was decompressed"),
    ],
};

impl Options {
    /// Sets one option; `value` is empty for a switch. Sizes may end in `k`, `m` or `g`.
    ///
    /// # Errors
    /// `EINVAL` for an option that does not exist or a value it cannot have; the reason names both.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        OPTIONS.check(key)?;
        match key {
            "partial" if value.is_empty() => self.partial = true,
            "nocache" if value.is_empty() => self.cache = None,
            "cache_size" => {
                let max_bytes = OPTIONS.bytes(key, value)?;
                self.cache.iter_mut().for_each(|c| c.max_bytes = max_bytes);
            }
            "max_entries" => self.limits.entries = OPTIONS.bytes(key, value)?,
            "max_names" => self.limits.name_bytes = OPTIONS.bytes(key, value)?,
            "max_ratio" => self.limits.ratio = OPTIONS.bytes(key, value)?,
            "max_index_ratio" => self.limits.index_ratio = OPTIONS.bytes(key, value)?,
            "decoder_memory" => self.limits.decoder_memory = OPTIONS.bytes(key, value)?,
            "block_cache" => self.limits.block_cache = OPTIONS.bytes(key, value)?,
            _ => return Err(OPTIONS.unfit(key, value)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_raised_and_nonsense_is_refused_by_name() {
        let mut options = Options::default();
        options.set("max_names", "2g").unwrap();
        options.set("partial", "").unwrap();
        assert_eq!((options.limits.name_bytes, options.partial), (2 << 30, true));
        for (key, value) in [
            ("max_entries", "many"),
            ("nocache", "no"),
            ("partial", "1"),
            ("max_ratio", ""),
            ("colour", "red"),
        ] {
            let error = options.set(key, value).unwrap_err();
            assert!(error.reason.is_some_and(|reason| reason.contains(key)), "{key}={value}");
        }
    }
}
