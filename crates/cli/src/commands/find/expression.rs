// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an expression of `find` consists of.

use super::clock::Clock;
use super::printf::Format;
use crate::format::glob::Glob;
use outrigger_client::Inode;
use outrigger_core::{FileKind, Time};
use std::cmp::Ordering;

/// An expression.
#[derive(Debug)]
pub enum Expression {
    /// All of them, until one is false.
    And(Vec<Expression>),
    /// All of them, until one is true.
    Or(Vec<Expression>),
    /// All of them; the last one counts.
    List(Vec<Expression>),
    /// The opposite.
    Not(Box<Expression>),
    /// A question about the file.
    Test(Test),
    /// Something to do.
    Action(Action),
}

/// A question about a file.
#[derive(Debug)]
pub enum Test {
    /// `-true` and `-false`.
    Constant(bool),
    /// The last component of the path matches.
    Name(Glob),
    /// The whole path matches.
    Path(Glob),
    /// The target of the symbolic link matches.
    LinkName(Glob),
    /// The kind is one of these.
    Kind(Vec<FileKind>),
    /// The kind of what the link leads to is one of these.
    TargetKind(Vec<FileKind>),
    /// The size, rounded up to units of so many bytes.
    Size(Number, u64),
    /// A time, relative to now.
    Age(Clock, Age),
    /// A time is later than this.
    Newer(Clock, Time),
    /// It is this one.
    Same(Inode),
    /// Permission bits.
    Permissions(Permissions),
    /// The owner is this.
    User(Number),
    /// The group is this.
    Group(Number),
    /// The owner has no name.
    NoUser,
    /// The group has no name.
    NoGroup,
    /// The number of hard links.
    Links(Number),
    /// The inode number.
    Number(Number),
    /// A file without content, a directory without files.
    Empty,
}

/// Something to do.
#[derive(Debug)]
pub enum Action {
    /// Print the path and this byte.
    Print(u8),
    /// Print in a format.
    Format(Format),
    /// Print as `ls -dils` does.
    List,
    /// Do not walk into the directory.
    Prune,
    /// Remove the file.
    Delete,
    /// Stop.
    Quit,
}

/// `N`, `+N` or `-N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// How the number has to compare.
    pub order: Ordering,
    /// With what.
    pub value: u64,
}

impl Number {
    /// Whether `value` compares as it should.
    pub fn accepts(self, value: u64) -> bool {
        value.cmp(&self.value) == self.order
    }
}

/// How old something is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Age {
    /// Older, younger or exactly as old.
    pub order: Ordering,
    /// The age in units.
    pub value: f64,
    /// The unit in seconds: a day or a minute.
    pub unit: f64,
}

impl Age {
    /// Whether `time` is as old as it should be, when it is `now`. Days are counted in whole ones that have passed,
    /// minutes in those that have begun, as GNU find does.
    pub fn accepts(self, time: Time, now: Time) -> bool {
        let age = (now.secs - time.secs) as f64 + (f64::from(now.nanos) - f64::from(time.nanos)) / 1e9;
        let days = self.unit > 60.0;
        let start = self.value * self.unit;
        match (self.order, days) {
            (Ordering::Equal, true) => start <= age && age < start + self.unit,
            (Ordering::Equal, false) => start - self.unit <= age && age < start,
            (Ordering::Greater, true) => age > start + self.unit,
            (Ordering::Greater, false) => age > start,
            (Ordering::Less, true) => age < start + 1.0,
            (Ordering::Less, false) => age < start,
        }
    }
}

/// `-perm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permissions {
    /// Exactly these bits.
    Exactly(u32),
    /// At least these bits.
    All(u32),
    /// Any of these bits.
    Any(u32),
}

impl Permissions {
    /// Whether `mode` has the bits it should.
    pub fn accepts(self, mode: u32) -> bool {
        match self {
            Permissions::Exactly(bits) => mode & 0o7777 == bits,
            Permissions::All(bits) => mode & bits == bits,
            Permissions::Any(bits) => bits == 0 || mode & bits != 0,
        }
    }
}

impl Expression {
    /// Whether it asks for nothing but the path and the kind of a file.
    pub fn needs_names_only(&self) -> bool {
        !self.any(&|part| match part {
            Expression::Test(test) => {
                !matches!(test, Test::Constant(_) | Test::Name(_) | Test::Path(_) | Test::Kind(_))
            }
            Expression::Action(action) => !matches!(action, Action::Print(_) | Action::Prune | Action::Quit),
            _ => false,
        })
    }

    /// Whether `found` holds for any part.
    pub fn any(&self, found: &dyn Fn(&Expression) -> bool) -> bool {
        found(self)
            || match self {
                Expression::And(parts) | Expression::Or(parts) | Expression::List(parts) => {
                    parts.iter().any(|part| part.any(found))
                }
                Expression::Not(part) => part.any(found),
                Expression::Test(_) | Expression::Action(_) => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        let now = Time::new(1_000_000, 500_000_000);
        let age = |order, value, unit, seconds: i64| {
            Age { order, value, unit }.accepts(Time::new(1_000_000 - seconds, 500_000_000), now)
        };
        const DAY: f64 = 86_400.0;
        assert!(age(Ordering::Equal, 0.0, DAY, 100) && age(Ordering::Equal, 1.0, DAY, 86_400));
        assert!(!age(Ordering::Greater, 0.0, DAY, 86_000) && age(Ordering::Greater, 0.0, DAY, 86_401));
        assert!(age(Ordering::Less, 1.0, DAY, 86_000) && !age(Ordering::Less, 1.0, DAY, 86_402));
        assert!(age(Ordering::Equal, 1.0, 60.0, 59) && !age(Ordering::Equal, 1.0, 60.0, 61));
        assert!(age(Ordering::Less, 1.0, 60.0, -5) && age(Ordering::Greater, 1.0, 60.0, 61));
    }

    #[test]
    fn permissions() {
        assert!(
            Permissions::Exactly(0o644).accepts(0o100_644) && !Permissions::Exactly(0o644).accepts(0o755)
        );
        assert!(Permissions::All(0o22).accepts(0o662) && !Permissions::All(0o22).accepts(0o622 & !0o2));
        assert!(Permissions::Any(0o111).accepts(0o100) && Permissions::Any(0).accepts(0));
    }
}
