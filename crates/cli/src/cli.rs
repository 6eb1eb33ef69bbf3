// SPDX-License-Identifier: MIT OR Apache-2.0
//! The definition of the command line. Help, man pages and completions all come from here.

use crate::commands::Command;
use crate::tree_options::TreeOptions;
use clap::Parser;

/// File systems outside the kernel: list, copy, mount and trace any tree.
///
/// A LOCATION names a file or directory of a tree: PATH on this machine, HOST:PATH or USER@HOST:PATH on an SSH server, SCHEME://HOST/PATH on
/// another server, mem:/PATH and the like, NAME:REST::/PATH in the tree REST of the program that `--driver-program NAME=COMMAND` names.
/// FILE::/PATH is in the tree that a file holds, an archive or a disk image, as in `backup.tar.zst::/etc`, `HOST:old.zip::/`,
/// `disk.img::/p1/etc` and `backup.tar.zst::/disk.img::/p1/etc`. `outrigger drivers` lists the kinds of trees and their options.
#[derive(Debug, Parser)]
#[command(name = "outrigger", version, infer_subcommands = false, disable_help_flag = true)]
pub struct Cli {
    /// Print help.
    #[arg(long, global = true, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The same; for some commands it is another option.
    #[arg(short = 'h', hide = true, action = clap::ArgAction::Help)]
    h: Option<bool>,
    /// Print one JSON object per line.
    #[arg(long, global = true, help_heading = "Trees")]
    pub json: bool,
    /// Options for the trees this command opens.
    #[command(flatten)]
    pub trees: TreeOptions,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}
