// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that dies at any store leaves the tree as it was before or after what it was doing.

use crate::deadly::{Burial, Deadly, Life};
use crate::support::{Known, Numbers, Ticks, call, difference, options, picture, serve};
use outrigger_core::ops::StatFs;
use outrigger_core::{HeapKeep, Keep, Node, Reply, Request, Service};
use outrigger_driver_mem::Mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

/// Words of a log that is compacted every few dozen requests.
const SMALL: usize = 20_000;

/// Requests, and what was known before the answer to each.
fn requests(seed: u64, count: usize) -> Vec<(Request, Known)> {
    let (mut numbers, mut known) = (Numbers(seed), Known::default());
    let tree = serve(Mem::new(options(), Arc::new(Ticks::default())));
    let mut next = || {
        let request = known.request(&mut numbers, true);
        let before = known.clone();
        known.count(&call(&*tree, request.clone()));
        (request, before)
    };
    (0..count).map(|_| next()).collect()
}

/// The picture of a tree on which `requests` were done.
fn expected(requests: &[(Request, Known)], known: &Known) -> String {
    let tree = serve(Mem::new(options(), Arc::new(Ticks::default())));
    requests.iter().for_each(|(request, _)| drop(call(&*tree, request.clone())));
    picture(&*tree, known)
}

/// What is left of a process that died, or came to its end.
struct Left {
    keep: Arc<HeapKeep>,
    clock: Arc<Ticks>,
    /// How many requests were done.
    done: usize,
    /// How many words it used.
    used: u64,
    file: Option<OwnedFd>,
}

/// Does `requests` until so many words were used; then `look` sees what is left.
fn live<T>(requests: &[(Request, Known)], words: u64, from_birth: bool, look: impl FnOnce(Left) -> T) -> T {
    let (life, done, clock) = (Arc::new(Life::default()), AtomicUsize::new(0), Arc::new(Ticks::default()));
    let keep = Arc::new(HeapKeep::default());
    keep.region("mem-log", SMALL).expect("memory");
    let deadly = Arc::new(Deadly { keep: keep.clone(), life: life.clone(), file: Mutex::default() });
    thread::scope(|scope| {
        let doomed = scope.spawn(|| {
            if from_birth {
                life.set_left(words);
            }
            let tree = serve(Mem::with_keep(options(), clock.clone(), deadly.clone()).expect("a tree"));
            if !from_birth {
                life.set_left(words);
            }
            for (request, _) in requests {
                call(&*tree, request.clone());
                done.fetch_add(1, SeqCst);
            }
            life.end();
            life.wait_for_burial();
        });
        // However this ends, the stopped thread does too.
        let burial = Burial(&life);
        life.wait();
        let (done, used) = (done.load(SeqCst), life.used());
        let file = deadly.file.lock().expect("the file").take();
        let seen = look(Left { keep, clock: clock.clone(), done, used, file });
        drop(burial);
        let _ = doomed.join();
        seen
    })
}

impl Left {
    fn take_over(&self) -> Arc<dyn Service> {
        serve(Mem::with_keep(options(), self.clock.clone(), self.keep.clone()).expect("a tree"))
    }

    /// No page of the memory file is in use that no file has.
    fn check_pages(&self, tree: &dyn Service) {
        let file = self.file.as_ref().expect("the memory file");
        let blocks = rustix::fs::fstat(file).expect("fstat").st_blocks as u64 / 8;
        match call(tree, StatFs { node: Node::ROOT }.into()) {
            Reply::FsStat(stat) => assert!(blocks <= stat.blocks - stat.bfree, "{blocks} pages"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_kill_at_any_store_is_before_or_after() {
    let mut numbers = Numbers(1);
    let mut unfinished = 0;
    for seed in 0..12 {
        let requests = requests(seed, 250);
        let total = live(&requests, u64::MAX, false, |left| {
            assert_eq!(left.done, requests.len());
            left.used
        });
        for _ in 0..60 {
            let words = numbers.below(total);
            live(&requests, words, false, |left| {
                let (request, known) = &requests[left.done];
                let tree = left.take_over();
                left.check_pages(&*tree);
                let found = picture(&*tree, known);
                if found == expected(&requests[..left.done], known) {
                    unfinished += 1;
                    return;
                }
                let after = expected(&requests[..=left.done], known);
                assert!(
                    found == after,
                    "seed {seed}, killed after {words} words in {request:?}\n{}",
                    difference(&found, &after)
                );
            });
        }
    }
    assert!(unfinished > 0, "no kill hit a request that was not done");
}

#[test]
fn a_kill_while_the_tree_is_made_leaves_none() {
    let total = live(&[], u64::MAX, true, |left| left.used);
    for words in 0..=total {
        live(&[], words, true, |left| {
            let tree = left.take_over();
            assert!(matches!(call(&*tree, StatFs { node: Node::ROOT }.into()), Reply::FsStat(_)), "{words}");
        });
    }
}
