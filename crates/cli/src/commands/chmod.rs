// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger chmod`: permissions.
//!
//! Unlike GNU chmod it keeps its hands off everything below the root of the host unless `--no-preserve-root` is given.

use crate::context::{Context, Place};
use crate::copy::target::shown;
use crate::format::mode;
use crate::getopt::{Arguments, Table};
use crate::messages::announce;
use crate::modes::ModeChange;
use crate::run::Run;
use crate::say::{operand, place, quoted, refuses_root, usage, word};
use crate::status::{Exits, Failure, Status};
use crate::sweep::{Visitor, sweep};
use crate::switches::{Given, Switch, Takes};
use clap::Args;
use outrigger_client::{Follow, Inode};
use outrigger_core::{Errno, Error, FileKind, SetAttrs};
use std::ffi::OsString;

/// Arguments of `chmod`.
#[derive(Debug, Args)]
pub struct Chmod {
    #[command(flatten)]
    arguments: Arguments<ChmodTable>,
}

/// The options of `chmod`.
#[derive(Debug, Clone)]
pub struct ChmodTable;

const MINUS: &str = "A MODE may begin with -";

impl Table for ChmodTable {
    const OPERAND: &'static str = "MODE LOCATION";
    const OPERAND_HELP: &'static str = "The mode, octal or as in u=rwX,go-w, and the files that get it";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("changes", Some('c'), Some("changes"), "Name each file whose mode changes"),
        Switch::flag("silent", Some('f'), Some("silent"), "Do not tell what fails"),
        Switch::flag("quiet", None, Some("quiet"), "Do not tell what fails"),
        Switch::flag("verbose", Some('v'), Some("verbose"), "Name each file"),
        Switch::flag(
            "preserve-root",
            None,
            Some("preserve-root"),
            "Refuse -R on the host's root (the default)",
        ),
        Switch::flag("no-preserve-root", None, Some("no-preserve-root"), "Permit -R on the host's root"),
        Switch::with("reference", None, Some("reference"), Takes::Value("LOCATION"), "Use this file's mode"),
        Switch::flag("recursive", Some('R'), Some("recursive"), "Change directories with their content"),
        Switch::flag("r", Some('r'), None, MINUS),
        Switch::flag("w", Some('w'), None, MINUS),
        Switch::flag("x", Some('x'), None, MINUS),
        Switch::flag("X", Some('X'), None, MINUS),
        Switch::flag("s", Some('s'), None, MINUS),
        Switch::flag("t", Some('t'), None, MINUS),
        Switch::flag("u", Some('u'), None, MINUS),
        Switch::flag("g", Some('g'), None, MINUS),
        Switch::flag("o", Some('o'), None, MINUS),
    ];
}

#[derive(Debug, Default)]
struct Settings {
    changes: bool,
    silent: bool,
    verbose: bool,
    recursive: bool,
    permit_root: bool,
    reference: Option<OsString>,
    /// The permissions of a mode that was written like an option.
    minus: String,
}

impl Settings {
    fn take(&mut self, given: &Given) {
        match given.id {
            "changes" => self.changes = true,
            "silent" | "quiet" => self.silent = true,
            "verbose" => self.verbose = true,
            "recursive" => self.recursive = true,
            "preserve-root" => self.permit_root = false,
            "no-preserve-root" => self.permit_root = true,
            "reference" => self.reference = Some(given.value.clone()),
            permission => self.minus.push_str(permission),
        }
    }

    /// The change, taken from the options or from the first operand.
    fn change(&self, context: &Context, operands: &mut Vec<OsString>) -> Result<ModeChange, Failure> {
        if let Some(reference) = &self.reference {
            context.trees.only_writes(operands);
            let name = operand(reference);
            let failed = |error| Failure::new(format!("failed to get attributes of {name}: {error}"));
            let inode = context.place(reference)?.find(Follow::Yes).map_err(failed)?;
            return Ok(ModeChange::of_file(inode.attr().mode));
        }
        let text = if self.minus.is_empty() {
            if operands.is_empty() {
                return Err(usage(Chmod::NAME, "missing operand"));
            }
            operands.remove(0).to_string_lossy().into_owned()
        } else {
            format!("-{}", self.minus)
        };
        if operands.is_empty() {
            return Err(usage(Chmod::NAME, format!("missing operand after {}", word(&text))));
        }
        ModeChange::parse(&text).ok_or_else(|| usage(Chmod::NAME, format!("invalid mode: {}", word(&text))))
    }
}

