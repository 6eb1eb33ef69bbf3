// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the arguments of `find` to what it does.

use super::clock::Clock;
use super::expression::{Action, Age, Expression, Number, Permissions, Test};
use super::printf::Format;
use crate::commands::touch::parse_date;
use crate::context::Context;
use crate::format::glob::Glob;
use crate::format::owner::{gid_of, uid_of};
use crate::messages::why;
use crate::modes::ModeChange;
use crate::status::Failure;
use jiff::Zoned;
use outrigger_client::Follow;
use outrigger_core::{FileKind, Time};
use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::vec;

/// Everything `find` was asked for.
#[derive(Debug)]
pub struct Plan {
    /// Where to start.
    pub places: Vec<OsString>,
    /// What to do with each file.
    pub expression: Expression,
    /// Directories after their files.
    pub depth_first: bool,
    /// How deep to look.
    pub least: usize,
    /// How deep to look.
    pub most: usize,
    /// Whether symbolic links are followed.
    pub links: Links,
}

/// When symbolic links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Never (`-P`).
    Never,
    /// Among the operands (`-H`).
    Operands,
    /// Always (`-L`).
    Always,
}

struct Parser<'c> {
    context: &'c Context,
    words: vec::IntoIter<OsString>,
    plan: Plan,
    /// How many parentheses are open: each costs stack.
    nesting: usize,
}

/// The deepest nesting of parentheses and `!`.
const NESTING_MAX: usize = 200;

impl Plan {
    /// Makes sense of the arguments.
    ///
    /// # Errors
    /// The first argument that makes none.
    pub fn parse(context: &Context, arguments: Vec<OsString>) -> Result<Plan, Failure> {
        let mut links = Links::Never;
        let mut words = arguments.into_iter().peekable();
        while let Some(word) = words.peek() {
            match word.as_bytes() {
                b"-P" => links = Links::Never,
                b"-H" => links = Links::Operands,
                b"-L" => links = Links::Always,
                _ => break,
            }
            words.next();
        }
        let mut places = Vec::new();
        while let Some(word) = words.next_if(|word| !starts_expression(word)) {
            places.push(word);
        }
        if places.is_empty() {
            places.push(".".into());
        }
        let words = words.collect::<Vec<_>>().into_iter();
        let expression = Expression::And(Vec::new());
        let plan = Plan { places, expression, depth_first: false, least: 0, most: usize::MAX, links };
        Parser { context, words, plan, nesting: 0 }.run()
    }
}

fn starts_expression(word: &OsStr) -> bool {
    matches!(word.as_bytes(), [b'-', _, ..] | b"!" | b"(" | b")" | b",")
}

