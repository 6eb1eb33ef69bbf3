// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers that have nothing to do leave every request and every reply as they are.

use outrigger_core::{
    Abilities, Class, Credentials, Cx, Layer, OpCode, OpSet, Place, Reply, Service, Stack, lock,
};
use outrigger_layer_closesim::{CloseSim, Options};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_fault::Fault;
use outrigger_layer_permissions::Permissions;
use outrigger_layer_readonly::ReadOnly;
use outrigger_layer_simulate::Simulate;
use outrigger_layer_trace::{Format, Trace};
use outrigger_sim::{Scripted, Sim, Step, explore, sample};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Wrap = fn(Stack, &Arc<Sim>) -> Stack;

/// A driver that answers at random, at once or later, but by the book: the kind of reply fits the operation.
fn driver(sim: &Arc<Sim>) -> Arc<Scripted> {
    let random = Mutex::new(sample::Random::with_seed(sim.seed()));
    // The layer trace asks for paths by itself where the driver can tell them.
    let ops = OpSet::all().without(OpSet::of(&[OpCode::Locate]));
    Scripted::with_ops(sim, ops, move |_, request| {
        let mut random = lock(&random);
        let failed = random.u8(..4) == 0;
        let reply =
            if failed { sample::error(&mut random) } else { sample::reply(request.op(), &mut random) };
        if random.bool() { Step::Now(reply) } else { Step::After(Duration::from_millis(1), reply) }
    })
}

/// The replies to one random request of each operation, and what the driver saw of them.
fn replies(sim: &Arc<Sim>, ops: &[OpCode], wrap: Wrap) -> (Vec<Reply>, Arc<Scripted>) {
    let driver = driver(sim);
    let top: Arc<dyn Service> = wrap(Stack::new(driver.clone()), sim).service();
    let mut random = sample::Random::with_seed(sim.seed() + 1000);
    let ask = |(id, &op): (usize, &OpCode)| {
        let (top, request) = (Arc::clone(&top), sample::request(op, &mut random));
        let cx = Cx::new(id as u64, Credentials::ROOT, "test");
        sim.block_on(async move { top.call(&cx, request).await })
    };
    let replies = ops.iter().enumerate().map(ask).collect();
    sim.run();
    (replies, driver)
}

fn assert_transparent(name: &str, ops: &[OpCode], wrap: Wrap) {
    explore(0..60, |sim| {
        let (bare, seen_bare) = replies(&Sim::new(sim.seed()), ops, |stack, _| stack);
        let (through, seen) = replies(sim, ops, wrap);
        assert_eq!(through, bare, "{name} changes a reply");
        assert_eq!(seen.started(), seen_bare.started(), "{name} changes a request");
    });
}

#[test]
fn trace_changes_nothing_in_any_format_nor_when_off() {
    for start in [None, Some(Format::Human), Some(Format::Json), Some(Format::Ended)] {
        let wrap: Wrap = match start {
            None => |stack, sim| stack.push(Trace::new(sim.clone()).0).expect("any order is good"),
            Some(Format::Human) => |stack, sim| traced(stack, sim, Format::Human),
            Some(Format::Json) => |stack, sim| traced(stack, sim, Format::Json),
            Some(Format::Ended) => |stack, sim| traced(stack, sim, Format::Ended),
        };
        assert_transparent("trace", OpCode::ALL, wrap);
    }
}

fn traced(stack: Stack, sim: &Arc<Sim>, format: Format) -> Stack {
    let (layer, control) = Trace::new(sim.clone());
    control.start(Box::new(std::io::sink()), format);
    stack.push(layer).expect("any order is good")
}

#[test]
fn simulate_changes_nothing_when_off_or_when_the_driver_has_everything() {
    assert_transparent("simulate", OpCode::ALL, |stack, _| {
        let off = stack.push(Simulate::only(OpSet::NONE)).expect("any order is good");
        off.push(Simulate::new()).expect("any order is good")
    });
}

#[test]
fn a_deadline_that_does_not_come_and_faults_that_do_not_happen_change_nothing() {
    assert_transparent("deadline and fault", OpCode::ALL, |stack, sim| {
        // A rule that cuts reads makes files open for direct I/O.
        let rules =
            ["path=/no/such/path,error=EIO", "error=EIO,probability=0", "op=write,short=0,after=1000000"];
        let rules = rules.map(|text| text.parse().expect("a good rule"));
        let faulty =
            stack.push(Fault::new(rules, 0, sim.clone()).expect("few rules")).expect("any order is good");
        faulty.push(Deadline::new(Duration::from_secs(1), sim.clone())).expect("any order is good")
    });
}

/// Says that the driver needs no handles.
struct Stateless;

impl Layer for Stateless {
    fn place(&self) -> Place {
        Place::anywhere("stateless")
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { stateless_files: true, stateless_dirs: true, ..below }
    }
}

#[test]
fn closesim_changes_nothing_where_no_handles_are_needed() {
    // A new file that its owner cannot open is made open: see the layer's own tests.
    let others: Vec<OpCode> = OpCode::ALL.iter().filter(|op| **op != OpCode::MkNod).copied().collect();
    assert_transparent("closesim", &others, |stack, sim| {
        let layer = CloseSim::new(Options::default(), sim.clone());
        stack.push(Stateless).and_then(|stack| stack.push(layer)).expect("any order is good")
    });
}

#[test]
fn readonly_lets_queries_through_as_they_are() {
    let is_query = |op: &&OpCode| op.class() == Class::Query && **op != OpCode::Access;
    let queries: Vec<OpCode> = OpCode::ALL.iter().filter(is_query).copied().collect();
    assert_transparent("readonly", &queries, |stack, _| stack.push(ReadOnly).expect("any order is good"));
}

#[test]
fn permissions_let_the_superuser_do_everything() {
    let others: Vec<OpCode> = OpCode::ALL.iter().filter(|op| **op != OpCode::Access).copied().collect();
    assert_transparent("permissions", &others, |stack, sim| {
        stack.push(Permissions::new(sim.clone())).expect("any order is good")
    });
}
