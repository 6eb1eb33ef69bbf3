// SPDX-License-Identifier: MIT OR Apache-2.0
//! What fails when files are opened and closed.

use super::*;

#[test]
fn what_was_lost_at_a_close_is_answered_at_the_next_fsync() {
    for op in [OpCode::Flush, OpCode::Release] {
        let bench = Bench::with(failing(op, Errno::EDQUOT));
        bench.ask(write(FILE));
        bench.pass(10);
        for request in [read(FILE), GetAttr { node: FILE, handle: None }.into(), fsync(OTHER)] {
            assert_eq!(bench.errno(request), None, "only the writer hears of it");
        }
        // For any caller: an NFS server then gives all its clients another verifier.
        assert_eq!(
            bench.ask_as(Credentials::ROOT, fsync(FILE)).error().map(|e| e.errno),
            Some(Errno::EDQUOT)
        );
        assert_eq!(bench.errno(fsync(FILE)), None, "once");
        bench.finish();
    }
}

#[test]
fn the_next_write_fails_once_and_the_fsync_all_the_same() {
    let failed = AtomicU64::new(0);
    let bench = Bench::with(move |_, request| {
        let is_first = matches!(request, Request::Flush(_)) && failed.fetch_add(1, Ordering::Relaxed) == 0;
        is_first.then(|| Step::Now(Reply::Error(Errno::EIO.into())))
    });
    bench.ask(write(FILE));
    bench.pass(10);
    assert_eq!(bench.errno(write(FILE)), Some(Errno::EIO));
    assert_eq!(bench.errno(write(FILE)), None);
    let node = Node::ROOT;
    assert_eq!(bench.errno(SyncFs { node }), Some(Errno::EIO), "of the whole tree, too");
    assert_eq!(bench.errno(SyncFs { node }), Some(Errno::EIO), "until the file's own has it");
    assert_eq!(bench.errno(fsync(FILE)), Some(Errno::EIO));
    assert_eq!((bench.errno(fsync(FILE)), bench.errno(SyncFs { node })), (None, None));
    bench.finish();
}

#[test]
fn an_fsync_waits_for_what_is_being_closed() {
    let bench = Bench::with(|_, request| {
        let lost = Reply::Error(Errno::EIO.into());
        matches!(request, Request::Flush(_)).then_some(Step::After(Duration::from_secs(10), lost))
    });
    bench.ask(write(FILE));
    bench.pass(7);
    assert_eq!(bench.errno(fsync(FILE)), Some(Errno::EIO));
    assert!(bench.sim.monotonic() >= Duration::from_secs(15));
    bench.finish();
}

#[test]
fn what_is_stored_is_read_by_those_who_open_it_meanwhile() {
    let bench = Bench::with(|_, request| {
        matches!(request, Request::Flush(_)).then_some(Step::After(Duration::from_secs(10), Reply::Done(())))
    });
    bench.ask(write(FILE));
    bench.pass(7);
    bench.log();
    bench.ask(read(FILE));
    assert_eq!(bench.ops(), [OpCode::Release, OpCode::Open, OpCode::Read]);
    bench.finish();
}

#[test]
fn more_failures_than_are_remembered_by_file_fail_an_fsync_of_any() {
    let bench = Bench::with(failing(OpCode::Release, Errno::EIO));
    let most = MAX_FAILURES as u64;
    for node in 2..most + 5 {
        bench.ask(write(Node(node)));
    }
    bench.finish();
    for node in 2..most + 2 {
        assert_eq!(bench.errno(fsync(Node(node))), Some(Errno::EIO), "{node}");
    }
    assert_eq!(bench.errno(fsync(FILE)), Some(Errno::EIO), "for the others");
    assert_eq!(bench.errno(fsync(FILE)), None);
    bench.finish();
}

#[test]
fn an_open_that_fails_is_tried_again_by_the_next_request() {
    let failed = AtomicU64::new(0);
    let bench = Bench::with(move |_, request| {
        let is_first = matches!(request, Request::Open(_)) && failed.fetch_add(1, Ordering::Relaxed) == 0;
        is_first.then(|| Step::Now(Reply::Error(Errno::ENOENT.into())))
    });
    assert_eq!(bench.errno(read(FILE)), Some(Errno::ESTALE), "the caller named a file that it knows");
    assert_eq!(bench.errno(read(FILE)), None);
    bench.finish();
}

#[test]
fn a_file_that_may_only_be_written_is_opened_for_that() {
    let bench = Bench::with(|_, request| match request {
        Request::Open(Open { flags, .. }) if flags.reads() => {
            Some(Step::Now(Reply::Error(Errno::EACCES.into())))
        }
        _ => None,
    });
    assert_eq!(bench.errno(write(FILE)), None);
    assert_eq!(bench.errno(read(FILE)), Some(Errno::EACCES));
    assert_eq!(bench.errno(fsync(FILE)), None);
    bench.pass(10);
    assert_eq!(bench.errno(fsync(FILE)), None, "it is opened for writing, too");
    bench.finish();
    let released = bench.driver.started().into_iter().find_map(|(_, request)| match request {
        Request::Release(release) => Some(release.flags),
        _ => None,
    });
    assert_eq!(released, Some(OpenFlags::WRITE_ONLY), "with the flags that it was opened with");
}

#[test]
fn a_handle_that_the_tree_does_not_know_any_more_is_replaced() {
    for errno in [Errno::EBADF, Errno::ESTALE] {
        let failed = AtomicU64::new(0);
        let bench = Bench::with(move |_, request| {
            let is_second =
                matches!(request, Request::Read(_)) && failed.fetch_add(1, Ordering::Relaxed) == 1;
            is_second.then(|| Step::Now(Reply::Error(errno.into())))
        });
        let replies = [0; 3].map(|_| bench.errno(read(FILE)));
        assert_eq!(replies, [None, Some(errno), None]);
        bench.finish();
        assert_eq!(bench.ops().iter().filter(|op| **op == OpCode::Open).count(), 2);
    }
}

#[test]
fn operations_that_a_tree_lacks_are_refused_without_opening() {
    let bench =
        Bench::of(&Sim::new(1), (ALL.without(OpSet::of(&[OpCode::Seek])), Options::default()), |_, _| None);
    let seek = Seek { node: FILE, handle: Handle::NONE, offset: 0, whence: Whence::Hole };
    assert_eq!(bench.errno(seek), Some(Errno::ENOSYS));
    assert_eq!(bench.ops(), []);
}

#[test]
fn locks_pass_as_they_are_since_they_end_with_a_handle() {
    let bench = Bench::new();
    let lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Write, pid: 1 };
    let (handle, owner) = (Handle::NONE, LockOwner(1));
    bench.ask(SetLock { node: FILE, handle, owner, lock, wait: false, flock: false });
    assert_eq!(bench.ops(), [OpCode::SetLock]);
}

#[test]
fn a_driver_that_panics_in_open_does_not_keep_others_from_opening_the_file() {
    let sim = Sim::new(1);
    let panics = AtomicU64::new(0);
    let bench = Bench::of(&sim, (ALL, Options::default()), move |_, request| {
        let first = matches!(request, Request::Open(_)) && panics.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!first, "on purpose");
        None
    });
    let (top, cx) = (bench.top(), Cx::new(7, USER, "test"));
    let mut answer = Box::pin(async move { top.call(&cx, read(FILE)).await });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let poll = std::panic::AssertUnwindSafe(|| answer.as_mut().poll(&mut context).is_pending());
    assert!(std::panic::catch_unwind(poll).is_err());
    assert_eq!(bench.errno(read(FILE)), None, "the next one opens it");
    bench.finish();
}
