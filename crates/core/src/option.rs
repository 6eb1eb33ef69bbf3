// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a driver or layer, described once: the parser, `outrigger drivers` and the manual read the same table.

use crate::{Errno, Error};
use std::fmt;

/// One option as `-o` and `--opt` take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionInfo {
    /// The key.
    pub name: &'static str,
    /// What the value is, such as `SECONDS` or `on|off`; empty for a switch, which takes none.
    pub value: &'static str,
    /// What holds when the option is not given, in words; empty where the help says it.
    pub default: &'static str,
    /// What it does: a clause without a full stop.
    pub help: &'static str,
}

/// An option, for tables.
pub const fn option(
    name: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> OptionInfo {
    OptionInfo { name, value, default, help }
}

impl fmt::Display for OptionInfo {
    /// As a user writes it: `name=VALUE`, or `name` for a switch.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            "" => f.write_str(self.name),
            value => write!(f, "{}={value}", self.name),
        }
    }
}

/// All options of one driver or layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionTable {
    /// The driver or layer, for messages.
    pub owner: &'static str,
    /// Its options in the order of the manual.
    pub options: &'static [OptionInfo],
}

impl OptionTable {
    /// Whether there is an option `key`.
    pub fn has(&self, key: &str) -> bool {
        self.options.iter().any(|option| option.name == key)
    }

    /// Accepts the keys of the table, so that an option cannot be taken without being described.
    ///
    /// # Errors
    /// `EINVAL` with what there is, as [`OptionTable::unknown`].
    pub fn check(&self, key: &str) -> Result<(), Error> {
        if self.has(key) { Ok(()) } else { Err(self.unknown(key)) }
    }

    /// `EINVAL`: there is no option `key`; the reason names those there are.
    pub fn unknown(&self, key: &str) -> Error {
        Errno::EINVAL.because(format!("{} has no option {key}; it has {}", self.owner, self.known()))
    }

    /// The options as a user writes them, in a list for messages.
    pub fn known(&self) -> String {
        let known: Vec<String> = self.options.iter().map(OptionInfo::to_string).collect();
        known.join(", ")
    }

    /// `EINVAL`: the option `key` cannot have this value; the reason says what it takes.
    pub fn unfit(&self, key: &str, value: &str) -> Error {
        let takes = match self.options.iter().find(|option| option.name == key) {
            Some(OptionInfo { value: "", .. }) => ": it takes none".to_owned(),
            Some(option) => format!(": {option} is expected"),
            None => String::new(),
        };
        Errno::EINVAL.because(format!("{}: option {key} cannot be \"{value}\"{takes}", self.owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: OptionTable = OptionTable {
        owner: "tree",
        options: &[
            option("size", "BYTES", "1g", "how large it may become"),
            option("quick", "", "", "hurries"),
        ],
    };

    #[test]
    fn refusals_say_what_there_is() {
        assert_eq!(TABLE.check("size"), Ok(()));
        let reason = |error: Error| error.reason.map(|reason| reason.to_string());
        assert_eq!(
            reason(TABLE.unknown("colour")).as_deref(),
            Some("tree has no option colour; it has size=BYTES, quick")
        );
        let expected = "tree: option size cannot be \"much\": size=BYTES is expected";
        assert_eq!(reason(TABLE.unfit("size", "much")).as_deref(), Some(expected));
        let expected = "tree: option quick cannot be \"1\": it takes none";
        assert_eq!(reason(TABLE.unfit("quick", "1")).as_deref(), Some(expected));
    }
}
