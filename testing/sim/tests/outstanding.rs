// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thousands of requests at once through deadline, fault and trace over a driver that is slow, deaf or hung:
//! each gets exactly one reply, and no change that reached the driver is lost.

use outrigger_core::{
    Class, Clock, Credentials, Cx, Errno, OpCode, Reply, Request, Runtime, Service, Stack, lock,
};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_fault::Fault;
use outrigger_layer_trace::{Format, Trace};
use outrigger_sim::{Scripted, Sim, Step, explore, sample};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

const REQUESTS: u64 = 2000;
const LIMIT: Duration = Duration::from_secs(1);

/// Operations that do not wait by their nature.
fn is_timed(op: OpCode) -> bool {
    !matches!(op, OpCode::SetLock | OpCode::Forget)
}

/// Queries that neither hand out what has to be given back nor give it back: no layer waits for their end.
fn may_hang(request: &Request) -> bool {
    request.op().class() == Class::Query && !request.must_end()
}

fn driver(sim: &Arc<Sim>) -> Arc<Scripted> {
    let random = Mutex::new(sample::Random::with_seed(sim.seed()));
    Scripted::new(sim, move |_, request| {
        let mut random = lock(&random);
        let reply = sample::reply(request.op(), &mut random);
        let pause = Duration::from_millis(random.u64(..2000));
        match random.u8(..8) {
            0 | 1 => Step::Now(reply),
            2 | 3 if request.class() == Class::Query => Step::Heeding(pause, reply),
            4 if may_hang(request) => Step::Never,
            _ => Step::After(pause, reply),
        }
    })
}

struct World {
    sim: Arc<Sim>,
    driver: Arc<Scripted>,
    top: Arc<dyn Service>,
    /// What each request got.
    replies: Arc<Mutex<BTreeMap<u64, Vec<Ending>>>>,
}

/// How and after what time a request ended for its caller.
struct Ending {
    errno: Option<Errno>,
    took: Duration,
}

impl World {
    fn new(sim: &Arc<Sim>) -> Self {
        let driver = driver(sim);
        let rules = [
            "op=change,error=EIO,applied,probability=0.1",
            "error=ENOMEM,probability=0.1",
            "delay=900ms,probability=0.2",
        ];
        let rules = rules.map(|text| text.parse().expect("a good rule"));
        let (trace, control) = Trace::new(sim.clone());
        control.start(Box::new(std::io::sink()), Format::Json);
        let stack = Stack::new(driver.clone())
            .push(Fault::new(rules, sim.seed(), sim.clone()).expect("few rules"))
            .and_then(|stack| stack.push(Deadline::new(LIMIT, sim.clone())))
            .and_then(|stack| stack.push(trace));
        let top = stack.expect("any order is good").service();
        World { sim: Arc::clone(sim), driver, top, replies: Arc::default() }
    }

    /// One caller: asks, and may be cancelled, or go away, on its way.
    fn caller(&self, id: u64, request: Request, fate: u64) {
        let cx = Cx::new(id, Credentials::ROOT, "test");
        let cancel = cx.cancel.clone();
        let (sim, top, replies) = (Arc::clone(&self.sim), Arc::clone(&self.top), Arc::clone(&self.replies));
        let moment = self.sim.monotonic() + Duration::from_millis(self.sim.below(1500));
        self.sim.spawn(Box::pin(async move {
            let (op, began) = (request.op(), sim.monotonic());
            let mut answer = Box::pin(async { top.call(&cx, request).await });
            let mut leave = sim.sleep_until(moment);
            let reply = poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(reply) => Poll::Ready(Some(reply)),
                Poll::Pending if fate == GOES_AWAY => leave.as_mut().poll(context).map(|()| None),
                Poll::Pending => Poll::Pending,
            })
            .await;
            sim.log(format!("#{id} {} {reply:?}", op.name()));
            let errno = reply.and_then(|reply| reply.error().map(|error| error.errno));
            lock(&replies).entry(id).or_default().push(Ending { errno, took: sim.monotonic() - began });
        }));
        if fate == CANCELLED {
            let sim = Arc::clone(&self.sim);
            self.sim.spawn(Box::pin(async move {
                sim.sleep_until(moment).await;
                cancel.raise();
            }));
        }
    }
}

const CANCELLED: u64 = 0;
const GOES_AWAY: u64 = 1;

/// Runs all callers; the digest of the run.
fn run(sim: &Arc<Sim>) -> u64 {
    let world = World::new(sim);
    let mut random = sample::Random::with_seed(sim.seed());
    let ops: Vec<OpCode> = OpCode::ALL.iter().copied().filter(|&op| is_timed(op)).collect();
    let mut waiting = BTreeSet::new();
    for id in 0..REQUESTS {
        let request = sample::request(ops[random.usize(..ops.len())], &mut random);
        let fate = random.u64(..5);
        waiting.insert(id);
        world.caller(id, request, fate);
    }
    assert_eq!(sim.run(), 0, "no task is left waiting");
    let replies = lock(&world.replies);
    let answered: BTreeSet<u64> = replies.keys().copied().collect();
    assert_eq!(answered, waiting, "every request is answered");
    assert!(replies.values().all(|replies| replies.len() == 1), "and once only");
    let longest = replies.values().map(|endings| endings[0].took).max().unwrap_or_default();
    assert!(longest < 2 * LIMIT, "nobody waits much longer than the deadline: {longest:?}");
    let timeouts = replies.values().filter(|endings| endings[0].errno == Some(Errno::ETIMEDOUT)).count();
    assert!(timeouts > 100, "the scenario meets the deadline: {timeouts}");
    no_change_is_lost(&world.driver);
    sim.digest()
}

fn no_change_is_lost(driver: &Scripted) {
    let mut finished: BTreeMap<u64, usize> = BTreeMap::new();
    driver.finished().into_iter().for_each(|id| *finished.entry(id).or_default() += 1);
    let changes = driver.started().into_iter().filter(|(_, request)| request.class() == Class::Change);
    let mut count = 0;
    for (id, request) in changes {
        assert!(finished.contains_key(&id), "#{id} {request:?} was started and never finished");
        count += 1;
    }
    assert!(count > 100, "the scenario starts changes: {count}");
}

#[test]
fn every_request_is_answered_once_and_no_change_is_lost() {
    explore(0..8, |sim| {
        run(sim);
    });
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    for seed in 100..102 {
        assert_eq!(run(&Sim::new(seed)), run(&Sim::new(seed)), "seed {seed}");
    }
    assert_ne!(run(&Sim::new(100)), run(&Sim::new(101)));
}

#[test]
fn a_driver_that_never_answers_costs_each_caller_the_deadline_and_no_more() {
    explore(0..4, |sim| {
        let driver = Scripted::new(sim, |_, _| Step::Never);
        let stack = Stack::new(driver).push(Deadline::new(LIMIT, sim.clone()));
        let top = stack.expect("any order is good").service();
        let timeouts = Arc::new(Mutex::new(0));
        let mut random = sample::Random::with_seed(sim.seed());
        for id in 0..1000 {
            let (top, timeouts) = (Arc::clone(&top), Arc::clone(&timeouts));
            let request = sample::request(OpCode::Read, &mut random);
            sim.spawn(Box::pin(async move {
                let cx = Cx::new(id, Credentials::ROOT, "test");
                if let Reply::Error(error) = top.call(&cx, request).await {
                    *lock(&timeouts) += u32::from(error.errno == Errno::ETIMEDOUT);
                }
            }));
        }
        assert_eq!(sim.run(), 0, "hung queries are dropped");
        assert_eq!(*lock(&timeouts), 1000);
    });
}
