// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the log consists of: each record is a piece of the new state.
//!
//! All but [`Change::Collapse`] and [`Change::Gap`] say what is, not what happened, so that the state of an inode may be put
//! into the log while others go on changing it.

use crate::content::{Change, PAGES_MAX};
use crate::store;
use bytes::Bytes;
use outrigger_core::ops::Lock;
use outrigger_core::survive::take_record;
use outrigger_core::{Errno, FileKind, LockOwner, Name, Result, Target, Time, Wire, XattrName};

/// The attributes of an inode that are its own.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
#[wire(internal)]
pub(crate) struct Facts {
    pub ino: u64,
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub parent: u64,
    /// Of a regular file, in bytes.
    pub size: u64,
    /// Made without a name and never given one.
    pub unnamed: bool,
    pub btime: Time,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

/// A piece of the state of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
#[wire(internal)]
pub(crate) enum Record {
    /// The tree's generation, and the last inode number and the first page never given out before.
    #[wire(1)]
    Tree { generation: u64, last: u64, next: u64 },
    /// An inode is or has become this.
    #[wire(2)]
    Inode(Facts),
    /// Whether doors refer to an inode.
    #[wire(3)]
    Referenced { ino: u64, yes: bool },
    /// There is no such inode, whatever records before this say about it.
    #[wire(4)]
    Gone(u64),
    /// A name in the directory `dir` at `number`.
    #[wire(5)]
    Name { dir: u64, number: u64, ino: u64, name: Name },
    /// The name at `number` is gone.
    #[wire(6)]
    NameGone { dir: u64, number: u64 },
    /// Numbers up to this have been used in the directory.
    #[wire(7)]
    Numbers { dir: u64, last: u64 },
    /// The content changed.
    #[wire(8)]
    Content { ino: u64, change: Change },
    /// An extended attribute has this value.
    #[wire(9)]
    Xattr { ino: u64, name: XattrName, value: Bytes },
    /// An extended attribute is gone.
    #[wire(10)]
    XattrGone { ino: u64, name: XattrName },
    /// Where a symbolic link leads.
    #[wire(11)]
    Target { ino: u64, target: Target },
    /// An owner has this lock, or none, on the range; `flock` tells locks of flock(2) from those of fcntl(2).
    #[wire(12)]
    Lock { ino: u64, flock: bool, owner: LockOwner, lock: Lock },
    /// An owner has no locks of a kind any more.
    #[wire(13)]
    Unlocked { ino: u64, flock: bool, owner: LockOwner },
    /// The file was last read then, in nanoseconds since the epoch.
    #[wire(14)]
    Read { ino: u64, nanos: i64 },
}

/// The most words a record of a name takes.
pub(crate) const NAME_WORDS: usize = 5 + words_of(outrigger_core::name::NAME_MAX);
/// The words of a record of an inode.
pub(crate) const INODE_WORDS: usize = 13;
/// The most words of a record of a change of content.
pub(crate) const CHANGE_WORDS: usize = 6;

/// The words of a record of an inode that is gone.
pub(crate) const GONE_WORDS: usize = 3;

/// How many words a byte string takes.
pub(crate) const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

impl Record {
    /// Takes a record off the front of `words`.
    ///
    /// # Errors
    /// `EUCLEAN` when the words are no record.
    pub fn take(words: &mut &[u64]) -> Result<Record> {
        let record = take_record::<Record>(words)?;
        let malformed =
            || Errno::EUCLEAN.because("the log of the tree in memory has a record that makes no sense");
        record.makes_sense().then_some(record).ok_or_else(malformed)
    }

