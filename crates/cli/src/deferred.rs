// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments that are defined only for the command the user asked for: defining those of every command takes longer
//! than a short listing.

use clap::builder::Resettable;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The arguments of one of several commands.
#[derive(Debug)]
pub struct Deferred<A>(Box<A>);

impl<A> Deferred<A> {
    /// The arguments themselves.
    pub fn into_inner(self) -> A {
        *self.0
    }
}

impl<A: Args> Args for Deferred<A> {
    fn augment_args(command: Command) -> Command {
        command.defer(|command| described(command, A::augment_args))
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(|command| described(command, A::augment_args_for_update))
    }
}

/// Adds arguments; what the command does stays as it was described.
fn described(command: Command, add: fn(Command) -> Command) -> Command {
    let (short, long) = (command.get_about().cloned(), command.get_long_about().cloned());
    add(command).about(Resettable::from(short)).long_about(Resettable::from(long))
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
    use clap::CommandFactory;

    #[test]
    fn every_command_can_be_defined() {
        Cli::command().debug_assert();
    }
}
