// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that were answered and have not been made, in memory that outlives the process: the next one makes them.
//!
//! A write is appended before it is answered, and marked as done when it has been made, before anything that waits for it
//! goes on. So what a new process finds can be made once more without harm: nothing that came later and overlaps it has been.
//! One store makes a record part of the log, one marks it as done.
//!
//! | from word | what |
//! |---|---|
//! | 0 | mark and version |
//! | 1, 2 | where the log begins and ends, in words; the ring begins anew at each multiple of its length |
//! | [`LOST`] | files of which writes failed and nobody was told: node and error |
//! | [`RING`] | records: length in words, whether it is to be made, the write |

use crate::delayed::{Manner, Piece};
use crate::record::lock;
use bytes::Bytes;
use outrigger_core::wire::Wire;
use outrigger_core::{Credentials, Errno, Handle, Keep, Node, Region, Result, SetAttrs};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};

/// "ORCache" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ORCach\0\x03");
const BEGIN: usize = 1;
const END: usize = 2;
const LOST: usize = 16;
const LOST_MAX: usize = 256;
const RING: usize = LOST + 2 * LOST_MAX;
/// Words of a record beside its bytes.
const HEAD: usize = 9;
/// States of a record.
const DONE: u64 = 0;
const TO_BE_MADE: u64 = 1;
const CACHED: u64 = 1;
const KILL_SETID: u64 = 2;
/// The bytes are attributes to be set.
const SETS: u64 = 4;
/// The file is to be made; the bytes are the number of its directory and its name.
const MAKES: u64 = 8;

/// Where a record is.
pub(crate) type Place = u64;

/// The log.
pub(crate) struct Log {
    region: Arc<dyn Region>,
    /// Words of the ring.
    ring: u64,
    ends: Mutex<Ends>,
}

/// Where it begins and ends.
struct Ends {
    begin: u64,
    end: u64,
}

impl Log {
    /// The log in `keep`, which has room for writes that take `bytes` altogether.
    ///
    /// # Errors
    /// Those of [`Keep::region`]; `EUCLEAN` when the region holds something else.
    pub(crate) fn open(keep: &dyn Keep, bytes: usize) -> Result<Self> {
        let region = keep.region("cache-log", RING + bytes / 8 + bytes / 32 + (1 << 18))?;
        let log = Log {
            ring: region.words().saturating_sub(RING) as u64,
            region,
            ends: Mutex::new(Ends { begin: 0, end: 0 }),
        };
        match log.get(0) {
            _ if log.ring == 0 => return Err(Errno::EUCLEAN.because("the region cache-log is too small")),
            MAGIC => {}
            0 => log.put(0, MAGIC),
            _ => return Err(Errno::EUCLEAN.because("the region cache-log is of another version")),
        }
        let begin = log.get(BEGIN);
        // Where it was empty it may have begun anew behind its end.
        *lock(&log.ends) = Ends { begin, end: log.get(END).max(begin) };
        Ok(log)
    }

    fn get(&self, word: usize) -> u64 {
        self.region.word(word).load(Acquire)
    }

    fn put(&self, word: usize, value: u64) {
        self.region.word(word).store(value, Release);
    }

    fn at(&self, place: Place) -> usize {
        RING + (place % self.ring) as usize
    }

    /// Appends a write, a setting, or that the file is to be made; `None` when there is no room.
    pub(crate) fn append(&self, node: Node, piece: &Piece) -> Option<Place> {
        let mut other = Vec::new();
        piece.set.iter().for_each(|set| set.put(&mut other));
        piece.makes.iter().for_each(|made| made.put(&mut other));
        let data = match other.is_empty() {
            false => &other[..],
            true => piece.data.first().map_or(&[][..], |bytes| &bytes[..]),
        };
        self.append_bytes(node, piece, data)
    }

