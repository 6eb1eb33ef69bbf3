// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the journal costs a request that is answered at once: `cargo run --release -p outrigger-crash --example journal_cost`.
//!
//! Prints nanoseconds a request without and with the journal, medians of rounds measured in turn. The region is an array,
//! as memory shared with a keeper is.

use outrigger_core::ops::{GetAttr, SetAttr, Write};
use outrigger_core::reply::{Attrs, Count, Ttl};
use outrigger_core::{
    Abilities, Answer, Attr, Credentials, Cx, DriverClass, Handle, HeapKeep, Keep, Node, Notify, OpSet,
    Payload, Region, Reply, Request, Result, Service, Stack,
};
use outrigger_layer_journal::Journal;
use outrigger_runtime::Threads;
use std::hint::black_box;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const ROUNDS: usize = 21;
const REQUESTS: u32 = 100_000;

/// Answers everything at once.
struct Constant;

impl Service for Constant {
    fn call<'a>(&'a self, _: &'a Cx, request: Request) -> Answer<'a> {
        Answer::Ready(match request {
            Request::Write(_) => Reply::Count(Count(1)),
            _ => Reply::Attrs(Attrs { attr: Attr::default(), ttl: Ttl::NEVER }),
        })
    }
    fn abilities(&self) -> Abilities {
        Abilities { class: DriverClass::PassThrough, ..Abilities::new("constant", "", OpSet::all()) }
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

struct Array(Vec<AtomicU64>);

impl Region for Array {
    fn words(&self) -> usize {
        self.0.len()
    }
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

/// Gives arrays.
#[derive(Default)]
struct Arrays(HeapKeep);

impl Keep for Arrays {
    fn region(&self, _: &'static str, words: usize) -> Result<Arc<dyn Region>> {
        Ok(Arc::new(Array((0..words).map(|_| AtomicU64::new(0)).collect())))
    }
    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.0.hold(fd)
    }
    fn let_go(&self, fd: BorrowedFd<'_>) {
        self.0.let_go(fd);
    }
    fn adopt(&self, number: RawFd) -> Result<OwnedFd> {
        self.0.adopt(number)
    }
}

fn round(service: &dyn Service, request: &Request) -> f64 {
    let cx = Cx { slot: 5, ..Cx::new(7, Credentials::ROOT, "bench") };
    let began = Instant::now();
    for _ in 0..REQUESTS {
        match service.call(&cx, black_box(request.clone())) {
            Answer::Ready(reply) => drop(black_box(reply)),
            Answer::Later(future) => drop(black_box(future)),
        }
    }
    began.elapsed().as_nanos() as f64 / f64::from(REQUESTS)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bare: Arc<dyn Service> = Arc::new(Constant);
    let journal = Journal::attach(&Arrays::default(), Arc::new(Threads::new()), None)?;
    let with = Stack::new(Arc::clone(&bare)).push(journal)?.service();
    with.abilities();
    let data = Payload::from(vec![0]);
    let write =
        Write { node: Node::ROOT, handle: Handle(0), offset: 0, data, cached: false, kill_setid: false };
    let requests: [(&str, Request); 3] = [
        ("query (getattr)", GetAttr { node: Node::ROOT, handle: None }.into()),
        ("change (setattr)", SetAttr { node: Node::ROOT, handle: None, attrs: Default::default() }.into()),
        ("change (write)", write.into()),
    ];
    println!("{:<24} {:>10} {:>10} {:>10}", "request", "without", "with", "more, ns");
    for (name, request) in &requests {
        let (mut without, mut journalled) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(round(&*bare, request));
            journalled.push(round(&*with, request));
        }
        let (without, journalled) = (median(&mut without), median(&mut journalled));
        println!("{name:<24} {without:>10.1} {journalled:>10.1} {:>10.1}", journalled - without);
    }
    Ok(())
}
