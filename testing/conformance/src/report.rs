// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running the cases and reporting the results.

use crate::cases;
use crate::subject::{Kind, Subject};
use crate::tester::{Outcome, Tester, outcome_of};
use outrigger_core::{Abilities, OpCode, OpSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

/// Operations without which hardly any case can prepare what it is about.
const BASIC: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::GetAttr,
    OpCode::MkDir,
    OpCode::Create,
    OpCode::Read,
    OpCode::Write,
    OpCode::ReadDir,
]);

/// Where a case can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Everywhere.
    Anywhere,
    /// On a service only: it speaks to it.
    Direct,
    /// Through a kernel only: the kernel does what it is about.
    Kernel,
    /// Not through a FUSE mount, whose kernel lacks what it is about.
    NotFuse,
}

/// One thing a file system must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// `theme/what_holds`.
    pub name: &'static str,
    /// The operations it is about, beyond the basic ones.
    pub needs: OpSet,
    /// Where it can run.
    pub place: Place,
    /// It needs the rights of the superuser.
    pub root: bool,
    /// It reads the sample tree and changes nothing (see [`crate::sample`]).
    pub reads_sample: bool,
    run: fn(&Tester<'_>),
}

impl Case {
    pub(crate) const fn new(name: &'static str, needs: &[OpCode], run: fn(&Tester<'_>)) -> Self {
        Case { name, needs: OpSet::of(needs), place: Place::Anywhere, root: false, reads_sample: false, run }
    }
    pub(crate) const fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }
    pub(crate) const fn root(mut self) -> Self {
        self.root = true;
        self
    }
    pub(crate) const fn sample(mut self) -> Self {
        self.reads_sample = true;
        self
    }

    /// Why it does not apply, if it does not.
    fn inapplicable(&self, subject: &dyn Subject, target: &Target<'_>) -> Option<String> {
        let needs = if self.reads_sample { self.needs } else { self.needs.union(BASIC) };
        let missing = needs.without(target.abilities.ops);
        let kind = subject.kind();
        if missing != OpSet::NONE {
            let names: Vec<&str> = missing.iter().map(OpCode::name).collect();
            return Some(format!("the driver has no {}", names.join(", ")));
        }
        let fits = match self.place {
            Place::Anywhere => true,
            Place::Direct => kind == Kind::Direct,
            Place::Kernel => kind != Kind::Direct,
            Place::NotFuse => kind != Kind::Fuse,
        };
        if !fits {
            return Some(format!("only {:?}", self.place));
        }
        if self.reads_sample && !target.has_sample {
            return Some("the tree is not the sample tree".into());
        }
        if !self.reads_sample && target.abilities.read_only {
            return Some("the driver only reads".into());
        }
        if self.root && !rustix::process::geteuid().is_root() {
            return Some("needs root".into());
        }
        None
    }
}

/// What the cases know about the tree.
pub struct Target<'a> {
    /// What its driver can do; for a native file system, everything.
    pub abilities: &'a Abilities,
    /// Its root holds the sample tree.
    pub has_sample: bool,
    /// Case names (or themes ending in `/`) that are known not to hold, and why.
    pub exceptions: &'a [(&'a str, &'a str)],
}

/// How every case ended on one subject.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Case and outcome, in the order of [`cases::all`].
    pub results: Vec<(&'static str, Outcome)>,
}

/// Runs every case on a subject.
pub fn run(subject: &dyn Subject, target: &Target<'_>) -> Report {
    let results = cases::all().map(|case| (case.name, run_case(case, subject, target))).collect();
    Report { results }
}

/// The same; a case that applies and has not begun by `end` fails.
pub fn run_until(end: Instant, subject: &dyn Subject, target: &Target<'_>) -> Report {
    let results = cases::all().map(|case| {
        let is_late = Instant::now() > end && case.inapplicable(subject, target).is_none();
        let late = || Outcome::Failed("it has not run: the time for all of them is over".into());
        (case.name, if is_late { late() } else { run_case(case, subject, target) })
    });
    Report { results: results.collect() }
}

fn run_case(case: &Case, subject: &dyn Subject, target: &Target<'_>) -> Outcome {
    if let Some(reason) = case.inapplicable(subject, target) {
        return Outcome::Skipped(reason);
    }
    let excepted = |name: &str| name == case.name || (name.ends_with('/') && case.name.starts_with(name));
    if let Some((_, reason)) = target.exceptions.iter().find(|(name, _)| excepted(name)) {
        return Outcome::Excepted((*reason).to_owned());
    }
    if case.reads_sample {
        let outcome = outcome_of(|| (case.run)(&Tester::new(subject, PathBuf::new())));
        subject.close_all();
        return outcome;
    }
    let base = PathBuf::from(case.name.replace('/', "."));
    let outcome = outcome_of(|| {
        if let Err(errno) = subject.mkdir(&base, 0o777) {
            panic!("the directory of the case cannot be made: {errno:?}");
        }
        (case.run)(&Tester::new(subject, base));
    });
    subject.close_all();
    outcome
}

impl Report {
    /// How many cases passed, were skipped, failed.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |is: fn(&Outcome) -> bool| self.results.iter().filter(|(_, outcome)| is(outcome)).count();
        (
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Skipped(_) | Outcome::Excepted(_))),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
        )
    }

    /// Panics, naming each, when a case failed or when fewer than `at_least` passed.
    #[track_caller]
    pub fn must_hold(&self, at_least: usize) {
        let (passed, _, failed) = self.counts();
        assert!(failed == 0, "{self}");
        assert!(passed >= at_least, "only {passed} cases ran; {at_least} are due\n{self}");
    }
}

impl fmt::Display for Report {
    /// The failures, what was skipped by reason, and the counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.results {
            match outcome {
                Outcome::Failed(message) => writeln!(f, "FAIL {name}\n     {message}")?,
                Outcome::Skipped(reason) => writeln!(f, "skip {name}: {reason}")?,
                Outcome::Excepted(reason) => writeln!(f, "skip {name}: exception: {reason}")?,
                Outcome::Passed => {}
            }
        }
        let (passed, skipped, failed) = self.counts();
        write!(f, "{passed} passed, {skipped} skipped, {failed} failed")
    }
}
