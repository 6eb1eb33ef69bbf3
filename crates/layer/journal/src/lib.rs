// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `journal`: every request happens exactly once, also when the process that serves dies in between.
//!
//! It stands above all other layers. For each request in flight it has an entry in a region that outlives the process
//! ([`Keep`]). The successor of a process that died gets the same requests again, under the same ids, and
//!
//! * answers what was answered: the reply is in the entry;
//! * does again what only asks;
//! * does again what may have been done or not, *judged by the state of the tree* (`redo` has the rules): a directory that
//!   exists already is a success when it did not exist before, and in the way when it did;
//! * answers `EIO` to a request that three processes died of, and reports it ([`Journal::poisoned`]).
//!
//! # Rules for the door
//! Ids are unique as long as the region lives. A slot ([`Cx::slot`]) gets another request only when the reply to the one
//! before was delivered, so that the entry may be overwritten. Of a write through a file that appends it says so ([`Cx::appends`]). Requests in slots from [`SLOTS`] on are passed on without an
//! entry and counted: a request refused would be worse than one that is only almost always safe.
//!
//! # What an entry has to know
//! Queries note that they run: a clock and three stores, two more when answered. Changes, and whatever hands out or ends a
//! handle, note the intent, then the reply. Most changes leave traces by which they are recognised: a file is born after the
//! intent, a directory was changed. Where a request changed something in the 20 ms before (the clock that stamps files is coarse), where
//! the tree tells no births or stamps them with another host's clock, and for changes that leave no such trace (rename,
//! link, appends), the journal has to know the name, the size or the attribute beforehand. What a name leads to it has
//! nearly always seen in a reply, for programs look names up before they change them (`names`); else it looks, which is one or
//! two requests more.
//!
//! What a process leaves is put aside by request id, in a ring of as many entries as one process can leave. The oldest go
//! first; a request that waits is asked again at once by the kernel, so what is overwritten is long settled, unless processes
//! die in a row, each with thousands of new requests and before the kernel asked again.
//!
//! # What is impossible
//! * Another client who changes the same name between the intent and the repetition is taken for us: what it made for what
//!   we made. It takes another client, the same name, and a death in those microseconds.
//!   Of a name that the journal did not look at itself it takes a second instead: it goes by a reply that old at most.
//! * A clock that is set back between intent and effect makes our own file look older than the intent, so that the caller
//!   is told `EEXIST`; set forward between another's file and the intent it does no harm.
//! * A repetition of what is simply repeated may be seen: after a death a write may land a second time, as late as its
//!   caller is still waiting. A client that wrote the same range meanwhile raced with it anyway.
//! * What a driver handed out in the instant of its death (a handle, an unnamed file, a reference to a node) is handed out
//!   again; the first one stays until the tree is unmounted. A `forget` may be lost or repeated.
//! * Locks are taken again by asking for them; whether the others still hold theirs is the driver's matter.
//! * The effect of an ioctl(2) that does not end in the same state when repeated, when its answer has more than 150 bytes or was
//!   not noted yet.
//! * Drivers that do several steps for one change and keep no log of their own are found half way.
//! * With a crash handler that names the request ([`current`]), a poisonous request is found after three deaths. Without, or
//!   when the driver works on threads of its own, only when processes die one after the other without answering anything.
#![forbid(unsafe_code)]

mod before;
mod book;
mod current;
mod entry;
mod names;
mod recent;
mod redo;
mod watch;

pub use book::{REGION, SLOTS};
pub use current::current;
pub use watch::{Counts, InFlight, Watch};

use before::{Before, Traces};
use book::Book;
use entry::{Entry, Intent, Slot, State, nanos};
use names::{Changing, Names};
use outrigger_core::reply::Created;
use outrigger_core::supervise::Suspect;
use outrigger_core::{
    Abilities, Answer, BoxFuture, Clock, Cx, DriverClass, Effect, Errno, Keep, Layer, OpCode, Place, Reply,
    Request, Result, Service, lock,
};
use recent::{Keys, Recent, directory};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Reports kept until somebody takes them.
const REPORTS_MAX: usize = 64;
/// The most bytes of a request in a report.
const REPORT_BYTES: usize = 1000;

/// The layer. Clones share everything.
#[derive(Clone)]
pub struct Journal(Arc<Inner>);

/// A request that is not asked below any more, because processes die of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poisoned {
    /// The request's id.
    pub id: u64,
    /// Its operation.
    pub op: OpCode,
    /// The request for people, cut after 1000 bytes.
    pub request: String,
    /// How many processes died while they worked on it.
    pub deaths: u8,
}

