// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of options, read the same way by every driver and layer.

use crate::option::OptionTable;
use crate::{Errno, Error, parse_size};
use std::ops::RangeBounds;
use std::str::FromStr;
use std::time::Duration;

/// Readers of values. Each refuses with [`OptionTable::unfit`].
impl OptionTable {
    /// A switch: nothing for yes, or yes, no and what else people write.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn switch(&self, key: &str, value: &str) -> Result<bool, Error> {
        match value {
            "" | "yes" | "on" | "true" => Ok(true),
            "no" | "off" | "false" => Ok(false),
            _ => Err(self.unfit(key, value)),
        }
    }

    /// A number within a range.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn number<N: FromStr + PartialOrd>(
        &self,
        key: &str,
        value: &str,
        range: impl RangeBounds<N>,
    ) -> Result<N, Error> {
        let number = value.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.unfit(key, value))
    }

    /// A number of seconds, perhaps 0 or with a fraction.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn seconds(&self, key: &str, value: &str) -> Result<Duration, Error> {
        let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| self.unfit(key, value))
    }

    /// As [`OptionTable::seconds`], above 0.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn time_limit(&self, key: &str, value: &str) -> Result<Duration, Error> {
        let seconds = self.seconds(key, value)?;
        match seconds.is_zero() {
            true => Err(Errno::EINVAL.because(format!(
                "{}: option {key} cannot be \"{value}\": a number of seconds above 0 is expected",
                self.owner
            ))),
            false => Ok(seconds),
        }
    }

    /// A number of bytes, as [`parse_size`] reads it.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn bytes<N: TryFrom<u64>>(&self, key: &str, value: &str) -> Result<N, Error> {
        let bytes = parse_size(value).and_then(|bytes| N::try_from(bytes).ok());
        bytes.ok_or_else(|| self.unfit(key, value))
    }

    /// One of some words.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn one_of<T: Copy>(&self, key: &str, value: &str, words: &[(&str, T)]) -> Result<T, Error> {
        let found = words.iter().find(|(word, _)| *word == value);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| self.unfit(key, value))
    }
}

#[cfg(test)]
mod tests {
    use crate::option::{OptionTable, option};

    const TABLE: OptionTable =
        OptionTable { owner: "tree", options: &[option("key", "VALUE", "", "any value")] };

    #[test]
    fn values_are_read_or_refused_with_what_is_expected() {
        assert_eq!((TABLE.switch("key", ""), TABLE.switch("key", "no")), (Ok(true), Ok(false)));
        assert_eq!(TABLE.number("key", "7", 1..=7), Ok(7));
        assert_eq!(TABLE.seconds("key", "2.5").map(|time| time.as_millis()), Ok(2500));
        assert_eq!(TABLE.bytes::<usize>("key", "2k"), Ok(2048));
        assert_eq!(TABLE.one_of("key", "b", &[("a", 1), ("b", 2)]), Ok(2));
        let refused = [
            TABLE.switch("key", "maybe").err(),
            TABLE.number("key", "8", 1..=7).err(),
            TABLE.seconds("key", "-1").err(),
            TABLE.time_limit("key", "0").err(),
            TABLE.bytes::<u8>("key", "256").err(),
            TABLE.one_of("key", "c", &[("a", 1)]).err(),
        ];
        for error in refused {
            let reason = error.and_then(|error| error.reason).unwrap_or_default();
            assert!(reason.starts_with("tree: option key cannot be"), "{reason}");
        }
    }
}
