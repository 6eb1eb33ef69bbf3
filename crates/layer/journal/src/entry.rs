// SPDX-License-Identifier: MIT OR Apache-2.0
//! One entry of the journal: what is known about one request.
//!
//! | word | content |
//! |---|---|
//! | 0 | request id |
//! | 1 | state and flags (8 bits), deaths (8), operation (16), low half of the request id (32) |
//! | 2 | when it began, in nanoseconds since 1970 by [`Clock::coarse_wall`](outrigger_core::Clock::coarse_wall) |
//! | 3 | how many requests were answered in this slot |
//! | 4 | when the change was first intended, likewise; words 4 to 8 are valid from the intent on |
//! | 5 to 7 | what there was before ([`Before`]) |
//! | 8 | checksum of words 0, 4 to 7 and the operation |
//! | 9 | length of the reply in bytes and flags, once there is one |
//! | 10 | checksum of words 0 and 9 and the reply |
//! | 11 to 31 | the reply, encoded ([`Wire`]) |
//!
//! Word 1 is stored last whenever the state changes, and everything it vouches for before. So a process that is killed
//! between two stores leaves the former state, or, while another request takes the slot, an entry whose ids differ:
//! that reads as none, which is right as the former reply was delivered and the new request not begun.

use crate::before::Before;
use bytes::Bytes;
use outrigger_core::reply::Created;
use outrigger_core::{OpCode, Region, Reply, Time, Wire};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{Ordering, compiler_fence};

/// Words of an entry: four cache lines.
pub(crate) const WORDS: usize = 32;
/// The most bytes of a reply that fit.
pub(crate) const REPLY_BYTES: usize = (WORDS - REPLY) * 8;

const ID: usize = 0;
const HEAD: usize = 1;
const BEGAN: usize = 2;
const ANSWERED: usize = 3;
const INTENT: usize = 4;
const BEFORE: usize = 5;
const CHECK: usize = 8;
const SIZE: usize = 9;
const REPLY_CHECK: usize = 10;
const REPLY: usize = 11;

/// In the word of the length: the reply did not fit and is not there.
const TOO_LARGE: u64 = 1 << 32;
/// In the word of the length: the reply had a host file with it, which cannot be noted.
const BACKED: u64 = 1 << 33;
/// In the byte of the state: may take as long as it likes.
const PATIENT: u64 = 0x80;

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It is being worked on and has changed nothing yet, or never will.
    Running = 1,
    /// It may have been done.
    Intent = 2,
    /// It was done, and this is what was answered.
    Replied = 3,
}

/// What is known about the first attempt at a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Intent {
    /// When it began, in nanoseconds since 1970.
    pub(crate) time: i64,
    /// What there was before.
    pub(crate) before: Before,
}

/// An entry as it was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) op: OpCode,
    pub(crate) state: State,
    /// How many processes may have died of it.
    pub(crate) deaths: u8,
    /// Whether waiting is what it is about.
    pub(crate) patient: bool,
    /// What was noted before it was asked below first.
    pub(crate) intent: Intent,
    /// The reply, when the state says there is one and it did fit.
    pub(crate) reply: Option<Reply>,
    /// Whether a host file came with the reply.
    pub(crate) backed: bool,
}

/// Nanoseconds since 1970; far beyond the years 1677 to 2262 the nearest of their ends.
pub(crate) fn nanos(time: Time) -> i64 {
    time.secs.saturating_mul(1_000_000_000).saturating_add(time.nanos.into())
}

/// One step of the checksum: that of rustc's FxHasher.
pub(crate) fn mix(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
}

fn checksum(words: impl IntoIterator<Item = u64>) -> u64 {
    // Not zero at the start, so that a region of zeroes holds no valid entry.
    words.into_iter().fold(0x6f75_7472_6967_6765, mix)
}

/// The place of an entry, and what its head says beside the state.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'r> {
    region: &'r dyn Region,
    at: usize,
    id: u64,
    rest: u64,
}

