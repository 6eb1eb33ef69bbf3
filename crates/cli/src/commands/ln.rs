// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger ln`: hard and symbolic links.

use crate::context::{Context, Place};
use crate::copy::target::{Destination, Spot, TargetOptions, arrow, base_name, shown, spot, wants_directory};
use crate::format::quote::before_colon;
use crate::getopt::{Arguments, Table};
use crate::messages::announce;
use crate::run::Run;
use crate::say::{agrees, place, quoted, usage};
use crate::status::{Exits, Failure, Status};
use crate::switches::{Given, Switch, Takes};
use clap::Args;
use outrigger_client::{Follow, Inode};
use outrigger_core::ops::RenameFlags;
use outrigger_core::{Errno, Error, FileKind, Name, Target};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `ln`.
#[derive(Debug, Args)]
pub struct Ln {
    #[command(flatten)]
    arguments: Arguments<LnTable>,
}

/// The options of `ln`.
#[derive(Debug, Clone)]
pub struct LnTable;

impl Table for LnTable {
    const OPERAND: &'static str = "TARGET";
    const OPERAND_HELP: &'static str = "What the links lead to; the last one is where they are";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("force", Some('f'), Some("force"), "Replace existing files"),
        Switch::flag("interactive", Some('i'), Some("interactive"), "Ask before replacing existing files"),
        Switch::flag("logical", Some('L'), Some("logical"), "Link to what a symbolic link leads to"),
        Switch::flag(
            "no-dereference",
            Some('n'),
            Some("no-dereference"),
            "A destination that is a symbolic link to a directory is a name",
        ),
        Switch::flag("physical", Some('P'), Some("physical"), "Make hard links to symbolic links themselves"),
        Switch::flag("relative", Some('r'), Some("relative"), "With -s, lead there from where the link is"),
        Switch::flag("symbolic", Some('s'), Some("symbolic"), "Make symbolic links"),
        Switch::with(
            "target-directory",
            Some('t'),
            Some("target-directory"),
            Takes::Value("LOCATION"),
            "Make the links in this directory",
        ),
        Switch::flag(
            "no-target-directory",
            Some('T'),
            Some("no-target-directory"),
            "The destination is a name, even if it is a directory",
        ),
        Switch::flag("verbose", Some('v'), Some("verbose"), "Name each link"),
    ];
}

#[derive(Debug, Default)]
struct Settings {
    force: bool,
    ask: bool,
    logical: bool,
    no_dereference: bool,
    relative: bool,
    symbolic: bool,
    verbose: bool,
    target: TargetOptions,
}

impl Settings {
    fn take(&mut self, given: &Given) {
        match given.id {
            "force" => (self.force, self.ask) = (true, false),
            "interactive" => (self.force, self.ask) = (false, true),
            "logical" => self.logical = true,
            "no-dereference" => self.no_dereference = true,
            "physical" => self.logical = false,
            "relative" => self.relative = true,
            "symbolic" => self.symbolic = true,
            "target-directory" => self.target.target_directory = Some(given.value.clone()),
            "no-target-directory" => self.target.no_target_directory = true,
            _ => self.verbose = true,
        }
    }
}

impl Run for Ln {
    const NAME: &'static str = "ln";
    const EXITS: Exits = Exits::Plain;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut settings = Settings::default();
        self.arguments.given.iter().for_each(|given| settings.take(given));
        if settings.relative && !settings.symbolic {
            return Err(Failure::new("cannot do --relative without --symbolic"));
        }
        let mut files = self.arguments.operands;
        // One operand: a link of the same name in the working directory.
        if files.len() == 1 && settings.target.target_directory.is_none() {
            files.push(".".into());
        }
        if files.is_empty() {
            return Err(usage(Self::NAME, "missing file operand"));
        }
        if settings.no_dereference && files.len() == 2 && is_symlink(context, &files[1]) {
            settings.target.no_target_directory = true;
        }
        let (targets, destination) = settings.target.destination(context, files)?;
        for target in &targets {
            let made = if settings.symbolic {
                settings.symbolic(context, target, &destination)
            } else {
                settings.hard(context, target, &destination)
            };
            if let Some(message) = made.err().flatten() {
                context.complain(Status::Minor, message);
            }
        }
        Ok(())
    }
}

fn is_symlink(context: &Context, file: &OsStr) -> bool {
    let found = context.place(file).ok().and_then(|place| place.find(Follow::No).ok());
    found.is_some_and(|inode| inode.kind() == FileKind::Symlink)
}

/// A message; `None` when the failure was reported already or needs no message.
type Problem = Option<String>;

impl Settings {
    fn hard(&self, context: &Context, target: &OsStr, destination: &Destination) -> Result<(), Problem> {
        let Some(source) = place(context, target) else { return Err(None) };
        let follow = if self.logical { Follow::Yes } else { Follow::No };
        let inode = source
            .find(follow)
            .map_err(|error| Some(format!("failed to access {}: {error}", quoted(shown(&source)))))?;
        if inode.is_dir() {
            return Err(Some(format!(
                "{}: hard link not allowed for directory",
                before_colon(shown(&source))
            )));
        }
        let link = destination.place_of(&source);
        let failed = |error: Error| {
            let (link, target) = (quoted(shown(&link)), quoted(shown(&source)));
            if matches!(
                error.errno,
                Errno::EEXIST | Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS | Errno::EMLINK
            ) {
                Some(format!("failed to create hard link {link}: {error}"))
            } else {
                Some(format!("failed to create hard link {link} => {target}: {error}"))
            }
        };
        if inode.client().tree() != link.client.tree() {
            return Err(failed(Errno::EXDEV.into()));
        }
        let make = |dir: &Inode, name: &Name| dir.link(&inode, name).map(drop);
        let made = self.make(&link, Some(&inode), source.parent().ok(), shown(&source), make);
        made.map_err(|problem| problem.into_problem(failed))?;
        self.announce(&link, "=>", shown(&source));
        Ok(())
    }

