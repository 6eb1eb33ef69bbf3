// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `fault`: makes chosen requests fail, wait or come back short, to see what the rest does about it.
//!
//! Rules come as text ([`Rule`]): `op=write,path=*.db,error=ENOSPC,after=3`. Every rule that matches a request acts on
//! it, in the order in which they were given; the first error among them is the answer.
//!
//! Probabilities follow from a seed and from how many requests a rule has matched, not from the clock: the same
//! requests in the same order meet the same faults.
//!
//! [`FaultControl`] replaces the rules while the stack is in use. `cut` plays a power cut: changes of content
//! since its rule is there that no fsync(2) has confirmed are undone, and everything after that fails; see `undo` for what is
//! remembered.
//!
//! What a power cut guarantees: a request that changes content or synchronises, and was below when the power failed, ends there
//! before anything is undone. So no change reaches the tree after its undoing, and an fsync that was answered with success
//! has stored what it should. The cut itself is answered when all is undone; a driver that does not answer holds it up.
//! All other requests under way are answered `EIO`, those that wait for their delay too, which then do not go below; only a
//! reply that hands out a handle or references still arrives, so that they can be given back.
//!
//! What gives back a handle or references ([`Request::gives_back`](outrigger_core::Request::gives_back)) is done below whatever
//! the answer says, also without power: it is not asked again, and what is below would keep a file open for ever. What an
//! operation hands out whose caller is answered an error nevertheless (`applied`) is given back in the same way.
//!
//! Limits: paths are learnt from the requests and replies that pass, so a rule with a path does not match a node whose
//! path was last seen before the layer was there, or so long ago that it is forgotten (65,536 nodes later).
//! `short` cuts content; it does not know which lengths the caller would accept. With a rule that cuts reads, files are
//! opened for direct I/O: a page cache would take a short read for the end of the file, and programs would get zeroes. Such a
//! rule does not match reads of files that were open before it was there, or that a former process of the mount opened. Where
//! a driver gives all openings of a file one handle, none of them is cut while one is open from before; of a former process
//! that is not known. A mapping of a file for direct I/O has a page cache nevertheless: what is read through it ends early.
#![forbid(unsafe_code)]

mod direct;
mod power;
mod rule;
mod rules;
mod undo;

pub use rule::{Action, BadRule, OPTIONS, Pattern, Rule, duration, operations};
pub use rules::{Acted, FaultControl};

use direct::Direct;
use outrigger_core::paths::{Change, Paths, printable, subjects};
use outrigger_core::registry::{LayerInfo, Made, Site};
use outrigger_core::reply::Count;
use outrigger_core::{
    Abilities, Answer, Asked, Cx, Errno, Error, Keep, Layer, Payload, Place, Reply, Request, Runtime,
    Service, lock,
};
use rules::{Current, Rules, State};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use undo::Undo;

/// How many nodes' paths are remembered at least.
const NODES: usize = 1 << 16;

/// `--layer fault=RULE[;RULE]...`, whose control is a [`FaultControl`].
pub const LAYER: LayerInfo = LayerInfo {
    name: "fault",
    argument: "RULE[;RULE]...",
    does: "makes chosen requests fail, wait, lie or cut the power; a rule is a list of KEY=VALUE, and outrigger-fault(1) changes those of a mount",
    options: &[&OPTIONS],
    make: |rules, site| {
        let fault = Fault::at(rules, site)?;
        let control = fault.control();
        Ok(Made::with_control(fault, control))
    },
};

