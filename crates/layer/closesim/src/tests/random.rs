// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many callers at random: what is opened is closed, once, and nothing is asked of what is not open.

use super::*;
use outrigger_core::Runtime;
use std::future::poll_fn;
use std::task::Poll;

const REQUESTS: u64 = 600;

/// A driver that is slow at times, and fails at times, without being asked for what is not open.
fn bench(sim: &Arc<Sim>, ops: OpSet) -> Bench {
    let clock = Arc::clone(sim);
    let options = Options { max: 3, ..Options::default() };
    Bench::of(sim, (ops, options), move |_, request| {
        let pause = Duration::from_millis(clock.below(9000));
        match (request, clock.below(8)) {
            (Request::Open(_) | Request::OpenDir(_), 0) => {
                Some(Step::Now(Reply::Error(Errno::EACCES.into())))
            }
            (Request::Open(_) | Request::OpenDir(_), 1..5) => {
                Some(Step::After(pause, Reply::Opened(Opened::default())))
            }
            (Request::Lookup(_), 0) => Some(Step::After(pause, Reply::Error(Errno::ENOENT.into()))),
            (Request::Read(_) | Request::Write(_), 0) => Some(Step::Now(Reply::Error(Errno::EBADF.into()))),
            (Request::Read(_), 1..5) => Some(Step::Heeding(pause, Reply::Data(Payload::EMPTY))),
            (Request::Write(_), 1..5) => Some(Step::After(pause, Reply::Count(Count(1)))),
            (Request::Flush(_) | Request::FSync(_), 0) => Some(Step::Now(Reply::Error(Errno::EIO.into()))),
            (Request::Flush(_), 1..5) => Some(Step::After(pause, Reply::Done(()))),
            _ => None,
        }
    })
}

fn request(sim: &Sim) -> Request {
    let node = Node(2 + sim.below(4));
    let (to_node, handle) = (Node(2 + sim.below(4)), Handle::NONE);
    let (offset, to_handle, to_offset) = (0, handle, 0);
    match sim.below(12) {
        10 => ReadDir { node: Node(20 + sim.below(2)), handle, cookie: 0, size: 1 }.into(),
        11 => CopyRange { node, handle, offset, to_node, to_handle, to_offset, len: 1 }.into(),
        0..3 => read(node),
        3..6 => write(node),
        6 => fsync(node),
        7 => unlink(),
        8 => Forget { node, count: 1 }.into(),
        _ => SyncFs { node }.into(),
    }
}

/// One caller, which may be cancelled or go away.
fn caller(bench: &Bench, id: u64, answered: &Arc<AtomicU64>) {
    let sim = Arc::clone(&bench.sim);
    let cred = Credentials::new(sim.below(2) as u32, 0);
    let (cx, top, answered) = (Cx::new(id, cred, "test"), bench.top(), Arc::clone(answered));
    let begins = Duration::from_millis(sim.below(120_000));
    let leaves = begins + Duration::from_millis(sim.below(9000));
    let fate = sim.below(4);
    let cancel = cx.cancel.clone();
    bench.sim.spawn(Box::pin(async move {
        sim.sleep_until(begins).await;
        let request = request(&sim);
        let mut answer = Box::pin(async { top.call(&cx, request).await });
        let mut leave = sim.sleep_until(leaves);
        let ended = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if fate == 0 => leave.as_mut().poll(context).map(|()| false),
            Poll::Pending if fate == 1 && leave.as_mut().poll(context).is_ready() => {
                cancel.raise();
                context.waker().wake_by_ref();
                leave = Box::pin(std::future::pending());
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        });
        answered.fetch_add(u64::from(ended.await || fate == 0), Ordering::Relaxed);
    }));
}

#[test]
fn whatever_callers_do_everything_that_was_opened_is_closed_once() {
    for ops in [ALL, ALL.without(OpSet::of(&[OpCode::FSync]))] {
        explore(0..40, |sim| {
            let bench = bench(sim, ops);
            let answered = Arc::default();
            (0..REQUESTS).for_each(|id| caller(&bench, id, &answered));
            bench.finish();
            assert_eq!(answered.load(Ordering::Relaxed), REQUESTS, "every request is answered");
            let opened = lock(&bench.seen).last;
            assert!(opened > 20, "the scenario opens files: {opened}");
            // What is left are failures, until they are answered.
            while lock(&bench.control.0.table).any_failure().is_some() {
                (2..6).for_each(|node| drop(bench.ask(fsync(Node(node)))));
                bench.finish();
            }
            assert!(lock(&bench.control.0.table).is_empty());
        });
    }
}
