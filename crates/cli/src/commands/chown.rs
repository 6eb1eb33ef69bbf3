// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger chown`: owner and group.
//!
//! Unlike GNU chown it keeps its hands off everything below the root of the host unless `--no-preserve-root` is given.

use crate::context::{Context, Place};
use crate::copy::target::shown;
use crate::format::owner::{Owners, gid_of, uid_of};
use crate::getopt::{Arguments, Table};
use crate::messages::announce;
use crate::run::Run;
use crate::say::{operand, place, quoted, refuses_root, usage, word};
use crate::status::{Exits, Failure, Status};
use crate::sweep::{Visitor, sweep};
use crate::switches::{Given, Switch, Takes};
use clap::Args;
use outrigger_client::{Follow, Inode};
use outrigger_core::{Attr, Error, SetAttrs};
use std::ffi::OsString;

/// Arguments of `chown`.
#[derive(Debug, Args)]
pub struct Chown {
    #[command(flatten)]
    arguments: Arguments<ChownTable>,
}

/// The options of `chown`.
#[derive(Debug, Clone)]
pub struct ChownTable;

impl Table for ChownTable {
    const OPERAND: &'static str = "[OWNER][:GROUP] LOCATION";
    const OPERAND_HELP: &'static str = "Names or numbers of owner and group, and the files that get them";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("changes", Some('c'), Some("changes"), "Name each file whose owner or group changes"),
        Switch::flag("silent", Some('f'), Some("silent"), "Do not tell what fails"),
        Switch::flag("quiet", None, Some("quiet"), "Do not tell what fails"),
        Switch::flag("verbose", Some('v'), Some("verbose"), "Name each file"),
        Switch::flag(
            "dereference",
            None,
            Some("dereference"),
            "Follow symbolic links (the default without -R)",
        ),
        Switch::flag("no-dereference", Some('h'), Some("no-dereference"), "Change symbolic links themselves"),
        Switch::with(
            "from",
            None,
            Some("from"),
            Takes::Value("OWNER:GROUP"),
            "Only files that have these now",
        ),
        Switch::flag(
            "preserve-root",
            None,
            Some("preserve-root"),
            "Refuse -R on the host's root (the default)",
        ),
        Switch::flag("no-preserve-root", None, Some("no-preserve-root"), "Permit -R on the host's root"),
        Switch::with(
            "reference",
            None,
            Some("reference"),
            Takes::Value("LOCATION"),
            "Use this file's owner and group",
        ),
        Switch::flag("recursive", Some('R'), Some("recursive"), "Change directories with their content"),
        Switch::flag("H", Some('H'), None, "With -R, follow symbolic links named on the command line"),
        Switch::flag("P", Some('P'), None, "With -R, follow no symbolic links (the default)"),
    ];
}

/// An owner, a group, or both, with their names as messages show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Ownership {
    uid: Option<u32>,
    gid: Option<u32>,
    user: Option<String>,
    group: Option<String>,
}

impl Ownership {
    /// Parses `[OWNER][:[GROUP]]`. An owner followed by a colon alone brings the group he logs in with.
    fn parse(text: &str) -> Result<Self, Failure> {
        match text.split_once(':') {
            Some((user, group)) => Self::of(text, user, Some(group)),
            // The old separator, for those whose fingers know it.
            None => match text.split_once('.') {
                Some((user, group)) if uid_of(text).is_none() => Self::of(text, user, Some(group)),
                _ => Self::of(text, text, None),
            },
        }
    }

    fn of(text: &str, user: &str, group: Option<&str>) -> Result<Self, Failure> {
        let mut ownership = Ownership::default();
        if !user.is_empty() {
            let uid = uid_of(user).ok_or_else(|| Failure::new(format!("invalid user: {}", word(text))))?;
            (ownership.uid, ownership.user) = (Some(uid), Some(user.to_owned()));
        }
        match group {
            Some("") if !user.is_empty() => {
                let account = uzers::get_user_by_name(user);
                let gid = account.ok_or_else(|| Failure::new(format!("invalid spec: {}", word(text))))?;
                let gid = gid.primary_group_id();
                let name =
                    Owners::default().group(gid).map_or_else(|| gid.to_string(), |name| name.to_string());
                (ownership.gid, ownership.group) = (Some(gid), Some(name));
            }
            Some(group) if !group.is_empty() => {
                let gid =
                    gid_of(group).ok_or_else(|| Failure::new(format!("invalid group: {}", word(text))))?;
                (ownership.gid, ownership.group) = (Some(gid), Some(group.to_owned()));
            }
            _ => {}
        }
        Ok(ownership)
    }

