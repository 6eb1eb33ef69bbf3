// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes to one file, settings of its attributes, and its being made, that were answered and have not been done yet.
//!
//! They set out in the order in which they came, several at once; a write that overlaps another waits until that has been
//! made, and so does what is set with regard to any write, unless the tree below keeps the order. All wait for the file. While some are under way, small writes that
//! follow each other become one, and so do settings.

use crate::log;
use crate::moment::Moment;
use crate::predicted::{self, PredictedAttrs};
use crate::record::Sequence;
use bytes::Bytes;
use outrigger_core::ops::Lookup;
use outrigger_core::{Attr, Credentials, Cx, Error, Handle, SetAttrs, Time};
use std::collections::VecDeque;
use std::sync::Arc;

/// So many are under way at once.
const UNDER_WAY: usize = 16;

/// What a write costs beside its bytes.
const COST: usize = 256;

/// The number of a write, in the order in which they came.
pub(crate) type Number = u64;

/// By which handle and for whom something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriteContext {
    pub(crate) handle: Handle,
    pub(crate) cred: Credentials,
    pub(crate) pid: u32,
    pub(crate) cached: bool,
    pub(crate) kill_setid: bool,
}

impl WriteContext {
    /// By a handle, for the user of a request.
    pub(crate) fn new(cx: &Cx, handle: Handle) -> Self {
        let (cred, pid) = (cx.cred.clone(), cx.origin.pid);
        WriteContext { handle, cred, pid, cached: false, kill_setid: false }
    }
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Job {
    /// Bytes are to be written.
    Write(Vec<Bytes>),
    /// Permissions and times are to be set.
    Set(Box<SetAttrs>),
    /// The file itself is to be made, under this name.
    Create(Box<Lookup>),
}

/// One change that was answered.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) context: WriteContext,
    pub(crate) job: Job,
    /// Where and how much is written.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Memory in bytes.
    pub(crate) weight: usize,
    /// Where it is in the log.
    pub(crate) logged: Vec<log::Place>,
}

impl Piece {
    pub(crate) fn new(context: WriteContext, offset: u64, job: Job) -> Self {
        let len = if let Job::Write(data) = &job { data.iter().map(Bytes::len).sum() } else { 0 };
        let (weight, len) = (Piece::weight_of(len), len as u64);
        Piece { context, job, offset, len, weight, logged: Vec::new() }
    }

    /// Memory that a write of `len` bytes takes.
    pub(crate) fn weight_of(len: usize) -> usize {
        len + COST
    }

    /// What is left to write when the first `done` bytes have been.
    pub(crate) fn rest(&self, done: u64) -> Vec<Bytes> {
        let Job::Write(data) = &self.job else { return Vec::new() };
        let mut skip = done as usize;
        let mut rest = Vec::with_capacity(data.len());
        for bytes in data {
            let from = skip.min(bytes.len());
            skip -= from;
            if from < bytes.len() {
                rest.push(bytes.slice(from..));
            }
        }
        rest
    }

    fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Becomes one with the next one, of at most `most` bytes, if they fit; else returns it.
    fn join(&mut self, next: Piece, most: u64) -> Option<Piece> {
        let fits = self.end() == next.offset && self.len + next.len <= most;
        match (&mut self.job, &next.job) {
            _ if self.context != next.context => return Some(next),
            (Job::Set(set), Job::Set(attrs)) => predicted::put(set, attrs),
            (Job::Write(data), Job::Write(more)) if fits => data.extend_from_slice(more),
            _ => return Some(next),
        }
        self.len += next.len;
        self.weight += next.weight;
        self.logged.extend(next.logged);
        None
    }

    /// Whether `next` has to wait for it, where order is kept by the tree below or not.
    fn is_in_the_way(&self, next: &Piece, in_order: bool) -> bool {
        match (&self.job, &next.job) {
            (Job::Create(_), _) => true,
            (Job::Write(_), Job::Write(_)) => self.offset < next.end() && next.offset < self.end(),
            _ => !in_order,
        }
    }
}

/// One that is under way.
#[derive(Debug)]
struct Sent {
    number: Number,
    piece: Arc<Piece>,
    /// The tree below knows of it.
    begun: bool,
}

