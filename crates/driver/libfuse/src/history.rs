// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is remembered of the programs that served a tree, for people: how each ended, what was asked last, and who took
//! whose place.

use crate::launch::End;
use crate::stored::Losses;
use outrigger_core::rebind::Numbers;
use outrigger_core::{Node, OpCode, Request, lock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;

/// Deaths that are remembered one by one.
const DEATHS: usize = 16;
/// Requests that are remembered.
const RECENT: usize = 32;
/// Bytes that are remembered of what a program said last.
const SAID: usize = 2000;

/// How a program ended, or why one could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// Which one it was, counted from 1.
    pub incarnation: u32,
    /// Whether it had served; else it could not be started.
    pub served: bool,
    /// When it was noticed.
    pub at: SystemTime,
    /// How it was noticed.
    pub reason: String,
    /// How its process ended, where that is known.
    pub end: Option<End>,
    /// What it said last.
    pub said: String,
}

/// One program took the place of another, or should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// When.
    pub at: SystemTime,
    /// The program that served before.
    pub former: String,
    /// The program that was to serve from then on.
    pub wanted: String,
    /// Why it does not.
    pub failure: Option<String>,
}

/// What became of the programs that served a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The command that serves now.
    pub command: String,
    /// Which program it is, counted from 1.
    pub incarnation: u32,
    /// Programs that died.
    pub deaths: u64,
    /// The last of them.
    pub last_death: Option<Death>,
    /// The last replacement.
    pub replacement: Option<Replacement>,
    /// What programs had reported stored and was not there after they died.
    pub losses: Losses,
}

/// Something that people should look into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The command.
    pub command: String,
    /// The request that is refused since programs die of it; `None` when the program cannot be started again.
    pub request: Option<String>,
    /// What is answered, and why.
    pub error: String,
    /// The requests that came last, oldest first.
    pub recent: Vec<String>,
    /// How the last programs ended, oldest first.
    pub deaths: Vec<Death>,
}

/// What is done with a report. May block.
pub type OnReport = Box<dyn Fn(Report) + Send + Sync>;

/// Remembers; see the [module](self).
#[derive(Default)]
pub(crate) struct Chronicle {
    deaths: Mutex<Deaths>,
    recent: Recent,
    on_report: OnceLock<OnReport>,
    /// It was reported that the program cannot be started again, and nothing is better since.
    looping: AtomicBool,
}

#[derive(Default)]
struct Deaths {
    count: u64,
    last: VecDeque<Death>,
    replacement: Option<Replacement>,
}

impl Chronicle {
    /// A request has come.
    pub(crate) fn asked(&self, request: &mut Request, pid: u32) {
        if !matches!(request, Request::Forget(_)) {
            self.recent.note(request, pid);
        }
    }

    /// A program has died. The first report of it counts.
    pub(crate) fn died(&self, mut death: Death) {
        let surplus = death.said.ceil_char_boundary(death.said.len().saturating_sub(SAID));
        death.said.drain(..surplus);
        let mut deaths = lock(&self.deaths);
        let same = |known: &Death| known.served && known.incarnation == death.incarnation;
        if death.served && deaths.last.iter().any(same) {
            return;
        }
        deaths.count += u64::from(death.served);
        deaths.last.push_back(death);
        if deaths.last.len() > DEATHS {
            deaths.last.pop_front();
        }
    }

    /// One program took the place of another, or should have.
    pub(crate) fn replaced(&self, replacement: Replacement) {
        lock(&self.deaths).replacement = Some(replacement);
    }

    /// What is remembered, with what serves now.
    pub(crate) fn history(&self, command: String, incarnation: u32) -> History {
        let deaths = lock(&self.deaths);
        let (last_death, replacement) = (deaths.last.back().cloned(), deaths.replacement.clone());
        let losses = Losses::default();
        History { command, incarnation, deaths: deaths.count, last_death, replacement, losses }
    }

    /// Sets what is done with reports. The first call counts.
    pub(crate) fn on_report(&self, on_report: OnReport) {
        let _ = self.on_report.set(on_report);
    }

    /// The program runs well again.
    pub(crate) fn recovered(&self) {
        self.looping.store(false, Relaxed);
    }

    /// Makes a report, once for each series of starts that fail.
    pub(crate) fn report(
        &self,
        command: String,
        request: Option<String>,
        error: String,
        path: impl Fn(Node) -> String,
    ) {
        let Some(on_report) = self.on_report.get() else { return };
        if request.is_none() && self.looping.swap(true, Relaxed) {
            return;
        }
        let deaths = lock(&self.deaths).last.iter().cloned().collect();
        on_report(Report { command, request, error, recent: self.recent.list(path), deaths });
    }
}

/// The requests that came last. Two that come at the very same time may be mixed up, which only people see.
#[derive(Default)]
struct Recent {
    next: AtomicUsize,
    /// Operation and process in one word, and the node.
    ring: [(AtomicU64, AtomicU64); RECENT],
}

impl Recent {
    fn note(&self, request: &mut Request, pid: u32) {
        let first = Numbers::of(request).nodes.first().copied();
        let (what, node) = &self.ring[self.next.fetch_add(1, Relaxed) % RECENT];
        what.store((request.op() as u64) << 32 | u64::from(pid), Relaxed);
        node.store(first.unwrap_or(Node::ROOT).0, Relaxed);
    }

    fn list(&self, path: impl Fn(Node) -> String) -> Vec<String> {
        let next = self.next.load(Relaxed);
        let places = (next.saturating_sub(RECENT)..next).map(|at| &self.ring[at % RECENT]);
        let shown = places.filter_map(|(what, node)| {
            let what = what.load(Relaxed);
            let op = OpCode::ALL.iter().find(|&&op| op as u64 == what >> 32)?;
            Some(format!("{} {} (process {})", op.name(), path(Node(node.load(Relaxed))), what as u32))
        });
        shown.collect()
    }
}
