// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands: one module each.

pub mod cat;

use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::status::{Failure, Status};
use outrigger_core::Cancel;
use std::process::ExitCode;

/// What a command does. Errors about one of several things go through [`Context::complain`]; only what ends the
/// whole command is returned.
pub trait Run {
    /// The command's name.
    const NAME: &'static str;

    /// Does it.
    ///
    /// # Errors
    /// Whatever ends the command at once.
    fn run(self, context: &Context) -> Result<(), Failure>;
}

/// Runs the command the user asked for.
pub fn run(cli: Cli) -> ExitCode {
    let Cli { json, trees, command, .. } = cli;
    match command {
        Command::Cat(command) => start(command, json, trees),
    }
}

fn start<C: Run>(command: C, json: bool, trees: crate::cli::TreeOptions) -> ExitCode {
    let context = Context::new(C::NAME, json, trees, Cancel::default());
    if let Err(failure) = command.run(&context) {
        context.complain(failure.status, &failure);
    }
    context.status().into()
}

/// Ends a command whose reader has gone: as for any other program, that is no failure of ours.
pub fn output_failed(error: std::io::Error) -> Failure {
    Failure { message: format!("write error: {error}"), status: Status::Minor }
}
