// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the log consists of: each record is a piece of the new state.
//!
//! A record is a word with its kind (low 8 bits) and the number of words that follow. Numbers take a word each; a byte
//! string is its length and its bytes, eight a word. All but [`Change::Collapse`] and [`Change::Gap`] say what is,
//! not what happened, so that the state of an inode may be put into the log while others go on changing it.

use crate::content::{Change, PAGES_MAX};
use crate::store;
use bytes::Bytes;
use outrigger_core::ops::{Lock, LockKind};
use outrigger_core::{Errno, Error, FileKind, LockOwner, Name, Result, Target, Time, XattrName};
use std::ops::Range;

/// The attributes of an inode that are its own.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// The tree's generation, and the last inode number and the first page never given out before.
    Tree { generation: u64, last: u64, next: u64 },
    /// An inode is or has become this.
    Inode(Facts),
    /// Whether doors refer to an inode.
    Referenced { ino: u64, yes: bool },
    /// There is no such inode, whatever records before this say about it.
    Gone(u64),
    /// A name in the directory `dir` at `number`.
    Name { dir: u64, number: u64, ino: u64, name: Name },
    /// The name at `number` is gone.
    NameGone { dir: u64, number: u64 },
    /// Numbers up to this have been used in the directory.
    Numbers { dir: u64, last: u64 },
    /// The content changed.
    Content { ino: u64, change: Change },
    /// An extended attribute has this value.
    Xattr { ino: u64, name: XattrName, value: Bytes },
    /// An extended attribute is gone.
    XattrGone { ino: u64, name: XattrName },
    /// Where a symbolic link leads.
    Target { ino: u64, target: Target },
    /// An owner has this lock, or none, on the range; `flock` tells locks of flock(2) from those of fcntl(2).
    Lock { ino: u64, flock: bool, owner: LockOwner, lock: Lock },
    /// An owner has no locks of a kind any more.
    Unlocked { ino: u64, flock: bool, owner: LockOwner },
    /// The file was last read then, in nanoseconds since the epoch.
    Read { ino: u64, nanos: i64 },
}

/// The most words a record of a name takes.
pub(crate) const NAME_WORDS: usize = 5 + words_of(outrigger_core::name::NAME_MAX);
/// The words of a record of an inode.
pub(crate) const INODE_WORDS: usize = 13;
/// The most words of a record of a change of content.
pub(crate) const CHANGE_WORDS: usize = 6;

