// SPDX-License-Identifier: MIT OR Apache-2.0

mod accuracy;
mod faults;
mod listings;
mod random;
mod sharing;

use super::*;
use outrigger_core::ops::*;
use outrigger_core::reply::{Count, Created, Dirents, Entry, Opened, Ttl};
use outrigger_core::{
    Attr, Clock, Credentials, Errno, Generation, Handle, LockOwner, Name, Node, OpCode, OpSet, Payload,
    Reply, Stack, Traverse, Visit, lock,
};
use outrigger_sim::{Scripted, Sim, Step, explore, sample};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const FILE: Node = Node(2);
const OTHER: Node = Node(3);
const USER: Credentials = Credentials::new(1000, 100);
/// All that a server of files has.
const ALL: OpSet = OpSet::all();

/// What a driver that needs handles saw, and what it has open.
#[derive(Default)]
struct Seen {
    /// When, in whole seconds, and which operations about which handles, apart from reads and queries.
    log: Vec<(u64, OpCode, u64)>,
    /// What is open, with the node.
    open: BTreeMap<u64, Node>,
    last: u64,
}

impl Seen {
    fn opened(&mut self, node: Node) -> Reply {
        self.last += 1;
        self.open.insert(self.last, node);
        Reply::Opened(Opened { handle: Handle(self.last), ..Opened::default() })
    }

    /// Only what is open is asked, with its node, and nothing is closed twice.
    fn answer(&mut self, request: &Request) -> Reply {
        let mut known = |node: Node, handle: Handle, reply: Reply| {
            assert_eq!(self.open.get(&handle.0), Some(&node), "{request:?}");
            if request.ends().is_some() {
                self.open.remove(&handle.0);
            }
            reply
        };
        match request {
            Request::Open(op) => self.opened(op.node),
            Request::OpenDir(op) => self.opened(op.node),
            Request::Create(_) => match self.opened(FILE) {
                Reply::Opened(opened) => Reply::Created(Created { entry: entry(FILE), opened }),
                reply => reply,
            },
            Request::Read(op) => known(op.node, op.handle, Reply::Data(Payload::from(vec![1]))),
            Request::Write(op) => known(op.node, op.handle, Reply::Count(Count(op.data.len() as u64))),
            Request::FSync(op) => known(op.node, op.handle, Reply::Done(())),
            Request::FSyncDir(op) => known(op.node, op.handle, Reply::Done(())),
            Request::Flush(op) => known(op.node, op.handle, Reply::Done(())),
            Request::Release(op) => known(op.node, op.handle, Reply::Done(())),
            Request::ReleaseDir(op) => known(op.node, op.handle, Reply::Done(())),
            Request::ReadDir(op) => known(op.node, op.handle, Reply::Dirents(Dirents::default())),
            Request::CopyRange(op) => {
                known(op.node, op.handle, Reply::Done(()));
                known(op.to_node, op.to_handle, Reply::Count(Count(op.len)))
            }
            Request::Lookup(_) => Reply::Entry(entry(FILE)),
            _ => Reply::Done(()),
        }
    }
}

fn entry(node: Node) -> Entry {
    let attr = Attr { ino: node.0, ..Attr::default() };
    Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::NEVER, attr_ttl: Ttl::NEVER }
}

fn name() -> Name {
    Name::try_from("name").expect("a good name")
}

fn read(node: Node) -> Request {
    Read { node, handle: Handle::NONE, offset: 0, len: 1 }.into()
}

fn write(node: Node) -> Request {
    let data = Payload::from(vec![1]);
    Write { node, handle: Handle::NONE, offset: 0, data, cached: false, kill_setid: false }.into()
}

fn fsync(node: Node) -> Request {
    FSync { node, handle: Handle::NONE, data_only: true }.into()
}

fn make(mode: u32) -> Request {
    MkNod { dir: Node::ROOT, name: name(), mode, umask: 0, rdev: 0, initial: None }.into()
}

fn unlink() -> Request {
    Unlink { dir: Node::ROOT, name: name() }.into()
}

/// The stack under test over a driver that needs handles.
struct Bench {
    sim: Arc<Sim>,
    driver: Arc<Scripted>,
    seen: Arc<Mutex<Seen>>,
    control: Control,
    top: Option<Arc<dyn Service>>,
}

