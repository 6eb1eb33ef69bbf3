// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file must looks like that is ours: by this an open file is known again after its connection was lost.
//!
//! Protocols without inode numbers have nothing but size and time of change, and servers give the inode number of a removed file to the next
//! one. So what was seen of a file must be so still,
//! but for what was done here since: a change of ours moves the size, or may have, as long as the server has not said so, and makes the
//! time later. What was seen counts if it was asked for when no change of ours was under way; what differs then is the doing of
//! another client, and perhaps another file.

use crate::open_files::{OpenNotes, OwnWords};
use outrigger_core::{Handle, Time, lock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// So much the clock of a server may be slow against the one by which a time was set that is seen there, in seconds.
const SKEW: i64 = 600;
/// What was changed this recently may be changed again within the same second, in seconds.
const YOUNG: i64 = 5;

const SECOND: u64 = 1_000_000_000;
/// In the note of the time of change: that is known, and it may be a later one.
const TIMED: u64 = 1 << 63;
const LATER: u64 = 1 << 62;

/// Orders changes and questions of this process.
static ORDER: AtomicU64 = AtomicU64::new(1);

/// A moment in the order of changes: what is asked for after it shows all that had ended before.
pub fn moment() -> u64 {
    ORDER.load(Ordering::Acquire)
}

fn next() -> u64 {
    ORDER.fetch_add(1, Ordering::AcqRel) + 1
}

/// What is known of a file, shared by the open files of it that were opened while it looked like that.
#[derive(Default)]
pub struct Known(Mutex<State>);

#[derive(Default)]
struct State {
    facts: Facts,
    /// How many changes of ours are on their way, and how many of them set the size.
    under_way: usize,
    resizing: usize,
    /// When the last change of ours began or ended, and when the last one began that sets the size.
    last: u64,
    resized: u64,
    /// What became of a change is not known.
    in_doubt: bool,
    /// Open files in whose notes this is kept.
    kept: Vec<(Arc<OpenNotes>, Handle)>,
}

/// How a server says that a file looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looks {
    /// Its size.
    pub size: Option<u64>,
    /// When it was changed: see [`instant`].
    pub changed: Option<u64>,
}

/// A time of change as it is compared: nanoseconds since the epoch, for the next hundred years.
pub fn instant(time: Time) -> u64 {
    let secs = u64::try_from(time.secs).unwrap_or_default();
    secs.saturating_mul(SECOND).saturating_add(time.nanos.into()).min(LATER - 1)
}

/// What a file looks like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// The least and the greatest size it may have.
    pub size: Option<(u64, u64)>,
    /// When it was changed: see [`instant`].
    pub changed: Option<u64>,
    /// It was changed here since: the time may be a later one.
    pub later: bool,
}

/// A change of a file.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    /// It is written.
    Write {
        /// From here on.
        offset: u64,
        /// So many bytes.
        len: u64,
    },
    /// It is written at its end.
    Append {
        /// So many bytes.
        len: u64,
    },
    /// It is made so long.
    Size(u64),
    /// Its time of change is set: see [`instant`].
    Time(u64),
    /// A name or an attribute, which leave its content alone and may make its time later.
    Attrs,
}

/// A change that was begun. Its outcome is in doubt when this is dropped.
pub struct UnderWay {
    known: Arc<Known>,
    change: Change,
    began: u64,
    /// Nothing was setting the size when it began.
    calm: bool,
    is_done: bool,
}

impl Facts {
    fn of(looks: Looks) -> Self {
        Facts { size: looks.size.map(|size| (size, size)), changed: looks.changed, later: false }
    }

    /// Notes it with an open file, whose first word is another one's.
    pub fn note(&self, [_, low, high, time]: &mut OwnWords) {
        (*low, *high) = self.size.map_or((0, 0), |(low, high)| (low.saturating_add(1), high));
        *time = self.changed.map_or(0, |changed| TIMED | changed) | if self.later { LATER } else { 0 };
    }

    /// What was noted.
    pub fn noted(&[_, low, high, time]: &OwnWords) -> Self {
        Facts {
            size: low.checked_sub(1).map(|low| (low, high)),
            changed: (time & TIMED != 0).then_some(time & !(TIMED | LATER)),
            later: time & LATER != 0,
        }
    }

