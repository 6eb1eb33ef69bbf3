// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that cannot be opened, or do not answer.

use super::*;
use std::future::Future;
use std::task::Poll;

/// Asks, and answers what there is once everything else stands still for a while; nothing while the request waits.
fn reply_within<O: Op + Send + 'static>(bench: &Bench, op: O, time: Duration) -> Option<Result<O::Out>>
where
    O::Out: Send + 'static,
{
    let (demux, sim) = (Arc::clone(&bench.demux), Arc::clone(&bench.sim));
    bench.sim.block_on(async move {
        let cx = cx();
        let limit = sim.monotonic() + time;
        outrigger_core::runtime::until(&*sim, limit, ask(&*demux, &cx, op)).await
    })
}

#[test]
fn a_tree_that_is_never_opened_delays_nothing_but_what_is_asked_of_it() {
    let bench = Bench::new();
    bench.add(&["a"], |toy| Toy { opening: Mutex::new(None), ..toy });
    let [a, b] = ["a", "b"].map(|root| bench.find(Node::ROOT, root));
    let demux = Arc::clone(&bench.demux);
    let (waits, first) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(None)));
    let (over, reply) = (Arc::clone(&waits), Arc::clone(&first));
    bench.sim.spawn(Box::pin(async move {
        *lock(&reply) = Some(ask(&*demux, &cx(), OpenDir { node: a }).await);
        over.store(false, Ordering::Relaxed);
    }));
    let soon = Duration::from_secs(1);
    bench.pass(Duration::from_millis(1));
    assert!(reply_within(&bench, read_dir(Node::ROOT), soon).is_some());
    assert!(reply_within(&bench, Lookup { dir: Node::ROOT, name: name("a") }, soon).is_some());
    assert!(reply_within(&bench, attr(a), soon).is_some());
    assert!(reply_within(&bench, ListXattr { node: a }, soon).is_some());
    assert!(
        reply_within(&bench, Lookup { dir: b, name: name("d") }, soon).is_some_and(|found| found.is_ok())
    );
    assert!(reply_within(&bench, StatFs { node: Node::ROOT }, soon).is_some());
    assert!(waits.load(Ordering::Relaxed), "that one waits all the time");
    bench.pass(Duration::from_secs(31));
    let error = lock(&first).take().expect("it waits no longer").expect_err("it is not open");
    assert_eq!(error.errno, Errno::ETIMEDOUT);
    assert!(error.reason.is_some_and(|reason| reason.contains("toy:a")));
    // Later ones do not wait again.
    let later = reply_within(&bench, OpenDir { node: a }, Duration::from_millis(1));
    assert_eq!(later.and_then(Result::err).map(|error| error.errno), Some(Errno::ETIMEDOUT));
    assert_eq!(bench.toy(&["a"]).times(), (1, 0), "it is opened once");
    assert_eq!(bench.state("/a"), Some("opening"));
}

#[test]
fn a_tree_that_stops_answering_delays_nothing_but_what_is_asked_in_it() {
    let bench = Bench::new();
    let frozen = Arc::new(AtomicBool::new(false));
    let is_frozen = Arc::clone(&frozen);
    bench.add_with(
        &["a"],
        move |_, request| match is_frozen.load(Ordering::Relaxed) {
            true => Step::Never,
            false => Step::Now(healthy(request)),
        },
        |toy| toy,
    );
    let [a, b] = ["a", "b"].map(|root| bench.find(Node::ROOT, root));
    bench.find(a, "d");
    frozen.store(true, Ordering::Relaxed);
    assert!(reply_within(&bench, Lookup { dir: a, name: name("7") }, Duration::from_secs(60)).is_none());
    let before = bench.sim.monotonic();
    let shown = bench.ask(attr(a)).expect("as it was");
    assert!(bench.sim.monotonic() < before + GRACE * 2);
    assert_eq!((shown.attr.mode & 0o7777, shown.ttl), (0o700, Ttl::SECOND));
    bench.find(Node::ROOT, "a");
    assert!(bench.ask(read_dir(Node::ROOT)).is_ok() && bench.ask(ListXattr { node: a }).is_ok());
    bench.find(b, "d");
}

#[test]
fn a_tree_that_cannot_be_opened_says_why_and_is_tried_again_after_a_while() {
    let bench = Bench::new();
    let why = Errno::EHOSTDOWN.because("toy:a: the host is down");
    let toy = bench.add(&["a"], |toy| Toy { opening: Mutex::new(Some(Err(why.clone()))), ..toy });
    let a = bench.find(Node::ROOT, "a");
    assert_eq!(bench.ask(OpenDir { node: a }), Err(why.clone()));
    assert_eq!(bench.ask(Lookup { dir: a, name: name("d") }).err(), Some(why.clone()));
    assert_eq!(toy.times(), (1, 0), "it is not tried for each request");
    let xattr = GetXattr { node: a, name: xattr_name("user.outrigger.error") };
    assert_eq!(bench.ask(xattr).expect("told"), &*why.to_string());
    let status = bench.demux.control().status();
    assert_eq!((status[0].state, status[0].reason.clone()), ("broken", Some(why.clone())));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let (before, times) = (bench.sim.monotonic(), toy.times());
        while toy.times() == times {
            bench.pass(Duration::from_millis(100));
            assert!(bench.errno(OpenDir { node: a }).is_some());
        }
        pauses.push((bench.sim.monotonic() - before).as_secs_f64().round() as u64);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    *lock(&toy.opening) = Some(Ok(()));
    bench.demux.control().flush();
    assert!(bench.ask(OpenDir { node: a }).is_ok(), "at once after a flush");
    assert_eq!(bench.state("/a"), Some("open"));
}