impl Parser<'_> {
    fn run(mut self) -> Result<Plan, Failure> {
        let expression = self.list()?;
        if let Some(word) = self.words.next() {
            return Err(Failure::new(match word.as_bytes() {
                b")" => "you have too many ')'".to_owned(),
                _ => format!("paths must precede expression: '{}'", word.display()),
            }));
        }
        let acts = |part: &Expression| matches!(part, Expression::Action(action) if !matches!(action, Action::Prune));
        self.plan.expression = if expression.any(&acts) {
            expression
        } else {
            Expression::And(vec![expression, Expression::Action(Action::Print(b'\n'))])
        };
        Ok(self.plan)
    }

    fn peek(&self) -> Option<&[u8]> {
        self.words.as_slice().first().map(|word| word.as_bytes())
    }

    fn take(&mut self, words: &[&[u8]]) -> bool {
        let found = self.peek().is_some_and(|word| words.contains(&word));
        if found {
            self.words.next();
        }
        found
    }

    fn list(&mut self) -> Result<Expression, Failure> {
        let mut parts = vec![self.or()?];
        while self.take(&[b","]) {
            self.must_go_on()?;
            parts.push(self.or()?);
        }
        Ok(single_or(parts, Expression::List))
    }

    fn or(&mut self) -> Result<Expression, Failure> {
        let mut parts = vec![self.and()?];
        while self.take(&[b"-o", b"-or"]) {
            self.must_go_on()?;
            parts.push(self.and()?);
        }
        Ok(single_or(parts, Expression::Or))
    }

    /// An operator is followed by something.
    fn must_go_on(&self) -> Result<(), Failure> {
        match self.peek() {
            Some(_) => Ok(()),
            None => Err(Failure::new("an expression is missing at the end")),
        }
    }

    fn and(&mut self) -> Result<Expression, Failure> {
        let mut parts = Vec::new();
        loop {
            let explicit = !parts.is_empty() && self.take(&[b"-a", b"-and"]);
            match self.peek() {
                None | Some(b")" | b"," | b"-o" | b"-or") => {
                    let whole = self.words.as_slice().is_empty() && self.nesting == 0 && parts.is_empty();
                    return match explicit || (parts.is_empty() && !whole) {
                        true => Err(Failure::new(
                            "an expression is missing next to an operator or inside parentheses",
                        )),
                        false => Ok(single_or(parts, Expression::And)),
                    };
                }
                Some(word) if !starts_expression(OsStr::from_bytes(word)) => {
                    return Ok(single_or(parts, Expression::And));
                }
                Some(_) => parts.push(self.primary()?),
            }
        }
    }

    fn primary(&mut self) -> Result<Expression, Failure> {
        let Some(word) = self.words.next() else {
            return Err(Failure::new("an expression is missing at the end"));
        };
        match word.as_bytes() {
            b"(" => self.nested(|parser| {
                let inner = parser.list()?;
                if parser.take(&[b")"]) {
                    Ok(inner)
                } else {
                    Err(Failure::new("you need a ')' for each '('"))
                }
            }),
            b"!" | b"-not" => self.nested(|parser| Ok(Expression::Not(Box::new(parser.primary()?)))),
            bytes => {
                let name = String::from_utf8_lossy(bytes).into_owned();
                self.predicate(&name)
            }
        }
    }

    fn nested(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<Expression, Failure>,
    ) -> Result<Expression, Failure> {
        if self.nesting >= NESTING_MAX {
            return Err(Failure::new(format!("more than {NESTING_MAX} levels of '(' and '!'")));
        }
        self.nesting += 1;
        let parsed = parse(self)?;
        self.nesting -= 1;
        Ok(parsed)
    }

    fn predicate(&mut self, name: &str) -> Result<Expression, Failure> {
        if let Some(option) = self.option(name)? {
            return Ok(option);
        }
        if let Some(action) = self.action(name)? {
            return Ok(Expression::Action(action));
        }
        let test = match name {
            "-true" => Test::Constant(true),
            "-false" => Test::Constant(false),
            "-empty" => Test::Empty,
            "-nouser" => Test::NoUser,
            "-nogroup" => Test::NoGroup,
            _ => {
                let known = TESTS.contains(&name) || name.starts_with("-newer");
                if !known {
                    return Err(refuse(name));
                }
                let argument = self.argument(name)?;
                self.test(name, &argument)?
            }
        };
        Ok(Expression::Test(test))
    }

    /// Options stand among the predicates and are always true.
    fn option(&mut self, name: &str) -> Result<Option<Expression>, Failure> {
        match name {
            "-depth" | "-d" => self.plan.depth_first = true,
            "-follow" => self.plan.links = Links::Always,
            "-maxdepth" | "-mindepth" => {
                let argument = self.argument(name)?;
                let text = argument.to_string_lossy();
                let depth = text.parse().map_err(|_| {
                    let expected = "positive decimal integer";
                    Failure::new(format!("Expected a {expected} argument to {name}, but got '{text}'"))
                })?;
                if name == "-maxdepth" {
                    self.plan.most = depth;
                } else {
                    self.plan.least = depth;
                }
            }
            "-noleaf" | "-warn" | "-nowarn" | "-ignore_readdir_race" | "-noignore_readdir_race" => {}
            _ => return Ok(None),
        }
        Ok(Some(Expression::Test(Test::Constant(true))))
    }

    fn action(&mut self, name: &str) -> Result<Option<Action>, Failure> {
        Ok(Some(match name {
            "-print" => Action::Print(b'\n'),
            "-print0" => Action::Print(0),
            "-ls" => Action::List,
            "-prune" => Action::Prune,
            "-quit" => Action::Quit,
            "-delete" => {
                self.plan.depth_first = true;
                Action::Delete
            }
            "-printf" => Action::Format(Format::parse(self.argument(name)?.as_bytes())?),
            _ => return Ok(None),
        }))
    }

    fn argument(&mut self, name: &str) -> Result<OsString, Failure> {
        self.words.next().ok_or_else(|| Failure::new(format!("missing argument to '{name}'")))
    }

    fn test(&self, name: &str, argument: &OsStr) -> Result<Test, Failure> {
        let text = argument.to_string_lossy();
        let glob = || Glob::new(argument.as_bytes());
        Ok(match name {
            "-name" => Test::Name(glob()),
            "-iname" => Test::Name(glob().fold_case()),
            "-path" | "-wholename" => Test::Path(glob()),
            "-ipath" | "-iwholename" => Test::Path(glob().fold_case()),
            "-lname" => Test::LinkName(glob()),
            "-ilname" => Test::LinkName(glob().fold_case()),
            "-type" => Test::Kind(kinds(name, &text)?),
            "-xtype" => Test::TargetKind(kinds(name, &text)?),
            "-size" => size(&text)?,
            "-atime" | "-ctime" | "-mtime" => age(name, &text, 86_400.0)?,
            "-amin" | "-cmin" | "-mmin" => age(name, &text, 60.0)?,
            "-perm" => Test::Permissions(permissions(&text)?),
            "-links" => Test::Links(number(name, &text)?),
            "-inum" => Test::Number(number(name, &text)?),
            "-uid" => Test::User(number(name, &text)?),
            "-gid" => Test::Group(number(name, &text)?),
            "-user" => {
                Test::User(exactly(uid_of(&text), || format!("'{text}' is not the name of a known user"))?)
            }
            "-group" => Test::Group(exactly(gid_of(&text), || {
                format!("'{text}' is not the name of an existing group")
            })?),
            "-samefile" => self.same_file(argument)?,
            _ => self.newer(name, argument)?,
        })
    }

    fn same_file(&self, argument: &OsStr) -> Result<Test, Failure> {
        let place = self.context.place(argument)?;
        let follow = if self.plan.links == Links::Never { Follow::No } else { Follow::Yes };
        let found = place.find(follow);
        found.map(Test::Same).map_err(|error| Failure::new(format!("'{}': {}", place.display(), why(&error))))
    }

    fn newer(&self, name: &str, argument: &OsStr) -> Result<Test, Failure> {
        let (ours, theirs) = match name {
            "-newer" => (Clock::Modified, Clock::Modified),
            "-anewer" => (Clock::Accessed, Clock::Modified),
            "-cnewer" => (Clock::Changed, Clock::Modified),
            _ => match name.as_bytes() {
                [_, _, _, _, _, _, ours, theirs] => {
                    let clock = |letter| Clock::of_letter(letter).ok_or_else(|| refuse(name));
                    if *theirs == b't' {
                        let text = argument.to_string_lossy();
                        let time = parse_date(&text, Zoned::now()).map_err(|_| {
                            Failure::new(format!(
                                "I cannot figure out how to interpret '{text}' as a date or time"
                            ))
                        })?;
                        return Ok(Test::Newer(clock(*ours)?, time));
                    }
                    (clock(*ours)?, clock(*theirs)?)
                }
                _ => return Err(refuse(name)),
            },
        };
        let place = self.context.place(argument)?;
        let inode = place
            .find(Follow::Yes)
            .map_err(|error| Failure::new(format!("'{}': {}", place.display(), why(&error))))?;
        let time: Time = theirs.of(inode.attr()).ok_or_else(|| {
            Failure::new(format!("'{}': its tree does not know when it was made", place.display()))
        })?;
        Ok(Test::Newer(ours, time))
    }
}

