// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands: one module each, and the table that names them.

pub mod attach;
pub mod automount;
pub mod cat;
pub mod chmod;
pub mod chown;
pub mod commit;
pub mod cp;
pub mod crypt;
pub mod df;
pub mod diff;
pub mod discard;
pub mod doctor;
pub mod drivers;
pub mod du;
pub mod fault;
pub mod find;
pub mod flush;
pub mod generate;
pub mod guard;
pub mod inspect;
pub mod ln;
pub mod ls;
pub mod make_image;
pub mod mkdir;
pub mod mount;
pub mod mv;
pub mod readlink;
pub mod rm;
pub mod rmdir;
pub mod run;
pub mod serve;
pub mod stat;
pub mod status;
pub mod touch;
pub mod trace;
pub mod tree;
pub mod truncate;
pub mod umount;
pub mod upgrade;
pub mod write;

use crate::context::Context;
use crate::deferred::Deferred;
use crate::interrupt;
use crate::messages;
use crate::run::Run;
use crate::status::{Exits, Status};
use crate::tree_options::TreeOptions;
use clap::Subcommand;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use outrigger_core::{Cancel, Error};
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

macro_rules! commands {
    ($(#[doc = $doc:literal] $module:ident::$command:ident;)*) => {
        /// The commands.
        #[derive(Debug, Subcommand)]
        pub enum Command { $(#[doc = $doc] $command(Deferred<$module::$command>),)* }

        impl Command {
            /// Runs the command the user asked for.
            pub fn run(self, json: bool, trees: TreeOptions) -> ExitCode {
                crate::drivers::declare(&trees.driver_program);
                match self { $(Command::$command(command) => start(command.into_inner(), json, trees),)* }
            }
        }

        /// The exit statuses of the command with this name.
        pub fn exits(name: &str) -> Option<Exits> {
            [$((<$module::$command as Run>::NAME, <$module::$command as Run>::EXITS)),*]
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, exits)| *exits)
        }
    };
}

// In the order of the help text: looking, changing, mounting, finding out.
commands! {
    #[doc = "List directories"] ls::Ls;
    #[doc = "Show the attributes of files or of a tree"] stat::Stat;
    #[doc = "Show directories as a tree"] tree::Tree;
    #[doc = "Find files"] find::Find;
    #[doc = "Count how much space files take"] du::Du;
    #[doc = "Show size and free space of trees"] df::Df;
    #[doc = "Show what is in disk images: partitions, file systems"] inspect::Inspect;
    #[doc = "Show targets of symbolic links, or canonical paths"] readlink::Readlink;
    #[doc = "Print files"] cat::Cat;
    #[doc = "Show what differs between two files or trees, or list changes kept by `run --cow`"] diff::Diff;
    #[doc = "Copy files and directories between any two trees"] cp::Cp;
    #[doc = "Move files and directories, also between trees"] mv::Mv;
    #[doc = "Remove files and directories"] rm::Rm;
    #[doc = "Make directories"] mkdir::Mkdir;
    #[doc = "Remove empty directories"] rmdir::Rmdir;
    #[doc = "Make hard and symbolic links"] ln::Ln;
    #[doc = "Change times"] touch::Touch;
    #[doc = "Change permissions"] chmod::Chmod;
    #[doc = "Change owner and group"] chown::Chown;
    #[doc = "Change sizes"] truncate::Truncate;
    #[doc = "Write standard input to a file"] write::Write;
    #[doc = "Make a disk image of a tree"] make_image::MakeImage;
    #[doc = "Mount a tree in a directory"] mount::Mount;
    #[doc = "Mount trees in a directory when their names are used"] automount::Automount;
    #[doc = "Run a program that finds trees in its file system"] run::Run;
    #[doc = "Show trees to a program that runs"] attach::Attach;
    #[doc = "Take trees away from a program that runs"] attach::Detach;
    #[doc = "Apply changes kept by `run --cow` to the real files"] commit::Commit;
    #[doc = "Give up changes kept by `run --cow`"] discard::Discard;
    #[doc = "Run a FUSE program and restart it when it crashes, without losing the mount"] guard::Guard;
    #[doc = "Export trees to other machines"] serve::Serve;
    #[doc = "Make and check encrypted trees, change their passphrases"] crypt::Crypt;
    #[doc = "Unmount, even if the server is dead or hung"] umount::Umount;
    #[doc = "Show what mounts are and do, and programs with trees of their own"] status::Status;
    #[doc = "Show the messages of a mount as they pass"] trace::Trace;
    #[doc = "Show or set the fault injection rules of a mount"] fault::Fault;
    #[doc = "Make a mount drop what it has cached"] flush::Flush;
    #[doc = "Replace the running server of a mount by the installed version, without unmounting"] upgrade::Upgrade;
    #[doc = "List the kinds of trees"] drivers::Drivers;
    #[doc = "Check what this system supports"] doctor::Doctor;
    #[doc = "Write man pages or shell completions"] generate::Generate;
}

fn start<C: Run>(command: C, json: bool, trees: TreeOptions) -> ExitCode {
    let cancel = Cancel::default();
    // If no handler can be installed, a signal still ends the command, only less tidily.
    let caught = if C::INTERRUPTIBLE { interrupt::install(&cancel, interrupt::STOPS).ok() } else { None };
    if json {
        messages::speak_json(C::NAME);
    }
    let context = Context::new(C::NAME, command.only_looks(), json, trees, cancel);
    if let Err(failure) = context.options().concern(C::NAME, C::GLOBALS) {
        context.complain(failure.status, &failure);
        return C::EXITS.usage();
    }
    let allowed = context.options().allow(C::NAME, &context.options().opt, "");
    if let Err(failure) = allowed.and_then(|()| command.run(&context)) {
        context.complain(failure.status, &failure);
    }
    context.settle();
    context.trees.at_end.run();
    if let Some(error) = messages::unsaid() {
        context.complain(Status::Minor, format_args!("write error: {error}"));
    }
    match context.ends_with().or_else(|| caught?.exit_status()) {
        Some(status) => ExitCode::from(status),
        None => C::EXITS.code(context.status()),
    }
}

/// Ends the program because its command line (`words`, without the program's name) cannot be understood, or because it asks
/// for help.
pub fn not_run(words: &[OsString], error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                messages::warn(format_args!("outrigger: write error: {}", Error::from(error)));
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        };
    }
    let is_json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let command = words.iter().find_map(|word| {
        let name = word.to_str()?;
        Some((name.to_owned(), exits(name)?))
    });
    let (command, exits) = command.unwrap_or((String::new(), Exits::Own));
    let say = |text: String| match is_json {
        true => messages::usage_record(&command, &text),
        false => messages::warn(text.trim_end()),
    };
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) if error.kind() == ErrorKind::UnknownArgument => Some(argument),
        _ => None,
    };
    if let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
        && word.contains([':', '/', '.'])
    {
        // So does mount(8) for the type fuse.outrigger.
        say(format!(
            "outrigger: '{word}' is no command: it stands after one, as in `outrigger mount {word} DIR`; the type for mount(8) \
             and fstab(5) is outrigger, without \"fuse.\""
        ));
        return exits.usage();
    }
    match unknown.and_then(|argument| Some((argument, instead(&command, argument)?))) {
        Some((argument, instead)) => {
            say(format!("outrigger {command}: no option {argument} here: {instead}"));
        }
        None => say(error.render().to_string()),
    }
    exits.usage()
}

