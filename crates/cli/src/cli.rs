// SPDX-License-Identifier: MIT OR Apache-2.0
//! The definition of the command line. Help, man pages and completions all come from here.

use crate::commands::Command;
use clap::{Args, Parser};

/// File systems outside the kernel: list, copy, mount and trace any tree.
#[derive(Debug, Parser)]
#[command(name = "outrigger", version, infer_subcommands = false, disable_help_flag = true)]
pub struct Cli {
    /// Print help.
    #[arg(long, global = true, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Print one JSON object a line.
    #[arg(long, global = true, help_heading = "Trees")]
    pub json: bool,
    /// Options for the trees this command opens.
    #[command(flatten)]
    pub trees: TreeOptions,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options for the trees a command opens.
#[derive(Debug, Clone, Default, Args)]
pub struct TreeOptions {
    /// Options for the drivers, as in `--opt key=value,key`.
    #[arg(long = "opt", global = true, value_name = "KEY[=VALUE],...", help_heading = "Trees")]
    pub opt: Vec<String>,
    /// Put a layer on every tree, the one nearest to the driver first, as in `--layer readonly`.
    #[arg(long = "layer", global = true, value_name = "NAME[=SPEC]", help_heading = "Trees")]
    pub layer: Vec<String>,
    /// Give up on an operation after this many seconds.
    #[arg(long, global = true, value_name = "SECONDS", help_heading = "Trees")]
    pub timeout: Option<f64>,
}