impl Run for Chmod {
    const NAME: &'static str = "chmod";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut settings = Settings::default();
        self.arguments.given.iter().for_each(|given| settings.take(given));
        let mut operands = self.arguments.operands;
        let change = settings.change(context, &mut operands)?;
        if operands.is_empty() {
            return Err(usage(Self::NAME, "missing operand"));
        }
        let mut changer = Changer { context, settings, change };
        for place in operands.iter().filter_map(|file| place(context, file)) {
            changer.operand(&place);
        }
        Ok(())
    }
}

struct Changer<'c> {
    context: &'c Context,
    settings: Settings,
    change: ModeChange,
}

impl Changer<'_> {
    fn operand(&mut self, place: &Place) {
        let name = shown(place);
        match place.find(Follow::Yes) {
            Ok(inode) if self.settings.recursive => {
                if self.settings.permit_root || !refuses_root(self.context, &inode, name) {
                    sweep(inode, name.to_vec(), &self.context.cancel, self);
                }
            }
            Ok(mut inode) => self.change(&mut inode, name),
            Err(error) => {
                let dangling = error.errno == Errno::ENOENT && place.find(Follow::No).is_ok();
                if dangling {
                    self.complain(format!("cannot operate on dangling symlink {}", quoted(name)));
                } else {
                    self.complain(format!("cannot access {}: {error}", quoted(name)));
                }
                if self.settings.verbose {
                    announce(format_args!("{} could not be accessed", quoted(name)));
                }
            }
        }
    }

    fn complain(&self, message: String) {
        if self.settings.silent {
            self.context.fail(Status::Minor);
        } else {
            self.context.complain(Status::Minor, message);
        }
    }

    fn change(&self, inode: &mut Inode, name: &[u8]) {
        let old = inode.attr().permissions();
        let new = self.change.apply(old, inode.is_dir(), self.context.umask);
        let attrs = SetAttrs { mode: Some(new), ..SetAttrs::default() };
        let result = inode.set(attrs).map(|attr| attr.permissions());
        if let Err(error) = &result {
            self.complain(format!("changing permissions of {}: {error}", quoted(name)));
        }
        let changed = result.as_ref().is_ok_and(|&now| now != old);
        if self.settings.verbose || (self.settings.changes && changed) {
            let (name, from) = (quoted(name), permissions(old));
            match result {
                Ok(now) if now == old => announce(format_args!("mode of {name} retained as {from}")),
                Ok(now) => {
                    announce(format_args!("mode of {name} changed from {from} to {}", permissions(now)))
                }
                Err(_) => announce(format_args!(
                    "failed to change mode of {name} from {from} to {}",
                    permissions(new)
                )),
            }
        }
        self.check_umask(old, new, inode, name);
    }

    /// Fails where the umask has weakened a mode like `-w`, which the user may have expected to remove all bits.
    fn check_umask(&self, old: u32, new: u32, inode: &Inode, name: &[u8]) {
        if self.settings.minus.is_empty() {
            return;
        }
        let naive = self.change.apply(old, inode.is_dir(), 0);
        if new & !naive != 0 {
            let (new, naive) = (&permissions(new)[6..15], &permissions(naive)[6..15]);
            let name = String::from_utf8_lossy(name);
            self.complain(format!("{name}: new permissions are {new}, not {naive}"));
        }
    }
}

/// `0644 (rw-r--r--)`.
fn permissions(mode: u32) -> String {
    format!("{mode:04o} ({})", &mode::text(mode)[1..])
}

impl Visitor for Changer<'_> {
    fn before(&mut self, inode: &mut Inode, shown: &[u8]) {
        if inode.kind() != FileKind::Symlink {
            self.change(inode, shown);
        } else if self.settings.verbose {
            announce(format_args!("neither symbolic link {} nor referent has been changed", quoted(shown)));
        }
    }

    fn after(&mut self, _: &mut Inode, _: &[u8]) {}

    fn inaccessible(&mut self, shown: &[u8], error: &Error) {
        self.complain(format!("cannot access {}: {error}", quoted(shown)));
    }

    fn unreadable(&mut self, shown: &[u8], error: &Error) {
        self.complain(format!("cannot read directory {}: {error}", quoted(shown)));
    }
}
