// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger mv`: renames inside a tree, copies and removes between trees.

use super::cp::when;
use crate::context::{Context, Place};
use crate::copy::target::{Destination, Spot, TargetOptions, arrow, shown, spot, wants_directory};
use crate::copy::{Copier, Deref, Existing, Options, Preserve};
use crate::format::record::transfer;
use crate::getopt::{Arguments, Table};
use crate::messages::{announce, announce_record};
use crate::progress::{Progress, When};
use crate::remove::{Ask, Remover};
use crate::run::Run;
use crate::say::{agrees, place, quoted};
use crate::status::{Exits, Failure, Status};
use crate::switches::{Given, Switch, Takes};
use clap::Args;
use outrigger_client::{Client, Follow, Inode, TreeId};
use outrigger_core::ops::{OpenFlags, RenameFlags};
use outrigger_core::{Attr, DriverClass, Errno, Error, Name};
use std::cell::RefCell;

/// Arguments of `mv`.
#[derive(Debug, Args)]
pub struct Mv {
    #[command(flatten)]
    arguments: Arguments<MvTable>,
}

/// The options of `mv`.
#[derive(Debug, Clone)]
pub struct MvTable;

impl Table for MvTable {
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str = "What to move; the last one is where to";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("b", Some('b'), None, "Not supported, as --backup"),
        Switch::with(
            "backup",
            None,
            Some("backup"),
            Takes::Optional("CONTROL", ""),
            "Not supported: backups of replaced files are refused",
        ),
        Switch::flag("exchange", None, Some("exchange"), "Exchange source and destination"),
        Switch::flag("force", Some('f'), Some("force"), "Do not ask before overwriting"),
        Switch::flag("interactive", Some('i'), Some("interactive"), "Ask before overwriting"),
        Switch::flag("no-clobber", Some('n'), Some("no-clobber"), "Do not overwrite"),
        Switch::flag(
            "strip-trailing-slashes",
            None,
            Some("strip-trailing-slashes"),
            "Remove slashes at the end of each source",
        ),
        Switch::with(
            "target-directory",
            Some('t'),
            Some("target-directory"),
            Takes::Value("LOCATION"),
            "Move everything into this directory",
        ),
        Switch::flag(
            "no-target-directory",
            Some('T'),
            Some("no-target-directory"),
            "The destination is a name, even if it is a directory",
        ),
        Switch::flag("update", Some('u'), Some("update"), "Move only what is newer than the destination"),
        Switch::flag("verbose", Some('v'), Some("verbose"), "Name each file"),
        Switch::with(
            "progress",
            None,
            Some("progress"),
            Takes::Optional("WHEN", "always"),
            "Show progress of copying: auto (on a terminal), always or never",
        ),
    ];
}

struct Settings {
    existing: Existing,
    update: bool,
    exchange: bool,
    verbose: bool,
    progress: When,
    target: TargetOptions,
}

impl Settings {
    fn take(&mut self, given: &Given) -> Result<(), Failure> {
        match given.id {
            "b" | "backup" => {
                return Err(Failure::new(
                    "backups of replaced files are not supported: leave out -b and --backup",
                ));
            }
            "exchange" => self.exchange = true,
            "force" => self.existing = Existing::Replace,
            "interactive" => self.existing = Existing::Ask,
            "no-clobber" => self.existing = Existing::Keep,
            "target-directory" => self.target.target_directory = Some(given.value.clone()),
            "no-target-directory" => self.target.no_target_directory = true,
            "update" => self.update = true,
            "verbose" => self.verbose = true,
            "progress" => self.progress = when(&given.text())?,
            _ => {}
        }
        Ok(())
    }
}

impl Run for Mv {
    const NAME: &'static str = "mv";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut settings = Settings {
            existing: Existing::Replace,
            update: false,
            exchange: false,
            verbose: false,
            progress: When::Auto,
            target: TargetOptions::default(),
        };
        for given in &self.arguments.given {
            settings.take(given)?;
        }
        context.has_sides();
        let (sources, destination) = settings.target.destination(context, self.arguments.operands)?;
        let sources: Vec<Place> = sources.iter().filter_map(|source| place(context, source)).collect();
        context.all_options_taken()?;
        let mover = Mover { context, settings, copied: RefCell::default() };
        for source in &sources {
            if context.cancel.is_raised() {
                break;
            }
            mover.move_one(source, &destination);
        }
        mover.remove_copied();
        Ok(())
    }
}