    fn append_bytes(&self, node: Node, piece: &Piece, data: &[u8]) -> Option<Place> {
        let Piece { manner, offset, .. } = piece;
        let len = (HEAD + data.len().div_ceil(8)) as u64;
        let mut ends = lock(&self.ends);
        let rest = self.ring - ends.end % self.ring;
        // It does not go on at the beginning of the ring.
        let skip = if len > rest { rest } else { 0 };
        if skip + len > self.ring - (ends.end - ends.begin) {
            return None;
        }
        if skip > 0 {
            self.region.word(self.at(ends.end)).store(skip << 1 | 1, Relaxed);
        }
        let place = ends.end + skip;
        let at = self.at(place);
        let flag = |raised: bool, flag| if raised { flag } else { 0 };
        let flags = flag(manner.cached, CACHED)
            | flag(manner.kill_setid, KILL_SETID)
            | flag(piece.set.is_some(), SETS)
            | flag(piece.makes.is_some(), MAKES);
        let Credentials { uid, gid, .. } = manner.cred;
        let head = [
            len << 1,
            TO_BE_MADE,
            node.0,
            manner.handle.0,
            flags,
            u64::from(uid) << 32 | u64::from(gid),
            manner.pid.into(),
            *offset,
            data.len() as u64,
        ];
        let (whole, part) = data.as_chunks::<8>();
        let mut last = [0; 8];
        last[..part.len()].copy_from_slice(part);
        let words =
            whole.iter().chain((!part.is_empty()).then_some(&last)).map(|word| u64::from_le_bytes(*word));
        for (index, word) in head.into_iter().chain(words).enumerate() {
            self.region.word(at + index).store(word, Relaxed);
        }
        ends.end = place + len;
        self.put(END, ends.end);
        Some(place)
    }

    /// A write has been made, or has failed.
    pub(crate) fn done(&self, place: Place) {
        self.put(self.at(place) + 1, DONE);
        let mut ends = lock(&self.ends);
        let before = ends.begin;
        while ends.begin < ends.end {
            let at = self.at(ends.begin);
            let (skip, len) = (self.get(at) & 1 == 1, self.get(at) >> 1);
            if !skip && self.get(at + 1) != DONE {
                break;
            }
            ends.begin += len;
        }
        if ends.begin == ends.end && ends.begin != before {
            // The memory at the beginning of the ring is there already.
            ends.begin = ends.begin.next_multiple_of(self.ring);
            ends.end = ends.begin;
        }
        self.put(BEGIN, ends.begin);
    }

    /// The writes and settings that former processes have answered and not made, in their order.
    pub(crate) fn left(&self) -> Vec<(Node, Piece)> {
        let ends = lock(&self.ends);
        let (mut place, mut left) = (ends.begin, Vec::new());
        while place < ends.end {
            let at = self.at(place);
            let (skip, len) = (self.get(at) & 1 == 1, self.get(at) >> 1);
            if !skip && self.get(at + 1) == TO_BE_MADE {
                left.extend(self.read(place, at));
            }
            place += len.max(1);
        }
        left
    }

    /// `None` for what is no record.
    fn read(&self, place: Place, at: usize) -> Option<(Node, Piece)> {
        let word = |index: usize| self.get(at + index);
        let (flags, owner, len) = (word(4), word(5), word(8) as usize);
        let cred = Credentials { uid: (owner >> 32) as u32, gid: owner as u32 };
        let manner = Manner {
            handle: Handle(word(3)),
            cred,
            pid: word(6) as u32,
            cached: flags & CACHED != 0,
            kill_setid: flags & KILL_SETID != 0,
        };
        let data: Bytes =
            (0..len.div_ceil(8)).flat_map(|index| word(HEAD + index).to_le_bytes()).take(len).collect();
        let piece = match flags & (SETS | MAKES) {
            SETS => Piece::setting(manner, SetAttrs::get(&mut data.clone()).ok()?, Some(place)),
            MAKES => Piece::making(manner, Wire::get(&mut data.clone()).ok()?, Some(place)),
            _ => Piece::new(manner, word(7), data, Some(place)),
        };
        Some((Node(word(2)), piece))
    }

    /// A write to a file failed that had been answered.
    pub(crate) fn lose(&self, node: Node, errno: Errno) {
        let places = (0..LOST_MAX).map(|index| LOST + 2 * index);
        let same = places.clone().find(|&at| self.get(at) == node.0);
        if let Some(at) = same.or_else(|| places.clone().find(|&at| self.get(at) == 0)) {
            self.put(at + 1, errno.0 as u64);
            self.put(at, node.0);
        }
    }