impl<'r> Slot<'r> {
    /// The entry that starts at word `at`, for the request `id`.
    pub(crate) fn new(region: &'r dyn Region, at: usize, id: u64, op: OpCode, patient: bool) -> Self {
        let patient = if patient { PATIENT } else { 0 };
        Slot { region, at, id, rest: patient | u64::from(op as u16) << 16 | id << 32 }
    }

    fn get(&self, word: usize) -> u64 {
        self.region.word(self.at + word).load(Relaxed)
    }

    fn put(&self, word: usize, value: u64) {
        self.region.word(self.at + word).store(value, Relaxed);
    }

    /// Switches to `state`, after everything stored so far and before whatever is done next. A kill cuts the stores of
    /// the program's order, so it is the compiler alone that must not move them.
    fn switch(&self, state: State) {
        compiler_fence(Ordering::SeqCst);
        self.region.word(self.at + HEAD).store(self.rest | state as u64, Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// Notes that the request is being worked on.
    pub(crate) fn begin(&self, now: i64) {
        self.put(ID, self.id);
        self.put(BEGAN, now as u64);
        self.switch(State::Running);
    }

    /// Notes that the change may have been made from now on.
    pub(crate) fn intend(&self, intent: Intent) {
        let words = intent.before.encode();
        for (index, word) in words.into_iter().enumerate() {
            self.put(BEFORE + index, word);
        }
        self.put(INTENT, intent.time as u64);
        self.put(CHECK, intent_checksum(self.id, self.rest >> 16, intent.time as u64, words));
        self.switch(State::Intent);
    }

    /// Notes the reply. One that does not fit is noted as such, an error without its reason first.
    pub(crate) fn reply(&self, reply: &Reply) {
        let mut bytes = Vec::with_capacity(REPLY_BYTES + 8);
        reply.put(&mut bytes);
        if let (true, Reply::Error(error)) = (bytes.len() > REPLY_BYTES, reply) {
            bytes.clear();
            Reply::Error(error.errno.into()).put(&mut bytes);
        }
        let mut size = bytes.len() as u64 | if is_backed(reply) { BACKED } else { 0 };
        if bytes.len() > REPLY_BYTES {
            bytes.clear();
            size = TOO_LARGE;
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let mut sum = checksum([self.id, size]);
        for (index, chunk) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*chunk);
            self.put(REPLY + index, word);
            sum = mix(sum, word);
        }
        self.put(SIZE, size);
        self.put(REPLY_CHECK, sum);
        self.switch(State::Replied);
    }

    /// Notes that the change is made once more, with the intent it had.
    pub(crate) fn repeat(&self) {
        self.switch(State::Intent);
    }

    /// Counts an answer.
    pub(crate) fn count(&self) {
        // A slot has one request at a time, so nobody else stores here.
        self.put(ANSWERED, self.get(ANSWERED).wrapping_add(1));
    }

    /// Empties the entry.
    pub(crate) fn clear(&self) {
        clear(self.region, self.at);
    }

    /// Takes over what is known about the request from the entry at word `from`; its age counts from `now`.
    pub(crate) fn resume(self, from: usize, now: i64) -> Self {
        let (state, rest) = split_head(self.region.word(from + HEAD).load(Relaxed));
        let slot = Slot { rest, ..self };
        copy(self.region, from, self.at, state | rest);
        slot.put(BEGAN, now as u64);
        slot
    }
}

fn intent_checksum(id: u64, op: u64, time: u64, before: [u64; 3]) -> u64 {
    let [kind, one, two] = before;
    checksum([id, op & 0xffff, time, kind, one, two])
}

fn is_backed(reply: &Reply) -> bool {
    match reply {
        Reply::Opened(opened) | Reply::Created(Created { opened, .. }) => opened.backing.fd().is_some(),
        _ => false,
    }
}

/// A head without its state, and the state.
fn split_head(head: u64) -> (u64, u64) {
    (head & 0x7f, head & !0x7f)
}

/// Empties the entry at word `at`.
pub(crate) fn clear(region: &dyn Region, at: usize) {
    region.word(at + HEAD).store(0, Release);
    compiler_fence(Ordering::SeqCst);
}

/// Copies the entry at word `from` to word `to` with another head; the count of answers stays.
fn copy(region: &dyn Region, from: usize, to: usize, head: u64) {
    clear(region, to);
    for word in (0..WORDS).filter(|&word| word != HEAD && word != ANSWERED) {
        region.word(to + word).store(region.word(from + word).load(Relaxed), Relaxed);
    }
    compiler_fence(Ordering::SeqCst);
    region.word(to + HEAD).store(head, Release);
    compiler_fence(Ordering::SeqCst);
}

/// Copies the entry at word `from` to word `to`, with `more` deaths.
pub(crate) fn carry(region: &dyn Region, from: usize, to: usize, more: u8) {
    let head = region.word(from + HEAD).load(Relaxed);
    let deaths = (head >> 8) as u8;
    let head = head & !0xff00 | u64::from(deaths.saturating_add(more)) << 8;
    copy(region, from, to, head);
}

/// How many requests were answered in the slot whose entry starts at word `at`.
pub(crate) fn answered(region: &dyn Region, at: usize) -> u64 {
    region.word(at + ANSWERED).load(Relaxed)
}

/// The part of an entry that needs no checksum, which another process may read while it changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Glance {
    pub(crate) id: u64,
    pub(crate) op: OpCode,
    pub(crate) state: State,
    pub(crate) patient: bool,
    /// When work on it began, in nanoseconds since 1970.
    pub(crate) began: i64,
}

