// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that were answered and have not been made, in memory that outlives the process: the next one makes them.
//!
//! A write is appended before it is answered, and marked as done when it has been made, before anything that waits for it
//! goes on. So what a new process finds can be made once more without harm: nothing that came later and overlaps it has been.
use crate::delayed::{Job, Piece, WriteContext};
use bytes::Bytes;
use outrigger_core::survive::{Layout, Queue, Record, Slots};
use outrigger_core::wire::Wire;
use outrigger_core::{Credentials, Errno, Handle, Keep, Node, Result, lock};
use std::sync::Mutex;

const LAYOUT: Layout = Layout::of("cache-log");
const LOST_MAX: usize = 256;
const CACHED: u64 = 1;
const KILL_SETID: u64 = 2;
/// The bytes are attributes to be set.
const SETS: u64 = 4;
/// The file is to be made; the bytes are the number of its directory and its name.
const CREATES: u64 = 8;

/// Where a record is.
pub(crate) type Place = outrigger_core::survive::Ticket;

outrigger_core::record! {
    /// What a record says before its bytes.
    struct Head {
        node: Node,
        handle: Handle,
        flags: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        offset: u64,
        /// How many bytes.
        len: u64,
    }
}

outrigger_core::record! {
    /// A file of which a write failed, which no program knows yet.
    struct Lost { node: Node, errno: Errno }
}

/// The log.
pub(crate) struct Log {
    writes: Queue,
    lost: Mutex<Slots<Lost>>,
}

impl Log {
    /// The log in `keep`, which has room for writes that take `bytes` altogether.
    ///
    /// # Errors
    /// Those of [`Layout::attach`].
    pub(crate) fn open(keep: &dyn Keep, bytes: usize) -> Result<Self> {
        let lost = Slots::<Lost>::words(LOST_MAX);
        let writes = Queue::words(bytes / 8 + bytes / 32 + (1 << 18));
        let mut area = LAYOUT.attach(keep, lost + writes)?.area;
        let lost = Mutex::new(Slots::open(area.take(lost)?));
        Ok(Log { writes: Queue::open(area)?, lost })
    }

    /// Appends a change before it is done; `None` when there is no room.
    pub(crate) fn append(&self, node: Node, piece: &Piece) -> Option<Place> {
        let Piece { context, job, offset, .. } = piece;
        let mut encoded = Vec::new();
        let (kind, data) = match job {
            Job::Write(data) => (0, data.first().map_or(&[][..], |bytes| &bytes[..])),
            Job::Set(attrs) => {
                attrs.put(&mut encoded);
                (SETS, &encoded[..])
            }
            Job::Create(name) => {
                name.put(&mut encoded);
                (CREATES, &encoded[..])
            }
        };
        let flag = |raised: bool, flag| if raised { flag } else { 0 };
        let flags = kind | flag(context.cached, CACHED) | flag(context.kill_setid, KILL_SETID);
        let WriteContext { handle, pid, cred: Credentials { uid, gid, .. }, .. } = *context;
        let head = Head { node, handle, flags, uid, gid, pid, offset: *offset, len: data.len() as u64 };
        self.writes.append(&head.encode(), data)
    }

    /// A write has been made, or has failed.
    pub(crate) fn done(&self, place: Place) {
        self.writes.done(place);
    }

    /// The writes and settings that former processes have answered and not made, in their order.
    pub(crate) fn left(&self) -> Vec<(Node, Piece)> {
        self.writes.left(read).into_iter().flatten().collect()
    }

    /// A write to a file failed that had been answered.
    pub(crate) fn lose(&self, node: Node, errno: Errno) {
        let mut lost = lock(&self.lost);
        let known = lost.iter().find(|(_, lost)| lost.node == node).map(|(slot, _)| slot.index);
        match known {
            Some(index) => lost.update(index, &Lost { node, errno }),
            // What is too much the log of this process alone tells.
            None => drop(lost.insert(&Lost { node, errno })),
        }
    }

    /// It was reported.
    pub(crate) fn reported(&self, node: Node) {
        let mut lost = lock(&self.lost);
        let known = lost.iter().find(|(_, lost)| lost.node == node).map(|(slot, _)| slot.index);
        known.into_iter().for_each(|index| lost.remove(index));
    }