/// The writes to one file.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    waiting: VecDeque<(Number, Piece)>,
    under_way: Vec<Sent>,
    last: Number,
    /// Up to this one nothing waits for more to follow.
    expedited: Number,
    /// What those do to attributes that came since there were none, or since the attributes before were known.
    predicted: PredictedAttrs,
    /// The last change that one of them was.
    pub(crate) changed: Sequence,
    /// The last change when there came to be none.
    done: Sequence,
    failures: Failures,
}

/// What went wrong: reported once for each open file, or else to the next one (as `errseq_t` in Linux).
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    last: Option<Error>,
    reported: bool,
}

/// Up to which failure the user of an open file has the errors.
#[derive(Debug)]
pub(crate) struct ErrorsSeen {
    synced: u64,
    closed: u64,
}

impl Delayed {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// One comes at `now`: what attributes the file had before, and until when that is fresh, if it is.
    pub(crate) fn begin(&mut self, now: Moment, base: Option<(Attr, Moment)>) {
        if self.is_empty() && !self.predicted.has_base(now) {
            self.predicted.begin(base);
        }
    }

    /// One with a number above all before it came at a time of day; those that follow each other become one of at most
    /// `most` bytes, which keeps the number of the first.
    pub(crate) fn add(&mut self, number: Number, piece: Piece, came: Time, most: u64) {
        match &piece.job {
            Job::Write(_) => self.predicted.written(piece.len, piece.end(), came),
            Job::Set(attrs) => self.predicted.set(attrs),
            Job::Create(_) => {}
        }
        let piece = match self.waiting.back_mut() {
            Some((_, back)) => match back.join(piece, most) {
                None => return,
                Some(piece) => piece,
            },
            None => piece,
        };
        self.last = number;
        self.waiting.push_back((number, piece));
    }

    /// The next one that can set out now, where the tree below keeps their order or does not. The last one waits for others
    /// to follow while any is under way, up to `most` bytes.
    pub(crate) fn next(&mut self, most: u64, in_order: bool) -> Option<(Number, Arc<Piece>)> {
        let (number, front) = self.waiting.front()?;
        let waits = self.waiting.len() == 1 && front.len < most && *number > self.expedited;
        if self.under_way.len() >= UNDER_WAY
            || (waits && !self.under_way.is_empty())
            || self.under_way.iter().any(|sent| sent.piece.is_in_the_way(front, in_order))
        {
            return None;
        }
        let (number, piece) = self.waiting.pop_front()?;
        let piece = Arc::new(piece);
        self.under_way.push(Sent { number, piece: Arc::clone(&piece), begun: false });
        Some((number, piece))
    }

    /// The tree below knows of one.
    pub(crate) fn begins(&mut self, number: Number) {
        self.under_way.iter_mut().filter(|sent| sent.number == number).for_each(|sent| sent.begun = true);
    }

    /// Whether the tree below knows of all that came before `number`.
    pub(crate) fn have_begun(&self, number: Number) -> bool {
        self.under_way.iter().all(|sent| sent.number >= number || sent.begun)
    }

    /// One has been made, or has failed, when `last` was the last change.
    pub(crate) fn ended(&mut self, number: Number, failed: Option<Error>, last: Sequence) {
        self.under_way.retain(|sent| sent.number != number);
        if let Some(error) = failed {
            self.failed(error);
            self.predicted.forget_base();
        }
        if self.is_empty() {
            self.done = last;
        }
    }

    /// One has failed, here or in a former process.
    pub(crate) fn failed(&mut self, error: Error) {
        self.failures.count += 1;
        (self.failures.last, self.failures.reported) = (Some(error), false);
    }

    /// All that came so far are to be done soon; returns the number of the last one, if any has not been done.
    pub(crate) fn expedite(&mut self) -> Option<Number> {
        self.expedited = self.last;
        (!self.is_empty()).then_some(self.last)
    }

    /// All up to `number` are to be done soon.
    pub(crate) fn expedite_to(&mut self, number: Number) {
        self.expedited = self.expedited.max(number);
    }

    /// Whether the file is still to be made.
    pub(crate) fn is_being_created(&self) -> bool {
        let sent = self.under_way.iter().map(|sent| &*sent.piece);
        self.waiting
            .iter()
            .map(|(_, piece)| piece)
            .chain(sent)
            .any(|piece| matches!(piece.job, Job::Create(_)))
    }

    /// It was made, and has attributes that would be fresh until then: better ones than were predicted.
    pub(crate) fn was_created(&mut self, attr: &Attr, until: Moment) {
        self.predicted.know_base(attr, until);
    }

