// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules and their text.

use globset::{GlobBuilder, GlobMatcher};
use outrigger_core::option::{option, similar};
use outrigger_core::paths::Subject;
use outrigger_core::{Class, Errno, Node, OpCode, OpSet, OptionTable};
use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// The parts of a rule, and what a list of rules may say besides.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "fault",
    options: &[
        option("op", "NAME|...", "any", "which operations, as trace names them, or query, change, any"),
        option(
            "path",
            "GLOB",
            "",
            "files whose path matches; without / the last name; * stops at /, ** does not",
        ),
        option("node", "N", "", "the file with this inode number"),
        option(
            "error",
            "NAME",
            "",
            "answers this error, such as ENOSPC, instead of doing the operation (what closes a file is done nevertheless)",
        ),
        option(
            "applied",
            "",
            "",
            "does the operation, then answers the error nevertheless; what it opened is closed again",
        ),
        option(
            "die",
            "",
            "",
            "ends the process that serves; with applied after the operation, before its reply",
        ),
        option(
            "flip",
            "",
            "",
            "flips one bit of what is read (op=read, unless op= is given) or written (op=write)",
        ),
        option(
            "lose",
            "",
            "",
            "answers success to writes (op=write, unless op= is given), fallocate, flush and fsync without doing them",
        ),
        option(
            "cut",
            "",
            "",
            "cuts the power: undoes what was written since the rule is there and not synchronised, and answers EIO from then on",
        ),
        option(
            "short",
            "BYTES",
            "",
            "lets reads, writes and copies do at most so many bytes; of reads only those of files opened since the rule is there",
        ),
        option("delay", "TIME", "", "waits first, as in 250us, 10ms or 1.5s"),
        option("after", "N", "0", "spares the first so many matches"),
        option("every", "N", "1", "acts on every Nth match only"),
        option("times", "N", "always", "acts at most so often"),
        option("once", "", "", "the same as times=1"),
        option("always", "", "", "the opposite of times="),
        option("probability", "0..1", "1", "acts on this share of the matches"),
        option("seed", "N", "0", "the seed of all probabilities; a rule of its own"),
    ],
};

/// When to act on a request, and how.
///
/// As text, a rule is a list of parts separated by commas:
///
/// | part | meaning |
/// |---|---|
/// | `op=write`, `op=read\|write`, `op=query`, `op=change`, `op=any` | which operations; `any` unless given |
/// | `path=GLOB` | files whose path matches; a pattern without `/` matches the last name, `*` stops at `/`, `**` does not |
/// | `node=5` | files with this node number |
/// | `error=ENOSPC` | answer this error instead of doing the operation; what gives a handle or references back is done nevertheless |
/// | `applied` | do the operation, then answer the error nevertheless; handles and references it hands out are given back |
/// | `die` | end the process that serves, by SIGABRT; with `applied` after the operation, before its reply |
/// | `flip` | flip one bit of what is read or written; `op=read` unless given |
/// | `lose` | answer success without doing it: `write` (unless given), `fallocate`, `flush`, `fsync`, `fsyncdir`, `syncfs` |
/// | `cut` | undo what was written and not synchronised, and answer `EIO` to all requests from then on |
/// | `short=100` | let reads, writes and copies do at most so many bytes; reads of files that are open already, through a page cache, do not match |
/// | `delay=250ms` | wait first (`us`, `ms`, `s`) |
/// | `after=3` | spare the first so many matches |
/// | `every=2` | act on every second match only |
/// | `times=2`, `once`, `always` | act at most so often; `always` unless given |
/// | `probability=0.1` | act on this share of the matches |
///
/// ```
/// use outrigger_layer_fault::Rule;
///
/// let rule: Rule = "op=write,path=*.db,error=ENOSPC,after=3".parse()?;
/// assert_eq!(rule.to_string(), "op=write,path=*.db,error=ENOSPC,after=3");
/// let error = "op=wirte,error=EIO".parse::<Rule>().unwrap_err();
/// assert!(error.to_string().contains("there is no operation \"wirte\""));
/// # Ok::<(), outrigger_layer_fault::BadRule>(())
/// ```
#[derive(Debug, Clone)]
pub struct Rule {
    text: String,
    ops: OpSet,
    path: Option<Pattern>,
    node: Option<Node>,
    action: Action,
    delay: Duration,
    after: u64,
    times: u64,
    every: u64,
    probability: f64,
}

/// What a rule does, apart from waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing else.
    None,
    /// Answers an error instead of doing the operation.
    Refuse(Errno),
    /// Does the operation, then answers an error.
    Disown(Errno),
    /// Lets the operation handle at most so many bytes.
    Short(u32),
    /// Flips a bit of what is read or written.
    Flip,
    /// Answers success instead of doing the operation.
    Lose,
    /// Undoes what is not on stable storage, and fails from then on.
    Cut,
    /// Ends the process instead of doing the operation.
    Die,
    /// Does the operation, then ends the process.
    DieAfter,
}