    fn matches(&self, attr: &Attr) -> bool {
        self.uid.is_none_or(|uid| uid == attr.uid) && self.gid.is_none_or(|gid| gid == attr.gid)
    }

    /// As messages show it.
    fn text(&self) -> Option<String> {
        match (&self.user, &self.group) {
            (Some(user), Some(group)) => Some(format!("{user}:{group}")),
            (Some(user), None) => Some(user.clone()),
            (None, Some(group)) => Some(format!(":{group}")),
            (None, None) => None,
        }
    }
}

#[derive(Debug, Default)]
struct Settings {
    changes: bool,
    silent: bool,
    verbose: bool,
    recursive: bool,
    follow_operands: bool,
    no_dereference: bool,
    permit_root: bool,
    reference: Option<OsString>,
    from: Ownership,
}

impl Settings {
    fn take(&mut self, given: &Given) -> Result<(), Failure> {
        match given.id {
            "changes" => self.changes = true,
            "silent" | "quiet" => self.silent = true,
            "verbose" => self.verbose = true,
            "recursive" => self.recursive = true,
            "dereference" => self.no_dereference = false,
            "no-dereference" => self.no_dereference = true,
            "H" => self.follow_operands = true,
            "P" => self.follow_operands = false,
            "preserve-root" => self.permit_root = false,
            "no-preserve-root" => self.permit_root = true,
            "reference" => self.reference = Some(given.value.clone()),
            _ => self.from = Ownership::parse(&given.text())?,
        }
        Ok(())
    }
}

impl Run for Chown {
    const NAME: &'static str = "chown";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut settings = Settings::default();
        for given in &self.arguments.given {
            settings.take(given)?;
        }
        let mut operands = self.arguments.operands;
        let owners = Owners::default();
        let mut changer = Changer { context, settings, to: Ownership::default(), owners };
        changer.to = changer.ownership(&mut operands)?;
        for place in operands.iter().filter_map(|file| place(context, file)) {
            changer.operand(&place);
        }
        Ok(())
    }
}

struct Changer<'c> {
    context: &'c Context,
    settings: Settings,
    to: Ownership,
    owners: Owners,
}

