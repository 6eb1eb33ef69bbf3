// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `fault`: makes chosen requests fail, wait or come back short, to see what the rest does about it.
//!
//! Rules come as text ([`Rule`]): `op=write,path=*.db,error=ENOSPC,after=3`. Every rule that matches a request acts on
//! it, in the order in which they were given; the first error among them is the answer.
//!
//! Probabilities follow from a seed and from how many requests a rule has matched, not from the clock: the same
//! requests in the same order meet the same faults.
//!
//! Limits: paths are learnt from the requests and replies that pass, so a rule with a path does not match a node whose
//! path was last seen before the layer was there, or so long ago that it is forgotten (65,536 nodes later).
//! `short` cuts content; it does not know which lengths the caller would accept. With a rule that cuts reads, files are
//! opened for direct I/O: a page cache would take a short read for the end of the file, and programs would get zeroes.
#![forbid(unsafe_code)]

mod rule;

pub use rule::{Action, BadRule, OPTIONS, Rule};

use outrigger_core::paths::{Change, Paths, Subject, printable, subjects};
use outrigger_core::reply::{Created, OpenHow};
use outrigger_core::{
    Abilities, Answer, Cx, Error, HeapRegion, Keep, Layer, OpCode, Payload, Place, Region, Reply, Request,
    Runtime, Service,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many nodes' paths are remembered at least.
const NODES: usize = 1 << 16;

/// The layer.
pub struct Fault {
    rules: Vec<Counted>,
    seed: u64,
    /// Only rules with a path need to know paths.
    paths: Option<Mutex<Paths>>,
    runtime: Arc<dyn Runtime>,
}

/// A rule; how often it has matched and acted is counted in the region.
struct Counted {
    rule: Rule,
    counts: Arc<dyn Region>,
    place: usize,
}

/// The name of the region.
const REGION: &str = "fault";
/// The most rules.
const RULES_MAX: usize = 1024;

impl Counted {
    fn matched(&self) -> &AtomicU64 {
        self.counts.word(2 * self.place)
    }

    fn acted(&self) -> &AtomicU64 {
        self.counts.word(2 * self.place + 1)
    }
}

/// What is to happen to one request.
#[derive(Default)]
struct Plan {
    delay: Duration,
    /// An error instead of the operation.
    refuse: Option<Error>,
    /// An error after the operation.
    disown: Option<Error>,
    short: Option<u32>,
    /// The end of the process, before the operation or after it.
    die: Option<Moment>,
}

/// When the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    After,
}

impl Fault {
    /// A layer with `rules`; `seed` decides about their probabilities, `runtime` waits for their delays.
    ///
    /// # Panics
    /// With more than 1024 rules.
    pub fn new(rules: impl IntoIterator<Item = Rule>, seed: u64, runtime: Arc<dyn Runtime>) -> Self {
        Fault::counted(rules, seed, runtime, Arc::new(HeapRegion::new(2 * RULES_MAX)))
    }

    /// Counts in `keep` from now on, so that a process that dies of a rule is not the first one again.
    ///
    /// # Errors
    /// Those of [`Keep::region`].
    pub fn kept_in(mut self, keep: &dyn Keep) -> outrigger_core::Result<Self> {
        let counts = keep.region(REGION, 2 * RULES_MAX)?;
        self.rules.iter_mut().for_each(|counted| counted.counts = Arc::clone(&counts));
        Ok(self)
    }

    fn counted(
        rules: impl IntoIterator<Item = Rule>,
        seed: u64,
        runtime: Arc<dyn Runtime>,
        counts: Arc<dyn Region>,
    ) -> Self {
        let count = |(place, rule)| Counted { rule, counts: Arc::clone(&counts), place };
        let rules: Vec<Counted> = rules.into_iter().enumerate().map(count).collect();
        assert!(rules.len() <= RULES_MAX, "too many rules");
        let with_path = rules.iter().any(|counted| counted.rule.has_path());
        Fault { rules, seed, paths: with_path.then(|| Mutex::new(Paths::new(NODES))), runtime }
    }

    /// A layer from text: rules, and perhaps `seed=NUMBER`, separated by `;`, as in `op=write,error=EIO,probability=0.1;seed=7`.
    ///
    /// # Errors
    /// [`BadRule`] names the part that cannot be understood.
    pub fn parse(text: &str, runtime: Arc<dyn Runtime>) -> Result<Self, BadRule> {
        let (mut rules, mut seed) = (Vec::new(), 0);
        for part in text.split(';').map(str::trim) {
            match part.strip_prefix("seed=") {
                Some(number) => seed = rule::number(part, number)?,
                None => rules.push(part.parse()?),
            }
        }
        if rules.len() > RULES_MAX {
            return Err(rule::too_many(RULES_MAX));
        }
        Ok(Fault::new(rules, seed, runtime))
    }

    /// How often each rule has acted, in the order in which they were given.
    pub fn acted(&self) -> Vec<u64> {
        self.rules.iter().map(|counted| counted.acted().load(Ordering::Relaxed)).collect()
    }

    fn plan(&self, op: OpCode, subjects: &[Subject]) -> Option<Plan> {
        let paths: Vec<Vec<u8>> =
            self.with_paths(|paths| subjects.iter().map(|s| paths.climb(s).spell(None)).collect());
        let mut plan = None;
        for (place, counted) in self.rules.iter().enumerate() {
            if counted.rule.concerns(op, subjects, &paths) && self.acts(place, counted) {
                let shown = paths.first().map(|path| printable(path));
                plan.get_or_insert_with(Plan::default).add(&counted.rule, shown.as_deref());
            }
        }
        plan
    }

