// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checksums of members that are read in pieces, in any order and by several readers at once.
//!
//! Kernels send the requests of their read-ahead side by side, so the pieces of a file that is read from its beginning to its
//! end arrive in any order. The checksum of each is kept until there are all of them, which together have that of the member.

use crate::decode::Expected;
use crc32fast::Hasher;
use outrigger_core::lock;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Mutex,
};

/// Pieces of one member that are remembered. Of more, the shortest are forgotten: a program that reads from the beginning to the end
/// joins his to a long one.
const OF_MEMBER: usize = 1024;
/// Pieces of all members. Of more, those of the member that was not read for longest are forgotten.
const OF_ALL: usize = 16 << 10;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Pieces(Mutex<State>);

#[derive(Default)]
struct State {
    members: HashMap<u32, Member>,
    /// How many pieces there are in `members`.
    count: usize,
    /// Counts what was read.
    clock: u64,
    /// Members that have another checksum than their entries say.
    bad: HashSet<u32>,
}

#[derive(Default)]
struct Member {
    /// By where they begin. None is empty, and there is a gap after each.
    pieces: BTreeMap<u64, Piece>,
    /// When it was last read.
    used: u64,
}

struct Piece {
    end: u64,
    sum: Hasher,
}

impl Pieces {
    /// Takes note of `data` at `offset` of the member with the number `number`; `false` once all of the member was read and is not
    /// what is expected.
    pub fn is_good(&self, number: u32, expected: Expected, offset: u64, data: &[u8]) -> bool {
        let state = &mut *lock(&self.0);
        if state.bad.contains(&number) {
            return false;
        }
        state.clock += 1;
        let mut member = state.members.remove(&number).unwrap_or_default();
        state.count -= member.pieces.len();
        member.used = state.clock;
        member.add(offset, data);
        if let Some(crc) = member.whole(expected.size) {
            if crc != expected.crc {
                state.bad.insert(number);
            }
            return crc == expected.crc;
        }
        member.forget_short();
        state.count += member.pieces.len();
        while state.count > OF_ALL && state.forget_oldest() {}
        state.members.insert(number, member);
        true
    }
}

impl State {
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.members.iter().min_by_key(|(_, member)| member.used).map(|(number, _)| *number);
        let oldest = oldest.and_then(|number| self.members.remove(&number));
        self.count -= oldest.as_ref().map_or(0, |member| member.pieces.len());
        oldest.is_some()
    }
}

impl Member {
    /// Adds what of `data` is not in a piece already.
    fn add(&mut self, offset: u64, data: &[u8]) {
        let (mut at, end) = (offset, offset.saturating_add(data.len() as u64));
        while at < end {
            let next = self.pieces.range(at + 1..).next().map(|(start, _)| *start);
            let to = next.map_or(end, |next| next.min(end));
            let new = &data[(at - offset) as usize..(to - offset) as usize];
            let before = self.pieces.range_mut(..=at).next_back().filter(|(_, piece)| piece.end >= at);
            let piece = match before {
                Some((_, piece)) if piece.end > at => {
                    at = piece.end;
                    continue;
                }
                Some((start, piece)) => {
                    piece.sum.update(new);
                    piece.end = to;
                    *start
                }
                None => {
                    let mut sum = Hasher::new();
                    sum.update(new);
                    self.pieces.insert(at, Piece { end: to, sum });
                    at
                }
            };
            self.join(piece, to);
            at = to;
        }
    }

    /// Joins the piece that begins at `start` with the one that begins at `end`, where it ends, if there is one.
    fn join(&mut self, start: u64, end: u64) {
        if let Some(next) = self.pieces.remove(&end)
            && let Some(piece) = self.pieces.get_mut(&start)
        {
            piece.sum.combine(&next.sum);
            piece.end = next.end;
        }
    }

    /// The checksum of all `size` bytes, once they are there.
    fn whole(&self, size: u64) -> Option<u32> {
        let piece = self.pieces.get(&0).filter(|piece| piece.end == size)?;
        Some(piece.sum.clone().finalize())
    }

    fn forget_short(&mut self) {
        while self.pieces.len() > OF_MEMBER {
            let rank = |(start, piece): &(&u64, &Piece)| (piece.end - *start, Reverse(**start));
            let Some(start) = self.pieces.iter().min_by_key(rank).map(|(start, _)| *start) else { return };
            self.pieces.remove(&start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a member of `size` bytes contains.
    fn content(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at * 7 % 251) as u8).collect()
    }

    /// Reads `ranges` in this order and says for each whether it was good.
    fn read(pieces: &Pieces, number: u32, crc: u32, size: usize, ranges: &[(usize, usize)]) -> Vec<bool> {
        let (all, expected) = (content(size), Expected { crc, size: size as u64 });
        let one =
            |&(from, to): &(usize, usize)| pieces.is_good(number, expected, from as u64, &all[from..to]);
        ranges.iter().map(one).collect()
    }

    #[test]
    fn pieces_in_any_order_that_overlap_have_the_checksum_of_the_whole() {
        let crc = crc32fast::hash(&content(100));
        for order in [
            &[(0, 100)][..],
            &[(50, 100), (0, 50)],
            &[(25, 50), (0, 25), (75, 100), (50, 75)],
            &[(10, 20), (30, 40), (50, 60), (0, 100)],
            &[(10, 60), (20, 30), (0, 15), (55, 100)],
            &[(90, 100), (0, 10), (5, 95)],
        ] {
            let pieces = Pieces::default();
            assert!(read(&pieces, 1, crc, 100, order).iter().all(|good| *good), "{order:?}");
            assert_eq!(
                lock(&pieces, |state| (state.members.len(), state.count)),
                (0, 0),
                "{order:?}: all of it"
            );
            let wrong = read(&Pieces::default(), 1, crc ^ 1, 100, order);
            let (last, before) = wrong.split_last().unwrap();
            assert!(!last && before.iter().all(|good| *good), "{order:?}: {wrong:?}");
        }
    }

    #[test]
    fn what_is_bad_stays_bad_and_of_a_part_nothing_is_known() {
        let pieces = Pieces::default();
        assert_eq!(read(&pieces, 1, 0, 9, &[(5, 9), (1, 5), (0, 1), (3, 4)]), [true, true, false, false]);
        assert_eq!(read(&pieces, 2, 0, 9, &[(5, 9), (1, 5), (5, 9)]), [true; 3]);
    }

    #[test]
    fn the_pieces_of_scattered_reads_have_a_bound_and_reading_in_order_is_still_compared() {
        let pieces = Pieces::default();
        let size = 8 * OF_MEMBER;
        let scattered: Vec<_> = (0..size).step_by(2).map(|at| (at, at + 1)).collect();
        for number in 0..20 {
            assert!(read(&pieces, number, 0, size, &scattered).iter().all(|good| *good));
        }
        let bound = lock(&pieces, |state| {
            let all: usize = state.members.values().map(|member| member.pieces.len()).sum();
            (all == state.count, all <= OF_ALL, state.members.values().all(|m| m.pieces.len() <= OF_MEMBER))
        });
        assert_eq!(bound, (true, true, true));
        let in_order: Vec<_> = (0..size).step_by(4).map(|at| (at, at + 4)).collect();
        for number in [0, 19, 30] {
            assert_eq!(read(&pieces, number, 0, size, &in_order).iter().filter(|good| !**good).count(), 1);
        }
    }

    fn lock<T>(pieces: &Pieces, look: impl Fn(&State) -> T) -> T {
        look(&pieces.0.lock().unwrap())
    }
}