    /// Whether a file that looks like this may be this one; `None` where nothing is known.
    fn fit(&self, looks: Looks) -> Option<bool> {
        let (low, high) = self.size?;
        let fits = looks.size.is_some_and(|size| (low..=high).contains(&size));
        let times = self.changed.zip(looks.changed);
        Some(fits && times.is_none_or(|(then, now)| if self.later { now >= then } else { now == then }))
    }
}

impl State {
    fn keep(&self) {
        self.kept.iter().for_each(|(notes, handle)| notes.change(*handle, |own| self.facts.note(own)));
    }
}

impl Known {
    /// Of a file of which this is known.
    pub fn new(facts: Facts) -> Arc<Self> {
        Arc::new(Known(Mutex::new(State { facts, ..State::default() })))
    }

    /// Of a file that was seen to be like that.
    pub fn of(looks: Looks) -> Arc<Self> {
        Known::new(Facts::of(looks))
    }

    /// What is known.
    pub fn facts(&self) -> Facts {
        lock(&self.0).facts
    }

    /// Whether anything is.
    pub fn is_anything(&self) -> bool {
        self.facts().size.is_some()
    }

    /// Has it noted for the next process, with an open file.
    pub fn keep_with(&self, notes: &Arc<OpenNotes>, handle: Handle) {
        let mut state = lock(&self.0);
        state.kept.push((Arc::clone(notes), handle));
        notes.change(handle, |own| state.facts.note(own));
    }

    /// That file is closed, or known by something else.
    pub fn leave(&self, handle: Handle) {
        lock(&self.0).kept.retain(|(_, other)| *other != handle);
    }

    /// Whether a file that looks like this may be this one; `None` where nothing is known.
    pub fn fits(&self, looks: Looks) -> Option<bool> {
        lock(&self.0).facts.fit(looks)
    }

    /// A change is about to be asked for, at this time of day.
    pub fn begin(self: &Arc<Self>, change: Change, now: Time) -> UnderWay {
        let mut state = lock(&self.0);
        let (began, calm) = (next(), state.resizing == 0);
        state.under_way += 1;
        state.last = began;
        let earliest = match change {
            Change::Time(time) => time,
            // A server whose clock is slow goes back from a time that was set by ours.
            _ => instant(Time::new(now.secs - SKEW, 0)),
        };
        state.facts.later = true;
        state.facts.changed = state.facts.changed.map(|changed| changed.min(earliest));
        if let Some((low, high)) = state.facts.size {
            state.facts.size = Some(match change {
                Change::Write { offset, len } => (low, high.max(offset.saturating_add(len))),
                Change::Append { len } => (low, high.saturating_add(len)),
                Change::Size(size) => (low.min(size), high.max(size)),
                Change::Time(_) | Change::Attrs => (low, high),
            });
        }
        if let Change::Size(_) = change {
            (state.resizing, state.resized) = (state.resizing + 1, began);
        }
        state.keep();
        drop(state);
        UnderWay { known: Arc::clone(self), change, began, calm, is_done: false }
    }

    /// It was seen to be like that, at this time of day, by a request of this moment; answers whether it is another one now.
    pub fn saw(&self, looks: Looks, asked: u64, now: Time) -> bool {
        let mut state = lock(&self.0);
        if state.under_way > 0 || state.last > asked {
            return false;
        }
        match state.facts.fit(looks) {
            Some(true) => {}
            Some(false) => return true,
            None => return looks.size.is_some(),
        }
        let seen = Facts::of(looks);
        let old = instant(Time::new(now.secs - YOUNG, 0));
        let settled = seen.changed.is_some_and(|changed| changed < old);
        state.facts = match state.in_doubt {
            // What is late may still come.
            true => Facts { changed: seen.changed.max(state.facts.changed), ..state.facts },
            false => Facts { later: state.facts.later && !settled, ..seen },
        };
        state.keep();
        false
    }

    /// The server says of an open handle what it leads to, in the answer to a request of this moment.
    pub fn is(&self, looks: Looks, asked: u64) {
        let mut state = lock(&self.0);
        if state.under_way == 0 && state.last <= asked {
            state.facts = Facts { later: true, ..Facts::of(looks) };
            state.keep();
        }
    }

    /// The same, after the server has put every change on stable storage: its time of change is exact, until the next change here.
    pub fn is_synced(&self, looks: Looks, asked: u64) {
        let mut state = lock(&self.0);
        if state.under_way == 0 && state.last <= asked && !state.in_doubt {
            state.facts = Facts::of(looks);
            state.keep();
        }
    }
}

