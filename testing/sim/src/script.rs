// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver that follows a script.

use crate::Sim;
use outrigger_core::{
    Abilities, Answer, Clock, Cx, Errno, Notify, OpSet, Reply, Request, Runtime, Service, lock,
};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What a scripted driver does about one request.
#[derive(Debug, Clone)]
pub enum Step {
    /// Answers at once.
    Now(Reply),
    /// Answers after a while, whether or not the request was cancelled.
    After(Duration, Reply),
    /// Answers after a while, or `EINTR` as soon as the request is cancelled.
    Heeding(Duration, Reply),
    /// Never answers.
    Never,
}

type Script = dyn Fn(&Cx, &Request) -> Step + Send + Sync;

/// A driver whose answers a closure decides, and which remembers what it was asked.
pub struct Scripted {
    sim: Arc<Sim>,
    abilities: Abilities,
    script: Box<Script>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    started: Vec<(u64, Request)>,
    finished: Vec<u64>,
}

impl Scripted {
    /// A driver with every operation that follows `script`.
    pub fn new(sim: &Arc<Sim>, script: impl Fn(&Cx, &Request) -> Step + Send + Sync + 'static) -> Arc<Self> {
        Scripted::with_ops(sim, OpSet::all(), script)
    }

    /// A driver with `ops` that follows `script`; it answers other operations `ENOSYS`.
    pub fn with_ops(
        sim: &Arc<Sim>,
        ops: OpSet,
        script: impl Fn(&Cx, &Request) -> Step + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Scripted {
            sim: Arc::clone(sim),
            abilities: Abilities::new("scripted", "script", ops),
            script: Box::new(script),
            seen: Mutex::default(),
        })
    }

    /// The requests that arrived, with their ids, in order.
    pub fn started(&self) -> Vec<(u64, Request)> {
        self.seen().started.clone()
    }

    /// The ids of the requests that ran to their end, in the order in which they ended.
    pub fn finished(&self) -> Vec<u64> {
        self.seen().finished.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    fn finish(&self, id: u64, reply: Reply) -> Reply {
        self.seen().finished.push(id);
        reply
    }

    async fn wait(&self, pause: Duration) {
        self.sim.sleep_until(self.sim.monotonic() + pause).await;
    }

    /// Waits for `pause`; `false` when the request was cancelled before.
    async fn wait_heeding(&self, cx: &Cx, pause: Duration) -> bool {
        cx.cancel.unless_raised(self.wait(pause)).await.is_some()
    }
}

impl Service for Scripted {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        if !self.abilities.ops.has(request.op()) {
            return Answer::error(Errno::ENOSYS);
        }
        let step = (self.script)(cx, &request);
        self.seen().started.push((cx.id, request));
        match step {
            Step::Now(reply) => Answer::Ready(self.finish(cx.id, reply)),
            Step::After(pause, reply) => Answer::later(async move {
                self.wait(pause).await;
                self.finish(cx.id, reply)
            }),
            Step::Heeding(pause, reply) => Answer::later(async move {
                let undisturbed = self.wait_heeding(cx, pause).await;
                self.finish(cx.id, if undisturbed { reply } else { Reply::Error(Errno::EINTR.into()) })
            }),
            Step::Never => Answer::later(std::future::pending()),
        }
    }

    fn abilities(&self) -> Abilities {
        self.abilities.clone()
    }

    fn attach(&self, _: Arc<dyn Notify>) {}
}