/// How many words a byte string takes after its length.
pub(crate) const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Words in the place of a record are none.
fn malformed() -> Error {
    Errno::EUCLEAN.because("the log of the tree in memory has a record that makes no sense")
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u64>) {
    out.push(bytes.len() as u64);
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    out.extend(bytes.chunks(8).map(word));
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Facts {
    fn put(&self, out: &mut Vec<u64>) {
        let times = [self.btime, self.atime, self.mtime, self.ctime];
        out.extend([
            self.ino,
            pair(self.kind.bits() | self.mode, u32::from(self.unnamed)),
            pair(self.uid, self.gid),
            pair(self.nlink, self.rdev),
            self.parent,
            self.size,
        ]);
        out.extend(times.map(|time| time.secs as u64));
        out.extend([pair(times[0].nanos, times[1].nanos), pair(times[2].nanos, times[3].nanos)]);
    }

    fn get(input: &mut Input<'_>) -> Result<Self> {
        let ino = input.number()?;
        let (mode, unnamed) = input.pair()?;
        let ((uid, gid), (nlink, rdev)) = (input.pair()?, input.pair()?);
        let (parent, size) = (input.number()?, input.number()?);
        let secs = [input.number()?, input.number()?, input.number()?, input.number()?];
        let ((birth, access), (content, change)) = (input.pair()?, input.pair()?);
        if [birth, access, content, change].iter().any(|&nanos| nanos >= 1_000_000_000) || ino == 0 {
            return Err(malformed());
        }
        let time = |index: usize, nanos| Time::new(secs[index] as i64, nanos);
        Ok(Facts {
            ino,
            kind: FileKind::of_mode(mode).ok_or_else(malformed)?,
            mode: mode & outrigger_core::attr::MODE_PERMISSIONS,
            uid,
            gid,
            nlink,
            rdev,
            parent,
            size: Some(size).filter(|&size| size <= crate::FILE_MAX).ok_or_else(malformed)?,
            unnamed: unnamed != 0,
            btime: time(0, birth),
            atime: time(1, access),
            mtime: time(2, content),
            ctime: time(3, change),
        })
    }
}

/// The kinds of [`Change`] in a record.
mod change {
    pub const PUT: u64 = 0;
    pub const RESERVED: u64 = 1;
    pub const CUT: u64 = 2;
    pub const RESERVE: u64 = 3;
    pub const COLLAPSE: u64 = 4;
    pub const GAP: u64 = 5;
}

fn put_change(change: &Change, out: &mut Vec<u64>) {
    out.extend(match change {
        Change::Put { page, pages, start: Some(start) } => [change::PUT, *page, *pages, *start],
        Change::Put { page, pages, start: None } => [change::RESERVED, *page, *pages, 0],
        Change::Cut(range) => [change::CUT, range.start, range.end, 0],
        Change::Reserve(range) => [change::RESERVE, range.start, range.end, 0],
        Change::Collapse(range) => [change::COLLAPSE, range.start, range.end, 0],
        Change::Gap(range) => [change::GAP, range.start, range.end, 0],
    });
}

fn get_change(input: &mut Input<'_>) -> Result<Change> {
    let (kind, a, b, start) = (input.number()?, input.number()?, input.number()?, input.number()?);
    let range =
        |most: u64| -> Result<Range<u64>> { if a <= b && b <= most { Ok(a..b) } else { Err(malformed()) } };
    let put = |start| {
        let fits = b > 0 && a.checked_add(b).is_some_and(|end| end <= PAGES_MAX);
        if fits { Ok(Change::Put { page: a, pages: b, start }) } else { Err(malformed()) }
    };
    match kind {
        change::PUT if start.checked_add(b).is_none_or(|end| end > store::PAGES_MAX) => Err(malformed()),
        change::PUT => put(Some(start)),
        change::RESERVED => put(None),
        change::CUT => range(u64::MAX).map(Change::Cut),
        change::RESERVE => range(PAGES_MAX).map(Change::Reserve),
        change::COLLAPSE => range(PAGES_MAX).map(Change::Collapse),
        change::GAP => range(PAGES_MAX).map(Change::Gap),
        _ => Err(malformed()),
    }
}

fn put_lock(lock: &Lock, out: &mut Vec<u64>) {
    let kind = match lock.kind {
        LockKind::Read => 0,
        LockKind::Write => 1,
        LockKind::Unlock => 2,
    };
    out.extend([lock.start, lock.end, pair(kind, lock.pid)]);
}

fn get_lock(input: &mut Input<'_>) -> Result<Lock> {
    let (start, end, (kind, pid)) = (input.number()?, input.number()?, input.pair()?);
    let kind = match kind {
        0 => LockKind::Read,
        1 => LockKind::Write,
        2 => LockKind::Unlock,
        _ => return Err(malformed()),
    };
    if start <= end { Ok(Lock { start, end, kind, pid }) } else { Err(malformed()) }
}

/// The words of one record.
struct Input<'a>(&'a [u64]);

impl Input<'_> {
    fn number(&mut self) -> Result<u64> {
        let (&first, rest) = self.0.split_first().ok_or_else(malformed)?;
        self.0 = rest;
        Ok(first)
    }

    fn flag(&mut self) -> Result<bool> {
        self.number().map(|number| number != 0)
    }

    fn pair(&mut self) -> Result<(u32, u32)> {
        self.number().map(|word| (word as u32, (word >> 32) as u32))
    }

    fn bytes(&mut self) -> Result<Bytes> {
        let len = usize::try_from(self.number()?).map_err(|_| malformed())?;
        let (words, rest) = self.0.split_at_checked(words_of(len)).ok_or_else(malformed)?;
        self.0 = rest;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(len);
        Ok(bytes.into())
    }
}

impl Record {
    /// Appends the words of the record.
    pub fn put(&self, out: &mut Vec<u64>) {
        let start = out.len();
        out.push(0);
        let kind = self.put_fields(out);
        out[start] = kind | ((out.len() - start - 1) as u64) << 8;
    }

