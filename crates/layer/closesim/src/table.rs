// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is open, by node.

use crate::Options;
use crate::held::{Held, Kind};
use crate::outcome::Outcome;
use outrigger_core::{Credentials, Errno, Error, Node, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Of so many files it is remembered that content was lost when they were closed.
pub const MAX_FAILURES: usize = 1024;
/// Stands for all further files of which content was lost: it names none.
const OTHERS: Node = Node(0);

/// Everything that is open.
#[derive(Default)]
pub(crate) struct Table {
    entries: HashMap<Node, Entry>,
    /// Whether a task closes what is idle.
    sweeping: bool,
    /// Whether nothing is kept open any more.
    ended: bool,
}

/// What is known of a node.
#[derive(Default)]
struct Entry {
    open: Vec<Arc<Held>>,
    /// What is being opened, and for whom.
    opening: Vec<(Kind, Credentials, Opening)>,
    /// How many handles were taken out, and are not closed yet.
    leaving: usize,
    /// How many of them were written to, and were in use no more: what opens the file waits for these.
    storing: usize,
    /// References that callers returned meanwhile.
    owed: u64,
    failure: Option<Failure>,
}

/// That content was lost at a close.
struct Failure {
    error: Error,
    /// Whether a writer got it.
    answered: bool,
}

/// What comes of an open.
pub(crate) type Opening = Arc<Outcome<Arc<Held>>>;

/// How an open begins.
pub(crate) enum Begun {
    /// It is open.
    Open(Arc<Held>),
    /// Another caller opens it.
    Joins(Opening),
    /// The caller has to open it.
    Starts(Opening),
}

/// Handles that were taken out of the table. They are closed when no request has them.
pub(crate) type Gone = Vec<Arc<Held>>;

impl Entry {
    /// One that a caller may use.
    fn find(&self, cred: &Credentials, kind: Kind) -> Option<&Arc<Held>> {
        let fits = |kind| self.open.iter().find(|held| held.open.kind == kind && held.open.cx.cred == *cred);
        // A reader finds what the same caller has written, also where the tree has not stored it yet.
        let reads = fits(Kind::Write).filter(|held| kind == Kind::Read && held.open.flags.reads());
        reads.or_else(|| fits(kind))
    }

    /// Takes out those that `goes` chooses.
    fn retire(&mut self, mut goes: impl FnMut(&Arc<Held>) -> bool) -> Gone {
        let gone: Gone = self.open.extract_if(.., |held| goes(held)).collect();
        for held in gone.iter().filter(|held| held.is_written(None) && is_idle(held)) {
            held.stores.store(true, Ordering::Relaxed);
            self.storing += 1;
        }
        self.leaving += gone.len();
        gone
    }
}

/// Whether the table alone has it.
fn is_idle(held: &Arc<Held>) -> bool {
    Arc::strong_count(held) == 1
}

impl Table {
    /// Whether nothing is known at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether everything is closed, and nothing is being opened.
    pub(crate) fn is_closed(&self) -> bool {
        self.entries.values().all(|entry| entry.open.len() + entry.leaving + entry.opening.len() == 0)
    }

    /// Whether handles of `node`, or of any, are being closed.
    pub(crate) fn is_leaving(&self, node: Option<Node>) -> bool {
        let mut entries = self.entries.iter().filter(|(of, _)| node.is_none_or(|node| node == **of));
        entries.any(|(_, entry)| entry.leaving > 0)
    }

    /// All handles that `fit` chooses.
    pub(crate) fn open(&self, fit: impl Fn(&Held) -> bool) -> Vec<Arc<Held>> {
        let open = self.entries.values().flat_map(|entry| &entry.open);
        open.filter(|held| fit(held)).cloned().collect()
    }

    /// An open file for a caller.
    ///
    /// # Errors
    /// For a writer, once, why content of the file was lost.
    pub(crate) fn find(&mut self, node: Node, cred: &Credentials, kind: Kind) -> Result<Option<Arc<Held>>> {
        let Some(entry) = self.entries.get_mut(&node) else { return Ok(None) };
        match &mut entry.failure {
            Some(Failure { error, answered }) if kind == Kind::Write && !*answered => {
                *answered = true;
                Err(error.clone())
            }
            _ => Ok(entry.find(cred, kind).cloned()),
        }
    }

    /// An open directory of a caller in which a listing can go on; `position` becomes the tree's cookie.
    ///
    /// # Errors
    /// `ESTALE` when the place is not known any more.
    pub(crate) fn find_listing(
        &self,
        node: Node,
        cred: &Credentials,
        position: Option<&mut u64>,
        cookies_last: bool,
    ) -> Result<Option<Arc<Held>>> {
        let open = self.entries.get(&node).into_iter().flat_map(|entry| &entry.open);
        let mut open = open.filter(|held| held.open.kind == Kind::List && held.open.cx.cred == *cred);
        match position {
            // What is listed from the start is what there is now.
            Some(0) => Ok(None),
            Some(cookie) if !cookies_last => {
                let place =
                    |held: &Arc<Held>| Some((Arc::clone(held), held.cookies.as_ref()?.find(*cookie)?));
                let stale = || Errno::ESTALE.because("the directory was closed since its listing began");
                let (held, place) = open.find_map(place).ok_or_else(stale)?;
                *cookie = place;
                Ok(Some(held))
            }
            // The latest one began when the caller did, or after it.
            _ => Ok(open.next_back().cloned()),
        }
    }

    /// Begins to open something; none while it is being closed after writing. Each listing has its own handle.
    pub(crate) fn begin(&mut self, node: Node, cred: &Credentials, kind: Kind) -> Option<Begun> {
        let entry = self.entries.entry(node).or_default();
        if kind != Kind::List {
            if let Some(held) = entry.find(cred, kind) {
                return Some(Begun::Open(Arc::clone(held)));
            }
            let same = |(other, of, _): &&(Kind, Credentials, Opening)| *other == kind && of == cred;
            if entry.storing > 0 {
                return None;
            } else if let Some((_, _, outcome)) = entry.opening.iter().find(same) {
                return Some(Begun::Joins(Arc::clone(outcome)));
            }
        }
        let outcome = Opening::default();
        entry.opening.push((kind, cred.clone(), Arc::clone(&outcome)));
        Some(Begun::Starts(outcome))
    }

    /// Takes in what was opened; what has to be closed in its place, and whether a task is needed that closes what is idle.
    pub(crate) fn keep(&mut self, held: &Arc<Held>, max: usize) -> (Gone, bool) {
        self.entries.entry(held.open.node).or_default().open.push(Arc::clone(held));
        if self.ended {
            return (self.retire(|_| true), false);
        }
        let all = || self.entries.values().flat_map(|entry| &entry.open);
        let oldest = all().filter(|held| is_idle(held)).min_by_key(|held| held.used()).map(Arc::as_ptr);
        let gone = match oldest.filter(|_| all().count() > max) {
            Some(oldest) => self.retire(|held| Arc::as_ptr(held) == oldest),
            None => Gone::new(),
        };
        (gone, !std::mem::replace(&mut self.sweeping, true))
    }

    /// Takes out those that `goes` chooses.
    pub(crate) fn retire(&mut self, mut goes: impl FnMut(&Arc<Held>) -> bool) -> Gone {
        self.entries.values_mut().flat_map(|entry| entry.retire(&mut goes)).collect()
    }

    /// Keeps nothing open any more.
    pub(crate) fn end(&mut self) -> Gone {
        self.ended = true;
        self.retire(|_| true)
    }

    /// Takes out what was not used for long enough; when to look again, unless nothing is open.
    pub(crate) fn retire_idle(&mut self, now: Duration, options: &Options) -> (Gone, Option<Duration>) {
        let mut next = now.saturating_add(options.idle.min(options.write_idle).min(options.list_idle));
        let gone = self.retire(|held| {
            if !is_idle(held) {
                held.touch(now);
            }
            let due = held.used().saturating_add(options.period(held.open.kind));
            if due > now {
                next = next.min(due);
            }
            due <= now
        });
        self.sweeping = self.entries.values().any(|entry| !entry.open.is_empty());
        (gone, self.sweeping.then_some(next))
    }

    /// A handle of `node` that was taken out is closed; why content was lost, if it was.
    pub(crate) fn has_closed(&mut self, node: Node, stored: bool, failure: Option<Error>) {
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.leaving -= 1;
            entry.storing -= usize::from(stored);
        }
        if let Some(error) = failure {
            let failures = self.entries.values().filter(|entry| entry.failure.is_some()).count();
            let entry = self.entries.entry(if failures < MAX_FAILURES { node } else { OTHERS }).or_default();
            entry.failure.get_or_insert(Failure { error, answered: false });
        }
    }

    /// The failure of a file, for an `fsync`, which is the last to get it.
    pub(crate) fn take_failure(&mut self, node: Node) -> Option<Error> {
        let entry = [node, OTHERS]
            .into_iter()
            .find(|of| self.entries.get(of).is_some_and(|e| e.failure.is_some()))?;
        self.entries.get_mut(&entry)?.failure.take().map(|failure| failure.error)
    }

    /// Any failure that no `fsync` has taken.
    pub(crate) fn any_failure(&self) -> Option<Error> {
        self.entries.values().find_map(|entry| Some(entry.failure.as_ref()?.error.clone()))
    }

    /// Takes references that a caller returns, if `node` is still in use here.
    pub(crate) fn owe(&mut self, node: Node, count: u64) -> bool {
        self.entries.get_mut(&node).map(|entry| entry.owed = entry.owed.saturating_add(count)).is_some()
    }

    /// Forgets what ended; the references that are to be returned when nothing of `node` is left.
    pub(crate) fn settle(&mut self, node: Node) -> u64 {
        let Some(entry) = self.entries.get_mut(&node) else { return 0 };
        entry.opening.retain(|(_, _, outcome)| !outcome.is_set());
        let Entry { open, opening, leaving, owed, failure, .. } = entry;
        let owed = *owed;
        match open.is_empty() && opening.is_empty() && *leaving == 0 && failure.is_none() {
            true => self.entries.remove(&node).map_or(0, |_| owed),
            false => 0,
        }
    }
}