/// What the entry at word `at` is about; `None` when it is empty or being replaced.
pub(crate) fn glance(region: &dyn Region, at: usize) -> Option<Glance> {
    let get = |word| region.word(at + word).load(Ordering::Acquire);
    let head = get(HEAD);
    let state = match split_head(head).0 {
        1 => State::Running,
        2 => State::Intent,
        3 => State::Replied,
        _ => return None,
    };
    let (id, began) = (get(ID), get(BEGAN) as i64);
    if id as u32 != (head >> 32) as u32 || get(HEAD) != head {
        return None;
    }
    let number = (head >> 16) as u16;
    let op = OpCode::ALL.iter().copied().find(|&op| op as u16 == number)?;
    Some(Glance { id, op, state, patient: head & PATIENT != 0, began })
}

/// The entry at word `at`; `None` when it is empty, incomplete or damaged.
pub(crate) fn read(region: &dyn Region, at: usize) -> Option<Entry> {
    let Glance { id, op, state, patient, .. } = glance(region, at)?;
    let get = |word| region.word(at + word).load(Relaxed);
    let (time, before) = (get(INTENT), [get(BEFORE), get(BEFORE + 1), get(BEFORE + 2)]);
    if state != State::Running && intent_checksum(id, op as u64, time, before) != get(CHECK) {
        return None;
    }
    let intent = Intent { time: time as i64, before: Before::decode(before) };
    let deaths = (get(HEAD) >> 8) as u8;
    let (mut reply, mut backed) = (None, false);
    if state == State::Replied {
        let size = get(SIZE);
        reply = read_reply(region, at, id, size)?;
        backed = size & BACKED != 0;
    }
    Some(Entry { id, op, state, deaths, patient, intent, reply, backed })
}

/// The reply: `Some(None)` when it did not fit, `None` when it is damaged.
fn read_reply(region: &dyn Region, at: usize, id: u64, size: u64) -> Option<Option<Reply>> {
    let get = |word| region.word(at + word).load(Relaxed);
    let len = (size as u32) as usize;
    if len > REPLY_BYTES {
        return None;
    }
    let mut sum = checksum([id, size]);
    let mut bytes = Vec::with_capacity(REPLY_BYTES);
    for index in 0..len.div_ceil(8) {
        let word = get(REPLY + index);
        sum = mix(sum, word);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    if sum != get(REPLY_CHECK) {
        return None;
    }
    if size & TOO_LARGE != 0 {
        return Some(None);
    }
    bytes.truncate(len);
    Reply::get(&mut Bytes::from(bytes)).ok().map(Some)
}