/// What to write instead of an option that `command` has not, and people look for there.
fn instead(command: &str, argument: &str) -> Option<String> {
    if ["--allow-programs", "--driver-program"].contains(&argument) && !command.is_empty() {
        return Some(format!(
            "it stands in front of the command, as in `outrigger {argument} {command} ...`"
        ));
    }
    let table = match command {
        mount::Mount::NAME => MOUNT_INSTEAD,
        "cp" | "mv" | "ln" | "rm" => COREUTILS_INSTEAD,
        _ => &[],
    };
    let known = table.iter().find(|(other, _)| *other == argument);
    known.map(|(_, instead)| (*instead).to_owned())
}

/// Options of coreutils, and what does the same here.
const COREUTILS_INSTEAD: &[(&str, &str)] = &[
    ("-S", "no backups are made, so they have no suffix; -n keeps what is there"),
    ("--suffix", "no backups are made, so they have no suffix; -n keeps what is there"),
    ("-Z", "security contexts are extended attributes, which --preserve=xattr copies"),
    ("--context", "security contexts are extended attributes, which --preserve=xattr copies"),
    ("-b", "no backups are made; -n keeps what is there, and `outrigger mv` renames it before"),
    ("--backup", "no backups are made; -n keeps what is there, and `outrigger mv` renames it before"),
    ("-x", ONE_FILE_SYSTEM),
    ("--one-file-system", ONE_FILE_SYSTEM),
    ("--strip-trailing-slashes", "nothing needs it"),
];

const ONE_FILE_SYSTEM: &str = "a tree does not say where another file system is mounted in it; on this machine root has a tree without those by \
                               `outrigger mount -o xdev=off DIR MNT`, and elsewhere the directories to take are named one by one";

/// Options of sshfs(1) and mount(8), and how they are written here.
const MOUNT_INSTEAD: &[(&str, &str)] = &[
    ("-C", "-o compression=yes"),
    ("-F", "-o F=FILE in front of the LOCATION"),
    ("-d", "OUTRIGGER_LOG=debug in the environment, with --foreground, or `outrigger trace DIR`"),
    ("-r", "-o ro"),
    ("--read-only", "-o ro"),
    ("-s", "nothing needs it"),
    (
        "-t",
        "LOCATION says what it is: nfs://HOST/EXPORT, HOST:PATH for ssh, and a file by its content (-o type=TYPE says which file \
         system a disk image has)",
    ),
    ("-w", "nothing needs it; -o ro is what mounts for reading only"),
];
