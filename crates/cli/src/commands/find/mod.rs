// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger find`: walks trees and evaluates an expression for each file, as GNU find 4.9 does.
//!
//! | module | what it holds |
//! |---|---|
//! | [`parse`] | from arguments to an expression |
//! | [`expression`] | the expression |
//! | [`printf`] | `-printf` and `-ls` |
//!
//! Without `-exec` and its kind: a command could not open the files. Without `-regex`, `-xdev` and `-fstype`.

mod clock;
mod expression;
mod parse;
mod printf;

use crate::context::{Context, Place};
use crate::descent::{Descent, Step};
use crate::format::quote::{Quoting, Style};
use crate::format::record::Record;
use crate::messages::why;
use crate::output::Output;
use crate::run::Run;
use crate::status::{Exits, Failure, Status};
use clap::Args;
use expression::{Action, Expression, Test};
use outrigger_client::{Follow, Inode, Unreadable};
use outrigger_core::{Clock, Errno, Error, FileKind, Time};
use parse::{Links, Plan};
use printf::{Printer, Subject, base, target};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `find`.
#[derive(Debug, Args)]
pub struct Find {
    /// Where to look, and what for.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(help = "[-H] [-L] [-P] [LOCATION]... [EXPRESSION]", long_help = HELP)]
    arguments: Vec<OsString>,
}

const HELP: &str = "[-H] [-L] [-P] [LOCATION]... [EXPRESSION]

Without a LOCATION, looks in the working directory; without an action, prints. -L follows symbolic links, -H those
among the LOCATIONs.

Operators: ( EXPR )  ! EXPR  -not EXPR  EXPR -a EXPR  EXPR -o EXPR  EXPR , EXPR
Options: -depth -maxdepth N -mindepth N -follow
Tests: -name -iname -path -ipath -lname -ilname GLOB, -type -xtype [bcdpfls],..., -size N[bcwkMG], -empty,
  -mtime -atime -ctime N, -mmin -amin -cmin N, -newer -anewer -cnewer -newerXY
  -samefile LOCATION, -newerXt DATE, -perm [-/]MODE, -user NAME,
  -group NAME, -uid -gid -links -inum N, -nouser, -nogroup, -true, -false
Actions: -print -print0 -printf FORMAT -ls -prune -delete -quit";

impl Run for Find {
    const NAME: &'static str = "find";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        !self.arguments.iter().any(|word| word == "-delete")
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        let plan = Plan::parse(context, self.arguments)?;
        let now = context.trees.runtime.wall();
        let deletes = plan.expression.any(&|part| matches!(part, Expression::Action(Action::Delete)));
        let mut finder = Finder {
            context,
            plan: &plan,
            now,
            deletes,
            printer: Printer::new(now),
            output: Output::new(context),
            prune: false,
            quit: false,
        };
        for text in &plan.places {
            match context.place(text) {
                Ok(place) => finder.operand(place)?,
                Err(failure) => finder.output.complain(Status::Minor, failure),
            }
            if finder.quit {
                break;
            }
        }
        finder.output.flush()
    }
}

struct Finder<'c> {
    context: &'c Context,
    plan: &'c Plan,
    now: Time,
    deletes: bool,
    printer: Printer,
    output: Output<'c>,
    /// Whether not to walk into the directory under evaluation.
    prune: bool,
    quit: bool,
}