    fn put_fields(&self, out: &mut Vec<u64>) -> u64 {
        match self {
            Record::Tree { generation, last, next } => {
                out.extend([*generation, *last, *next]);
                1
            }
            Record::Inode(facts) => {
                facts.put(out);
                2
            }
            Record::Referenced { ino, yes } => {
                out.extend([*ino, u64::from(*yes)]);
                3
            }
            Record::Gone(ino) => {
                out.push(*ino);
                4
            }
            Record::Name { dir, number, ino, name } => {
                out.extend([*dir, *number, *ino]);
                put_bytes(name, out);
                5
            }
            Record::NameGone { dir, number } => {
                out.extend([*dir, *number]);
                6
            }
            Record::Numbers { dir, last } => {
                out.extend([*dir, *last]);
                7
            }
            Record::Content { ino, change } => {
                out.push(*ino);
                put_change(change, out);
                8
            }
            Record::Xattr { ino, name, value } => {
                out.push(*ino);
                put_bytes(name, out);
                put_bytes(value, out);
                9
            }
            Record::XattrGone { ino, name } => {
                out.push(*ino);
                put_bytes(name, out);
                10
            }
            Record::Target { ino, target } => {
                out.push(*ino);
                put_bytes(target, out);
                11
            }
            Record::Lock { ino, flock, owner, lock } => {
                out.extend([*ino, u64::from(*flock), owner.0]);
                put_lock(lock, out);
                12
            }
            Record::Unlocked { ino, flock, owner } => {
                out.extend([*ino, u64::from(*flock), owner.0]);
                13
            }
            Record::Read { ino, nanos } => {
                out.extend([*ino, *nanos as u64]);
                14
            }
        }
    }

    /// Takes a record off the front of `words`.
    ///
    /// # Errors
    /// `EUCLEAN` when the words are no record.
    pub fn get(words: &mut &[u64]) -> Result<Record> {
        let (&head, rest) = words.split_first().ok_or_else(malformed)?;
        let len = usize::try_from(head >> 8).map_err(|_| malformed())?;
        let (fields, rest) = rest.split_at_checked(len).ok_or_else(malformed)?;
        let mut input = Input(fields);
        let record = Record::get_fields(head & 0xFF, &mut input)?;
        if !input.0.is_empty() {
            return Err(malformed());
        }
        *words = rest;
        Ok(record)
    }

    fn get_fields(kind: u64, input: &mut Input<'_>) -> Result<Record> {
        Ok(match kind {
            1 => Record::Tree { generation: input.number()?, last: input.number()?, next: input.number()? },
            2 => Record::Inode(Facts::get(input)?),
            3 => Record::Referenced { ino: input.number()?, yes: input.flag()? },
            4 => Record::Gone(input.number()?),
            5 => Record::Name {
                dir: input.number()?,
                number: input.number()?,
                ino: input.number()?,
                name: Name::new(input.bytes()?)?,
            },
            6 => Record::NameGone { dir: input.number()?, number: input.number()? },
            7 => Record::Numbers { dir: input.number()?, last: input.number()? },
            8 => Record::Content { ino: input.number()?, change: get_change(input)? },
            9 => {
                let ino = input.number()?;
                Record::Xattr { ino, name: XattrName::new(input.bytes()?)?, value: input.bytes()? }
            }
            10 => Record::XattrGone { ino: input.number()?, name: XattrName::new(input.bytes()?)? },
            11 => Record::Target { ino: input.number()?, target: Target::new(input.bytes()?)? },
            12 => Record::Lock {
                ino: input.number()?,
                flock: input.flag()?,
                owner: LockOwner(input.number()?),
                lock: get_lock(input)?,
            },
            13 => Record::Unlocked {
                ino: input.number()?,
                flock: input.flag()?,
                owner: LockOwner(input.number()?),
            },
            14 => Record::Read { ino: input.number()?, nanos: input.number()? as i64 },
            _ => return Err(malformed()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut words = Vec::new();
        records().iter().for_each(|record| record.put(&mut words));
        let mut rest = &words[..];
        for record in records() {
            assert_eq!(Record::get(&mut rest), Ok(record));
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn records_have_the_sizes_that_are_promised_for_them() {
        for record in records() {
            let mut words = Vec::new();
            record.put(&mut words);
            let most = match record {
                Record::Inode(_) => INODE_WORDS,
                Record::Name { .. } => NAME_WORDS,
                Record::Content { .. } => CHANGE_WORDS,
                _ => 20,
            };
            assert!(words.len() <= most, "{record:?} has {} words", words.len());
            for len in 0..words.len() {
                assert!(Record::get(&mut &words[..len]).is_err(), "{len} words of {record:?}");
            }
        }
    }
}