/// The layer.
pub struct Fault {
    state: Arc<State>,
    paths: Mutex<Paths>,
    direct: Direct,
    undo: Arc<Undo>,
    runtime: Arc<dyn Runtime>,
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
    /// Which bit of the content to flip, of as many as there are.
    flip: Option<u64>,
    /// Success instead of the operation.
    lose: bool,
    /// The end of the process, before the operation or after it.
    die: Option<Moment>,
    /// The power fails instead, by the rules of that generation.
    cut: Option<u64>,
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
    /// # Errors
    /// [`BadRule`] with more than 1024 rules.
    pub fn new(
        rules: impl IntoIterator<Item = Rule>,
        seed: u64,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, BadRule> {
        let rules = Rules::new(rules.into_iter().collect(), seed)?;
        let paths = Mutex::new(Paths::new(NODES));
        let (state, direct) = (Arc::new(State::new(rules)), Direct::default());
        Ok(Fault { state, paths, direct, undo: Arc::default(), runtime })
    }

    /// A layer from text: rules, and perhaps `seed=NUMBER`, separated by `;`, as in `op=write,error=EIO,probability=0.1;seed=7`.
    /// No text is no rule.
    ///
    /// # Errors
    /// [`BadRule`] names the part that cannot be understood.
    pub fn parse(text: &str, runtime: Arc<dyn Runtime>) -> Result<Self, BadRule> {
        let Rules { list, seed } = text.parse()?;
        Fault::new(list, seed, runtime)
    }

    /// The layer with these rules at a site. There is one at most: what is kept of rules is that of one.
    fn at(rules: &str, site: &Site<'_>) -> outrigger_core::Result<Self> {
        if site.same_below > 0 {
            return Err(
                Errno::EINVAL.because("there is one already, which takes several rules, separated by ;")
            );
        }
        let fault = Fault::parse(rules, Arc::clone(site.runtime));
        let fault = fault.map_err(|error| Errno::EINVAL.because(error.to_string()))?;
        match site.keep {
            Some(keep) => fault.kept_in(&**keep),
            None => Ok(fault),
        }
    }

    /// Keeps the rules and their counts in `keep` from now on, so that a process that dies of a rule is not the first one again.
    ///
    /// # Errors
    /// Those of [`Keep::region`].
    pub fn kept_in(self, keep: &dyn Keep) -> outrigger_core::Result<Self> {
        self.state.keep_in(keep)?;
        Ok(self)
    }

    /// What changes the rules while the layer is in use.
    pub fn control(&self) -> FaultControl {
        FaultControl::new(Arc::clone(&self.state))
    }

    fn paths(&self) -> MutexGuard<'_, Paths> {
        lock(&self.paths)
    }

    /// What the rules say about a request, which counts in them.
    fn plan(&self, current: &Current, request: &mut Request) -> Option<Plan> {
        let op = request.op();
        if !current.rules.list.iter().any(|rule| rule.has_op(op)) {
            return None;
        }
        let may_cut = match request {
            Request::Read(read) => self.direct.may_cut(read.node, read.handle),
            _ => true,
        };
        let subjects = subjects(request);
        let mut known = self.paths();
        let paths: Vec<Vec<u8>> = subjects.iter().map(|subject| known.climb(subject).spell(None)).collect();
        drop(known);
        let mut plan = None;
        for (place, rule) in current.rules.list.iter().enumerate() {
            let possible = may_cut || !matches!(rule.action(), Action::Short(_));
            if possible
                && rule.concerns(op, &subjects, &paths)
                && let Some(chance) = current.acts(place)
            {
                let shown = paths.first().map(|path| printable(path));
                let plan = plan.get_or_insert_with(Plan::default);
                plan.add(rule, shown.as_deref(), chance);
                if rule.action() == Action::Cut {
                    plan.cut = Some(current.number());
                }
            }
        }
        plan
    }

