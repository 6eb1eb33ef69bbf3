// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each layer costs a request that is answered at once: `cargo run --release -p outrigger-sim --example layer_cost`.
//!
//! Prints nanoseconds a request and how that compares with no layer, medians of rounds measured in turn.

use outrigger_core::ops::GetAttr;
use outrigger_core::reply::{Attrs, Ttl};
use outrigger_core::{
    Abilities, Answer, Attr, Credentials, Cx, Node, Notify, OpSet, Reply, Request, Service, Stack,
};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_fault::Fault;
use outrigger_layer_readonly::ReadOnly;
use outrigger_layer_simulate::Simulate;
use outrigger_layer_trace::{Format, Trace};
use outrigger_sim::Sim;
use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
const REQUESTS: u32 = 50_000;

/// Answers everything with the same attributes.
struct Constant;

impl Service for Constant {
    fn call<'a>(&'a self, _: &'a Cx, _: Request) -> Answer<'a> {
        Answer::Ready(Reply::Attrs(Attrs { attr: Attr::default(), ttl: Ttl::NEVER }))
    }
    fn abilities(&self) -> Abilities {
        Abilities::new("constant", "", OpSet::all())
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

type Stacks = Vec<(&'static str, Arc<dyn Service>)>;

/// The stacks to compare, by name.
fn stacks(sim: &Arc<Sim>) -> Result<Stacks, Box<dyn std::error::Error>> {
    let bare = || Stack::new(Arc::new(Constant));
    let (quiet, _) = Trace::new(sim.clone());
    let (loud, control) = Trace::new(sim.clone());
    control.start(Box::new(std::io::sink()), Format::Human);
    let fault = |rule: &str| Fault::parse(rule, sim.clone());
    Ok(vec![
        ("none", bare().service()),
        ("readonly", bare().push(ReadOnly)?.service()),
        ("simulate", bare().push(Simulate::new())?.service()),
        ("trace, off", bare().push(quiet)?.service()),
        ("trace, on", bare().push(loud)?.service()),
        ("deadline", bare().push(Deadline::new(Duration::from_secs(30), sim.clone()))?.service()),
        ("fault, another operation", bare().push(fault("op=write,error=EIO")?)?.service()),
        ("fault, another path", bare().push(fault("path=*.db,error=EIO")?)?.service()),
    ])
}

/// Nanoseconds a request, asked and polled as a door does.
fn round(service: &dyn Service) -> f64 {
    let cx = Cx::new(1, Credentials::ROOT, "bench");
    let mut context = Context::from_waker(Waker::noop());
    let began = Instant::now();
    for _ in 0..REQUESTS {
        let request = black_box(GetAttr { node: Node::ROOT, handle: None }).into();
        match service.call(&cx, request) {
            Answer::Ready(reply) => drop(black_box(reply)),
            later => drop(black_box(pin!(later.into_future()).poll(&mut context))),
        }
    }
    began.elapsed().as_nanos() as f64 / f64::from(REQUESTS)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(0);
    let stacks = stacks(&sim)?;
    let mut times = vec![Vec::with_capacity(ROUNDS); stacks.len()];
    for _ in 0..ROUNDS {
        for ((_, service), times) in stacks.iter().zip(&mut times) {
            times.push(round(&**service));
            // The lines of a trace are written here, outside of what is measured.
            sim.run();
        }
    }
    let medians = times.iter_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    let medians: Vec<f64> = medians.collect();
    println!("{:<26} {:>10} {:>10}", "layer", "ns/request", "more");
    for ((name, _), median) in stacks.iter().zip(&medians) {
        println!("{name:<26} {median:>10.1} {:>+10.1}", median - medians[0]);
    }
    Ok(())
}
