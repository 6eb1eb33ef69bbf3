// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger`: file systems outside the kernel, from the command line.
//!
//! | module | what it holds |
//! |---|---|
//! | [`automount`] | the map of an automount, and how its trees are opened |
//! | [`cli`] | the definition of the command line |
//! | [`commands`] | one module a command |
//! | [`complete`] | completion in the shell |
//! | [`context`] | what every command gets: trees, cancellation, error reports |
//! | [`control`] | how commands talk to running mounts |
//! | [`copy`] | the copy engine |
//! | [`creating`] | opening a file that may have to be made |
//! | [`deferred`] | arguments that are defined only for the command asked for |
//! | [`descent`] | walking a tree from a place down |
//! | [`drivers`] | the list of drivers, and their schemes |
//! | [`mod@format`] | how names, sizes, times and modes are written |
//! | [`getopt`] | arguments of commands whose options are a table |
//! | [`guarded`] | reports of crashes |
//! | [`image`] | images of trees, for `make-image` |
//! | [`interrupt`] | Ctrl-C |
//! | [`location`] | the syntax of LOCATION |
//! | [`logging`] | log messages on standard error |
//! | [`messages`] | messages, as text or as records |
//! | [`modes`] | modes as chmod takes them |
//! | [`mount_helper`] | the helpers mount(8) and umount(8) run |
//! | [`mounted`] | the process that serves a mount |
//! | [`output`] | standard output of the commands that print much |
//! | [`place`] | names of files of this machine in directories that are open |
//! | [`progress`] | how far a long command is |
//! | [`remove`] | removing trees |
//! | [`reserved`] | keeping others from an image until it is whole |
//! | [`mod@run`] | what a command is |
//! | [`say`] | names in messages, and questions |
//! | [`sweep`] | visiting everything below a directory |
//! | [`switches`] | options whose order counts |
//! | [`temporary`] | names for files that are not complete yet |
//! | [`tree_options`] | options of every command about the trees it opens |
//! | [`trees`] | opens the tree a LOCATION names |
//!
//! A module uses those that stand for what it needs, never one that uses it: [`cli`] and [`complete`] know the commands, a command knows
//! [`context`], that knows [`trees`], and those know [`location`] and [`drivers`].
#![forbid(unsafe_code)]

mod automount;
mod cli;
mod commands;
mod complete;
mod context;
mod control;
mod copy;
mod cow;
mod creating;
mod deferred;
mod descent;
mod drivers;
mod format;
mod getopt;
mod guarded;
mod image;
mod interrupt;
mod location;
mod logging;
mod messages;
mod modes;
mod mount_helper;
mod mounted;
mod notes;
mod output;
#[cfg(test)]
mod outside;
#[cfg(test)]
mod outside_test;
mod place;
mod progress;
mod remove;
mod reserved;
mod run;
mod say;
mod served;
mod status;
mod sweep;
mod switches;
mod temporary;
mod tree_options;
mod trees;

use clap::Parser;
use mount_helper::Wanted;
use outrigger_guard::proxy;
use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    logging::start();
    location::remember_names(env::args_os().skip(1));
    match env::args_os().next() {
        Some(program) if mount_helper::is_helper(&program) => {
            help("mount.outrigger", mount_helper::translate(env::args_os().skip(1)))
        }
        Some(program) if mount_helper::is_umount_helper(&program) => {
            help("umount.outrigger", mount_helper::translate_umount(env::args_os().skip(1)))
        }
        // Its parent sees a failure by its exit.
        Some(program) if proxy::is_proxy(&program) => {
            proxy::run().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Some(program) if outrigger_door_intercept::is_enter(&program) => {
            outrigger_door_intercept::run(env::args_os().skip(1))
        }
        _ if env::var_os(complete::SHELL).is_some() => complete::run(),
        _ => match cli::Cli::try_parse() {
            Ok(cli) => run(cli),
            Err(error) => commands::not_run(&env::args_os().skip(1).collect::<Vec<_>>(), &error),
        },
    }
}

fn run(cli: cli::Cli) -> ExitCode {
    cli.command.run(cli.json, cli.trees)
}

/// Does what mount(8) or umount(8) wants, with the exit status it expects.
fn help(name: &str, wanted: Result<Wanted, String>) -> ExitCode {
    match wanted {
        Ok(Wanted::Nothing) => ExitCode::SUCCESS,
        Ok(Wanted::Say(text)) => {
            // What cannot be printed has nowhere else to go.
            let _ = writeln!(io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Ok(Wanted::Run(arguments)) => match run(cli::Cli::parse_from(arguments)) {
            ExitCode::SUCCESS => ExitCode::SUCCESS,
            _ => ExitCode::from(mount_helper::FAILED),
        },
        Err(message) => {
            messages::warn(format_args!("{name}: {message}"));
            ExitCode::from(mount_helper::USAGE)
        }
    }
}
