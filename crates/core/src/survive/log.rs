// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups of words, one after the other, which can be made shorter while groups are added.

use super::area::{Area, to_bytes, to_words};
use crate::error::{Errno, Result};
use crate::mutex::lock;
use crate::wire::Wire;
use bytes::Bytes;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

/// The fewest words of a half: any group fits many times.
const HALF_MIN: usize = 4 << 10;
/// How much a log may grow, beside doubling, before it is to be made shorter: 1 MiB.
const SLACK: usize = 128 << 10;

/// Two halves, one of which is the log. A group is written after its end, and then one store, which says which half and how
/// long, makes it part of the log. A shorter log with the same meaning is written into the other half while the first goes on
/// being used, and takes its place with a store of the same word.
pub struct Log {
    /// The length of the log in words and, in the highest bit, its half.
    head: Area,
    halves: [Area; 2],
    state: Mutex<State>,
    /// Whether there is something to do about the length. Saves a look into `state`.
    due: AtomicBool,
}

struct State {
    /// Which half: 0 or 1.
    side: usize,
    /// Words of the log.
    len: usize,
    /// Words promised to groups that are not there yet.
    reserved: usize,
    /// The length after the last attempt to make it shorter.
    base: usize,
    /// Words of the shorter log in the other half, while there is work on one.
    copy: Option<usize>,
}

/// What a group is for, with the most words it will have.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// A change that may make what is described bigger.
    More(usize),
    /// A change that makes it smaller: possible for longer when the log is nearly full.
    Less(usize),
}

impl Log {
    /// How many words a log needs whose groups, made as short as can be, have so many.
    pub const fn words_for(words: usize) -> usize {
        1 + 2 * words.saturating_add(2 * SLACK)
    }

