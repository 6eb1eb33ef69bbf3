// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger`: file systems outside the kernel, from the command line.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the definition of the command line |
//! | [`commands`] | one module a command |
//! | [`context`] | what every command gets: trees, cancellation, error reports |
//! | [`control`] | how commands talk to running mounts |
//! | [`location`] | the syntax of LOCATION |
//! | [`mounted`] | the process that serves a mount |
//! | [`trees`] | opens the tree a LOCATION names: the only place that knows the drivers and layers |
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod context;
mod control;
mod location;
mod mounted;
mod status;
mod trees;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    commands::run(cli)
}