struct Mover<'c> {
    context: &'c Context,
    settings: Settings,
    /// Sources that were copied to another tree, to be removed once the copies are on stable storage.
    copied: RefCell<Vec<Copied>>,
}

/// A source that was copied.
struct Copied {
    from: Place,
    dir: Inode,
    name: Name,
    source: Inode,
    target: Client,
}

/// The most sources that share one synchronisation: their inodes stay in memory until then.
const TOGETHER: usize = 1024;

/// A source and where it goes.
struct Move<'a> {
    from: &'a Place,
    to: &'a Place,
    dir: Inode,
    name: Name,
    source: Inode,
    to_dir: Inode,
    to_name: Name,
}

impl Mover<'_> {
    fn complain(&self, message: String) {
        self.context.complain(Status::Minor, message);
    }

    fn move_one(&self, from: &Place, destination: &Destination) {
        let to = &destination.place_of(from);
        let found = match spot(from) {
            Ok(Spot::Named(dir, name)) => dir.lookup(&name).map(|source| (dir, name, source)),
            Ok(Spot::Itself(_)) => {
                // `.`, `..` and roots are busy, as with rename(2).
                return self.cannot_move(from, to, &Errno::EBUSY.into());
            }
            Err(error) => Err(error),
        };
        let (dir, name, source) = match found {
            Ok((.., source)) if wants_directory(from) && !source.is_dir() => {
                return self.complain(format!("cannot stat {}: {}", quoted(shown(from)), Errno::ENOTDIR));
            }
            Ok(found) => found,
            Err(error) => return self.complain(format!("cannot stat {}: {error}", quoted(shown(from)))),
        };
        match spot(to) {
            Ok(Spot::Named(to_dir, to_name)) => {
                self.place(Move { from, to, dir, name, source, to_dir, to_name });
            }
            Ok(Spot::Itself(_)) => self.cannot_move(from, to, &Errno::EBUSY.into()),
            Err(error) => self.cannot_move(from, to, &error),
        }
    }

    fn cannot_move(&self, from: &Place, to: &Place, error: &Error) {
        let (from, to) = (quoted(shown(from)), quoted(shown(to)));
        self.complain(format!("cannot move {from} to {to}: {error}"));
    }

    fn place(&self, job: Move<'_>) {
        let existing = match job.to_dir.find(&job.to_name) {
            Ok(existing) => existing,
            Err(error) => return self.cannot_move(job.from, job.to, &error),
        };
        // A slash after a name asks for a directory; the moved one will do.
        if wants_directory(job.to) && !job.source.is_dir() && !existing.as_ref().is_some_and(Inode::is_dir) {
            return match existing {
                Some(_) => {
                    self.complain(format!("cannot stat {}: {}", quoted(shown(job.to)), Errno::ENOTDIR))
                }
                None => self.cannot_move(job.from, job.to, &Errno::ENOTDIR.into()),
            };
        }
        if let Some(existing) = &existing
            && !self.settings.exchange
            && !self.may_replace(&job, existing)
        {
            return;
        }
        if job.source.client().tree() != job.to_dir.client().tree() {
            return self.carry(job, existing);
        }
        let flags = match (self.settings.exchange, self.settings.existing) {
            (true, _) => RenameFlags::EXCHANGE,
            (false, Existing::Keep) => RenameFlags::NOREPLACE,
            (false, _) => RenameFlags::empty(),
        };
        match self.rename(&job, flags) {
            Ok(()) => self.announce(&job),
            Err(error) if error.errno == Errno::EXDEV && !self.settings.exchange => self.carry(job, existing),
            // Another process has taken the name meanwhile.
            Err(error) if error.errno == Errno::EEXIST && self.settings.existing == Existing::Keep => {}
            Err(error) if error.errno == Errno::EINVAL && job.source.is_dir() => {
                let (from, to) = (quoted(shown(job.from)), quoted(shown(job.to)));
                self.complain(format!("cannot move {from} to a subdirectory of itself, {to}"));
            }
            Err(error) => self.cannot_move(job.from, job.to, &error),
        }
    }

    fn announce(&self, job: &Move<'_>) {
        if self.settings.verbose {
            if self.context.json {
                let (source, destination) = (shown(job.from), shown(job.to));
                announce_record(&transfer(job.source.attr(), source, destination));
            } else {
                announce(format_args!("renamed {}", arrow(shown(job.from), shown(job.to))));
            }
        }
    }

    /// Renames, without flags where the tree does not know them and they do not matter any more.
    fn rename(&self, job: &Move<'_>, flags: RenameFlags) -> Result<(), Error> {
        let rename = |flags| job.dir.rename(&job.name, &job.to_dir, &job.to_name, flags);
        match rename(flags) {
            Err(error)
                if flags == RenameFlags::NOREPLACE
                    && matches!(error.errno, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) =>
            {
                rename(RenameFlags::empty())
            }
            renamed => renamed,
        }
    }

    /// Whether `existing` is to make place.
    fn may_replace(&self, job: &Move<'_>, existing: &Inode) -> bool {
        let (from, to) = (quoted(shown(job.from)), quoted(shown(job.to)));
        if job.source.is_same(existing) && !job.source.is_dir() {
            self.complain(format!("{from} and {to} are the same file"));
            return false;
        }
        match (job.source.is_dir(), existing.is_dir()) {
            (true, false) => {
                self.complain(format!("cannot overwrite non-directory {to} with directory {from}"));
                return false;
            }
            (false, true) => {
                self.complain(format!("cannot overwrite directory {to} with non-directory"));
                return false;
            }
            _ => {}
        }
        if job.source.is_same(existing) {
            self.complain(format!("cannot move {from} to a subdirectory of itself, {to}"));
            return false;
        }
        if self.settings.update && existing.attr().mtime >= job.source.attr().mtime {
            return false;
        }
        match self.settings.existing {
            Existing::Keep => false,
            Existing::Replace => true,
            Existing::Ask => agrees(Mv::NAME, &format!("overwrite {to}")),
        }
    }

    /// Moves between trees: a complete copy first, then the source goes.
    fn carry(&self, job: Move<'_>, existing: Option<Inode>) {
        if self.settings.exchange {
            return self.cannot_move(job.from, job.to, &Errno::EXDEV.into());
        }
        // As rename(2) would: what is replaced goes first, and a directory only if it is empty.
        if let Some(existing) = existing {
            if !existing.is_dir() && job.source.may_be_same(&existing) {
                let (from, to) = (quoted(shown(job.from)), quoted(shown(job.to)));
                let reason = "equal in size and time, one on a server";
                return self.complain(format!("{from} and {to} may be the same file ({reason}): remove one"));
            }
            let removed = if existing.is_dir() {
                job.to_dir.rmdir(&job.to_name)
            } else {
                job.to_dir.unlink(&job.to_name)
            };
            if let Err(error) = removed {
                let (from, to) = (quoted(shown(job.from)), quoted(shown(job.to)));
                let message =
                    format!("inter-device move failed: {from} to {to}; unable to remove target: {error}");
                return self.complain(message);
            }
        }
        match is_inside_source(&job) {
            Ok(false) => {}
            Ok(true) => {
                let (from, to) = (quoted(shown(job.from)), quoted(shown(job.to)));
                return self.complain(format!("cannot move {from} to a subdirectory of itself, {to}"));
            }
            Err(error) => return self.cannot_move(job.from, job.to, &error),
        }
        let mut copier = Copier::new(self.context, self.carrying(), Progress::new(self.settings.progress));
        copier.expect(vec![job.from.clone()]);
        let copied = copier.copy(job.from, job.to);
        if !(copier.wait() && copied) || self.context.cancel.is_raised() {
            return;
        }
        let Move { from, dir, name, source, to_dir, .. } = job;
        let target = to_dir.client().clone();
        // Later operands may be inside a moved directory, or above it: remove directories at once.
        let waits = !source.is_dir();
        self.copied.borrow_mut().push(Copied { from: from.clone(), dir, name, source, target });
        if !waits || self.copied.borrow().len() >= TOGETHER {
            self.remove_copied();
        }
    }

    /// Removes what was copied, once the copies are on stable storage.
    fn remove_copied(&self) {
        let copied = self.copied.take();
        if self.context.cancel.is_raised() {
            return;
        }
        let mut synced: Vec<(TreeId, Result<(), Error>)> = Vec::new();
        for one in copied {
            let tree = one.target.tree();
            if !synced.iter().any(|(known, _)| *known == tree) {
                synced.push((tree, one.target.sync()));
            }
            match synced.iter().find(|(known, _)| *known == tree) {
                Some((_, Err(error))) => {
                    let name = quoted(shown(&one.from));
                    self.complain(format!("{name} stays, for its copy could not be stored: {error}"));
                }
                _ => self.remove(one),
            }
        }
    }

    fn remove(&self, Copied { from, dir, name, source, .. }: Copied) {
        let context = self.context;
        let verbose = self.settings.verbose && !context.json;
        let remover = Remover { context, ask: Ask::Never, recursive: true, dir: false, verbose };
        // Only what was copied: another file may have taken the name meanwhile, or a program may have written.
        match from.find(Follow::No) {
            Ok(found) if found.is_same(&source) && is_unchanged(source.attr(), found.attr()) => {
                remover.remove(&from, &dir, &name, source);
            }
            Ok(found) if found.is_same(&source) => {
                let name = quoted(shown(&from));
                self.complain(format!("{name} stays, for it was changed while it was copied"));
            }
            Ok(_) => {
                let name = quoted(shown(&from));
                self.complain(format!("cannot remove {name}: it was replaced while it was copied"));
            }
            Err(error) => self.complain(format!("cannot remove {}: {error}", quoted(shown(&from)))),
        }
    }

    /// How files are carried to another tree: with everything that tree can hold.
    fn carrying(&self) -> Options {
        Options {
            recursive: true,
            deref: Deref::Never,
            preserve: Preserve::ALL,
            verbose: self.settings.verbose,
            moving: true,
            ..Options::plain(Mv::NAME, self.context.json)
        }
    }
}