/// The tests that take an argument, beside `-newerXY`.
const TESTS: [&str; 27] = [
    "-name",
    "-iname",
    "-path",
    "-wholename",
    "-ipath",
    "-iwholename",
    "-lname",
    "-ilname",
    "-type",
    "-xtype",
    "-size",
    "-atime",
    "-ctime",
    "-mtime",
    "-amin",
    "-cmin",
    "-mmin",
    "-perm",
    "-links",
    "-inum",
    "-uid",
    "-gid",
    "-user",
    "-group",
    "-anewer",
    "-cnewer",
    "-samefile",
];

fn refuse(name: &str) -> Failure {
    Failure::new(match name {
        "-exec" | "-execdir" | "-ok" | "-okdir" => format!(
            "{name}: a command could not open the files of a tree; mount the tree, or pass the output of -print0 on"
        ),
        "-xdev" | "-mount" | "-fstype" => {
            format!(
                "{name}: a tree does not tell where another file system is mounted in it; -path DIR -prune leaves a directory out"
            )
        }
        "-regex" | "-iregex" => format!("{name} is not supported: use -path, or filter the output"),
        _ => format!("unknown predicate '{name}'"),
    })
}

fn single_or(mut parts: Vec<Expression>, many: fn(Vec<Expression>) -> Expression) -> Expression {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        Some(last) => {
            parts.push(last);
            many(parts)
        }
        None => Expression::And(parts),
    }
}

