// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion in the shell: what could stand at the cursor, found by the program itself.
//!
//! The scripts that `outrigger generate completions` writes start `outrigger` with [`SHELL`] in the environment. The
//! arguments are what of the command line stands before the cursor; the answer is a line that says what the candidates
//! are (`files` or `words`), then one line a candidate, with its description after a tab for zsh and fish.
//!
//! Trees are opened for reading, as `ls` does, and never by starting a program; ssh asks nothing. What takes longer than
//! [`PATIENCE`] gives no candidates.

mod line;
pub mod values;

use crate::cli::Cli;
use crate::messages::shown_on_terminal;
use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, complete};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{self, ExitCode};
use std::thread;
use std::time::Duration;

/// The environment variable that names the shell.
pub const SHELL: &str = "OUTRIGGER_COMPLETE";
/// How long completion may take before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);
/// What each shell loads, by the name of the file it is installed as.
const SCRIPTS: [(&str, &str); 3] = [
    ("outrigger.bash", include_str!("outrigger.bash")),
    ("_outrigger", include_str!("_outrigger")),
    ("outrigger.fish", include_str!("outrigger.fish")),
];

/// Writes what shells load into `dir`.
///
/// # Errors
/// When a file cannot be written.
pub fn write_scripts(dir: &Path) -> io::Result<()> {
    SCRIPTS.iter().try_for_each(|(name, text)| fs::write(dir.join(name), text))
}

/// Prints the candidates for the shell that asks.
pub fn run() -> ExitCode {
    let shell = env::var(SHELL).unwrap_or_default();
    // The shell waits, and the user with it.
    thread::spawn(|| {
        thread::sleep(PATIENCE);
        process::exit(1);
    });
    let arguments: Vec<OsString> = env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let Some(asked) = line::Asked::read(&shell, &arguments) else { return ExitCode::FAILURE };
    match print(&shell, &asked, &candidates(&asked)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What could stand at the cursor. Options are offered where the word begins as one.
fn candidates(asked: &line::Asked) -> Vec<CompletionCandidate> {
    let mut command = command();
    let words: Vec<OsString> = asked.before.iter().chain([&asked.word]).cloned().collect();
    let mut found = complete(&mut command, words, asked.before.len(), None).unwrap_or_default();
    let is_option = |candidate: &CompletionCandidate| candidate.get_value().as_bytes().starts_with(b"-");
    if !asked.word.as_bytes().starts_with(b"-") {
        found.retain(|candidate| !is_option(candidate));
    }
    found.retain(|candidate| {
        let value = candidate.get_value().as_bytes();
        shown_on_terminal(value, false) == value
    });
    found
}

/// The command line, with what the values of its arguments can be.
fn command() -> Command {
    let mut command = Cli::command();
    // Arguments are defined when a command is built.
    command.build();
    let command = command.mut_args(|argument| completed(argument, false));
    command.mut_subcommands(|command| {
        let of_mounts =
            ["umount", "status", "trace", "fault", "flush", "upgrade"].contains(&command.get_name());
        command.mut_args(|argument| completed(argument, of_mounts))
    })
}

/// The argument, with what its values can be.
fn completed(argument: Arg, of_mounts: bool) -> Arg {
    let names = argument.get_value_names().unwrap_or_default();
    let Some(name) = names.first().map(|name| name.as_str().to_owned()) else { return argument };
    let completer = match name.as_str() {
        "DIR" if of_mounts => ArgValueCompleter::new(values::mounts),
        "DIR" => ArgValueCompleter::new(values::directories),
        "OPTIONS" => ArgValueCompleter::new(values::mount_options),
        "KEY[=VALUE],..." => ArgValueCompleter::new(values::driver_options),
        "NAME[=SPEC]" => ArgValueCompleter::new(values::layers),
        "NAME" => ArgValueCompleter::new(values::drivers),
        "LOCATION" | "TARGET" | "IMAGE" | "ARGUMENT" => ArgValueCompleter::new(values::locations),
        name if name.ends_with(" LOCATION") => ArgValueCompleter::new(values::locations),
        _ => return argument,
    };
    argument.add(completer)
}

fn print(shell: &str, asked: &line::Asked, candidates: &[CompletionCandidate]) -> io::Result<()> {
    let mut text: Vec<u8> = Vec::new();
    let are_files = candidates.iter().any(|candidate| candidate.get_tag().is_some_and(values::is_file));
    text.extend_from_slice(if are_files { b"files\n" } else { b"words\n" });
    for candidate in candidates {
        // bash has broken the word, and replaces only what follows.
        let Some(value) = candidate.get_value().as_bytes().strip_prefix(asked.kept.as_bytes()) else {
            continue;
        };
        text.extend_from_slice(value);
        if let Some(help) = candidate.get_help().filter(|_| shell != "bash") {
            let help = help.to_string();
            text.extend_from_slice(b"\t");
            text.extend_from_slice(help.lines().next().unwrap_or_default().as_bytes());
        }
        text.push(b'\n');
    }
    io::stdout().lock().write_all(&text)
}