impl UnderWay {
    /// It was done, to so many bytes if it writes.
    pub fn done(mut self, count: u64) {
        self.is_done = true;
        let mut state = lock(&self.known.0);
        let alone = state.last == self.began && state.under_way == 1;
        // Where the size was set meanwhile, that may have been before or after.
        let in_order = self.calm && state.resized < self.began;
        let size = match (self.change, state.facts.size) {
            (Change::Write { offset, .. }, Some((low, high))) if in_order => {
                Some((low.max(offset.saturating_add(count)), high))
            }
            (Change::Append { .. }, Some((low, high))) if alone => Some((low.saturating_add(count), high)),
            (Change::Size(size), Some((_, high))) if alone && state.in_doubt => Some((size, high)),
            (Change::Size(size), _) if alone => Some((size, size)),
            (_, size) => size,
        };
        state.facts.size = size;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = lock(&self.known.0);
        state.under_way -= 1;
        state.resizing -= usize::from(matches!(self.change, Change::Size(_)));
        state.in_doubt |= !self.is_done;
        state.last = next();
        state.keep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::new(10_000, 0);

    fn looks(size: u64, changed: i64) -> Looks {
        Looks { size: Some(size), changed: Some(instant(Time::new(changed, 0))) }
    }

    /// Which of these sizes fit a file that was 100 bytes long.
    fn sizes(known: &Known) -> Vec<u64> {
        [0, 50, 100, 150, 160, 200]
            .into_iter()
            .filter(|&size| known.fits(looks(size, 9000)) == Some(true))
            .collect()
    }

    #[test]
    fn a_file_is_what_it_was_and_what_we_made_of_it() {
        let write = |offset, len| Change::Write { offset, len };
        for (change, meanwhile, after) in [
            (write(0, 10), vec![100], vec![100]),
            (write(90, 60), vec![100, 150], vec![150]),
            (Change::Append { len: 60 }, vec![100, 150, 160], vec![160]),
            (Change::Size(0), vec![0, 50, 100], vec![0]),
            (Change::Size(200), vec![100, 150, 160, 200], vec![200]),
            (Change::Time(50 * SECOND), vec![100], vec![100]),
            (Change::Attrs, vec![100], vec![100]),
        ] {
            let known = Known::of(looks(100, 5000));
            assert_eq!(known.fits(looks(100, 5001)), Some(false), "nobody here has changed it");
            let len = match change {
                Change::Write { len, .. } | Change::Append { len } => len,
                _ => 0,
            };
            let under_way = known.begin(change, NOW);
            assert_eq!(sizes(&known), meanwhile, "{change:?}");
            under_way.done(len);
            assert_eq!(sizes(&known), after, "{change:?}");
            let lost = Known::of(looks(100, 5000));
            drop(lost.begin(change, NOW));
            assert_eq!(sizes(&lost), meanwhile, "{change:?}, and nobody knows whether it was done");
            let older = looks(after[0], 49);
            assert_eq!(known.fits(older), Some(false), "{change:?}");
        }
    }

    #[test]
    fn of_changes_that_overtake_each_other_any_may_have_been_the_last() {
        let known = Known::of(looks(100, 5000));
        let write = known.begin(Change::Write { offset: 100, len: 50 }, NOW);
        let cut = known.begin(Change::Size(0), NOW);
        cut.done(0);
        write.done(50);
        assert_eq!(sizes(&known), [0, 50, 100, 150]);
    }

    #[test]
    fn what_is_seen_counts_unless_a_change_of_ours_may_have_come_after_it() {
        let known = Known::of(looks(100, 5000));
        let asked = moment();
        known.begin(Change::Write { offset: 0, len: 150 }, NOW).done(150);
        assert!(!known.saw(looks(100, 5000), asked, NOW));
        assert_eq!(sizes(&known), [150]);
        assert!(!known.saw(looks(150, 9000), moment(), NOW));
        assert_eq!(known.fits(looks(150, 9001)), Some(false), "not changed here since");
        assert!(known.saw(looks(151, 9001), moment(), NOW), "somebody else has changed it");
    }

    #[test]
    fn the_time_goes_back_where_the_clock_of_the_server_is_slow() {
        let known = Known::of(looks(100, 12_000));
        known.begin(Change::Write { offset: 0, len: 1 }, NOW).done(1);
        assert_eq!(known.fits(looks(100, 9_990)), Some(true));
        assert_eq!(known.fits(looks(100, 9_000)), Some(false));
    }
}