    /// The log in `area`, with what former processes have added.
    ///
    /// # Errors
    /// `ENOSPC` when the area is too small for any, `EUCLEAN` when what is in it makes no sense.
    pub fn open(mut area: Area) -> Result<Self> {
        let head = area.take_for::<u64>()?;
        let half = area.words() / 2;
        if half < HALF_MIN {
            return Err(Errno::ENOSPC.because(format!("{} words are too few for a log", area.words())));
        }
        let halves = [area.take(half)?, area.take(half)?];
        let word = head.view::<u64>().get();
        let (side, len) = ((word >> 63) as usize, (word & (u64::MAX >> 1)) as usize);
        if len > half {
            return Err(Errno::EUCLEAN.because(format!("a log of {len} words in {half}")));
        }
        let state = Mutex::new(State { side, len, reserved: 0, base: 0, copy: None });
        Ok(Log { head, halves, state, due: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Words of each half.
    fn half(&self) -> usize {
        self.halves[0].words()
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.lock().len == 0
    }

    /// All words of the log.
    pub fn read(&self) -> Vec<u64> {
        let state = self.lock();
        (0..state.len).map(|index| self.halves[state.side].word(index).get()).collect()
    }

    /// Promises room for a group; `false` when there is not enough.
    pub fn reserve(&self, room: Room) -> bool {
        let (mut state, half) = (self.lock(), self.half());
        let (words, end) = match room {
            // What is left then is enough for hundreds of removals, after which the log can be made shorter.
            Room::More(words) => (words, half - half / 8),
            Room::Less(words) => (words, half),
        };
        let fits = state.len + state.reserved + words <= end;
        if fits {
            state.reserved += words;
        }
        fits
    }

    /// Ends a promise.
    pub fn release(&self, words: usize) {
        self.lock().reserved -= words;
    }

    /// Adds a group, of which so many words were promised; `at_once` happens before any other group follows.
    pub fn append(&self, words: &[u64], at_once: impl FnOnce()) {
        let mut state = self.lock();
        self.add(&mut state, words);
        at_once();
    }

    /// Adds a group of which nothing was promised, if there is room.
    pub fn note(&self, words: &[u64]) {
        let mut state = self.lock();
        if state.len + state.reserved + words.len() <= self.half() {
            self.add(&mut state, words);
        }
    }

    fn add(&self, state: &mut State, words: &[u64]) {
        let len = state.len + words.len();
        debug_assert!(len <= self.half(), "a group is longer than promised");
        self.store(state.side, state.len, words);
        self.switch(state, state.side, len);
        if let Some(at) = state.copy {
            state.copy = (at + words.len() <= self.half()).then_some(at + words.len());
            if state.copy.is_some() {
                self.store(1 - state.side, at, words);
            }
        }
        self.set_due(state);
    }

    fn store(&self, side: usize, at: usize, words: &[u64]) {
        self.halves[side].fill(at, words.iter().copied());
    }

    /// The one store that makes what was written before it the log.
    fn switch(&self, state: &mut State, side: usize, len: usize) {
        self.head.view::<u64>().set((side as u64) << 63 | len as u64);
        (state.side, state.len) = (side, len);
    }

    fn set_due(&self, state: &State) {
        let grown = state.len > 2 * state.base + SLACK.min(self.half() / 16);
        self.due.store(grown || state.copy.is_some(), Relaxed);
    }

    /// Whether the log is long enough to be made shorter, or that has begun.
    pub fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// Whether a shorter log may be had, when there is no room.
    pub fn may_shrink(&self) -> bool {
        let state = self.lock();
        state.copy.is_some() || state.len - state.base > self.half() / 256
    }

    /// Begins a shorter log with what `first` gives: from now on groups go into both.
    pub fn begin_copy(&self, first: impl FnOnce() -> Vec<u64>) {
        let mut state = self.lock();
        let words = first();
        self.store(1 - state.side, 0, &words);
        state.copy = Some(words.len());
    }

    /// Adds to the shorter log alone; `false` when there is none any more, because it became too long.
    pub fn copy(&self, words: &[u64]) -> bool {
        let mut state = self.lock();
        let fits = state.copy.filter(|at| at + words.len() <= self.half());
        match fits {
            Some(at) => {
                self.store(1 - state.side, at, words);
                state.copy = Some(at + words.len());
            }
            None => self.drop_copy(&mut state),
        }
        fits.is_some()
    }

    /// Makes the shorter log, which is complete now, the log.
    pub fn end_copy(&self) {
        let mut state = self.lock();
        if let Some(len) = state.copy.filter(|len| len + state.reserved <= self.half()) {
            let side = 1 - state.side;
            self.switch(&mut state, side, len);
        }
        self.drop_copy(&mut state);
    }

    fn drop_copy(&self, state: &mut State) {
        state.copy = None;
        state.base = state.len;
        self.set_due(state);
    }
}

/// Records one after the other, each its length in bytes and its encoding: a group of a [`Log`].
#[derive(Debug, Default)]
pub struct Records {
    words: Vec<u64>,
    bytes: Vec<u8>,
}

impl Records {
    /// One record.
    pub fn of(record: &impl Wire) -> Self {
        let mut records = Records::default();
        records.put(record);
        records
    }

    /// Appends a record.
    pub fn put(&mut self, record: &impl Wire) {
        self.bytes.clear();
        record.put(&mut self.bytes);
        self.words.push(self.bytes.len() as u64);
        self.words.extend(to_words(&self.bytes));
    }

    /// Their words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Removes them.
    pub fn clear(&mut self) {
        self.words.clear();
    }
}

/// Takes a record of [`Records`] off the front of `words`.
///
/// # Errors
/// `EUCLEAN` when they begin with none.
pub fn take_record<T: Wire>(words: &mut &[u64]) -> Result<T> {
    let taken = words.split_first().and_then(|(&len, rest)| {
        let len = usize::try_from(len).ok()?;
        let (record, rest) = rest.split_at_checked(len.div_ceil(8))?;
        let mut bytes = Bytes::from(to_bytes(record.iter().copied(), len));
        let record = T::get(&mut bytes).ok().filter(|_| bytes.is_empty())?;
        Some((record, rest))
    });
    let (record, rest) =
        taken.ok_or_else(|| Errno::EUCLEAN.because("a log with a record that makes no sense"))?;
    *words = rest;
    Ok(record)
}
