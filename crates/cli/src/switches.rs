// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options whose order counts, as getopt(3) has it: of `-l -C` and `-C -l` the last one wins.
//!
//! A command lists its options in a table and takes them one by one, in the order in which the user wrote them.

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use std::ffi::{OsStr, OsString};

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Switch {
    /// Names it in the program.
    pub id: &'static str,
    /// `-x`.
    pub short: Option<char>,
    /// `--long`.
    pub long: Option<&'static str>,
    /// Its value.
    pub takes: Takes,
    /// One line of help.
    pub help: &'static str,
}

/// The value of an option.
#[derive(Debug, Clone, Copy)]
pub enum Takes {
    /// None.
    Nothing,
    /// One, with this name.
    Value(&'static str),
    /// One after `=`, with this name, or this default when it is missing.
    Optional(&'static str, &'static str),
}

/// An option the user wrote.
#[derive(Debug, Clone)]
pub struct Given {
    /// Its id in the table.
    pub id: &'static str,
    /// Its value; empty when it takes none.
    pub value: OsString,
}

impl Given {
    /// The value as text, with odd bytes replaced: keywords and numbers are all ASCII.
    pub fn text(&self) -> String {
        self.value.to_string_lossy().into_owned()
    }
}

impl Switch {
    /// `-x` or `--long` (or both) without a value.
    pub const fn flag(
        id: &'static str,
        short: Option<char>,
        long: Option<&'static str>,
        help: &'static str,
    ) -> Self {
        Switch { id, short, long, takes: Takes::Nothing, help }
    }

    /// The same with a value.
    pub const fn with(
        id: &'static str,
        short: Option<char>,
        long: Option<&'static str>,
        takes: Takes,
        help: &'static str,
    ) -> Self {
        Switch { id, short, long, takes, help }
    }

    fn arg(&self) -> Arg {
        let mut arg = Arg::new(self.id).help(self.help);
        if let Some(short) = self.short {
            arg = arg.short(short);
        }
        if let Some(long) = self.long {
            arg = arg.long(long);
        }
        match self.takes {
            Takes::Nothing => arg.action(ArgAction::Count),
            Takes::Value(name) => arg
                .action(ArgAction::Append)
                .value_name(name)
                .value_parser(clap::value_parser!(OsString))
                .allow_hyphen_values(true),
            Takes::Optional(name, default) => arg
                .action(ArgAction::Append)
                .value_name(name)
                .value_parser(clap::value_parser!(OsString))
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value(default),
        }
    }
}

/// Adds the options of `table` to `command`. Long ones may be shortened, as getopt_long(3) allows.
pub fn augment(command: Command, table: &[Switch]) -> Command {
    command.infer_long_args(true).args(table.iter().map(Switch::arg))
}

/// The options the user wrote, in their order. Of an option without a value only the last occurrence counts.
pub fn given(matches: &ArgMatches, table: &[Switch]) -> Vec<Given> {
    let mut found = Vec::new();
    for switch in table {
        if matches.value_source(switch.id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let indices = matches.indices_of(switch.id).into_iter().flatten();
        match switch.takes {
            Takes::Nothing => {
                found.extend(indices.map(|at| (at, Given { id: switch.id, value: OsString::new() })));
            }
            _ => {
                let values = matches.get_many::<OsString>(switch.id).into_iter().flatten();
                let given = |value: &OsString| Given { id: switch.id, value: value.clone() };
                found.extend(indices.zip(values).map(|(at, value)| (at, given(value))));
            }
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, given)| given).collect()
}

/// The entry of `table` that `value` names, in full or by a beginning that fits no other.
///
/// # Errors
/// The message of coreutils, naming `option` and all possible values.
pub fn keyword<T: Copy + PartialEq>(table: &[(&str, T)], value: &OsStr, option: &str) -> Result<T, String> {
    let text = value.to_string_lossy();
    if let Some((_, found)) = table.iter().find(|(name, _)| *name == text) {
        return Ok(*found);
    }
    let mut fitting = table.iter().filter(|(name, _)| name.starts_with(&*text)).map(|(_, found)| *found);
    let first = fitting.next().filter(|_| !text.is_empty());
    match first {
        Some(first) if fitting.all(|other| other == first) => Ok(first),
        _ => {
            let kind = if first.is_some() { "ambiguous" } else { "invalid" };
            let lines = table.chunk_by(|(_, a), (_, b)| a == b).map(|same| {
                let names: Vec<_> = same.iter().map(|(name, _)| format!("'{name}'")).collect();
                format!("\n  - {}", names.join(", "))
            });
            let lines: String = lines.collect();
            Err(format!("{kind} argument '{text}' for '{option}'\nValid arguments are:{lines}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [Switch; 3] = [
        Switch::flag("long", Some('l'), None, ""),
        Switch::flag("across", Some('x'), Some("across"), ""),
        Switch::with("colour", None, Some("colour"), Takes::Optional("WHEN", "always"), ""),
    ];

    fn order(args: &[&str]) -> String {
        let matches = augment(Command::new("t").no_binary_name(true), &TABLE).get_matches_from(args);
        let given = given(&matches, &TABLE);
        let words: Vec<_> = given.iter().map(|given| format!("{}{}", given.id, given.text())).collect();
        words.join(" ")
    }

    #[test]
    fn the_order_is_kept() {
        assert_eq!(order(&["-lx"]), "long across");
        assert_eq!(order(&["-x", "-l", "-l"]), "across long");
        assert_eq!(order(&["-l", "--acr", "-l"]), "across long");
        assert_eq!(order(&["--colour", "-l", "--col=never"]), "colouralways long colournever");
    }

    #[test]
    fn keywords_may_be_shortened() {
        let table = [("always", 1), ("yes", 1), ("auto", 2)];
        assert_eq!(keyword(&table, OsStr::new("al"), "--x"), Ok(1));
        assert_eq!(keyword(&table, OsStr::new("auto"), "--x"), Ok(2));
        assert!(keyword(&table, OsStr::new("a"), "--x").unwrap_err().starts_with("ambiguous"));
        assert!(keyword(&table, OsStr::new(""), "--x").unwrap_err().starts_with("invalid"));
    }
}