impl Bench {
    /// Over a driver with `ops`, some of whose answers `script` decides.
    fn of(
        sim: &Arc<Sim>,
        (ops, options): (OpSet, Options),
        script: impl Fn(&Cx, &Request) -> Option<Step> + Send + Sync + 'static,
    ) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let (noted, clock) = (Arc::clone(&seen), Arc::clone(sim));
        let driver = Scripted::with_ops(sim, ops, move |cx, request| {
            let mut seen = lock(&noted);
            let scripted = script(cx, request);
            let failed = matches!(&scripted, Some(Step::Now(reply) | Step::After(_, reply)) if reply.error().is_some());
            let reply =
                if failed && request.opens().is_some() { Reply::Done(()) } else { seen.answer(request) };
            let handle = match (&reply, request.ends()) {
                (Reply::Opened(opened), _) => opened.handle.0,
                (_, Some((_, handle))) => handle.0,
                _ => 0,
            };
            let now = clock.monotonic().as_millis() as u64;
            seen.log.push(((now + 500) / 1000, request.op(), handle));
            match scripted {
                // The script knows no handles.
                Some(Step::After(pause, Reply::Opened(_))) => Step::After(pause, reply),
                Some(step) => step,
                None => Step::Now(reply),
            }
        });
        let layer = CloseSim::new(options, sim.clone());
        let control = layer.control();
        let top = Stack::new(driver.clone()).push(layer).expect("any order is good").service();
        Bench { sim: Arc::clone(sim), driver, seen, control, top: Some(top) }
    }

    fn with(script: impl Fn(&Cx, &Request) -> Option<Step> + Send + Sync + 'static) -> Self {
        Bench::of(&Sim::new(1), (ALL, Options::default()), script)
    }

    fn new() -> Self {
        Bench::with(|_, _| None)
    }

    fn top(&self) -> Arc<dyn Service> {
        Arc::clone(self.top.as_ref().expect("the stack is there"))
    }

    fn ask_as(&self, cred: Credentials, request: impl Into<Request>) -> Reply {
        let (top, cx, request) = (self.top(), Cx::new(7, cred, "test"), request.into());
        self.sim.block_on(async move { top.call(&cx, request).await })
    }

    fn ask(&self, request: impl Into<Request>) -> Reply {
        self.ask_as(USER, request)
    }

    fn errno(&self, request: impl Into<Request>) -> Option<Errno> {
        self.ask(request).error().map(|error| error.errno)
    }

    /// Lets time pass.
    fn pass(&self, seconds: u64) {
        let (sim, until) = (Arc::clone(&self.sim), Duration::from_secs(seconds) + self.sim.monotonic());
        self.sim.block_on(async move { sim.sleep_until(until).await });
    }

    /// Runs until nothing is left to do: all is closed, once.
    fn finish(&self) {
        assert_eq!(self.sim.run(), 0, "no task is left waiting");
        assert!(lock(&self.control.0.table).is_closed());
        assert!(lock(&self.seen).open.is_empty(), "everything is closed");
    }

    /// What opened and closed, with the handles, and what was asked besides.
    fn log(&self) -> Vec<(u64, OpCode, u64)> {
        std::mem::take(&mut lock(&self.seen).log)
    }

    fn ops(&self) -> Vec<OpCode> {
        self.log().into_iter().map(|(_, op, _)| op).collect()
    }
}

fn failing(op: OpCode, errno: Errno) -> impl Fn(&Cx, &Request) -> Option<Step> + Send + Sync {
    move |_, request| (request.op() == op).then(|| Step::Now(Reply::Error(errno.into())))
}

#[test]
fn what_the_layer_adds_is_what_it_can_do() {
    let layer = CloseSim::new(Options::default(), Sim::new(0));
    let plain = Abilities::new("plain", "plain:", ALL);
    let adds = |below: Abilities| {
        let above = layer.abilities(below);
        (above.anonymous_io, above.lasting_cookies)
    };
    assert_eq!(adds(plain.clone()), (true, false));
    assert_eq!(adds(Abilities { cookies_by_name: true, ..plain.clone() }), (true, true));
    assert_eq!(adds(Abilities { lasting_cookies: true, ..plain.clone() }), (true, true));
    assert_eq!(adds(Abilities { ops: OpSet::of(&[OpCode::Read]), ..plain.clone() }), (false, false));
    let stateless = Abilities { stateless_files: true, stateless_dirs: true, ..plain };
    assert_eq!(adds(stateless), (true, false));
}

#[test]
fn options_are_read_or_refused_with_a_reason() {
    let options = Options::parse("idle=1.5,max=3,write_idle=2,list_idle=9").expect("good options");
    let seconds = |seconds| Duration::from_secs_f64(seconds);
    let expected = Options { idle: seconds(1.5), write_idle: seconds(2.0), list_idle: seconds(9.0), max: 3 };
    assert_eq!(options, expected);
    assert_eq!(Options::parse(""), Ok(Options::default()));
    for bad in ["idle=0", "idle", "max=0", "max=x", "size=1"] {
        let reason = Options::parse(bad).err().and_then(|error| error.reason).unwrap_or_default();
        assert!(reason.starts_with("closesim"), "{bad}: {reason}");
    }
}

#[test]
fn an_open_handle_costs_no_change_of_thread() {
    let bench = Bench::new();
    bench.ask(write(FILE));
    let (top, cx) = (bench.top(), Cx::new(7, USER, "test"));
    for request in [read(FILE), write(FILE)] {
        assert!(matches!(top.call(&cx, request), Answer::Ready(_)));
    }
    bench.finish();
}

#[test]
fn what_has_a_handle_passes_as_it_is() {
    struct Number;
    impl Visit for Number {
        fn handle(&mut self, handle: &mut Handle) {
            handle.0 = handle.0.max(1);
        }
    }
    explore(0..40, |sim| {
        let random = Mutex::new(sample::Random::with_seed(sim.seed()));
        let driver =
            Scripted::new(sim, move |_, request| Step::Now(sample::reply(request.op(), &mut lock(&random))));
        let layer = CloseSim::new(Options::default(), sim.clone());
        let top = Stack::new(driver.clone()).push(layer).expect("any order is good").service();
        let mut random = sample::Random::with_seed(sim.seed());
        for &op in OpCode::ALL {
            let mut request = sample::request(op, &mut random);
            request.traverse(&mut Number);
            assert!(matches!(top.call(&Cx::new(7, USER, "test"), request.clone()), Answer::Ready(_)));
            assert_eq!(driver.started().pop(), Some((7, request)));
        }
        assert_eq!(driver.started().len(), OpCode::ALL.len());
    });
}
