// SPDX-License-Identifier: MIT OR Apache-2.0
//! One entry of the journal: what is known about one request.
//!
//! The head is stored last whenever the state changes, and everything it vouches for before. So a process that is killed
//! between two stores leaves the former state, or, while another request takes the slot, an entry whose ids differ:
//! that reads as none, which is right as the former reply was delivered and the new request not begun.

use crate::before::Before;
use bytes::Bytes;
use outrigger_core::reply::Created;
use outrigger_core::survive::{Stored, Word};
use outrigger_core::{OpCode, Reply, Time, Wire};

/// The most bytes of a reply that fit.
pub(crate) const REPLY_BYTES: usize = REPLY_WORDS * 8;
const REPLY_WORDS: usize = 21;

outrigger_core::fields! {
    /// The words of an entry: four cache lines.
    pub(crate) struct Words {
        /// The request.
        id: u64,
        /// State and flags (8 bits), deaths (8), operation (16), low half of the request id (32).
        head: u64,
        /// When it began, in nanoseconds since 1970 by [`Clock::coarse_wall`](outrigger_core::Clock::coarse_wall).
        began: u64,
        /// How many requests were answered in this slot.
        answered: u64,
        /// When the change was first intended, likewise. This and what follows is valid from the intent on.
        intent: u64,
        /// What there was before ([`Before`]).
        before: [u64; 3],
        /// Of the id, the operation and the intent.
        check: u64,
        /// Length of the reply in bytes and flags, once there is one.
        size: u64,
        /// Of the id, the size and the reply.
        reply_check: u64,
        /// The reply, encoded ([`Wire`]).
        reply: [u64; REPLY_WORDS],
    }
}

const _: () = assert!(<Words<'_>>::WORDS == 32, "four cache lines");

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
    /// Whether it waits as long as it takes.
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
    words: Words<'r>,
    id: u64,
    rest: u64,
}

impl<'r> Slot<'r> {
    /// The entry in `words`, for the request `id`.
    pub(crate) fn new(words: Words<'r>, id: u64, op: OpCode, patient: bool) -> Self {
        let patient = if patient { PATIENT } else { 0 };
        Slot { words, id, rest: patient | u64::from(op as u16) << 16 | id << 32 }
    }

    /// Switches to `state`, after everything stored so far and before whatever is done next.
    fn switch(&self, state: State) {
        self.words.head().set(self.rest | state as u64);
    }

    /// Notes that the request is being worked on.
    pub(crate) fn begin(&self, now: i64) {
        self.words.id().prepare(self.id);
        self.words.began().prepare(now as u64);
        self.switch(State::Running);
    }

    /// Notes that the change may have been made from now on.
    pub(crate) fn intend(&self, intent: Intent) {
        let before = intent.before.encode();
        self.words.before().iter().zip(before).for_each(|(word, value)| word.prepare(value));
        self.words.intent().prepare(intent.time as u64);
        let check = intent_checksum(self.id, self.rest >> 16, intent.time as u64, before);
        self.words.check().prepare(check);
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
        for (word, chunk) in self.words.reply().iter().zip(bytes.as_chunks::<8>().0) {
            let value = u64::from_le_bytes(*chunk);
            word.prepare(value);
            sum = mix(sum, value);
        }
        self.words.size().prepare(size);
        self.words.reply_check().prepare(sum);
        self.switch(State::Replied);
    }

    /// Notes that the change is made once more, with the intent it had.
    pub(crate) fn repeat(&self) {
        self.switch(State::Intent);
    }

    /// Counts an answer.
    pub(crate) fn count(&self) {
        // A slot has one request at a time, so there is no other store here.
        let answered = self.words.answered();
        answered.prepare(answered.get().wrapping_add(1));
    }

    /// Empties the entry.
    pub(crate) fn clear(&self) {
        self.words.clear();
    }

    /// Takes over what is known about the request from the entry `from`; its age counts from `now`.
    pub(crate) fn resume(self, from: Words<'_>, now: i64) -> Self {
        let (state, rest) = split_head(from.head().get());
        self.words.copy(from, state | rest);
        self.words.began().set(now as u64);
        Slot { rest, ..self }
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

impl<'r> Words<'r> {
    /// All but the head and the count of answers.
    fn content(self) -> impl Iterator<Item = Word<'r>> {
        let about = [self.id(), self.began(), self.intent(), self.check(), self.size(), self.reply_check()];
        about.into_iter().chain(self.before().iter()).chain(self.reply().iter())
    }

    /// Empties the entry.
    pub(crate) fn clear(self) {
        self.head().set(0);
    }

    /// Becomes a copy of `from` with another head; the count of answers stays.
    fn copy(self, from: Words<'_>, head: u64) {
        self.clear();
        let (to, from) = (self.content(), from.content());
        to.zip(from).for_each(|(to, from)| to.prepare(from.get()));
        self.head().set(head);
    }

    /// Becomes a copy of `from`, with `more` deaths.
    pub(crate) fn carry(self, from: Words<'_>, more: u8) {
        let head = from.head().get();
        let deaths = (head >> 8) as u8;
        self.copy(from, head & !0xff00 | u64::from(deaths.saturating_add(more)) << 8);
    }

    /// What the entry is about; `None` when it is empty or being replaced.
    pub(crate) fn glance(self) -> Option<Glance> {
        let head = self.head().get();
        let state = match split_head(head).0 {
            1 => State::Running,
            2 => State::Intent,
            3 => State::Replied,
            _ => return None,
        };
        let (id, began) = (self.id().get(), self.began().get() as i64);
        if id as u32 != (head >> 32) as u32 || self.head().get() != head {
            return None;
        }
        let number = (head >> 16) as u16;
        let op = OpCode::ALL.iter().copied().find(|&op| op as u16 == number)?;
        Some(Glance { id, op, state, patient: head & PATIENT != 0, began })
    }

    /// The entry; `None` when it is empty, incomplete or damaged.
    pub(crate) fn read(self) -> Option<Entry> {
        let Glance { id, op, state, patient, .. } = self.glance()?;
        let (time, before) = (self.intent().get(), self.before().read());
        if state != State::Running && intent_checksum(id, op as u64, time, before) != self.check().get() {
            return None;
        }
        let intent = Intent { time: time as i64, before: Before::decode(before) };
        let deaths = (self.head().get() >> 8) as u8;
        let (mut reply, mut backed) = (None, false);
        if state == State::Replied {
            let size = self.size().get();
            reply = self.read_reply(id, size)?;
            backed = size & BACKED != 0;
        }
        Some(Entry { id, op, state, deaths, patient, intent, reply, backed })
    }

    /// The reply: `Some(None)` when it did not fit, `None` when it is damaged.
    fn read_reply(self, id: u64, size: u64) -> Option<Option<Reply>> {
        let len = (size as u32) as usize;
        if len > REPLY_BYTES {
            return None;
        }
        let mut sum = checksum([id, size]);
        let mut bytes = Vec::with_capacity(REPLY_BYTES);
        for word in self.reply().iter().take(len.div_ceil(8)) {
            let word = word.get();
            sum = mix(sum, word);
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        if sum != self.reply_check().get() {
            return None;
        }
        if size & TOO_LARGE != 0 {
            return Some(None);
        }
        bytes.truncate(len);
        Reply::get(&mut Bytes::from(bytes)).ok().map(Some)
    }
}
