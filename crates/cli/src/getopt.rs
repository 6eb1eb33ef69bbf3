// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of commands whose options are a table of [`Switch`]es: options in the user's order, then operands.

use crate::switches::{self, Given, Switch};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::ffi::OsString;
use std::marker::PhantomData;

/// The options and operands of one command.
pub trait Table {
    /// The options.
    const SWITCHES: &'static [Switch];
    /// How help names an operand.
    const OPERAND: &'static str;
    /// One line of help on the operands.
    const OPERAND_HELP: &'static str;
}

/// What the user wrote.
#[derive(Debug, Clone)]
pub struct Arguments<T> {
    /// The options.
    pub given: Vec<Given>,
    /// The operands.
    pub operands: Vec<OsString>,
    table: PhantomData<fn() -> T>,
}

impl<T: Table> Args for Arguments<T> {
    fn augment_args(command: Command) -> Command {
        let operands = Arg::new("operands")
            .value_name(T::OPERAND)
            .help(T::OPERAND_HELP)
            .action(ArgAction::Append)
            .num_args(0..)
            .value_parser(clap::value_parser!(OsString));
        switches::augment(command, T::SWITCHES).arg(operands)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> FromArgMatches for Arguments<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let operands = matches.get_many::<OsString>("operands").into_iter().flatten().cloned().collect();
        Ok(Arguments { given: switches::given(matches, T::SWITCHES), operands, table: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
