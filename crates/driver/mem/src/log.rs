// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log: all that is needed to build the tree again, in memory that outlives this process.
//!
//! The region has a header and two halves, one of which is the log. A group of records is written behind its end, and
//! then one store of [`STATE`], which says which half and how long, makes it part of the log: whenever this process is
//! killed, a group is there as a whole or not at all. A shorter log with the same meaning is written into the other
//! half while the first goes on being used, and takes its place with a store of the same word (see `compact`).

use crate::compact::Cursor;
use crate::options::Options;
use outrigger_core::{Errno, Error, Region, Result};
use parking_lot::Mutex;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Where a tree begins: written last, so before it there is none. The last byte is the version of the records.
const MAGIC: u64 = u64::from_be_bytes(*b"ow-mem\0\x01");
/// The word that is [`MAGIC`].
const START: usize = 0;
/// The word with the number of the memory file, plus 1.
const FILE: usize = 1;
/// The word with the log's length in words and, in its highest bit, its half.
const STATE: usize = 2;
/// Words before the first half.
const HEADER: usize = 8;
/// The fewest words of a half: any group fits many times.
const HALF_MIN: usize = 4 << 10;
/// The most words of a half: 32 GiB, of which only what is used takes memory.
const HALF_MAX: u64 = 4 << 30;
/// How much the log may grow, beside doubling, before it is compacted: 1 MiB.
const SLACK: usize = 128 << 10;

/// The log of a tree.
pub(crate) struct Log {
    region: Arc<dyn Region>,
    /// Words of each half.
    half: usize,
    state: Mutex<State>,
    /// Whether there is something to do about the length. Saves a look into `state`.
    due: AtomicBool,
    /// How far the work on a shorter log is.
    pub cursor: Mutex<Cursor>,
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
pub(crate) enum Room {
    /// A change that may make the tree bigger.
    More(usize),
    /// A change that makes it smaller: possible for longer when the log is nearly full.
    Less(usize),
}

impl Log {
    /// How many words the log of a tree with these limits needs at most, roughly: for each inode with its name 128, for
    /// each page of content 8, in each half. Trees of longer names and many links may find it too small.
    pub fn words_for(options: &Options) -> usize {
        let half = options.inodes.saturating_mul(128).saturating_add(options.size / 512);
        let half = half.saturating_add(2 * SLACK as u64).min(HALF_MAX);
        HEADER + 2 * half as usize
    }

    /// The log in `region`.
    ///
    /// # Errors
    /// `ENOSPC` when the region is too small for any, `EUCLEAN` when what is in it makes no sense, `EPROTO` when it
    /// was left by a program of another version.
    pub fn open(region: Arc<dyn Region>) -> Result<Self> {
        let half = region.words().saturating_sub(HEADER) / 2;
        if half < HALF_MIN {
            return Err(Errno::ENOSPC.because(format!("a region of {} words is too small", region.words())));
        }
        let word = region.word(STATE).load(Acquire);
        let (side, len) = ((word >> 63) as usize, (word & (u64::MAX >> 1)) as usize);
        let magic = region.word(START).load(Acquire);
        match magic ^ MAGIC {
            0 => {}
            version if version <= 0xFF => {
                let text = "the tree in memory was left by a program of another version";
                return Err(Errno::EPROTO.because(text));
            }
            _ if magic == 0 => {}
            _ => return Err(senseless()),
        }
        if len > half {
            return Err(senseless());
        }
        let state = State { side, len, reserved: 0, base: 0, copy: None };
        let log = Log {
            region,
            half,
            state: Mutex::new(state),
            due: AtomicBool::new(false),
            cursor: Mutex::default(),
        };
        if !log.has_tree() {
            log.state.lock().len = 0;
        }
        Ok(log)
    }

    /// Whether a former process has left a tree.
    pub fn has_tree(&self) -> bool {
        self.region.word(START).load(Acquire) == MAGIC
    }

    /// What is in the log from now on makes a tree.
    pub fn begin_tree(&self) {
        self.region.word(START).store(MAGIC, Release);
    }

    /// The number of the memory file, if there is one.
    pub fn file(&self) -> Option<RawFd> {
        let number = self.region.word(FILE).load(Acquire).checked_sub(1)?;
        RawFd::try_from(number).ok()
    }