    /// Counts a match of rule number `place` and decides whether the rule acts on it.
    fn acts(&self, place: usize, counted: &Counted) -> bool {
        let before = counted.matched().fetch_add(1, Ordering::Relaxed);
        let rule = &counted.rule;
        let in_turn = before.checked_sub(rule.after()).is_some_and(|n| (n + 1).is_multiple_of(rule.every()));
        if !in_turn || !self.lucky(place, before, rule.probability()) {
            return false;
        }
        let limit = rule.times();
        let take = |acted: u64| (acted < limit).then_some(acted + 1);
        counted.acted().fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn lucky(&self, place: usize, matched: u64, probability: f64) -> bool {
        let seed = self.seed ^ (place as u64).rotate_left(48) ^ matched.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        probability >= 1.0 || fastrand::Rng::with_seed(seed).f64() < probability
    }

    /// Whether a rule cuts what is read.
    fn cuts_reads(&self) -> bool {
        let cuts = |rule: &Rule| rule.has_op(OpCode::Read) && matches!(rule.action(), Action::Short(_));
        self.rules.iter().any(|counted| cuts(&counted.rule))
    }

    /// Nothing at all when no rule has a path.
    fn with_paths<T: Default>(&self, work: impl FnOnce(&mut Paths) -> T) -> T {
        match &self.paths {
            Some(paths) => work(&mut paths.lock().unwrap_or_else(PoisonError::into_inner)),
            None => T::default(),
        }
    }

    async fn carry_out(&self, plan: Plan, next: &Arc<dyn Service>, cx: &Cx, mut request: Request) -> Reply {
        if !plan.delay.is_zero() {
            self.runtime.sleep_until(self.runtime.monotonic().saturating_add(plan.delay)).await;
        }
        if plan.die == Some(Moment::Before) {
            std::process::abort();
        }
        if let Some(error) = plan.refuse {
            return Reply::Error(error);
        }
        if let Some(most) = plan.short
            && let Err(error) = shorten_request(&mut request, most)
        {
            return Reply::Error(error);
        }
        let reply = self.pass(next, cx, request).await;
        if plan.die == Some(Moment::After) {
            std::process::abort();
        }
        // An operation that failed by itself keeps its own error.
        match plan.disown {
            Some(error) if reply.error().is_none() => Reply::Error(error),
            _ => reply,
        }
    }

    /// Asks below and learns from the reply.
    fn pass<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let answers_directly = opens_file(request.op()) && self.cuts_reads();
        if self.paths.is_none() {
            return match answers_directly {
                true => next.call(cx, request).map(direct),
                false => next.call(cx, request),
            };
        }
        let (change, subjects) = (Change::of(&request), subjects(&mut request));
        next.call(cx, request).map(move |reply| {
            let reply = if answers_directly { direct(reply) } else { reply };
            self.with_paths(|paths| paths.learn(change, &subjects, &reply));
            reply
        })
    }
}

impl Plan {
    fn add(&mut self, rule: &Rule, path: Option<&str>) {
        let reason = || match path {
            Some(path) => format!("{path}: injected by the rule {rule}"),
            None => format!("injected by the rule {rule}"),
        };
        match rule.action() {
            Action::Refuse(errno) => drop(self.refuse.get_or_insert_with(|| errno.because(reason()))),
            Action::Disown(errno) => drop(self.disown.get_or_insert_with(|| errno.because(reason()))),
            Action::Short(most) => self.short = Some(self.short.map_or(most, |other| other.min(most))),
            Action::Die => self.die = Some(Moment::Before),
            Action::DieAfter => drop(self.die.get_or_insert(Moment::After)),
            Action::None => {}
        }
        self.delay = self.delay.saturating_add(rule.delay());
    }
}

/// Cuts what a read asks for or a write brings; other operations have no length.
fn shorten_request(request: &mut Request, most: u32) -> Result<(), Error> {
    match request {
        Request::Read(read) => read.len = read.len.min(most),
        Request::CopyRange(copy) => copy.len = copy.len.min(most.into()),
        Request::Write(write) => {
            let content = std::mem::replace(&mut write.data, Payload::EMPTY).into_bytes()?;
            let most = content.len().min(most as usize);
            write.data = Payload::Bytes(content.slice(..most));
        }
        _ => {}
    }
    Ok(())
}

fn opens_file(op: OpCode) -> bool {
    matches!(op, OpCode::Open | OpCode::Create | OpCode::TmpFile)
}

/// The reply of an open, with every read of the file to be asked for as the program asks.
fn direct(mut reply: Reply) -> Reply {
    match &mut reply {
        Reply::Opened(opened) | Reply::Created(Created { opened, .. }) => {
            opened.how -= OpenHow::KEEP_CACHE;
            opened.how |= OpenHow::DIRECT_IO;
        }
        _ => {}
    }
    reply
}

impl Layer for Fault {
    fn place(&self) -> Place {
        Place::anywhere("fault")
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        // Without an open, nothing tells the kernel that a file is for direct I/O.
        let stateless_files = below.stateless_files && !self.cuts_reads();
        Abilities { stateless_files, ..below }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if !self.rules.iter().any(|counted| counted.rule.has_op(request.op())) {
            return self.pass(next, cx, request);
        }
        let subjects = subjects(&mut request);
        match self.plan(request.op(), &subjects) {
            None => self.pass(next, cx, request),
            Some(plan) => Answer::later(self.carry_out(plan, next, cx, request)),
        }
    }
}

#[cfg(test)]
mod tests;
