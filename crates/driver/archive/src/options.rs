// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of an archive as `-o key=value` spells them.

use crate::Options;
use outrigger_core::{Errno, Result, amount};

/// What there is, for messages.
const KNOWN: &str =
    "partial, nocache, cache_size, max_entries, max_names, max_ratio, decoder_memory, block_cache";

impl Options {
    /// Sets one option; `value` is empty for a switch. Sizes may end in `k`, `m` or `g`.
    ///
    /// # Errors
    /// `EINVAL` for an option that does not exist or a value it cannot have; the reason names both.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let wrong = || Errno::EINVAL.because(format!("archive: option {key} cannot be \"{value}\""));
        let amount = || amount(value).ok_or_else(wrong);
        match key {
            "partial" => self.partial = true,
            "nocache" => self.cache = None,
            "cache_size" => {
                let max_bytes = amount()?;
                self.cache.iter_mut().for_each(|c| c.max_bytes = max_bytes);
            }
            "max_entries" => self.limits.entries = amount()?.try_into().map_err(|_| wrong())?,
            "max_names" => self.limits.name_bytes = amount()?,
            "max_ratio" => self.limits.ratio = amount()?,
            "decoder_memory" => self.limits.decoder_memory = amount()?,
            "block_cache" => self.limits.block_cache = amount()?.try_into().map_err(|_| wrong())?,
            _ => {
                return Err(Errno::EINVAL.because(format!("archive: no option \"{key}\"; there are {KNOWN}")));
            }
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
        for (key, value) in [("max_entries", "many"), ("max_ratio", ""), ("colour", "red")] {
            let error = options.set(key, value).unwrap_err();
            assert!(error.reason.is_some_and(|reason| reason.contains(key)), "{key}={value}");
        }
    }
}