/// A rule's text cannot be understood; says which part and what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRule(String);

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadRule {}

fn bad<T>(part: &str, expected: impl fmt::Display) -> Result<T, BadRule> {
    Err(BadRule(format!("\"{part}\": {expected}")))
}

pub(crate) fn too_many(most: usize, bytes: usize) -> BadRule {
    BadRule(format!("more than {most} fault rules, or more than {bytes} bytes of them"))
}

/// The operations of which that is true.
fn those(is: fn(OpCode) -> bool) -> OpSet {
    OpCode::ALL.iter().filter(|&&op| is(op)).fold(OpSet::NONE, |set, &op| set.union(OpSet::of(&[op])))
}

/// A glob for whole paths, or for last names when it has no `/`.
#[derive(Debug, Clone)]
pub struct Pattern {
    glob: GlobMatcher,
    last_name_only: bool,
}

impl Pattern {
    /// Reads a pattern: without `/` it is for last names; `*` stops at `/`, `**` does not.
    ///
    /// # Errors
    /// [`BadRule`] says what is wrong with it.
    pub fn read(text: &str) -> Result<Self, BadRule> {
        pattern(text, text)
    }

    /// Whether it matches a path.
    pub fn matches(&self, path: &[u8]) -> bool {
        let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let subject = if self.last_name_only { last } else { path };
        self.glob.is_match(Path::new(OsStr::from_bytes(subject)))
    }
}

impl Rule {
    /// Whether the rule is about `op` on these files.
    pub(crate) fn concerns(&self, op: OpCode, subjects: &[Subject], paths: &[Vec<u8>]) -> bool {
        let path = |pattern: &Pattern| paths.iter().any(|path| pattern.matches(path));
        let node =
            |node: Node| subjects.iter().any(|subject| subject.node == node && subject.names.is_empty());
        self.ops.has(op) && self.path.as_ref().is_none_or(path) && self.node.is_none_or(node)
    }

    /// Whether the rule is about `op` on any file.
    pub(crate) fn has_op(&self, op: OpCode) -> bool {
        self.ops.has(op)
    }

    /// Whether it cuts what is read.
    pub(crate) fn cuts_reads(&self) -> bool {
        self.has_op(OpCode::Read) && matches!(self.action, Action::Short(_))
    }

    /// What it does.
    pub fn action(&self) -> Action {
        self.action
    }

    /// How long it waits before that.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// How many matches it spares first.
    pub fn after(&self) -> u64 {
        self.after
    }

    /// How often it acts at most.
    pub fn times(&self) -> u64 {
        self.times
    }

    /// On which of its matches it acts: on the last of each so many.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// On which share of its matches it acts.
    pub fn probability(&self) -> f64 {
        self.probability
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let mut parts = Parts::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            parts.read(part, key.trim(), value.trim())?;
        }
        parts.finish(text.trim())
    }
}

/// The parts of a rule as far as they were read.
#[derive(Default)]
struct Parts {
    ops: Option<OpSet>,
    path: Option<Pattern>,
    node: Option<Node>,
    error: Option<Errno>,
    applied: bool,
    /// `die`, `flip`, `lose` or `cut`.
    alone: Option<Action>,
    short: Option<u32>,
    delay: Option<Duration>,
    after: Option<u64>,
    times: Option<u64>,
    every: Option<NonZeroU64>,
    probability: Option<f64>,
}

fn set<T>(part: &str, place: &mut Option<T>, value: T) -> Result<(), BadRule> {
    if place.replace(value).is_some() { bad(part, "given twice") } else { Ok(()) }
}

pub(crate) fn number<T: FromStr>(part: &str, value: &str) -> Result<T, BadRule> {
    value.parse().or_else(|_| bad(part, "expected a number"))
}

impl Parts {
    fn read(&mut self, part: &str, key: &str, value: &str) -> Result<(), BadRule> {
        match (key, value) {
            ("op", _) => set(part, &mut self.ops, operations(part, value)?),
            ("path", _) => set(part, &mut self.path, pattern(part, value)?),
            ("node", _) => set(part, &mut self.node, Node(number(part, value)?)),
            ("error", _) => set(part, &mut self.error, errno(part, value)?),
            ("short", _) => set(part, &mut self.short, number(part, value)?),
            ("delay", _) => set(part, &mut self.delay, duration(part, value)?),
            ("after", _) => set(part, &mut self.after, number(part, value)?),
            ("times", _) => set(part, &mut self.times, number(part, value)?),
            ("every", _) => set(part, &mut self.every, number(part, value)?),
            ("once", "") => set(part, &mut self.times, 1),
            ("always", "") => set(part, &mut self.times, u64::MAX),
            ("probability", _) => match number(part, value)? {
                share if (0.0..=1.0).contains(&share) => set(part, &mut self.probability, share),
                _ => bad(part, "expected a number from 0 to 1"),
            },
            ("die", "") => set(part, &mut self.alone, Action::Die),
            ("flip", "") => set(part, &mut self.alone, Action::Flip),
            ("lose", "") => set(part, &mut self.alone, Action::Lose),
            ("cut", "") => set(part, &mut self.alone, Action::Cut),
            ("applied", "") => {
                self.applied = true;
                Ok(())
            }
            _ => bad(part, format_args!("expected {}", OPTIONS.known())),
        }
    }