    /// The files of which writes failed that former processes had answered, as far as that was not reported.
    pub(crate) fn lost(&self) -> Vec<(Node, Errno)> {
        lock(&self.lost).iter().map(|(_, Lost { node, errno })| (node, errno)).collect()
    }
}

/// `None` for what is no record.
fn read(place: Place, words: Vec<u64>) -> Option<(Node, Piece)> {
    let (head, words) = words.split_first_chunk()?;
    let Head { node, handle, flags, uid, gid, pid, offset, len } = Head::decode(head);
    let context = WriteContext {
        handle,
        cred: Credentials::new(uid, gid),
        pid,
        cached: flags & CACHED != 0,
        kill_setid: flags & KILL_SETID != 0,
    };
    let data: Bytes = words.iter().flat_map(|word| word.to_le_bytes()).take(len as usize).collect();
    let job = match flags & (SETS | CREATES) {
        SETS => Job::Set(Wire::get(&mut data.clone()).ok()?),
        CREATES => Job::Create(Wire::get(&mut data.clone()).ok()?),
        _ => Job::Write(vec![data]),
    };
    Some((node, Piece { logged: vec![place], ..Piece::new(context, offset, job) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::survive::testing::each_death;
    use outrigger_core::{HeapKeep, SetAttrs, SetTime, Time};
    use std::sync::Arc;

    fn context(handle: u64) -> WriteContext {
        let cred = Credentials::new(7, 8);
        WriteContext { handle: Handle(handle), cred, pid: 9, cached: true, kill_setid: false }
    }

    fn piece(handle: u64, offset: u64, data: &[u8]) -> Piece {
        Piece::new(context(handle), offset, Job::Write(vec![Bytes::copy_from_slice(data)]))
    }

    #[test]
    fn a_setting_is_found_as_it_was() {
        let keep = HeapKeep::default();
        let mtime = Some(SetTime::To(Time::new(5, 6)));
        let attrs = SetAttrs { mode: Some(0o640), mtime, ..SetAttrs::default() };
        let log = Log::open(&keep, 1 << 10).expect("room");
        log.append(Node(1), &Piece::new(context(3), 0, Job::Set(attrs.clone().into()))).expect("room");
        let (node, left) = Log::open(&keep, 1 << 10).expect("room").left().remove(0);
        let Job::Set(set) = left.job else { panic!("{left:?}") };
        assert_eq!((node, *set, left.len), (Node(1), attrs, 0));
    }

    fn found(log: &Log) -> Vec<(u64, u64, Vec<u8>)> {
        log.left().into_iter().map(|(node, left)| (node.0, left.offset, left.rest(0).concat())).collect()
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
        assert!(next.left()[0].1.context == context(3));
        assert_eq!(next.lost(), [(Node(5), Errno::ENOSPC)]);
        next.reported(Node(5));
        next.done(one);
        let last = Log::open(&keep, 1 << 10).expect("room");
        assert_eq!((found(&last).len(), last.lost()), (1, Vec::new()));
    }

    #[test]
    fn what_was_answered_before_a_kill_is_found_and_nothing_else() {
        let deaths = each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let (mut answered, mut tried) = (Vec::new(), 0);
            let log = Log::open(&life.of(&keep), 1 << 10).expect("room");
            for offset in 0..6 {
                tried = offset;
                let place = log.append(Node(1), &piece(3, offset, b"a write of some words")).expect("room");
                if life.is_over() {
                    break;
                }
                answered.push(offset);
                if offset == 3 {
                    log.done(place);
                    answered.pop();
                }
            }
            let left: Vec<u64> =
                found(&Log::open(&*keep, 1 << 10).expect("sound")).into_iter().map(|write| write.1).collect();
            let may_be_there = |offset: &&u64| **offset == tried || **offset == 3;
            let more: Vec<&u64> = left.iter().filter(|offset| !answered.contains(offset)).collect();
            assert!(answered.iter().all(|offset| left.contains(offset)), "{left:?} of {answered:?}");
            assert!(more.iter().all(may_be_there) && left.is_sorted(), "{left:?} of {answered:?}");
        });
        assert!(deaths > 50, "only {deaths} places to die");
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