fn exactly(id: Option<u32>, unknown: impl FnOnce() -> String) -> Result<Number, Failure> {
    let value = id.ok_or_else(|| Failure::new(unknown()))?;
    Ok(Number { order: Ordering::Equal, value: value.into() })
}

/// `+` for more, `-` for less.
fn sign(text: &str) -> (Ordering, &str) {
    if let Some(rest) = text.strip_prefix('+') {
        (Ordering::Greater, rest)
    } else if let Some(rest) = text.strip_prefix('-') {
        (Ordering::Less, rest)
    } else {
        (Ordering::Equal, text)
    }
}

fn number(name: &str, text: &str) -> Result<Number, Failure> {
    let (order, digits) = sign(text);
    let wrong = |_| Failure::new(format!("non-numeric argument to {name}: '{text}'"));
    Ok(Number { order, value: digits.parse().map_err(wrong)? })
}

fn age(name: &str, text: &str, unit: f64) -> Result<Test, Failure> {
    let clock = Clock::of_letter(name.as_bytes()[1]).unwrap_or(Clock::Modified);
    let (order, digits) = sign(text);
    let value: f64 = digits
        .parse()
        .ok()
        .filter(|value: &f64| value.is_finite())
        .ok_or_else(|| Failure::new(format!("invalid argument '{text}' to '{name}'")))?;
    Ok(Test::Age(clock, Age { order, value, unit }))
}

fn size(text: &str) -> Result<Test, Failure> {
    let wrong = || Failure::new(format!("Invalid argument '{text}' to -size"));
    let units = [('b', 512), ('c', 1), ('w', 2), ('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
    let found = units.iter().find_map(|(letter, unit)| text.strip_suffix(*letter).map(|rest| (rest, *unit)));
    let (count, unit) = found.unwrap_or((text, 512));
    let number = number("-size", count).map_err(|_| wrong())?;
    Ok(Test::Size(number, unit))
}

fn permissions(text: &str) -> Result<Permissions, Failure> {
    let (kind, mode): (fn(u32) -> Permissions, _) = if let Some(rest) = text.strip_prefix('-') {
        (Permissions::All, rest)
    } else if let Some(rest) = text.strip_prefix('/') {
        (Permissions::Any, rest)
    } else {
        (Permissions::Exactly, text)
    };
    let wrong = || Failure::new(format!("invalid mode '{text}'"));
    ModeChange::parse(mode).map(|change| kind(change.apply(0, false, 0))).ok_or_else(wrong)
}

fn kinds(name: &str, text: &str) -> Result<Vec<FileKind>, Failure> {
    let kind = |letter: &str| match letter {
        "f" => Ok(FileKind::Regular),
        "d" => Ok(FileKind::Directory),
        "l" => Ok(FileKind::Symlink),
        "p" => Ok(FileKind::Fifo),
        "s" => Ok(FileKind::Socket),
        "c" => Ok(FileKind::CharDevice),
        "b" => Ok(FileKind::BlockDevice),
        _ => Err(Failure::new(format!("Unknown argument to {name}: {text}"))),
    };
    text.split(',').map(kind).collect()
}