    async fn carry_out(&self, plan: Plan, next: &Arc<dyn Service>, cx: &Cx, mut request: Request) -> Reply {
        if !plan.delay.is_zero() {
            self.runtime.sleep_until(self.runtime.monotonic().saturating_add(plan.delay)).await;
        }
        if let Some(generation) = plan.cut
            && self.cut(next, cx, generation).await
        {
            return self.refuse(next, cx, request, no_power()).await;
        }
        // It may have failed during the delay.
        if self.state.power.is_off() {
            return self.refuse(next, cx, request, no_power()).await;
        }
        if plan.die == Some(Moment::Before) {
            std::process::abort();
        }
        if let Some(error) = plan.refuse {
            return self.refuse(next, cx, request, error).await;
        }
        if let Err(error) = spoil_request(&mut request, &plan) {
            return Reply::Error(error);
        }
        if plan.lose
            && let Some(reply) = as_if_done(&request)
        {
            return reply;
        }
        let asked = Asked::of(&request);
        let reply = self.pass(next, cx, request).await;
        if plan.die == Some(Moment::After) {
            std::process::abort();
        }
        // An operation that failed by itself keeps its own error.
        match plan.disown {
            Some(error) if reply.error().is_none() => {
                self.give_back(next, cx, asked, &reply).await;
                Reply::Error(error)
            }
            _ => spoil_reply(reply, &plan),
        }
    }

    /// Gives back what an undelivered reply hands out.
    async fn give_back(&self, next: &Arc<dyn Service>, cx: &Cx, asked: Asked, reply: &Reply) {
        let cx = cx.aside();
        for request in asked.returns(reply) {
            self.pass(next, &cx, request).await;
        }
    }

    /// The power fails, unless the rules that say so were replaced during the delay: it could be put on again only by replacing
    /// others. A task of its own undoes: it has to end even when the caller goes away or cancels.
    async fn cut(&self, next: &Arc<dyn Service>, cx: &Cx, generation: u64) -> bool {
        let (holds, cut) = self.state.with_rules(|now| match now.number() == generation {
            true => (true, self.state.power.fail()),
            false => (false, None),
        });
        if !holds {
            return false;
        }
        if let Some(cut) = cut {
            let (undo, next) = (Arc::clone(&self.undo), Arc::clone(next));
            let cx = cx.aside();
            self.runtime.spawn(Box::pin(async move {
                cut.alone().await;
                undo.undo(generation, &next, &cx).await;
            }));
        }
        self.state.power.settled().await;
        true
    }

    /// Answers `error` instead of the operation. What gives something back is done nevertheless.
    fn refuse<'a>(
        &'a self,
        next: &'a Arc<dyn Service>,
        cx: &'a Cx,
        request: Request,
        error: Error,
    ) -> Answer<'a> {
        if !request.gives_back() {
            return Answer::error(error);
        }
        self.pass(next, cx, request).map(move |_| Reply::Error(error))
    }

    /// Asks below and learns from the reply.
    fn pass<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let (cutter, answers_directly) = self
            .state
            .with_rules(|now| (now.rules.cuts_power().then(|| now.number()), now.rules.cuts_reads()));
        if let Some(generation) = cutter
            && !request.gives_back()
        {
            return Answer::later(self.pass_noted(generation, next, cx, request));
        }
        self.direct.close(&request);
        let opens = request.opens();
        let (change, subjects) = (Change::of(&request), subjects(&mut request));
        next.call(cx, request).map(move |reply| {
            let reply = self.direct.opened(opens, reply, answers_directly);
            self.paths().learn(change, &subjects, &reply);
            reply
        })
    }

    /// The same, and remembers what the request replaces until it is on stable storage.
    async fn pass_noted(
        &self,
        generation: u64,
        next: &Arc<dyn Service>,
        cx: &Cx,
        mut request: Request,
    ) -> Reply {
        let syncs = request.syncs();
        // Others may wait for a request that is refused without power, as a lock does, so a cut cannot wait for them.
        let awaited = syncs.is_some() || undo::changes(&request);
        let Some(below) = self.state.power.enter(awaited) else { return Reply::Error(no_power()) };
        self.undo.note(generation, next, cx, &request).await;
        let synced = syncs.map(|synced| (synced, self.undo.mark()));
        let opens = request.opens();
        let (change, subjects) = (Change::of(&request), subjects(&mut request));
        let reply = next.call(cx, request).await;
        let reply = self.direct.opened(opens, reply, self.state.with_rules(|now| now.rules.cuts_reads()));
        self.paths().learn(change, &subjects, &reply);
        if let (Some((synced, mark)), None) = (synced, reply.error()) {
            self.undo.synced(synced, mark);
        }
        drop(below);
        if self.state.power.is_off() && !hands_out(&reply) { Reply::Error(no_power()) } else { reply }
    }
}

