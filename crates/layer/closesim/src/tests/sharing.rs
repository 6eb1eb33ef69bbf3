// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several callers, and callers that go away.

use super::*;
use outrigger_core::Groups;
use std::task::{Context, Poll, Waker};

const LONG: Duration = Duration::from_secs(4);

/// A driver that takes a while to open something.
fn slow() -> Bench {
    Bench::with(|_, request| request.opens().map(|_| Step::After(LONG, Reply::Opened(Opened::default()))))
}

impl Bench {
    /// Asks without waiting.
    fn send(&self, cx: Cx, request: Request) -> Arc<Mutex<Option<Reply>>> {
        let (top, reply) = (self.top(), Arc::<Mutex<Option<Reply>>>::default());
        let place = Arc::clone(&reply);
        let task = async move {
            let reply = top.call(&cx, request).await;
            *lock(&place) = Some(reply);
        };
        Runtime::spawn(&*self.sim, Box::pin(task));
        reply
    }
}

#[test]
fn requests_at_the_same_time_share_one_open() {
    let bench = slow();
    let cx = || Cx::new(7, USER, "test");
    let replies: Vec<_> = (0..5).map(|_| bench.send(cx(), read(FILE))).collect();
    bench.pass(5);
    assert!(replies.iter().all(|reply| matches!(*lock(reply), Some(Reply::Data(_)))));
    assert_eq!(bench.ops().iter().filter(|op| **op == OpCode::Open).count(), 1);
    // Another user gets nothing of it.
    for cred in [USER, Credentials::ROOT] {
        bench.send(Cx::new(7, cred, "test"), read(OTHER));
    }
    bench.pass(5);
    assert_eq!(bench.ops().iter().filter(|op| **op == OpCode::Open).count(), 2);
    bench.finish();
}

#[test]
fn handles_are_shared_by_callers_with_equal_credentials_alone() {
    let bench = Bench::new();
    let groups = |groups: &[u32]| Credentials { groups: Groups::of(groups), ..USER };
    for cred in [USER, Credentials::ROOT, USER, groups(&[1]), groups(&[1]), groups(&[2])] {
        bench.ask_as(cred, read(FILE));
    }
    let opens: Vec<_> = bench.driver.started().into_iter().filter(|(_, r)| r.opens().is_some()).collect();
    assert_eq!(opens.len(), 4);
    bench.finish();
}

#[test]
fn an_open_has_the_credentials_of_its_caller_and_so_has_the_close() {
    let bench = Bench::with(|cx, request| {
        assert_eq!(cx.cred, USER, "{request:?}");
        None
    });
    bench.ask(write(FILE));
    bench.finish();
}

#[test]
fn the_handle_of_a_caller_that_goes_away_is_kept_for_others_and_closed() {
    let bench = slow();
    let (top, cx) = (bench.top(), Cx::new(7, USER, "test"));
    for request in [
        read(FILE),
        write(OTHER),
        ReadDir { node: Node::ROOT, handle: Handle::NONE, cookie: 0, size: 1 }.into(),
    ] {
        let mut answer = Box::pin(async { top.call(&cx, request).await });
        assert!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    bench.pass(5);
    bench.ask(read(FILE));
    let asked = bench.ops();
    assert_eq!(
        asked.iter().filter(|op| matches!(op, OpCode::Open | OpCode::OpenDir)).count(),
        3,
        "{asked:?}"
    );
    assert!(!asked.contains(&OpCode::Write), "what did not begin is not done");
    bench.finish();
}

#[test]
fn a_cancelled_caller_does_not_wait_for_the_open() {
    let bench = slow();
    let cx = Cx::new(7, USER, "test");
    let cancel = cx.cancel.clone();
    let (first, second) = (bench.send(cx, read(FILE)), bench.send(Cx::new(8, USER, "test"), read(FILE)));
    bench.sim.block_on(async move { cancel.raise() });
    bench.pass(1);
    assert_eq!(lock(&first).take().and_then(|reply| reply.error().map(|e| e.errno)), Some(Errno::EINTR));
    bench.pass(5);
    assert!(matches!(*lock(&second), Some(Reply::Data(_))));
    bench.finish();
}

#[test]
fn a_file_is_not_closed_while_another_request_uses_it() {
    let bench = Bench::with(|_, request| {
        let data = Reply::Data(Payload::EMPTY);
        matches!(request, Request::Read(_)).then_some(Step::After(LONG, data))
    });
    let reply = bench.send(Cx::new(7, USER, "test"), read(FILE));
    bench.pass(1);
    bench.ask(unlink());
    bench.pass(1);
    assert_eq!(lock(&bench.seen).open.len(), 1, "it is removed, and still read");
    bench.pass(3);
    assert!(lock(&reply).is_some() && lock(&bench.seen).open.is_empty());
    bench.finish();
}

#[test]
fn a_request_that_takes_long_keeps_its_file_open_for_others() {
    let bench = Bench::with(|_, request| {
        let done = Reply::Count(Count(1));
        matches!(request, Request::Write(_)).then_some(Step::After(LONG * 15, done))
    });
    bench.send(Cx::new(7, USER, "test"), write(FILE));
    bench.pass(30);
    bench.ask(read(FILE));
    assert_eq!(bench.ops(), [OpCode::Open, OpCode::Write, OpCode::Read]);
    bench.finish();
}

#[test]
fn a_copy_within_a_tree_opens_both_files() {
    let bench = Bench::new();
    let copy = |node, to_node| CopyRange {
        node,
        handle: Handle::NONE,
        offset: 0,
        to_node,
        to_handle: Handle::NONE,
        to_offset: 0,
        len: 1,
    };
    assert_eq!(bench.ask(copy(FILE, OTHER)), Reply::Count(Count(1)));
    assert_eq!(bench.ask(copy(FILE, FILE)), Reply::Count(Count(1)));
    let flags: Vec<_> = bench.driver.started().iter().filter_map(|(_, r)| r.opens()?.flags).collect();
    let (reading, both) = (OpenFlags::empty(), OpenFlags::READ_WRITE);
    assert_eq!(flags, [reading, both, both]);
    // A handle that the caller has stays.
    bench.ask(read(OTHER));
    let Reply::Opened(opened) = bench.ask(Open { node: FILE, flags: reading }) else { panic!("no handle") };
    let mixed = CopyRange { handle: opened.handle, ..copy(FILE, OTHER) };
    assert_eq!(bench.ask(mixed), Reply::Count(Count(1)));
    bench.ask(Release {
        node: FILE,
        handle: opened.handle,
        flags: reading,
        owner: LockOwner(0),
        flock_release: false,
    });
    bench.finish();
}

#[test]
fn a_poll_that_is_dropped_leaves_nothing_in_use() {
    let bench = Bench::with(|_, request| {
        let data = Reply::Data(Payload::EMPTY);
        matches!(request, Request::Read(_)).then_some(Step::After(LONG, data))
    });
    bench.ask(read(FILE));
    let (top, cx) = (bench.top(), Cx::new(7, USER, "test"));
    let mut answer = Box::pin(async { top.call(&cx, read(FILE)).await });
    assert!(matches!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    drop(answer);
    bench.finish();
}