    fn symbolic(&self, context: &Context, target: &OsStr, destination: &Destination) -> Result<(), Problem> {
        let link = match destination {
            Destination::As(place) => place.clone(),
            Destination::Into(place) => match base_name(target.as_bytes()) {
                b"" => place.clone(),
                name => place.child(name),
            },
        };
        let text = if self.relative {
            self.relative_to(context, target, &link)?
        } else {
            target.as_bytes().to_vec()
        };
        let failed = |error: Error| {
            let (link, text) = (quoted(shown(&link)), quoted(&text));
            if error.errno == Errno::EEXIST {
                Some(format!("failed to create symbolic link {link}: {error}"))
            } else {
                Some(format!("failed to create symbolic link {link} -> {text}: {error}"))
            }
        };
        let to = Target::new(text.clone()).map_err(failed)?;
        let make = |dir: &Inode, name: &Name| dir.symlink(name, to.clone()).map(drop);
        let made = self.make(&link, None, None, &text, make);
        made.map_err(|problem| problem.into_problem(failed))?;
        self.announce(&link, "->", &text);
        Ok(())
    }

    fn announce(&self, link: &Place, arrow_text: &str, target: &[u8]) {
        if self.verbose {
            announce(format_args!("{}", arrow(shown(link), target).replacen("->", arrow_text, 1)));
        }
    }

    /// Makes a link, replacing what has its name if that is wanted. The replacement is atomic: the link is made under
    /// another name and moved over it.
    fn make(
        &self,
        link: &Place,
        same: Option<&Inode>,
        source: Option<(Inode, Name)>,
        target: &[u8],
        make: impl Fn(&Inode, &Name) -> Result<(), Error>,
    ) -> Result<(), Unmade> {
        let (dir, name) = match spot(link)? {
            Spot::Named(dir, name) if !(wants_directory(link) && dir.find(&name)?.is_none()) => (dir, name),
            Spot::Named(..) => return Err(Errno::ENOENT.because("a link is no directory").into()),
            Spot::Itself(_) => return Err(Errno::EEXIST.into()),
        };
        match make(&dir, &name) {
            Err(error) if error.errno == Errno::EEXIST && (self.force || self.ask) => {}
            made => return Ok(made?),
        }
        let existing = dir.lookup(&name)?;
        if existing.is_dir() {
            return Err(Unmade::Said(format!("{}: cannot overwrite directory", before_colon(shown(link)))));
        }
        // Another name of the same file may be replaced, its only name not.
        if source.is_some_and(|(source_dir, source)| source == name && source_dir.is_same(&dir)) {
            let (link, target) = (quoted(shown(link)), quoted(target));
            return Err(Unmade::Said(format!("{target} and {link} are the same file")));
        }
        // Moving one name of a file over another of the same file does nothing: it is as it should be already.
        if same.is_some_and(|same| same.is_same(&existing)) {
            return Ok(());
        }
        if self.ask && !agrees("ln", &format!("replace {}", quoted(shown(link)))) {
            return Err(Unmade::Declined);
        }
        let other = crate::temporary::name_beside(&name)?;
        make(&dir, &other)?;
        dir.rename(&other, &dir, &name, RenameFlags::empty()).map_err(|error| {
            drop(dir.unlink(&other));
            error.into()
        })
    }

    /// The way from the directory of `link` to `target`, both with symbolic links resolved as far as they exist.
    fn relative_to(&self, context: &Context, target: &OsStr, link: &Place) -> Result<Vec<u8>, Problem> {
        let Some(target) = place(context, target) else { return Err(None) };
        if target.client.tree() != link.client.tree() {
            let message =
                format!("{}: a relative link cannot lead to another tree", before_colon(shown(&target)));
            return Err(Some(message));
        }
        let (to, from) = (normalised(&target.path), normalised(&link.path));
        let from = from.split_last().map_or(&[][..], |(_, dir)| dir);
        let common = to.iter().zip(from).take_while(|(a, b)| a == b).count();
        let mut way: Vec<&[u8]> = vec![b".."; from.len() - common];
        way.extend(to[common..].iter().copied());
        Ok(if way.is_empty() { b".".to_vec() } else { way.join(&b'/') })
    }
}

/// Why there is no link.
enum Unmade {
    /// The tree refused.
    Failed(Error),
    /// This is why.
    Said(String),
    /// The user did not want it.
    Declined,
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Self {
        Unmade::Failed(error)
    }
}

impl From<Errno> for Unmade {
    fn from(errno: Errno) -> Self {
        Unmade::Failed(errno.into())
    }
}

impl Unmade {
    fn into_problem(self, failed: impl FnOnce(Error) -> Problem) -> Problem {
        match self {
            Unmade::Failed(error) => failed(error),
            Unmade::Said(message) => Some(message),
            Unmade::Declined => None,
        }
    }
}

/// The components of an absolute path without `.` and `..`.
fn normalised(path: &[u8]) -> Vec<&[u8]> {
    let mut components: Vec<&[u8]> = Vec::new();
    for component in path.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(components.pop()),
            _ => components.push(component),
        }
    }
    components
}