    fn finish(self, text: &str) -> Result<Rule, BadRule> {
        let action = match (self.error, self.applied, self.short) {
            (None, true, None) if self.alone == Some(Action::Die) => Action::DieAfter,
            (None, false, None) if self.alone.is_some() => self.alone.unwrap_or(Action::None),
            _ if self.alone.is_some() => {
                return bad(
                    text,
                    "die, flip, lose and cut exclude each other, error=, short= and (but for die) applied",
                );
            }
            (Some(errno), false, None) => Action::Refuse(errno),
            (Some(errno), true, None) => Action::Disown(errno),
            (None, false, Some(most)) => Action::Short(most),
            (None, false, None) if self.delay.is_some() => Action::None,
            (None, false, None) => {
                return bad(text, "says nothing to do: give error=, short=, delay=, flip, lose, cut or die");
            }
            (None, true, _) => return bad(text, "applied needs error= or die"),
            (Some(_), _, Some(_)) => {
                return bad(text, "error= and short= exclude each other: give two rules");
            }
        };
        let (usual, possible) = match action {
            Action::Flip => (OpSet::of(&[OpCode::Read]), those(OpCode::has_content)),
            Action::Lose => (OpSet::of(&[OpCode::Write]), those(OpCode::only_stores)),
            _ => (OpSet::all(), OpSet::all()),
        };
        let ops = self.ops.unwrap_or(usual);
        if let Some(op) = OpCode::ALL.iter().find(|&&op| ops.has(op) && !possible.has(op)) {
            return bad(text, format_args!("it cannot be done to {}", op.name()));
        }
        Ok(Rule {
            text: text.to_owned(),
            ops,
            path: self.path,
            node: self.node,
            action,
            delay: self.delay.unwrap_or_default(),
            after: self.after.unwrap_or(0),
            times: self.times.unwrap_or(u64::MAX),
            every: self.every.map_or(1, NonZeroU64::get),
            probability: self.probability.unwrap_or(1.0),
        })
    }
}

/// Reads names of operations, separated by `|`; `part` is what an error names.
///
/// # Errors
/// [`BadRule`] names the first operation that does not exist.
pub fn operations(part: &str, value: &str) -> Result<OpSet, BadRule> {
    let mut all = OpSet::NONE;
    for name in value.split('|') {
        let more = match name {
            "any" => OpSet::all(),
            "query" => those(|op| op.class() == Class::Query),
            "change" => those(|op| op.class() == Class::Change),
            name => match OpCode::from_name(name) {
                Some(op) => OpSet::of(&[op]),
                None => {
                    let meant = similar(name, OpCode::ALL.iter().map(|op| op.name()));
                    let meant = meant.map(|meant| format!(" (did you mean {meant}?)")).unwrap_or_default();
                    return bad(part, format_args!("there is no operation \"{name}\"{meant}"));
                }
            },
        };
        all = all.union(more);
    }
    Ok(all)
}

fn pattern(part: &str, value: &str) -> Result<Pattern, BadRule> {
    if value.is_empty() {
        return bad(part, "expected a pattern, as in *.db or /home/**");
    }
    let built = GlobBuilder::new(value).literal_separator(true).backslash_escape(true).build();
    match built {
        Ok(glob) => Ok(Pattern { glob: glob.compile_matcher(), last_name_only: !value.contains('/') }),
        Err(error) => bad(part, error.kind()),
    }
}

fn errno(part: &str, value: &str) -> Result<Errno, BadRule> {
    // Linux keeps error numbers below 4096.
    let named = || (1..4096).map(Errno).find(|errno| errno.name() == Some(value));
    let numbered = value.parse().ok().filter(|number| (1..4096).contains(number)).map(Errno);
    match numbered.or_else(named) {
        Some(errno) => Ok(errno),
        None => bad(part, "expected the name or number of an error, as in ENOSPC or 28"),
    }
}

/// Reads a time, as in `250us`; `part` is what an error names.
///
/// # Errors
/// [`BadRule`] says what was expected.
pub fn duration(part: &str, value: &str) -> Result<Duration, BadRule> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let split = units.iter().find_map(|(unit, seconds)| Some((value.strip_suffix(unit)?, seconds)));
    let seconds = split.and_then(|(count, seconds)| Some(count.parse::<f64>().ok()? * seconds));
    match seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(duration)) => Ok(duration),
        _ => bad(part, "expected a time, as in 250us, 10ms or 1.5s"),
    }
}
