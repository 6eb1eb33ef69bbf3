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
    /// Other names of it, such as that of another program with this option.
    pub aliases: &'static [&'static str],
}

impl OptionInfo {
    /// Whether it is called `key`, by its name or by an alias.
    pub fn is(&self, key: &str) -> bool {
        self.name == key || self.aliases.contains(&key)
    }

    /// The same option with other names besides.
    pub const fn also(self, aliases: &'static [&'static str]) -> Self {
        OptionInfo { aliases, ..self }
    }
}

/// An option, for tables.
pub const fn option(
    name: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> OptionInfo {
    OptionInfo { name, value, default, help, aliases: &[] }
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
        self.name(key).is_some()
    }

    /// The name of the option that is called `key`, by that or by an alias.
    pub fn name(&self, key: &str) -> Option<&'static str> {
        self.options.iter().find(|option| option.is(key)).map(|option| option.name)
    }

    /// Accepts the keys of the table, so that an option cannot be taken without being described.
    ///
    /// # Errors
    /// `EINVAL` with what there is, as [`OptionTable::unknown`].
    pub fn check(&self, key: &str) -> Result<(), Error> {
        if self.has(key) { Ok(()) } else { Err(self.unknown(key)) }
    }

    /// `EINVAL`: there is no option `key`; the reason names those there are, or the most similar one where they are many.
    pub fn unknown(&self, key: &str) -> Error {
        self.unknown_beside(key, &[], std::iter::empty())
    }

    /// The same where the owner takes `others` besides; `instead` names options of another program that it does not have, and what to
    /// do instead.
    pub fn unknown_beside<'a>(
        &self,
        key: &str,
        instead: &[(&str, &str)],
        others: impl Iterator<Item = &'a str>,
    ) -> Error {
        let owner = self.owner;
        if let Some((_, instead)) = instead.iter().find(|(other, _)| *other == key) {
            return Errno::EINVAL.because(format!("{owner} has no option {key}: {instead}"));
        }
        if self.options.len() <= FEW {
            return Errno::EINVAL.because(format!("{owner} has no option {key}; it has {}", self.known()));
        }
        let names = self
            .options
            .iter()
            .flat_map(|option| [option.name].into_iter().chain(option.aliases.iter().copied()));
        let names = names.chain(others);
        let similar = similar(key, names).map(|name| format!(" (did you mean {name}?)")).unwrap_or_default();
        let list = format!("`outrigger drivers {owner}` lists them");
        Errno::EINVAL.because(format!("{owner} has no option {key}{similar}; {list}"))
    }

    /// The options as a user writes them, in a list for messages.
    pub fn known(&self) -> String {
        let known: Vec<String> = self.options.iter().map(OptionInfo::to_string).collect();
        known.join(", ")
    }

    /// `EINVAL`: the option `key` cannot have this value; the reason says what it takes.
    pub fn unfit(&self, key: &str, value: &str) -> Error {
        let takes = match self.options.iter().find(|option| option.is(key)) {
            Some(OptionInfo { value: "", .. }) => ": it takes none".to_owned(),
            Some(option) => format!(": {option} is expected"),
            None => String::new(),
        };
        Errno::EINVAL.because(format!("{}: option {key} cannot be \"{value}\"{takes}", self.owner))
    }
}

/// As many options fit in a message.
const FEW: usize = 8;
/// So many letters may be wrong in what is taken for a slip.
const SLIPS: usize = 2;

/// The name most like `key`, if one is so like it that it was probably meant.
pub fn similar<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Any two short words are alike.
    let most = SLIPS.min(key.len() / 3);
    // A key from the command line may be megabytes long.
    let alike = names.filter(|name| name.len().abs_diff(key.len()) <= most);
    alike
        .map(|name| (distance(key.as_bytes(), name.as_bytes()), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// How many letters have to be put in, left out or replaced to make one word the other, whatever their case (Levenshtein).
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, byte) in one.iter().enumerate() {
        let mut diagonal = above;
        row[0] = above + 1;
        for (at, wanted) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(!byte.eq_ignore_ascii_case(wanted));
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: OptionTable = OptionTable {
        owner: "tree",
        options: &[
            option("size", "BYTES", "1g", "how large it may become"),
            option("quick", "", "", "hurries").also(&["fast"]),
        ],
    };

    #[test]
    fn refusals_say_what_there_is() {
        assert_eq!(TABLE.check("size"), Ok(()));
        assert_eq!(
            (TABLE.name("fast"), TABLE.name("quick"), TABLE.name("slow")),
            (Some("quick"), Some("quick"), None)
        );
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

    #[test]
    fn the_option_that_was_meant_is_named() {
        let names = ["reconnect", "port", "read_ahead", "no_readahead"];
        for (key, meant) in [
            ("Reconect", Some("reconnect")),
            ("raed_ahead", Some("read_ahead")),
            ("Port", Some("port")),
            ("prt", Some("port")),
            ("x", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(similar(key, names.into_iter()), meant, "{key}");
        }
        const MANY: &[OptionInfo] = &[option("size", "BYTES", "1g", "how large it may become"); FEW + 1];
        const ALIAS: &[OptionInfo] =
            &[option("size", "BYTES", "1g", "how large it may become").also(&["room"]); FEW + 1];
        let many = OptionTable { owner: "tree", options: ALIAS };
        assert!(many.unknown("rom").reason.is_some_and(|said| said.contains("(did you mean room?)")));
        let many = OptionTable { owner: "tree", options: MANY };
        let said = |key| many.unknown(key).reason.map(|reason| reason.to_string()).unwrap_or_default();
        assert_eq!(
            said("sise"),
            "tree has no option sise (did you mean size?); `outrigger drivers tree` lists them"
        );
        assert_eq!(said("colour"), "tree has no option colour; `outrigger drivers tree` lists them");
    }
}
