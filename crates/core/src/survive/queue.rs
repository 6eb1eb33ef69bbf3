// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entries of any length in a ring, each of which is done some time, in any order.

use super::area::{Area, Stored, to_words};
use crate::error::{Errno, Result};
use crate::mutex::lock;
use std::sync::{Mutex, MutexGuard};

crate::fields! {
    /// Counted in words that went by since the queue was made; the ring begins anew at each multiple of its length.
    struct Head {
        begin: u64,
        end: u64,
    }
}

/// In the first word of an entry, beside its length: nothing is left to be done. Also said of the rest of the ring, when the
/// next entry does not fit in there.
const DONE: u64 = 1;

/// Which entry.
pub type Ticket = u64;

/// Entries of any length in a ring: one store adds one, and one marks it as done.
pub struct Queue {
    head: Area,
    ring: Area,
    ends: Mutex<Ends>,
}

#[derive(Clone, Copy)]
struct Ends {
    begin: u64,
    end: u64,
}

impl Queue {
    /// Words for entries that have so many together, with their heads.
    pub const fn words(entries: usize) -> usize {
        <Head<'_> as Stored>::WORDS + entries
    }

    /// The queue in `area`, with what former processes have added.
    ///
    /// # Errors
    /// `EUCLEAN` when the area is too small or what is in it makes no sense.
    pub fn open(mut area: Area) -> Result<Self> {
        let head = area.take_for::<Head<'_>>()?;
        let fields = head.view::<Head<'_>>();
        let begin = fields.begin().get();
        // Where it was empty it may have begun anew after its end.
        let end = fields.end().get().max(begin);
        if area.words() == 0 || end - begin > area.words() as u64 {
            return Err(Errno::EUCLEAN.because(format!(
                "{} words in a ring of {}",
                end - begin,
                area.words()
            )));
        }
        Ok(Queue { head, ring: area, ends: Mutex::new(Ends { begin, end }) })
    }

    fn lock(&self) -> MutexGuard<'_, Ends> {
        lock(&self.ends)
    }

    fn at(&self, ticket: Ticket) -> usize {
        (ticket % self.ring.words() as u64) as usize
    }

    /// The length of the entry at `ticket`, with its head, and whether it is done. One of a damaged ring ends with the ring.
    fn entry(&self, ticket: Ticket) -> (u64, bool) {
        let (at, rest) = (self.at(ticket), self.ring.words() - self.at(ticket));
        let head = self.ring.word(at).get();
        ((head >> 1).clamp(1, rest as u64), head & DONE != 0)
    }

    /// Adds an entry: words, and bytes padded with zeroes. `None` when there is no room.
    pub fn append(&self, words: &[u64], bytes: &[u8]) -> Option<Ticket> {
        let (len, ring) = ((1 + words.len() + bytes.len().div_ceil(8)) as u64, self.ring.words() as u64);
        let mut ends = self.lock();
        let rest = ring - ends.end % ring;
        let skip = if len > rest { rest } else { 0 };
        if skip + len > ring - (ends.end - ends.begin) {
            return None;
        }
        if skip > 0 {
            self.ring.word(self.at(ends.end)).set(skip << 1 | DONE);
        }
        let ticket = ends.end + skip;
        let at = self.at(ticket);
        self.ring.word(at).set(len << 1);
        self.ring.fill(at + 1, words.iter().copied());
        self.ring.fill(at + 1 + words.len(), to_words(bytes));
        ends.end = ticket + len;
        self.head.view::<Head<'_>>().end().set(ends.end);
        Some(ticket)
    }

    /// Nothing is left to be done about an entry.
    pub fn done(&self, ticket: Ticket) {
        let mut ends = self.lock();
        let word = self.ring.word(self.at(ticket));
        word.set(word.get() | DONE);
        let before = ends.begin;
        while ends.begin < ends.end {
            let (len, done) = self.entry(ends.begin);
            if !done {
                break;
            }
            ends.begin += len;
        }
        if ends.begin >= ends.end && ends.begin != before {
            // The memory at the beginning of the ring is there already.
            ends.begin = ends.begin.next_multiple_of(self.ring.words() as u64);
            ends.end = ends.begin;
        }
        self.head.view::<Head<'_>>().begin().set(ends.begin);
    }

    /// What `read` makes of the words of each entry that is not done, in the order in which they were added.
    pub fn left<T>(&self, mut read: impl FnMut(Ticket, Vec<u64>) -> T) -> Vec<T> {
        let ends = *self.lock();
        let (mut ticket, mut left) = (ends.begin, Vec::new());
        while ticket < ends.end {
            let ((len, done), at) = (self.entry(ticket), self.at(ticket));
            if !done {
                let words = (at + 1..at + len as usize).map(|at| self.ring.word(at).get());
                left.push(read(ticket, words.collect()));
            }
            ticket += len;
        }
        left
    }
}
