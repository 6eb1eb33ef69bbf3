// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments that are defined only for the command the user asked for: defining those of every command takes longer
//! than a short listing.

use crate::run::Run;
use crate::tree_options::GLOBALS;
use clap::builder::{Resettable, StyledStr};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// The arguments of one of several commands.
#[derive(Debug)]
pub struct Deferred<A>(Box<A>);

impl<A> Deferred<A> {
    /// The arguments themselves.
    pub fn into_inner(self) -> A {
        *self.0
    }
}

impl<A: Args + Run> Args for Deferred<A> {
    fn augment_args(command: Command) -> Command {
        command.defer(|command| described(without(command, A::GLOBALS), A::augment_args))
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(|command| described(without(command, A::GLOBALS), A::augment_args_for_update))
    }
}

/// The command, whose help does not show options for trees other than `globals`.
fn without(command: Command, globals: &[&str]) -> Command {
    let useless = |name: &&str| !globals.contains(name);
    GLOBALS.iter().copied().filter(useless).fold(command, |command, name| {
        let is_there = command.get_arguments().any(|argument| argument.get_id() == name);
        if is_there { command.mut_arg(name, |argument| argument.hide(true)) } else { command }
    })
}

/// Adds arguments. The command keeps its description, followed by that of the arguments after their first paragraph. `-h` is
/// help unless an argument uses it.
fn described(command: Command, add: fn(Command) -> Command) -> Command {
    let (short, long) = (command.get_about().cloned(), command.get_long_about().cloned());
    let command = add(command);
    let more = command.get_long_about().map(ToString::to_string);
    let more = more.as_deref().and_then(|text| text.split_once("\n\n")).map(|(_, more)| more);
    let long = match (more, long.as_ref().or(short.as_ref())) {
        (Some(more), Some(what)) => Some(StyledStr::from(format!("{what}\n\n{more}"))),
        _ => long,
    };
    let command = command.about(Resettable::from(short)).long_about(Resettable::from(long));
    let taken = command.get_arguments().any(|argument| argument.get_short() == Some('h'));
    if taken { command } else { command.arg(Arg::new("h").short('h').action(ArgAction::Help).hide(true)) }
}

impl<A: FromArgMatches> FromArgMatches for Deferred<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        A::from_arg_matches(matches).map(|arguments| Deferred(Box::new(arguments)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    #[test]
    fn every_command_can_be_defined() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_the_arguments_of_a_command_say_is_in_its_help() {
        for (command, words) in [("fault", "Without RULES prints the rules"), ("umount", "it returns when")] {
            let shown = Cli::try_parse_from(["outrigger", command, "--help"]).unwrap_err();
            let help = shown.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(help.contains(words) && !help.contains("Arguments of"), "{help}");
        }
    }

    #[test]
    fn options_that_mean_nothing_to_a_command_are_not_in_its_help() {
        let help = |command| Cli::try_parse_from(["outrigger", command, "--help"]).unwrap_err().to_string();
        for (command, shown) in [
            ("generate", [false; 3]),
            ("doctor", [false; 3]),
            ("umount", [false, false, true]),
            ("ls", [true; 3]),
        ] {
            let found = ["--opt", "--layer", "--timeout"].map(|option| help(command).contains(option));
            assert_eq!(found, shown, "{command}");
        }
    }

    #[test]
    fn short_help_is_help_unless_it_is_something_else() {
        for command in Cli::command().get_subcommands().map(|command| command.get_name().to_owned()) {
            let kind = Cli::try_parse_from(["outrigger", &*command, "-h"]).err().map(|error| error.kind());
            let other = ["ls", "tree", "du", "df", "chown", "touch"].contains(&&*command);
            assert_eq!(kind == Some(ErrorKind::DisplayHelp), !other, "{command}: {kind:?}");
        }
        let kind = Cli::try_parse_from(["outrigger", "-h"]).err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::DisplayHelp));
    }
}