    /// Notes the number of the memory file.
    pub fn set_file(&self, number: RawFd) {
        self.region.word(FILE).store(number as u64 + 1, Release);
    }

    /// All words of the log.
    pub fn words(&self) -> Vec<u64> {
        let state = self.state.lock();
        let start = self.start(state.side);
        (start..start + state.len).map(|index| self.region.word(index).load(Relaxed)).collect()
    }

    fn start(&self, side: usize) -> usize {
        HEADER + side * self.half
    }

    /// Promises room for a group; `false` when there is not enough.
    pub fn reserve(&self, room: Room) -> bool {
        let mut state = self.state.lock();
        let (words, end) = match room {
            // What is left then is enough for hundreds of removals, after which the log can be made shorter.
            Room::More(words) => (words, self.half - self.half / 8),
            Room::Less(words) => (words, self.half),
        };
        let fits = state.len + state.reserved + words <= end;
        if fits {
            state.reserved += words;
        }
        fits
    }

    /// Ends a promise.
    pub fn release(&self, words: usize) {
        self.state.lock().reserved -= words;
    }

    /// Appends a group; `at_once` happens before any other group follows.
    pub fn append(&self, words: &[u64], at_once: impl FnOnce()) {
        let mut state = self.state.lock();
        self.add(&mut state, words);
        at_once();
    }

    /// Appends a group of which nothing was promised, if there is room.
    pub fn note(&self, words: &[u64]) {
        let mut state = self.state.lock();
        if state.len + state.reserved + words.len() <= self.half {
            self.add(&mut state, words);
        }
    }

    fn add(&self, state: &mut State, words: &[u64]) {
        let len = state.len + words.len();
        debug_assert!(len <= self.half, "a group is longer than promised");
        self.store(state.side, state.len, words);
        self.switch(state, state.side, len);
        if let Some(at) = state.copy {
            state.copy = (at + words.len() <= self.half).then_some(at + words.len());
            if state.copy.is_some() {
                self.store(1 - state.side, at, words);
            }
        }
        self.set_due(state);
    }

    fn store(&self, side: usize, at: usize, words: &[u64]) {
        let start = self.start(side) + at;
        for (index, &word) in words.iter().enumerate() {
            self.region.word(start + index).store(word, Relaxed);
        }
    }

    /// The one store that makes what was written before it the log.
    fn switch(&self, state: &mut State, side: usize, len: usize) {
        self.region.word(STATE).store((side as u64) << 63 | len as u64, Release);
        (state.side, state.len) = (side, len);
    }

    fn set_due(&self, state: &State) {
        let grown = state.len > 2 * state.base + SLACK.min(self.half / 16);
        self.due.store(grown || state.copy.is_some(), Relaxed);
    }

    /// Whether the log is long enough to be made shorter, or that has begun.
    pub fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// Whether a shorter log may be had, when there is no room.
    pub fn may_shrink(&self) -> bool {
        let state = self.state.lock();
        state.copy.is_some() || state.len - state.base > self.half / 256
    }

    /// Begins a shorter log with what `first` gives: from now on groups go into both.
    pub fn begin_copy(&self, first: impl FnOnce() -> Vec<u64>) {
        let mut state = self.state.lock();
        let words = first();
        self.store(1 - state.side, 0, &words);
        state.copy = Some(words.len());
    }

    /// Appends to the shorter log alone; `false` when there is none any more, because it became too long.
    pub fn copy(&self, words: &[u64]) -> bool {
        let mut state = self.state.lock();
        let fits = state.copy.filter(|at| at + words.len() <= self.half);
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
        let mut state = self.state.lock();
        match state.copy.filter(|len| len + state.reserved <= self.half) {
            Some(len) => {
                let side = 1 - state.side;
                self.switch(&mut state, side, len);
                self.drop_copy(&mut state);
            }
            None => self.drop_copy(&mut state),
        }
    }

    fn drop_copy(&self, state: &mut State) {
        state.copy = None;
        state.base = state.len;
        self.set_due(state);
    }
}

/// What is said of a log that no version of this program can have written.
pub(crate) fn senseless() -> Error {
    Errno::EUCLEAN.because("the log of the tree in memory makes no sense; the tree is lost")
}