    /// How many bytes of those up to `number` have not been made.
    pub(crate) fn left(&self, number: Number) -> u64 {
        let waiting = self.waiting.iter().take_while(|&&(other, _)| other <= number);
        let under_way = self.under_way.iter().filter(|sent| sent.number <= number);
        let waiting: u64 = waiting.map(|(_, piece)| piece.len).sum();
        waiting + under_way.map(|sent| sent.piece.len).sum::<u64>()
    }

    /// Whether all up to `number` have been made.
    pub(crate) fn made(&self, number: Number) -> bool {
        let waiting = self.waiting.front().is_some_and(|&(first, _)| first <= number);
        !waiting && self.under_way.iter().all(|sent| sent.number > number)
    }

    /// Whether nothing came after `number`.
    pub(crate) fn is_last(&self, number: Number) -> bool {
        self.last == number
    }

    /// Attributes that were asked for when `asked` was the last change may tell of the time before these writes; answers
    /// whether that is so, and they were corrected.
    pub(crate) fn correct(&self, attr: &mut Attr, asked: Sequence) -> bool {
        let early = !self.is_empty() || asked < self.done;
        if early {
            self.predicted.correct(attr);
        }
        early
    }

    /// The attributes the file will have, if that is known at `now`.
    pub(crate) fn predicted(&self, now: Moment) -> Option<Attr> {
        self.predicted.attr(now)
    }

    /// What attributes it will have can be asked for, or is not what was cached.
    pub(crate) fn forget_predicted(&mut self) {
        self.predicted.forget_base();
    }

    /// What was reported before the file is opened now.
    pub(crate) fn errors_seen(&self) -> ErrorsSeen {
        let count = self.failures.count - u64::from(self.failures.last.is_some() && !self.failures.reported);
        ErrorsSeen { synced: count, closed: count }
    }

    /// What went wrong since the last fsync(2) of an open file, which reports it now.
    pub(crate) fn fsync_error(&mut self, seen: &mut ErrorsSeen) -> Option<Error> {
        if std::mem::replace(&mut seen.synced, self.failures.count) == self.failures.count {
            return None;
        }
        self.failures.reported = true;
        self.failures.last.clone()
    }

    /// The same, as close(2) of one of its descriptors says it. That may be a copy in a process that was just started (fork(2)
    /// and a descriptor closed by execve(2)), which asks for no answer: fsync(2) of another one says it again.
    pub(crate) fn close_error(&self, seen: &mut ErrorsSeen) -> Option<Error> {
        if seen.synced == self.failures.count {
            return None;
        }
        seen.closed = self.failures.count;
        self.failures.last.clone()
    }

    /// The last descriptor has been closed; returns whether that reported the error.
    pub(crate) fn last_close(&mut self, seen: &mut ErrorsSeen) -> bool {
        seen.closed == self.failures.count && self.fsync_error(seen).is_some()
    }

    /// What went wrong and was not reported.
    pub(crate) fn unreported(&self) -> Option<Error> {
        self.failures.last.clone().filter(|_| !self.failures.reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    const MOST: u64 = 100;

    fn context(handle: u64) -> WriteContext {
        let (handle, cred) = (Handle(handle), Credentials::ROOT);
        WriteContext { handle, cred, pid: 1, cached: false, kill_setid: false }
    }

    fn written(handle: u64, offset: u64, len: usize) -> Piece {
        Piece::new(context(handle), offset, Job::Write(vec![vec![1; len].into()]))
    }

    fn add(delayed: &mut Delayed, offset: u64, len: usize) {
        let number = delayed.last + 1;
        delayed.add(number, written(1, offset, len), Time::new(9, 0), MOST);
    }

    fn sent(delayed: &mut Delayed) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| delayed.next(MOST, false)).map(|(_, piece)| (piece.offset, piece.len)).collect()
    }

    #[test]
    fn small_ones_that_follow_each_other_become_one_while_another_is_under_way() {
        let mut delayed = Delayed::default();
        add(&mut delayed, 0, 10);
        assert_eq!(sent(&mut delayed), [(0, 10)]);
        for at in 1..=12 {
            add(&mut delayed, at * 10, 10);
        }
        assert_eq!(sent(&mut delayed), [(10, 100)], "as large as may be; the rest waits");
        delayed.ended(1, None, 1);
        assert_eq!(sent(&mut delayed), []);
        delayed.ended(2, None, 2);
        assert_eq!(sent(&mut delayed), [(110, 20)]);
        delayed.ended(3, None, 3);
        assert!(delayed.is_empty());
        assert_eq!(delayed.next(MOST, false).map(|_| ()), None);
    }