/// Whether somebody has to give back what the reply brings.
fn hands_out(reply: &Reply) -> bool {
    use Reply::{Created, DirentsPlus, Entries, Entry, Opened};
    matches!(reply, Entry(_) | Entries(_) | DirentsPlus(_) | Opened(_) | Created(_))
}

fn no_power() -> Error {
    Errno::EIO.because("the power has failed: a rule of the layer fault says so")
}

impl Plan {
    fn add(&mut self, rule: &Rule, path: Option<&str>, chance: u64) {
        let reason = || match path {
            Some(path) => format!("{path}: injected by the rule {rule}"),
            None => format!("injected by the rule {rule}"),
        };
        match rule.action() {
            Action::Refuse(errno) => drop(self.refuse.get_or_insert_with(|| errno.because(reason()))),
            Action::Disown(errno) => drop(self.disown.get_or_insert_with(|| errno.because(reason()))),
            Action::Short(most) => self.short = Some(self.short.map_or(most, |other| other.min(most))),
            Action::Flip => self.flip = Some(chance),
            Action::Lose => self.lose = true,
            Action::Die => self.die = Some(Moment::Before),
            Action::DieAfter => drop(self.die.get_or_insert(Moment::After)),
            // Which rules say so is not known here.
            Action::Cut | Action::None => {}
        }
        self.delay = self.delay.saturating_add(rule.delay());
    }
}

/// Cuts what a read asks for or a write brings, and flips a bit of a write; other operations have no length.
fn spoil_request(request: &mut Request, plan: &Plan) -> Result<(), Error> {
    let most = plan.short.unwrap_or(u32::MAX);
    match request {
        Request::Read(read) => read.len = read.len.min(most),
        Request::CopyRange(copy) => copy.len = copy.len.min(most.into()),
        Request::Write(write) if plan.short.is_some() || plan.flip.is_some() => {
            let content = std::mem::replace(&mut write.data, Payload::EMPTY).into_bytes()?;
            let content = content.slice(..content.len().min(most as usize));
            write.data = plan.flip.map_or(content.clone().into(), |chance| flipped(&content, chance));
        }
        _ => {}
    }
    Ok(())
}

/// Flips a bit of what was read.
fn spoil_reply(reply: Reply, plan: &Plan) -> Reply {
    match (reply, plan.flip) {
        (Reply::Data(data), Some(chance)) => match data.into_bytes() {
            Ok(content) => Reply::Data(flipped(&content, chance)),
            Err(error) => Reply::Error(error),
        },
        (reply, _) => reply,
    }
}

/// The content with one bit flipped: the one that `chance` hits.
fn flipped(content: &[u8], chance: u64) -> Payload {
    let mut content = content.to_vec();
    let bits = content.len() as u64 * 8;
    if let Some(bit) = chance.checked_rem(bits)
        && let Some(byte) = content.get_mut((bit / 8) as usize)
    {
        *byte ^= 1 << (bit % 8);
    }
    Payload::from(content)
}

/// What a device answers that has not stored anything, to requests that it can answer without looking.
fn as_if_done(request: &Request) -> Option<Reply> {
    match request {
        Request::Write(write) => Some(Reply::Count(Count(write.data.len() as u64))),
        request if request.op().only_stores() => Some(Reply::Done(())),
        _ => None,
    }
}

impl Layer for Fault {
    fn place(&self) -> Place {
        Place::anywhere("fault")
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        // Without an open, nothing tells the kernel that a file is for direct I/O, which later rules may need.
        Abilities { stateless_files: false, ..below }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if self.state.power.is_off() {
            return self.refuse(next, cx, request, no_power());
        }
        match self.state.with_rules(|now| self.plan(now, &mut request)) {
            None => self.pass(next, cx, request),
            Some(plan) => Answer::later(self.carry_out(plan, next, cx, request)),
        }
    }
}

#[cfg(test)]
mod tests;