    /// Somebody was told so.
    pub(crate) fn told(&self, node: Node) {
        let mut places = (0..LOST_MAX).map(|index| LOST + 2 * index);
        if let Some(at) = places.find(|&at| self.get(at) == node.0) {
            self.put(at, 0);
        }
    }

    /// The files of which writes failed that former processes had answered, as far as nobody was told.
    pub(crate) fn lost(&self) -> Vec<(Node, Errno)> {
        let places = (0..LOST_MAX).map(|index| LOST + 2 * index).filter(|&at| self.get(at) != 0);
        places.map(|at| (Node(self.get(at)), Errno(self.get(at + 1) as i32))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{HeapKeep, SetTime, Time};

    fn manner(handle: u64) -> Manner {
        let cred = Credentials { uid: 7, gid: 8 };
        Manner { handle: Handle(handle), cred, pid: 9, cached: true, kill_setid: false }
    }

    fn piece(handle: u64, offset: u64, data: &[u8]) -> Piece {
        Piece::new(manner(handle), offset, Bytes::copy_from_slice(data), None)
    }

    #[test]
    fn a_setting_is_found_as_it_was() {
        let keep = HeapKeep::default();
        let mtime = Some(SetTime::To(Time::new(5, 6)));
        let attrs = SetAttrs { mode: Some(0o640), mtime, ..SetAttrs::default() };
        let log = Log::open(&keep, 1 << 10).expect("room");
        log.append(Node(1), &Piece::setting(manner(3), attrs.clone(), None)).expect("room");
        let (node, left) = Log::open(&keep, 1 << 10).expect("room").left().remove(0);
        assert_eq!((node, left.set.as_deref(), left.len), (Node(1), Some(&attrs), 0));
    }

    fn found(log: &Log) -> Vec<(u64, u64, Vec<u8>)> {
        log.left().into_iter().map(|(node, left)| (node.0, left.offset, left.data.concat())).collect()
    }

    #[test]
    fn a_successor_finds_what_was_answered_and_not_made() {
        let keep = HeapKeep::default();
        let log = Log::open(&keep, 1 << 10).expect("room");
        let one = log.append(Node(1), &piece(3, 10, b"one")).expect("room");
        log.append(Node(2), &piece(3, 20, b"exactly8")).expect("room");
        let three = log.append(Node(1), &piece(3, 30, b"the third")).expect("room");
        log.done(three);
        log.lose(Node(5), Errno::ENOSPC);
        let next = Log::open(&keep, 1 << 10).expect("room");
        assert_eq!(found(&next), [(1, 10, b"one".to_vec()), (2, 20, b"exactly8".to_vec())]);
        assert!(next.left()[0].1.manner == manner(3));
        assert_eq!(next.lost(), [(Node(5), Errno::ENOSPC)]);
        next.told(Node(5));
        next.done(one);
        let last = Log::open(&keep, 1 << 10).expect("room");
        assert_eq!((found(&last).len(), last.lost()), (1, Vec::new()));
    }

    #[test]
    fn the_ring_goes_round_and_says_when_it_is_full() {
        let keep = HeapKeep::default();
        let log = Log::open(&keep, 1 << 10).expect("room");
        let data = vec![5; 300 << 10];
        let mut places = std::collections::VecDeque::new();
        for round in 0..200_u64 {
            match log.append(Node(round), &piece(1, round, &data[..data.len() - round as usize])) {
                Some(place) => places.push_back((place, round)),
                None => {
                    let (place, _) = places.pop_front().expect("there are some");
                    log.done(place);
                }
            }
            let expected: Vec<u64> = places.iter().map(|&(_, round)| round).collect();
            let found: Vec<u64> =
                found(&Log::open(&keep, 1 << 10).expect("room")).iter().map(|one| one.0).collect();
            assert_eq!(found, expected);
        }
        assert!(places.len() > 3);
        places.iter().for_each(|&(place, _)| log.done(place));
        assert!(found(&Log::open(&keep, 1 << 10).expect("room")).is_empty());
    }
}
