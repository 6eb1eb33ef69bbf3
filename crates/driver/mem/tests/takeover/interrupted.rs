// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite and the model on a tree that is taken over between requests.

use crate::support::{options, serve};
use outrigger_conformance::{Direct, Target, block_on, run};
use outrigger_core::ops::Forget;
use outrigger_core::{Abilities, Answer, Cx, HeapKeep, Node, Notify, Reply, Request, Service, lock};
use outrigger_driver_mem::Mem;
use outrigger_runtime::Threads;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A tree that is taken over before every so many-th request, if none is in flight.
struct Interrupted {
    keep: Arc<HeapKeep>,
    threads: Arc<Threads>,
    tree: RwLock<Arc<dyn Service>>,
    every: u64,
    requests: AtomicU64,
    /// References as a kernel counts them: it returns all it has to a node at once.
    references: Mutex<HashMap<Node, (u64, u64)>>,
}

fn kept(keep: &Arc<HeapKeep>, threads: &Arc<Threads>) -> Arc<dyn Service> {
    serve(Mem::with_keep(options(), threads.clone(), keep.clone()).expect("a tree"))
}

impl Interrupted {
    fn service(every: u64) -> Arc<dyn Service> {
        let (keep, threads) = (Arc::new(HeapKeep::default()), Arc::new(Threads::new()));
        let tree = RwLock::new(kept(&keep, &threads));
        let (requests, references) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Interrupted { keep, threads, tree, every, requests, references })
    }

    fn take_over(&self) {
        if let Ok(mut tree) = self.tree.try_write() {
            let successor = kept(&self.keep, &self.threads);
            // Dropped, not forgotten: that would keep its descriptors, and there are thousands.
            *tree = successor;
        }
    }

    fn count(&self, node: Node) {
        let mut references = lock(&self.references);
        references.entry(node).or_default().0 += 1;
    }

    /// What to return now: nothing while some references are held, then all.
    fn returned(&self, forget: &Forget) -> u64 {
        let mut references = lock(&self.references);
        let Some((held, returned)) = references.get_mut(&forget.node) else { return 0 };
        *returned += forget.count;
        if returned < held {
            return 0;
        }
        references.remove(&forget.node).map_or(0, |(held, _)| held)
    }
}

impl Service for Interrupted {
    fn call<'a>(&'a self, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if self.requests.fetch_add(1, Relaxed) % self.every == self.every - 1 {
            self.take_over();
        }
        if let Request::Forget(forget) = &mut request {
            forget.count = self.returned(forget);
        }
        let tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        let reply = match tree.call(cx, request) {
            Answer::Ready(reply) => reply,
            Answer::Later(reply) => block_on(reply),
        };
        match &reply {
            Reply::Entry(entry) => self.count(entry.node),
            Reply::Created(made) => self.count(made.entry.node),
            Reply::Entries(entries) => entries.iter().for_each(|entry| self.count(entry.node)),
            Reply::DirentsPlus(piece) => piece.entries.iter().for_each(|entry| self.count(entry.entry.node)),
            _ => {}
        }
        Answer::Ready(reply)
    }
    fn abilities(&self) -> Abilities {
        let tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        tree.abilities()
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

#[test]
fn every_case_holds_across_takeovers() {
    // Some cases make trees that take long to take over.
    let direct = Direct::new(Interrupted::service(4001));
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
    println!("{report}");
    report.must_hold(190);
}

#[test]
fn the_model_agrees_across_takeovers() {
    for every in [1, 5] {
        outrigger_model::explore(100, 60, |list| {
            outrigger_model::check(&Direct::new(Interrupted::service(every)), list)
        });
    }
}