    /// Whether this program can have written it.
    fn makes_sense(&self) -> bool {
        let fits = |from: u64, len: u64, most: u64| from.checked_add(len).is_some_and(|end| end <= most);
        match self {
            Record::Inode(facts) => {
                let times = [facts.btime, facts.atime, facts.mtime, facts.ctime];
                facts.ino != 0
                    && facts.size <= crate::FILE_MAX
                    && times.iter().all(|time| time.nanos < 1_000_000_000)
            }
            Record::Content { change: Change::Put { page, pages, start }, .. } => {
                *pages > 0
                    && fits(*page, *pages, PAGES_MAX)
                    && start.is_none_or(|start| fits(start, *pages, store::PAGES_MAX))
            }
            Record::Content { change: Change::Cut(range), .. } => range.start <= range.end,
            Record::Content {
                change: Change::Reserve(range) | Change::Collapse(range) | Change::Gap(range),
                ..
            } => range.start <= range.end && range.end <= PAGES_MAX,
            Record::Lock { lock, .. } => lock.start <= lock.end,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::LockKind;
    use outrigger_core::survive::Records;

    fn records() -> Vec<Record> {
        let facts = Facts {
            ino: 7,
            kind: FileKind::Regular,
            mode: 0o4755,
            uid: u32::MAX,
            gid: 1,
            nlink: 2,
            rdev: 3,
            parent: 1,
            size: crate::FILE_MAX,
            unnamed: true,
            btime: Time::new(-1, 999_999_999),
            atime: Time::new(i64::MAX, 0),
            mtime: Time::new(i64::MIN, 1),
            ctime: Time::new(0, 2),
        };
        let (ino, owner) = (7, LockOwner(u64::MAX));
        let name = Name::try_from("x".repeat(255).as_str()).expect("a name");
        let xattr = XattrName::new(b"user.a".to_vec()).expect("a name");
        let lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Write, pid: 5 };
        let changes = [
            Change::Put { page: 1, pages: 2, start: Some(store::PAGES_MAX - 2) },
            Change::Put { page: PAGES_MAX - 3, pages: 3, start: None },
            Change::Cut(3..u64::MAX),
            Change::Reserve(0..0),
            Change::Collapse(1..2),
            Change::Gap(2..PAGES_MAX),
        ];
        let mut records = vec![
            Record::Tree { generation: 1, last: 2, next: 3 },
            Record::Inode(facts),
            Record::Referenced { ino, yes: true },
            Record::Gone(ino),
            Record::Name { dir: 1, number: 2, ino, name },
            Record::NameGone { dir: 1, number: 2 },
            Record::Numbers { dir: 1, last: 9 },
            Record::Xattr { ino, name: xattr.clone(), value: Bytes::from_static(b"123456789") },
            Record::Xattr { ino, name: xattr.clone(), value: Bytes::new() },
            Record::XattrGone { ino, name: xattr },
            Record::Target { ino, target: Target::new(&b"a/b"[..]).expect("a target") },
            Record::Lock { ino, flock: true, owner, lock },
            Record::Unlocked { ino, flock: false, owner },
            Record::Read { ino, nanos: -1 },
        ];
        records.extend(changes.map(|change| Record::Content { ino, change }));
        records
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut group = Records::default();
        records().iter().for_each(|record| group.put(record));
        let mut rest = group.words();
        for record in records() {
            assert_eq!(Record::take(&mut rest), Ok(record));
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn records_have_the_sizes_that_are_promised_for_them() {
        for record in records() {
            let group = Records::of(&record);
            let words = group.words();
            let most = match record {
                Record::Inode(_) => INODE_WORDS,
                Record::Name { .. } => NAME_WORDS,
                Record::Content { .. } => CHANGE_WORDS,
                Record::Gone(_) => GONE_WORDS,
                Record::Lock { .. } | Record::Unlocked { .. } => crate::locks::LOCK_WORDS,
                Record::Xattr { ref name, ref value, .. } => 4 + words_of(name.len()) + words_of(value.len()),
                Record::XattrGone { ref name, .. } => 3 + words_of(name.len()),
                Record::Target { ref target, .. } => 3 + words_of(target.len()),
                Record::Tree { .. } => 5,
                Record::NameGone { .. } | Record::Numbers { .. } | Record::Read { .. } => 4,
                Record::Referenced { .. } => 3,
            };
            assert!(words.len() <= most, "{record:?} has {} words", words.len());
            for len in 0..words.len() {
                assert!(Record::take(&mut &words[..len]).is_err(), "{len} words of {record:?}");
            }
        }
    }
}