impl Finder<'_> {
    fn operand(&mut self, place: Place) -> Result<(), Failure> {
        let follow = if self.plan.links == Links::Never { Follow::No } else { Follow::Yes };
        // A link that leads nowhere is found itself.
        let found = place.find(follow).or_else(|_| place.find(Follow::No));
        let inode = match found {
            Ok(inode) => inode,
            Err(error) => {
                self.complain(&place, &error);
                return Ok(());
            }
        };
        let operand = place.shown.len();
        let mut descent = Descent::new(place, self.plan.links == Links::Always);
        if self.deletes {
            descent = descent.reading_whole_directories();
        }
        let follows = self.plan.links == Links::Always;
        if self.plan.expression.needs_names_only() && !follows && !self.context.json {
            descent = descent.by_names();
        }
        self.found(&mut descent, inode, operand)?;
        while !self.quit
            && let Some(step) = descent.step()
        {
            self.output.proceed()?;
            match step {
                Step::Found(inode) => self.found(&mut descent, inode, operand)?,
                Step::Failed(error) | Step::Unreadable(error) => self.complain(descent.place(), &error),
                Step::Left(inode) if self.plan.depth_first => self.visit(&descent, &inode, operand)?,
                Step::Left(_) => {}
            }
        }
        Ok(())
    }

    fn found(&mut self, descent: &mut Descent, inode: Inode, operand: usize) -> Result<(), Failure> {
        let first = !(self.plan.depth_first && inode.is_dir());
        self.prune = false;
        if first {
            self.visit(descent, &inode, operand)?;
        }
        if !inode.is_dir() || (self.prune && !self.plan.depth_first) || self.quit {
            return Ok(());
        }
        if descent.depth() >= self.plan.most {
            return if first { Ok(()) } else { self.visit(descent, &inode, operand) };
        }
        if let Err(failed) = descent.enter(inode) {
            let (inode, error) = *failed;
            self.complain(descent.place(), &error);
            if !first {
                self.visit(descent, &inode, operand)?;
            }
        }
        Ok(())
    }

    fn visit(&mut self, descent: &Descent, inode: &Inode, operand: usize) -> Result<(), Failure> {
        if descent.depth() < self.plan.least {
            return Ok(());
        }
        let subject = Subject { place: descent.place(), operand, depth: descent.depth(), inode };
        let plan = self.plan;
        self.evaluate(&plan.expression, subject, descent)?;
        Ok(())
    }

    fn evaluate(
        &mut self,
        part: &Expression,
        subject: Subject<'_>,
        descent: &Descent,
    ) -> Result<bool, Failure> {
        match part {
            Expression::And(parts) => {
                for part in parts {
                    if !self.evaluate(part, subject, descent)? || self.quit {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Expression::Or(parts) => {
                for part in parts {
                    if self.evaluate(part, subject, descent)? || self.quit {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Expression::List(parts) => {
                let mut last = true;
                for part in parts {
                    last = self.evaluate(part, subject, descent)?;
                    if self.quit {
                        break;
                    }
                }
                Ok(last)
            }
            Expression::Not(part) => Ok(!self.evaluate(part, subject, descent)?),
            Expression::Test(test) => Ok(self.test(test, subject)),
            Expression::Action(action) => self.act(action, subject, descent),
        }
    }

    fn test(&mut self, test: &Test, subject: Subject<'_>) -> bool {
        let attr = subject.inode.attr();
        match test {
            Test::Constant(value) => *value,
            Test::Name(glob) => glob.matches(base(subject.place.shown.as_bytes())),
            Test::Path(glob) => glob.matches(subject.place.shown.as_bytes()),
            Test::LinkName(glob) => {
                subject.inode.kind() == FileKind::Symlink && glob.matches(&target(subject.inode))
            }
            Test::Kind(kinds) => FileKind::of_mode(attr.mode).is_some_and(|kind| kinds.contains(&kind)),
            Test::TargetKind(kinds) => self.other_kind(subject).is_some_and(|kind| kinds.contains(&kind)),
            Test::Size(number, unit) => number.accepts(attr.size.div_ceil(*unit)),
            Test::Age(clock, age) => clock.of(attr).is_some_and(|time| age.accepts(time, self.now)),
            Test::Same(file) => file.is_same(subject.inode),
            Test::Newer(clock, than) => clock.of(attr).is_some_and(|time| time > *than),
            Test::Permissions(permissions) => permissions.accepts(attr.mode),
            Test::User(number) => number.accepts(attr.uid.into()),
            Test::Group(number) => number.accepts(attr.gid.into()),
            Test::NoUser => self.printer.owners.user(attr.uid).is_none(),
            Test::NoGroup => self.printer.owners.group(attr.gid).is_none(),
            Test::Links(number) => number.accepts(attr.nlink.into()),
            Test::Number(number) => number.accepts(attr.ino),
            Test::Empty => self.is_empty(subject),
        }
    }

    /// The kind `-xtype` looks at: that of the target, or with `-L` that of the link.
    fn other_kind(&mut self, subject: Subject<'_>) -> Option<FileKind> {
        let follow = if self.plan.links == Links::Always { Follow::No } else { Follow::Yes };
        match subject.place.find(follow) {
            Ok(inode) => Some(inode.kind()),
            Err(error) if error.errno == Errno::ELOOP => {
                self.complain(subject.place, &error);
                None
            }
            Err(_) => Some(FileKind::Symlink),
        }
    }

    fn is_empty(&mut self, subject: Subject<'_>) -> bool {
        match subject.inode.kind() {
            FileKind::Regular => subject.inode.attr().size == 0,
            FileKind::Directory => match subject.inode.entries().map(|mut entries| entries.next()) {
                Ok(None) => true,
                Ok(Some(Ok(_) | Err(Unreadable { name: Some(_), .. }))) => false,
                Ok(Some(Err(Unreadable { name: None, error }))) | Err(error) => {
                    self.complain(subject.place, &error);
                    false
                }
            },
            _ => false,
        }
    }

    fn act(&mut self, action: &Action, subject: Subject<'_>, descent: &Descent) -> Result<bool, Failure> {
        match action {
            Action::Print(_) if self.context.json => {
                let target = target(subject.inode);
                let target = (!target.is_empty()).then_some(&target[..]);
                let (path, attr) = (subject.place.shown.as_bytes(), subject.inode.attr());
                self.output.write(&Record::new(path, Some(attr), target, &self.printer.owners).line())?;
            }
            Action::Print(end) => {
                self.output.name(subject.place.shown.as_bytes())?;
                self.output.write(&[*end])?;
            }
            Action::Format(format) => {
                let text = self.printer.formatted(format, subject);
                self.output.write(&text)?;
            }
            Action::List => {
                let line = self.printer.list(subject);
                self.output.write(&line)?;
            }
            Action::Prune => self.prune = true,
            Action::Quit => self.quit = true,
            Action::Delete => return Ok(self.delete(subject, descent)),
        }
        Ok(true)
    }

    /// Removes the file, which fails for a directory that is not empty.
    fn delete(&mut self, subject: Subject<'_>, descent: &Descent) -> bool {
        let path = subject.place.shown.as_bytes();
        if base(path) == b"." {
            return true;
        }
        let is_dir = subject.inode.is_dir();
        let remove = |dir: &Inode, name: &_| if is_dir { dir.rmdir(name) } else { dir.unlink(name) };
        let removed = match descent.spot() {
            Some((dir, name)) => remove(dir, name),
            None => subject.place.parent().and_then(|(dir, name)| remove(&dir, &name)),
        };
        if let Err(error) = &removed {
            let name = quoted(path);
            self.output.complain(Status::Minor, format_args!("cannot delete {name}: {}", why(error)));
        }
        removed.is_ok()
    }

    fn complain(&mut self, place: &Place, error: &Error) {
        let name = quoted(place.shown.as_bytes());
        self.output.complain(Status::Minor, format_args!("{name}: {}", why(error)));
    }
}

/// A name as GNU find writes it in messages.
fn quoted(name: &[u8]) -> String {
    String::from_utf8_lossy(&Quoting::new(Style::Locale).quote(name)).into_owned()
}