#[test]
fn names_that_lead_to_nothing_are_neither_listed_nor_kept() {
    let bench = Bench::new();
    let g = bench.find(Node::ROOT, "g");
    let down = || Mutex::new(Some(Err(Errno::EHOSTDOWN.into())));
    let try_all = |names: std::ops::Range<usize>| {
        for number in names {
            let host = format!("host{number}");
            bench.add(&["g", &host], |toy| Toy { opening: down(), ..toy });
            let node = bench.find(g, &host);
            assert!(bench.errno(OpenDir { node }).is_some());
            bench.forget(node, 1);
        }
    };
    try_all(0..1100);
    assert_eq!(bench.ask(read_dir(g)).expect("listed").entries, []);
    bench.pass(Duration::from_secs(2));
    try_all(1100..1101);
    assert_eq!(bench.demux.control().status().len(), 1, "those before may be tried again, and are forgotten");
}

#[test]
fn what_closing_a_tree_has_lost_is_told_until_all_are_closed() {
    let bench = Bench::with(Options { idle: Some(Duration::from_secs(60)), ..Options::default() });
    let toy = bench.toy(&["a"]);
    let lost = Errno::EIO.because("what was written is lost");
    *lock(&toy.loses) = Some(lost.clone());
    let a = bench.find(Node::ROOT, "a");
    bench.forget(a, 1);
    for closed in 1..3 {
        bench.ask(read_dir(a)).expect("it is opened");
        bench.pass(Duration::from_secs(80));
        assert_eq!(toy.times(), (closed, closed));
        let status = bench.demux.control().status();
        assert_eq!(status.first().and_then(|tree| tree.reason.clone()), Some(lost.clone()));
    }
    let control = bench.demux.control();
    let close = || {
        let control = control.clone();
        bench.sim.block_on(async move { control.close(Duration::from_secs(1), &Cancel::default()).await })
    };
    assert_eq!(close(), [Left { path: "/a".to_owned(), what: lost.why() }]);
    assert_eq!(close(), [], "it was told");
}

#[test]
fn an_error_of_opening_takes_no_operation_from_the_others() {
    let bench = Bench::new();
    bench.add(&["a"], |toy| Toy {
        opening: Mutex::new(Some(Err(Errno::ENOSYS.because("no such driver")))),
        ..toy
    });
    let a = bench.find(Node::ROOT, "a");
    assert_eq!(bench.errno(OpenDir { node: a }), Some(Errno::EIO));
}

#[test]
fn a_tree_whose_root_does_not_answer_is_closed_again() {
    let bench = Bench::new();
    let denied = |_: &Cx, _: &Request| Step::Now(Reply::Error(Errno::EACCES.because("not for you")));
    let toy = bench.add_with(&["a"], denied, |toy| toy);
    let a = bench.find(Node::ROOT, "a");
    assert_eq!(bench.errno(OpenDir { node: a }), Some(Errno::EACCES));
    assert_eq!((toy.times(), bench.state("/a")), ((1, 1), Some("broken")));
}

#[test]
fn who_waits_for_a_tree_can_be_interrupted() {
    let bench = Bench::new();
    bench.add(&["a"], |toy| Toy { opening: Mutex::new(None), ..toy });
    let a = bench.find(Node::ROOT, "a");
    let demux = Arc::clone(&bench.demux);
    let reply = bench.sim.block_on(async move {
        let cx = cx();
        let mut answer = std::pin::pin!(ask(&*demux, &cx, OpenDir { node: a }));
        let first = std::future::poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        assert!(first.is_pending());
        cx.cancel.raise();
        answer.await
    });
    assert_eq!(reply.err().map(|error| error.errno), Some(Errno::EINTR));
}

#[test]
fn a_tree_that_does_not_answer_for_long_is_told_of_once_and_waited_for() {
    let told = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&told);
    let tell = Arc::new(move |location: &str| lock(&heard).push(location.to_owned()));
    let silence = Some(Silence { after: Duration::from_secs(10), tell });
    let bench = Bench::with(Options { idle: None, silence, ..Options::default() });
    bench.add_with(
        &["a"],
        |_, request| match request {
            Request::Read(_) => Step::After(Duration::from_secs(11), healthy(request)),
            Request::ReadDir(_) => Step::After(Duration::from_secs(9), healthy(request)),
            _ => Step::Now(healthy(request)),
        },
        |toy| toy,
    );
    let a = bench.find(Node::ROOT, "a");
    let seven = bench.find(a, "7");
    bench.ask(read_dir(a)).expect("it is slow");
    assert!(lock(&told).is_empty(), "that is not long");
    let opened = bench.ask(open(seven)).expect("it opens");
    for _ in 0..2 {
        let read = Read { node: seven, handle: opened.handle, offset: 0, len: 1 };
        bench.ask(read).expect("it answers in the end");
        assert_eq!(*lock(&told), ["toy:a"]);
    }
}