    #[test]
    fn who_waits_for_them_need_not_wait_for_others_to_follow() {
        let mut delayed = Delayed::default();
        add(&mut delayed, 0, 10);
        sent(&mut delayed);
        add(&mut delayed, 50, 10);
        assert_eq!(sent(&mut delayed), []);
        let number = delayed.expedite().expect("some wait");
        assert_eq!(sent(&mut delayed), [(50, 10)]);
        assert!(!delayed.made(number));
        add(&mut delayed, 90, 10);
        delayed.ended(2, None, 1);
        assert!(!delayed.made(number));
        delayed.ended(1, None, 1);
        assert!(delayed.made(number) && !delayed.is_empty());
    }

    #[test]
    fn what_overlaps_sets_out_when_the_other_has_been_made() {
        let mut delayed = Delayed::default();
        for (offset, len) in [(0, 60), (200, 60), (30, 60), (400, 60)] {
            add(&mut delayed, offset, len);
        }
        delayed.expedite();
        assert_eq!(sent(&mut delayed), [(0, 60), (200, 60)]);
        delayed.ended(2, None, 1);
        assert_eq!(sent(&mut delayed), []);
        delayed.ended(1, None, 1);
        assert_eq!(sent(&mut delayed), [(30, 60), (400, 60)]);
    }

    #[test]
    fn others_ways_of_writing_are_kept_apart() {
        let mut delayed = Delayed::default();
        add(&mut delayed, 0, 10);
        delayed.add(3, written(2, 10, 10), Time::new(9, 0), MOST);
        delayed.expedite();
        assert_eq!(sent(&mut delayed), [(0, 10), (10, 10)]);
    }

    #[test]
    fn a_failure_is_told_to_each_once_and_kept_for_who_comes_later() {
        let mut delayed = Delayed::default();
        let (mut one, mut two) = (delayed.errors_seen(), delayed.errors_seen());
        add(&mut delayed, 0, 10);
        sent(&mut delayed);
        delayed.ended(1, Some(Errno::ENOSPC.into()), 1);
        let mut later = delayed.errors_seen();
        for seen in [&mut one, &mut two, &mut later] {
            assert!(!delayed.last_close(seen), "no program got the error");
            assert_eq!(
                delayed.close_error(seen).map(|error| error.errno),
                Some(Errno::ENOSPC),
                "a copy is closed"
            );
            assert_eq!(delayed.fsync_error(seen).map(|error| error.errno), Some(Errno::ENOSPC));
            assert!(delayed.fsync_error(seen).is_none() && delayed.close_error(seen).is_none());
        }
        let mut last = delayed.errors_seen();
        assert!(
            delayed.fsync_error(&mut last).is_none() && delayed.unreported().is_none(),
            "everybody knows"
        );
    }

    #[test]
    fn attributes_from_before_a_write_are_corrected() {
        let mut delayed = Delayed::default();
        let size = |delayed: &Delayed, size, asked| {
            let mut attr = Attr { size, mtime: Time::new(5, 0), ..Attr::default() };
            let seconds = if delayed.correct(&mut attr, asked) { 9 } else { 5 };
            assert_eq!(attr.mtime.secs, seconds);
            attr.size
        };
        add(&mut delayed, 10, 10);
        sent(&mut delayed);
        assert_eq!((size(&delayed, 5, 0), size(&delayed, 50, 0)), (20, 50));
        delayed.ended(1, None, 7);
        assert_eq!((size(&delayed, 5, 6), size(&delayed, 5, 7)), (20, 5));
    }

    #[test]
    fn a_write_that_was_made_in_part_goes_on_behind_it() {
        let data = [&b"abc"[..], b"def"].map(Bytes::from_static).to_vec();
        let piece = Piece::new(context(1), 0, Job::Write(data));
        for (done, rest) in [(0, "abcdef"), (2, "cdef"), (3, "def"), (5, "f"), (6, "")] {
            assert_eq!(piece.rest(done).concat(), rest.as_bytes());
        }
    }
}