/// Whether the place for a directory is below that directory, reached by another name of a server, or by that of this machine:
/// tries whether a name that is made there appears in it.
///
/// # Errors
/// Those of making and removing the name.
fn is_inside_source(job: &Move<'_>) -> Result<bool, Error> {
    let is_remote = |inode: &Inode| inode.client().abilities().class == DriverClass::Network;
    if !job.source.is_dir() || !(is_remote(&job.source) || is_remote(&job.to_dir)) {
        return Ok(false);
    }
    let probe = crate::temporary::name_beside(&job.to_name)?;
    let (made, file) = job.to_dir.create(&probe, 0o600, OpenFlags::WRITE_ONLY | OpenFlags::EXCL)?;
    drop((made, file));
    // The source is one of the directories above the place: the rest of the path is the same below both.
    let above = job.to.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let mut above: Vec<&[u8]> = above.collect();
    above.pop();
    let found = (0..=above.len()).any(|start| {
        let mut path = job.from.clone();
        for name in above[start..].iter().copied().chain([&*probe]) {
            path = path.child(name);
        }
        path.find(Follow::No).is_ok()
    });
    job.to_dir.unlink(&probe)?;
    Ok(found)
}

/// Whether a file has the content and attributes it had. Removing another link of it changes `ctime`.
fn is_unchanged(before: &Attr, now: &Attr) -> bool {
    let linked = before.nlink > 1;
    now.is_dir()
        || (before.size, before.mtime) == (now.size, now.mtime) && (linked || before.ctime == now.ctime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Time;

    #[test]
    fn a_changed_file_is_told_from_one_that_lost_a_link() {
        let time = |secs| Time { secs, nanos: 5 };
        let before =
            Attr { mode: 0o100_644, size: 3, nlink: 1, mtime: time(1), ctime: time(1), ..Attr::default() };
        let after = |change: fn(&mut Attr)| {
            let mut attr = before.clone();
            change(&mut attr);
            attr
        };
        assert!(is_unchanged(&before, &after(|attr| attr.atime.secs = 9)));
        for change in
            [(|attr| attr.size = 4) as fn(&mut Attr), |attr| attr.mtime.secs = 2, |attr| attr.ctime.nanos = 6]
        {
            assert!(!is_unchanged(&before, &after(change)));
        }
        let linked = Attr { nlink: 2, ..before.clone() };
        assert!(is_unchanged(&linked, &Attr { ctime: time(7), nlink: 1, ..before.clone() }));
        assert!(!is_unchanged(&linked, &Attr { mtime: time(7), nlink: 1, ..before.clone() }));
    }

    #[test]
    fn later_options_win() {
        let mut settings = Settings {
            existing: Existing::Replace,
            update: false,
            exchange: false,
            verbose: false,
            progress: When::Never,
            target: TargetOptions::default(),
        };
        for (id, expected) in
            [("interactive", Existing::Ask), ("no-clobber", Existing::Keep), ("force", Existing::Replace)]
        {
            settings.take(&Given { id, value: Default::default() }).expect("a known option");
            assert_eq!(settings.existing, expected);
        }
        assert!(settings.take(&Given { id: "b", value: Default::default() }).is_err());
    }
}
