// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger diff`: what differs between two files or trees. Exit status 0: nothing, 1: something, 2: trouble.

mod lines;
mod overlay;
mod pair;

use crate::context::Context;
use crate::format::time::Zone;
use crate::getopt::{Arguments, Table};
use crate::output::Output;
use crate::run::Run;
use crate::say::operand;
use crate::status::{Exits, Failure};
use crate::switches::{Given, Switch, Takes};
use clap::Args;
use pair::Differ;
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `diff`.
///
/// Compares two LOCATIONs as diff(1) does. With one operand, DIR, or with none, it lists the changes in the overlay DIR of `outrigger run
/// --cow` (default: $XDG_STATE_HOME/outrigger/cow/default).
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    arguments: Arguments<DiffTable>,
}

/// The options of `diff`.
#[derive(Debug, Clone)]
pub struct DiffTable;

impl Table for DiffTable {
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str =
        "The two files or directories; or the overlay of `outrigger run --cow` (by default the usual one)";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("text", Some('a'), Some("text"), "Treat all files as text"),
        Switch::flag("new-file", Some('N'), Some("new-file"), "Treat absent files as empty"),
        Switch::flag("no-dereference", None, Some("no-dereference"), "Compare symbolic links themselves"),
        Switch::flag("normal", None, Some("normal"), "Show changes as commands (the default)"),
        Switch::flag("brief", Some('q'), Some("brief"), "Tell only whether files differ"),
        Switch::flag("recursive", Some('r'), Some("recursive"), "Compare directories in directories"),
        Switch::flag(
            "report-identical-files",
            Some('s'),
            Some("report-identical-files"),
            "Tell when two files are the same",
        ),
        Switch::flag("u", Some('u'), None, "Show changes with three lines of context"),
        Switch::with("U", Some('U'), None, Takes::Value("NUM"), "Show changes with NUM lines of context"),
        Switch::with(
            "unified",
            None,
            Some("unified"),
            Takes::Optional("NUM", "3"),
            "Show changes with NUM (3) lines of context",
        ),
        Switch::with(
            "only",
            None,
            Some("only"),
            Takes::Value("PATH"),
            "Of an overlay, show changes at or below PATH only",
        ),
    ];
}

/// How files are compared.
#[derive(Debug, Clone, Default)]
struct Settings {
    text: bool,
    new_file: bool,
    no_dereference: bool,
    brief: bool,
    recursive: bool,
    report_identical: bool,
    /// Lines of context of the unified format; the normal one without.
    context: Option<usize>,
    /// The part of an overlay that is shown.
    only: Vec<PathBuf>,
}

impl Settings {
    fn take(&mut self, given: &Given) -> Result<(), Failure> {
        match given.id {
            "text" => self.text = true,
            "new-file" => self.new_file = true,
            "no-dereference" => self.no_dereference = true,
            "normal" => self.context = None,
            "brief" => self.brief = true,
            "recursive" => self.recursive = true,
            "report-identical-files" => self.report_identical = true,
            "only" => self.only.push(PathBuf::from(&given.value)),
            "u" => self.context = Some(self.context.unwrap_or(3)),
            _ => {
                let number = given.text();
                let invalid = |_| usage(format!("invalid context length '{number}'"));
                self.context = Some(number.parse().map_err(invalid)?);
            }
        }
        Ok(())
    }
}

/// Wrong usage is trouble, unlike with most other commands.
fn usage(problem: String) -> Failure {
    Failure::serious(format!("{problem}\noutrigger diff: Try 'outrigger diff --help' for more information."))
}

impl Run for Diff {
    const NAME: &'static str = "diff";
    const EXITS: Exits = Exits::Comparison;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut settings = Settings::default();
        for given in &self.arguments.given {
            settings.take(given)?;
        }
        let (left, right) = match self.arguments.operands.as_slice() {
            [left, right] if settings.only.is_empty() => (left, right),
            [_, _] => return Err(usage("--only is for the overlay of `outrigger run --cow`".into())),
            operands if overlay::is_meant(operands) => {
                return overlay::show(context, operands.first(), &settings.only);
            }
            [] | [_] => return Err(overlay::missing(self.arguments.operands.first())),
            [_, _, extra, ..] => return Err(usage(format!("extra operand {}", operand(extra)))),
        };
        let serious = |failure: Failure| Failure::serious(failure.message);
        context.has_sides();
        let (left, right) = (context.place(left).map_err(serious)?, context.place(right).map_err(serious)?);
        context.all_options_taken()?;
        let mut differ = Differ {
            context,
            settings,
            options: options_as_written(std::env::args_os()),
            zone: Zone::of_environment(),
            output: Output::new(context),
        };
        let compared = differ.operands(left, right);
        compared.and_then(|()| differ.output.flush()).map_err(serious)
    }
}

/// The options as the user wrote them, for the line above each difference found in directories.
fn options_as_written(args: impl Iterator<Item = OsString>) -> String {
    let mut text = String::new();
    for arg in args.skip_while(|arg| arg != Diff::NAME).skip(1) {
        let arg = arg.to_string_lossy();
        match &*arg {
            "--" => break,
            "-" => {}
            option if option.starts_with('-') => {
                text.push(' ');
                text.push_str(option);
            }
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_repeated_as_written() {
        let args = ["outrigger", "--json", "diff", "-ru", "a", "--text", "b", "--", "-x"];
        assert_eq!(options_as_written(args.iter().map(OsString::from)), " -ru --text");
    }
}
