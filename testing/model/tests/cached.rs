// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `cache` over a tree in memory: while it is the only client, it must not be observable.

use outrigger_conformance::{Direct, Target, run};
use outrigger_core::ops::{Create, OpenFlags};
use outrigger_core::reply::OpenHow;
use outrigger_core::{
    Abilities, Answer, BoxFuture, Clock, Cx, Inline, Layer, Notify, Place, Reply, Request, Runtime, Service,
    Stack, Time,
};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_cache::Cache;
use outrigger_model::{Op, check, explore};
use outrigger_runtime::Threads;
use outrigger_sim::Sim;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Ways to cache a tree.
const WAYS: &[&[(&str, &str)]] = &[
    &[],
    &[("cache", "always")],
    &[("cache", "never")],
    // So short that what is known grows old now and then between two requests.
    &[("cache", "0.01")],
    &[("cache_entries", "40")],
    &[("write", "close")],
    &[("write", "behind"), ("write_memory", "20k"), ("cache_memory", "100k")],
    &[("cache:/a", "never"), ("cache:/b/c", "always")],
];

/// What does not hold, and why.
const EXCEPTIONS: &[(&str, &str)] =
    &[("times/reading_marks_atime_only", "the time of the last access lags behind")];
/// What does not hold either where so little is remembered.
const EXCEPTIONS_OF_THE_FORGETFUL: &[(&str, &str)] = &[
    ("times/reading_marks_atime_only", "the time of the last access lags behind"),
    (
        "unlinked/",
        "of a file whose name was dropped before it was removed, a reference goes when its turn comes",
    ),
];

/// A cache as `way` says.
fn cache(way: &[(&str, &str)], runtime: Arc<dyn Runtime>) -> Cache {
    let mut chosen = outrigger_layer_cache::Options::default();
    way.iter().for_each(|(key, value)| chosen.set(key, value).expect("a good option"));
    Cache::new(&chosen, runtime)
}

/// A line on which requests and replies take any time, now and then a very long one, and overtake each other.
struct Line(Arc<Sim>);

impl Line {
    async fn pass(&self) {
        let most = if self.0.below(8) == 0 { 500_000 } else { 5000 };
        self.0.sleep_until(self.0.monotonic() + Duration::from_micros(self.0.below(most))).await;
    }
}

impl Layer for Line {
    fn place(&self) -> Place {
        Place::anywhere("line")
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        // Listings come in small pieces.
        if let Request::ReadDirPlus(op) = &mut request {
            op.size = op.size.min(400);
        }
        Answer::later(async move {
            self.pass().await;
            let reply = next.call(cx, request).await;
            self.pass().await;
            reply
        })
    }
}

/// A tree that supports async create: pending creates always succeed.
struct Foretold(Arc<dyn Service>);

impl Layer for Foretold {
    fn place(&self) -> Place {
        Place::anywhere("foretold")
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { async_create: true, ..below }
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        match request {
            Request::Create(op) if op.flags.contains(OpenFlags::ASYNC_CREATE) => Answer::later(async move {
                let op = Create { flags: op.flags - OpenFlags::ASYNC_CREATE, ..op };
                let mut reply = self.0.call(cx, op.into()).await;
                if let Reply::Created(created) = &mut reply {
                    created.opened.how |= OpenHow::PENDING_CREATE;
                }
                reply
            }),
            request => next.call(cx, request),
        }
    }
}

/// A stack that lives in a simulation, which goes on only while it is asked something.
struct Simulated {
    sim: Arc<Sim>,
    top: Arc<dyn Service>,
}

impl Service for Simulated {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let (top, cx) = (Arc::clone(&self.top), cx.clone());
        Answer::Ready(self.sim.block_on(async move { top.call(&cx, request).await }))
    }
    fn abilities(&self) -> Abilities {
        self.top.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.top.attach(notify);
    }
}

/// A tree in memory at the other end of a line. All that happens in it, and when, follows from `list`: listings that are
/// received ahead of their readers are in any stage when something is changed.
fn simulated(way: &[(&str, &str)], list: &[Op]) -> Direct {
    let mut hasher = DefaultHasher::new();
    format!("{list:?}").hash(&mut hasher);
    let sim = Sim::new(hasher.finish());
    let mem: Arc<dyn Service> = Arc::new(Inline::new(Mem::new(Options::default(), sim.clone()), sim.clone()));
    let foretold = Foretold(mem.clone());
    let stack = Stack::new(mem).push(Line(sim.clone())).and_then(|stack| stack.push(foretold));
    let stack = stack.and_then(|stack| stack.push(cache(way, sim.clone())));
    let top = stack.expect("any order is good").service();
    Direct::new(Arc::new(Simulated { sim, top }))
}

/// How many tasks run in the background.
#[derive(Default)]
struct Tasks {
    running: Mutex<u32>,
    ended: Condvar,
}

impl Tasks {
    fn wait_for_all(&self) {
        let running = self.running.lock().expect("the count");
        drop(self.ended.wait_while(running, |running| *running > 0).expect("the count"));
    }
}

/// A task that counts, until it has ended or panicked.
struct Running(Arc<Tasks>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.running.lock().expect("the count") -= 1;
        self.0.ended.notify_all();
    }
}

/// Threads that know how many tasks run on them.
struct Counted(Arc<Threads>, Arc<Tasks>);

impl Clock for Counted {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
    fn wall(&self) -> Time {
        self.0.wall()
    }
}

impl Runtime for Counted {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        *self.1.running.lock().expect("the count") += 1;
        let running = Running(Arc::clone(&self.1));
        self.0.spawn(Box::pin(async move {
            task.await;
            drop(running);
        }));
    }
    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline)
    }
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.spawn_blocking(job);
    }
}

/// Lets all end that is under way before space is counted: a listing that is being received refers to files that were removed
/// meanwhile.
struct Patient(Arc<Tasks>);

impl Layer for Patient {
    fn place(&self) -> Place {
        Place::anywhere("patient")
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        if let Request::StatFs(_) = request {
            self.0.wait_for_all();
        }
        next.call(cx, request)
    }
}

#[test]
fn every_case_of_the_suite_holds() {
    for way in WAYS {
        let (threads, tasks) = (Arc::new(Threads::new()), Arc::new(Tasks::default()));
        let mem: Arc<dyn Service> =
            Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads.clone()));
        let layer = cache(way, Arc::new(Counted(threads, tasks.clone())));
        let stack = Stack::new(mem.clone()).push(Foretold(mem)).and_then(|stack| stack.push(layer));
        let stack = stack.and_then(|stack| stack.push(Patient(tasks)));
        let direct = Direct::new(stack.expect("any order is good").service());
        let exceptions =
            if way == &[("cache_entries", "40")] { EXCEPTIONS_OF_THE_FORGETFUL } else { EXCEPTIONS };
        let target = Target { abilities: direct.abilities(), has_sample: false, exceptions };
        let report = run(&direct, &target);
        println!("{way:?}\n{report}");
        report.must_hold(185);
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    for way in WAYS {
        explore(100, 80, |list| check(&simulated(way, list), list));
    }
}