struct Inner {
    book: Book,
    clock: Arc<dyn Clock>,
    recent: Recent,
    names: Names,
    /// Whether the tree is stamped by the clock of this host.
    near: AtomicBool,
    /// Whether the tree tells when files were made.
    births: AtomicBool,
    reports: Mutex<Vec<Poisoned>>,
}

impl Journal {
    /// Takes over what the process before left in the region `journal` of `keep`, or begins a new journal. Times come from
    /// `clock`, which has to be the one that stamps the files of the tree.
    ///
    /// `culprit` is the id of the request whose thread ended the process before, when a crash handler saw it ([`current`]).
    ///
    /// # Errors
    /// `EUCLEAN` when the region holds something else, `EPROTO` when it is of another version; those of [`Keep::region`].
    pub fn attach(keep: &dyn Keep, clock: Arc<dyn Clock>, culprit: Option<u64>) -> Result<Self> {
        let book = Book::attach(keep, culprit)?;
        let inner = Inner {
            recent: Recent::new(nanos(clock.coarse_wall())),
            names: Names::new(),
            near: AtomicBool::new(false),
            births: AtomicBool::new(false),
            reports: Mutex::default(),
            book,
            clock,
        };
        Ok(Journal(Arc::new(inner)))
    }

    /// The requests answered `EIO` since this was asked last because processes died of them, 64 at most.
    pub fn poisoned(&self) -> Vec<Poisoned> {
        std::mem::take(&mut *lock(&self.0.reports))
    }

    /// The request that is being worked on for the longest; locks that wait are left out.
    pub fn oldest(&self) -> Option<InFlight> {
        self.watch().oldest(self.0.clock.coarse_wall())
    }

    /// What was counted since the region was made.
    pub fn counts(&self) -> Counts {
        self.watch().counts()
    }

    fn watch(&self) -> Watch {
        Watch::of(self.0.book.parts())
    }
}

impl Layer for Journal {
    fn place(&self) -> Place {
        Place { name: "journal", above: ABOVE, below: &[] }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let inner = &*self.0;
        let Some(words) = inner.book.slot(cx.slot) else {
            return inner.without_entry(next, cx, request);
        };
        let slot = Slot::new(words, cx.id, request.op(), request.waits());
        match inner.book.carried(cx.id) {
            None => inner.first(next, cx, request, slot),
            Some(carried) => inner.again(next, cx, request, slot, carried),
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        self.0.near.store(below.class != DriverClass::Network, Ordering::Relaxed);
        below
    }
}

/// Every other layer: what they do to a request happens at most once as well.
const ABOVE: &[&str] =
    &["cache", "deadline", "fault", "permissions", "readonly", "simulate", "subtree", "trace"];

/// Whether the reply must be noted: it tells of a change; or of a handle, which would leak when given out twice, and may
/// be somebody else's when it is ended twice.
fn is_recorded(request: &Request) -> bool {
    let recorded =
        |effect: Effect<'_>| effect.changes() || matches!(effect, Effect::Opens(_) | Effect::Ends { .. });
    request.effects().into_iter().any(recorded)
}

/// What has to be known about a request when its reply comes.
struct Note {
    changes: Keys,
    names: Changing,
    before: Before,
}

impl Inner {
    /// A request in a slot without an entry: what it changes is forgotten, and nothing is learnt.
    fn without_entry<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.book.parts().counters().unjournalled().increase(1);
        let names = self.names.changing(&request);
        next.call(cx, request).map(move |reply| {
            self.names.forget(&names);
            reply
        })
    }

