// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use outrigger_core::ops::{
    Lock, LockKind, Lookup, MkDir, Open, OpenFlags, Read, Release, ReleaseDir, SetLock,
};
use outrigger_core::reply::{Count, Entry, Opened, Ttl};
use outrigger_core::{
    Attr, Clock, Credentials, Generation, Handle, LockOwner, Name, Node, OpCode, Payload, Stack,
};
use outrigger_sim::{Scripted, Sim, Step};
use std::future::poll_fn;

const LIMIT: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);

fn entry(node: u64) -> Entry {
    Entry {
        node: Node(node),
        generation: Generation(0),
        attr: Attr::default(),
        entry_ttl: Ttl::NEVER,
        attr_ttl: Ttl::NEVER,
    }
}

fn name() -> Name {
    Name::try_from("name").expect("a good name")
}

fn read() -> Request {
    Read { node: Node(2), handle: Handle(0), offset: 0, len: 1 }.into()
}

fn mkdir() -> Request {
    MkDir { dir: Node::ROOT, name: name(), mode: 0o755, umask: 0, initial: None }.into()
}

struct Bench {
    sim: Arc<Sim>,
    driver: Arc<Scripted>,
    top: Arc<dyn Service>,
}

impl Bench {
    fn new(script: impl Fn(&Cx, &Request) -> Step + Send + Sync + 'static) -> Self {
        let sim = Sim::new(1);
        let driver = Scripted::new(&sim, script);
        let stack = Stack::new(driver.clone()).push(Deadline::new(LIMIT, sim.clone()));
        Bench { sim, driver, top: stack.expect("any order is good").service() }
    }

    /// The reply to `request` and whether it was cancelled.
    fn ask(&self, request: Request) -> (Reply, bool) {
        let (top, cx) = (Arc::clone(&self.top), Cx::new(9, Credentials::ROOT, "test"));
        let cancel = cx.cancel.clone();
        let reply = self.sim.block_on(async move { top.call(&cx, request).await });
        (reply, cancel.is_raised())
    }

    fn asked(&self) -> Vec<OpCode> {
        self.driver.started().iter().map(|(_, request)| request.op()).collect()
    }
}

fn is_timeout(reply: &Reply) -> bool {
    reply.error().is_some_and(|error| error.errno == Errno::ETIMEDOUT)
}

#[test]
fn an_answer_in_time_passes_and_the_driver_sees_the_deadline() {
    let bench = Bench::new(|cx, _| {
        assert!(cx.deadline.is_some_and(|deadline| deadline >= LIMIT));
        Step::After(LIMIT / 2, Reply::Data(Payload::from(vec![1])))
    });
    assert_eq!(bench.ask(read()), (Reply::Data(Payload::from(vec![1])), false));
    assert_eq!(bench.sim.run(), 0);
}

#[test]
fn an_earlier_deadline_of_the_door_stays() {
    let bench = Bench::new(|cx, _| {
        assert_eq!(cx.deadline, Some(Duration::from_secs(1)));
        Step::Never
    });
    let (top, mut cx) = (Arc::clone(&bench.top), Cx::new(9, Credentials::ROOT, "test"));
    cx.deadline = Some(Duration::from_secs(1));
    let reply = bench.sim.block_on(async move { top.call(&cx, read()).await });
    assert!(is_timeout(&reply) && bench.sim.monotonic() < Duration::from_secs(2));
}

#[test]
fn a_slow_query_is_cancelled_and_dropped() {
    let bench = Bench::new(|_, _| Step::After(LONG, Reply::Data(Payload::EMPTY)));
    let (reply, cancelled) = bench.ask(read());
    assert!(is_timeout(&reply) && cancelled);
    assert!(format!("{reply:?}").contains("scripted did not answer read"), "{reply:?}");
    assert_eq!(bench.sim.run(), 0);
    assert_eq!(bench.driver.finished(), []);
}

#[test]
fn a_slow_change_goes_on_uncancelled_and_what_it_hands_out_is_given_back() {
    let bench = Bench::new(|_, request| match request {
        Request::MkDir(_) => Step::After(LONG, Reply::Entry(entry(7))),
        _ => Step::Now(Reply::Done(())),
    });
    let (reply, cancelled) = bench.ask(mkdir());
    assert!(is_timeout(&reply) && !cancelled);
    assert_eq!(bench.driver.finished(), []);
    assert_eq!(bench.sim.run(), 0);
    assert_eq!(bench.driver.finished(), [9, 9]);
    assert_eq!(bench.asked(), [OpCode::MkDir, OpCode::Forget]);
}

#[test]
fn a_late_handle_is_released_with_the_node_and_flags_it_was_opened_with() {
    let bench = Bench::new(|_, request| match request {
        Request::Open(_) => {
            Step::After(LONG, Reply::Opened(Opened { handle: Handle(3), ..Opened::default() }))
        }
        _ => Step::Now(Reply::Done(())),
    });
    let open = Open { node: Node(2), flags: OpenFlags::READ_WRITE };
    assert!(is_timeout(&bench.ask(open.into()).0));
    bench.sim.run();
    let Some((_, Request::Release(release))) = bench.driver.started().pop() else { panic!("no release") };
    assert_eq!((release.node, release.handle, release.flags), (Node(2), Handle(3), OpenFlags::READ_WRITE));
}

#[test]
fn a_late_lookup_is_cancelled_but_its_reference_is_not_lost() {
    let bench = Bench::new(|_, request| match request {
        Request::Lookup(_) => Step::After(LONG, Reply::Entry(entry(7))),
        _ => Step::Now(Reply::Done(())),
    });
    let (reply, cancelled) = bench.ask(Lookup { dir: Node::ROOT, name: name() }.into());
    assert!(is_timeout(&reply) && cancelled);
    bench.sim.run();
    assert_eq!(bench.asked(), [OpCode::Lookup, OpCode::Forget]);
}

#[test]
fn a_change_whose_caller_goes_away_is_finished() {
    let bench = Bench::new(|_, _| Step::After(LIMIT / 2, Reply::Count(Count(1))));
    let (top, cx) = (Arc::clone(&bench.top), Cx::new(9, Credentials::ROOT, "test"));
    bench.sim.block_on(async move {
        let mut answer = Box::pin(async { top.call(&cx, mkdir()).await });
        poll_fn(|context| {
            assert!(answer.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    assert_eq!(bench.driver.finished(), []);
    assert_eq!(bench.sim.run(), 0);
    assert_eq!(bench.driver.finished(), [9]);
}

#[test]
fn what_gives_back_is_carried_out_however_long_it_takes() {
    let bench = Bench::new(|_, _| Step::After(LONG, Reply::Done(())));
    let (node, handle, owner) = (Node(2), Handle(3), LockOwner(0));
    let release = Release { node, handle, flags: OpenFlags::empty(), owner, flock_release: false };
    for request in [Request::from(release), ReleaseDir { node, handle }.into()] {
        let (reply, cancelled) = bench.ask(request);
        assert!(is_timeout(&reply) && !cancelled);
    }
    assert_eq!(bench.sim.run(), 0);
    assert_eq!(bench.driver.finished(), [9, 9]);
}

#[test]
fn a_lock_may_wait_for_ever() {
    let bench = Bench::new(|cx, _| {
        assert_eq!(cx.deadline, None);
        Step::After(LONG, Reply::Done(()))
    });
    let lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Write, pid: 1 };
    let (node, handle, owner) = (Node(2), Handle(1), LockOwner(1));
    let request = SetLock { node, handle, owner, lock, wait: true, flock: false };
    assert_eq!(bench.ask(request.into()).0, Reply::Done(()));
}