impl Changer<'_> {
    /// The new owner and group, taken from the reference file or the first operand.
    fn ownership(&mut self, operands: &mut Vec<OsString>) -> Result<Ownership, Failure> {
        if let Some(reference) = &self.settings.reference {
            if operands.is_empty() {
                return Err(usage(Chown::NAME, "missing operand"));
            }
            self.context.trees.only_writes(operands);
            let name = operand(reference);
            let failed = |error| Failure::new(format!("failed to get attributes of {name}: {error}"));
            let inode = self.context.place(reference)?.find(Follow::Yes).map_err(failed)?;
            let (uid, gid) = (inode.attr().uid, inode.attr().gid);
            let (user, group) = (self.user(uid), self.group(gid));
            return Ok(Ownership { uid: Some(uid), gid: Some(gid), user: Some(user), group: Some(group) });
        }
        if operands.is_empty() {
            return Err(usage(Chown::NAME, "missing operand"));
        }
        let text = operands.remove(0).to_string_lossy().into_owned();
        if operands.is_empty() {
            return Err(usage(Chown::NAME, format!("missing operand after {}", word(&text))));
        }
        Ownership::parse(&text)
    }

    fn user(&mut self, uid: u32) -> String {
        self.owners.user(uid).map_or_else(|| uid.to_string(), |name| name.to_string())
    }

    fn group(&mut self, gid: u32) -> String {
        self.owners.group(gid).map_or_else(|| gid.to_string(), |name| name.to_string())
    }

    fn operand(&mut self, place: &Place) {
        let name = shown(place);
        let follows = if self.settings.recursive {
            self.settings.follow_operands
        } else {
            !self.settings.no_dereference
        };
        match place.find(if follows { Follow::Yes } else { Follow::No }) {
            Ok(inode) if self.settings.recursive => {
                if self.settings.permit_root || !refuses_root(self.context, &inode, name) {
                    let cancel = self.context.cancel.clone();
                    sweep(inode, name.to_vec(), &cancel, self);
                }
            }
            Ok(mut inode) => self.change(&mut inode, name),
            Err(error) => {
                let dangling = follows && place.find(Follow::No).is_ok();
                let what = if dangling { "cannot dereference" } else { "cannot access" };
                self.complain(format!("{what} {}: {error}", quoted(name)));
                if self.settings.verbose {
                    let to = self.to.text().map_or_else(String::new, |to| format!(" to {to}"));
                    announce(format_args!("failed to change ownership of {}{to}", quoted(name)));
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

    fn change(&mut self, inode: &mut Inode, name: &[u8]) {
        let (uid, gid) = (inode.attr().uid, inode.attr().gid);
        let wanted = self.settings.from.matches(inode.attr());
        let changed = !self.to.matches(inode.attr());
        let result = if wanted {
            let attrs = SetAttrs { uid: self.to.uid, gid: self.to.gid, ..SetAttrs::default() };
            inode.set(attrs).map(drop)
        } else {
            Ok(())
        };
        if let Err(error) = &result {
            self.complain(format!("changing ownership of {}: {error}", quoted(name)));
        }
        if self.settings.verbose || (self.settings.changes && changed && wanted && result.is_ok()) {
            self.tell(uid, gid, name, wanted && changed, result.is_ok());
        }
    }

    fn tell(&mut self, uid: u32, gid: u32, name: &[u8], changed: bool, done: bool) {
        let name = quoted(name);
        // A group given as a number alone is spoken of as a group; one given by name as an ownership without owner.
        let number = self.to.group.clone().filter(|group| group.parse::<u32>().is_ok());
        let (what, from, to) = match (self.to.uid, self.to.gid, number) {
            (None, None, _) => return announce(format_args!("ownership of {name} retained")),
            (Some(_), None, _) => ("ownership", self.user(uid), self.to.text().unwrap_or_default()),
            (None, Some(_), Some(group)) => ("group", self.group(gid), group),
            _ => {
                let from = format!("{}:{}", self.user(uid), self.group(gid));
                ("ownership", from, self.to.text().unwrap_or_default())
            }
        };
        match (done, changed) {
            (true, true) => announce(format_args!("changed {what} of {name} from {from} to {to}")),
            (true, false) => announce(format_args!("{what} of {name} retained as {from}")),
            (false, _) => announce(format_args!("failed to change {what} of {name} from {from} to {to}")),
        }
    }
}

impl Visitor for Changer<'_> {
    fn before(&mut self, inode: &mut Inode, shown: &[u8]) {
        if !inode.is_dir() {
            self.change(inode, shown);
        }
    }

    fn after(&mut self, inode: &mut Inode, shown: &[u8]) {
        self.change(inode, shown);
    }

    fn inaccessible(&mut self, shown: &[u8], error: &Error) {
        self.complain(format!("cannot access {}: {error}", quoted(shown)));
    }

    fn unreadable(&mut self, shown: &[u8], error: &Error) {
        self.complain(format!("cannot read directory {}: {error}", quoted(shown)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications() {
        let cases = [
            ("1:2", Some(1), Some(2)),
            ("0", Some(0), None),
            (":7", None, Some(7)),
            ("3.4", Some(3), Some(4)),
            ("root:", Some(0), Some(0)),
            (":", None, None),
            ("", None, None),
        ];
        for (text, uid, gid) in cases {
            let ownership = Ownership::parse(text).unwrap_or_else(|failure| panic!("{text}: {failure}"));
            assert_eq!((ownership.uid, ownership.gid), (uid, gid), "{text}");
        }
        for text in ["no such user", "0:no such group", "0:0:0", "12345:"] {
            assert!(Ownership::parse(text).is_err(), "{text}");
        }
    }
}