    /// A request that no former process knew.
    #[inline]
    fn first<'a>(
        &'a self,
        next: &'a Arc<dyn Service>,
        cx: &'a Cx,
        request: Request,
        slot: Slot<'a>,
    ) -> Answer<'a> {
        let now = nanos(self.clock.coarse_wall());
        slot.begin(now);
        if is_recorded(&request) {
            self.change(next, cx, request, slot, now)
        } else {
            self.query(next, cx, request, slot, now)
        }
    }

    /// To be noted of a change before it is asked below.
    fn note(&self, request: &Request, before: Before) -> Note {
        Note { changes: recent::keys(request), names: self.names.changing(request), before }
    }

    #[inline]
    fn query<'a>(
        &'a self,
        next: &'a Arc<dyn Service>,
        cx: &'a Cx,
        request: Request,
        slot: Slot<'a>,
        now: i64,
    ) -> Answer<'a> {
        let asking = self.names.asking(&request, now);
        let answered = move |reply| {
            if let Some(asking) = &asking {
                self.names.answered(asking, &reply);
            }
            slot.clear();
            slot.count();
            reply
        };
        match current::within(cx.id, || next.call(cx, request)) {
            Answer::Ready(reply) => Answer::Ready(answered(reply)),
            Answer::Later(future) => {
                Answer::later(async move { answered(current::during(cx.id, future).await) })
            }
        }
    }

    fn change<'a>(
        &'a self,
        next: &'a Arc<dyn Service>,
        cx: &'a Cx,
        request: Request,
        slot: Slot<'a>,
        now: i64,
    ) -> Answer<'a> {
        let born = self.near.load(Ordering::Relaxed) && self.births.load(Ordering::Relaxed);
        let traces = Traces { born, recent: &self.recent, now, appends: cx.appends == Some(true) };
        let before = match before::is_needed(&request, &traces) {
            false => Some(Before::Unknown),
            true => self.names.before(&request, now),
        };
        let Some(before) = before else {
            let work = async move {
                let before = before::look(next, cx, &request).await;
                let note = self.note(&request, before);
                slot.intend(Intent { time: now, before });
                self.record(slot, &note, next.call(cx, request).await)
            };
            return Answer::later(current::during(cx.id, Box::pin(work)));
        };
        let note = self.note(&request, before);
        slot.intend(Intent { time: now, before });
        match current::within(cx.id, || next.call(cx, request)) {
            Answer::Ready(reply) => Answer::Ready(self.record(slot, &note, reply)),
            Answer::Later(future) => self.work(cx, slot, note, future),
        }
    }

    /// Awaits the reply of `work`, which is done for the request of `slot`, and notes it.
    fn work<'a>(
        &'a self,
        cx: &'a Cx,
        slot: Slot<'a>,
        note: Note,
        work: impl Future<Output = Reply> + Send + 'a,
    ) -> Answer<'a> {
        let work: BoxFuture<'a, Reply> = Box::pin(work);
        Answer::later(async move { self.record(slot, &note, current::during(cx.id, work).await) })
    }

    /// Notes the reply to a change, and gives it back to be answered.
    fn record(&self, slot: Slot, note: &Note, reply: Reply) -> Reply {
        if note.changes[0].is_some() {
            let now = nanos(self.clock.coarse_wall());
            self.recent.mark(&note.changes, now);
            self.names.changed(&note.names, note.before, &reply, now);
        }
        if let Reply::Entry(entry) | Reply::Created(Created { entry, .. }) = &reply {
            self.births.store(entry.attr.btime.is_some(), Ordering::Relaxed);
            // A new directory was changed when it was born.
            self.recent.mark(&[Some(directory(entry.node)), None, None, None], nanos(entry.attr.mtime));
        }
        slot.reply(&reply);
        slot.count();
        reply
    }

    /// A request that a former process knew.
    fn again<'a>(
        &'a self,
        next: &'a Arc<dyn Service>,
        cx: &'a Cx,
        request: Request,
        slot: Slot<'a>,
        carried: Entry,
    ) -> Answer<'a> {
        if carried.op != request.op() {
            // The door breaks its promise: better a new request than the reply to another one.
            self.book.forget(cx.id);
            return self.first(next, cx, request, slot);
        }
        if Suspect::of(carried.deaths.into()).is_poisonous() {
            slot.count();
            return Answer::Ready(self.refuse(&request, &carried));
        }
        let slot = self.book.resume(cx.id, slot, nanos(self.clock.coarse_wall()));
        let note = self.note(&request, carried.intent.before);
        match (carried.state, carried.reply) {
            (State::Running, _) => self.first(next, cx, request, slot),
            (State::Replied, Some(reply)) if carried.backed => {
                self.book.parts().counters().replayed().increase(1);
                self.work(cx, slot, note, async move { redo::reopen(next, cx, &request, reply).await })
            }
            (State::Replied, Some(reply)) => {
                self.book.parts().counters().replayed().increase(1);
                slot.count();
                Answer::Ready(reply)
            }
            (State::Intent | State::Replied, _) => {
                self.book.parts().counters().redone().increase(1);
                slot.repeat();
                self.work(cx, slot, note, redo::redo(next, cx, request, carried.intent))
            }
        }
    }

    fn refuse(&self, request: &Request, carried: &Entry) -> Reply {
        let mut text = format!("{request:?}");
        text.truncate(text.floor_char_boundary(REPORT_BYTES));
        let Entry { id, op, deaths, .. } = *carried;
        let mut reports = lock(&self.reports);
        if reports.len() < REPORTS_MAX {
            reports.push(Poisoned { id, op, request: text, deaths });
        }
        let reason = format!("{deaths} processes died while they worked on this {}", op.name());
        Reply::Error(Errno::EIO.because(reason))
    }
}

#[cfg(test)]
mod tests;
