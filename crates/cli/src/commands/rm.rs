// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger rm`: files and directories go.

use crate::context::{Context, Place};
use crate::copy::target::{base_name, shown};
use crate::getopt::{Arguments, Table};
use crate::remove::{Ask, Remover};
use crate::run::Run;
use crate::say::{agrees, place, quoted, usage, word};
use crate::status::{Exits, Failure, Status};
use crate::switches::{Given, Switch, Takes};
use clap::Args;
use outrigger_core::Errno;

/// Arguments of `rm`.
#[derive(Debug, Args)]
pub struct Rm {
    #[command(flatten)]
    arguments: Arguments<RmTable>,
}

/// The options of `rm`.
#[derive(Debug, Clone)]
pub struct RmTable;

impl Table for RmTable {
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str = "What to remove";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("force", Some('f'), Some("force"), "Ignore files that do not exist, never ask"),
        Switch::flag("i", Some('i'), None, "Ask before every removal"),
        Switch::flag("I", Some('I'), None, "Ask once before removing more than three files, or recursively"),
        Switch::with(
            "interactive",
            None,
            Some("interactive"),
            Takes::Optional("WHEN", "always"),
            "Ask: never, once (-I) or always (-i)",
        ),
        Switch::flag("no-preserve-root", None, Some("no-preserve-root"), "Refused: roots are always kept"),
        Switch::flag("preserve-root", None, Some("preserve-root"), "Keep the root of every tree (always so)"),
        Switch::flag("R", Some('R'), None, "Remove directories with their content"),
        Switch::flag("recursive", Some('r'), Some("recursive"), "Remove directories with their content"),
        Switch::flag("dir", Some('d'), Some("dir"), "Remove empty directories"),
        Switch::flag("verbose", Some('v'), Some("verbose"), "Name each file"),
    ];
}

#[derive(Debug, Default)]
struct Settings {
    /// A file that is not there is no error.
    force: bool,
    /// As an option says.
    ask: Option<Ask>,
    /// One question before all.
    once: bool,
    recursive: bool,
    dir: bool,
    verbose: bool,
}

impl Settings {
    fn ask(&mut self, ask: Option<Ask>, once: bool) {
        (self.force, self.ask, self.once) = (false, ask, once);
    }

    fn take(&mut self, given: &Given) -> Result<(), Failure> {
        match given.id {
            "force" => {
                self.ask(Some(Ask::Never), false);
                self.force = true;
            }
            "i" => self.ask(Some(Ask::Always), false),
            "I" => self.ask(None, true),
            "interactive" => match given.text().as_str() {
                "never" | "no" | "none" => (self.ask, self.once) = (Some(Ask::Never), false),
                "once" => self.ask(None, true),
                "always" | "yes" => self.ask(Some(Ask::Always), false),
                other => {
                    let problem = format!("invalid argument {} for {}", word(other), word("--interactive"));
                    return Err(usage(Rm::NAME, problem));
                }
            },
            "no-preserve-root" => {
                return Err(Failure::new(
                    "the root of a tree is never removed: --no-preserve-root is refused",
                ));
            }
            "R" | "recursive" => self.recursive = true,
            "dir" => self.dir = true,
            "verbose" => self.verbose = true,
            _ => {}
        }
        Ok(())
    }
}

impl Run for Rm {
    const NAME: &'static str = "rm";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut settings = Settings::default();
        for given in &self.arguments.given {
            settings.take(given)?;
        }
        let files = self.arguments.operands;
        if files.is_empty() {
            return if settings.force { Ok(()) } else { Err(usage(Self::NAME, "missing operand")) };
        }
        if settings.once && (settings.recursive || files.len() > 3) {
            let (count, s) = (files.len(), if files.len() == 1 { "" } else { "s" });
            let how = if settings.recursive { " recursively" } else { "" };
            if !agrees(Self::NAME, &format!("remove {count} argument{s}{how}")) {
                return Ok(());
            }
        }
        let remover = Remover {
            context,
            ask: settings.ask.unwrap_or(Ask::WriteProtected),
            recursive: settings.recursive,
            dir: settings.dir,
            verbose: settings.verbose,
        };
        for file in &files {
            if context.cancel.is_raised() {
                break;
            }
            if let Some(place) = place(context, file) {
                remove(&remover, &place, settings.force);
            }
        }
        Ok(())
    }
}

fn remove(remover: &Remover<'_>, place: &Place, force: bool) {
    let context = remover.context;
    let name = shown(place);
    match base_name(&place.path) {
        b"" if remover.recursive => {
            let message = format_args!("it is dangerous to operate recursively on {}", quoted(name));
            return context.complain(Status::Minor, message);
        }
        b"." | b".." if remover.recursive => {
            let what = "refusing to remove '.' or '..' directory: skipping";
            return context.complain(Status::Minor, format_args!("{what} {}", quoted(name)));
        }
        b"" | b"." | b".." => {
            let error = Errno::EISDIR;
            return context.complain(Status::Minor, format_args!("cannot remove {}: {error}", quoted(name)));
        }
        _ => {}
    }
    match place.parent().and_then(|(dir, base)| dir.lookup(&base).map(|inode| (dir, base, inode))) {
        Ok((dir, base, inode)) => {
            if name.ends_with(b"/") && !inode.is_dir() {
                let error = Errno::ENOTDIR;
                context.complain(Status::Minor, format_args!("cannot remove {}: {error}", quoted(name)));
            } else {
                remover.remove(place, &dir, &base, inode);
            }
        }
        Err(error) if force && matches!(error.errno, Errno::ENOENT | Errno::ENOTDIR) => {}
        Err(error) => {
            context.complain(Status::Minor, format_args!("cannot remove {}: {error}", quoted(name)));
        }
    }
}
