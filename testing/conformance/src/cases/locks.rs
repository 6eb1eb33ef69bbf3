// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advisory locks. Each open file is an owner of its own.

use crate::direct::block_on;
use crate::report::{Case, Place};
use crate::subject::{Fd, Flags, range_lock};
use crate::tester::{Expect, Tester};
use outrigger_core::ops::LockKind::{Read, Unlock, Write};
use outrigger_core::ops::{Lock, LockKind, SetLock};
use outrigger_core::{Errno, LockOwner, OpCode, ask};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;

const LOCKS: &[OpCode] = &[OpCode::SetLock, OpCode::GetLock];
const END: u64 = u64::MAX;

pub(super) const CASES: &[Case] = &[
    Case::new("locks/readers_share", LOCKS, share),
    Case::new("locks/a_writer_excludes", LOCKS, exclude),
    Case::new("locks/ranges_that_do_not_meet_are_independent", LOCKS, ranges),
    Case::new("locks/the_end_of_the_file_moves", LOCKS, to_the_end),
    Case::new("locks/unlocking_the_middle_splits", LOCKS, split),
    Case::new("locks/neighbours_join", LOCKS, join),
    Case::new("locks/the_owner_may_change_the_kind", LOCKS, convert),
    Case::new("locks/asking_names_what_is_in_the_way", LOCKS, test),
    Case::new("locks/closing_releases", LOCKS, close),
    Case::new("locks/waiting_ends_with_the_release", LOCKS, wait),
    Case::new("locks/flock_shares_and_excludes", &[OpCode::SetLock], flock),
    Case::new("locks/flock_converts", &[OpCode::SetLock], flock_convert),
    Case::new("locks/flock_ends_with_the_open_file", &[OpCode::SetLock], flock_close),
    Case::new("locks/flock_waits", &[OpCode::SetLock], flock_wait),
    Case::new("locks/flock_and_ranges_are_independent", LOCKS, independent),
    Case::new("locks/a_cancelled_wait_is_eintr", LOCKS, cancel).at(Place::Direct),
    Case::new("locks/a_deadlock_is_edeadlk", LOCKS, deadlock).at(Place::Direct),
];

fn two(t: &Tester<'_>) -> (Fd, Fd) {
    t.write_file("f", b"0123456789");
    (t.open("f", Flags::BOTH).must(), t.open("f", Flags::BOTH).must())
}

#[track_caller]
fn take(t: &Tester<'_>, fd: Fd, kind: LockKind, start: u64, end: u64) {
    t.fs.lock(fd, range_lock(kind, start, end), false).must();
}

#[track_caller]
fn refused(t: &Tester<'_>, fd: Fd, kind: LockKind, start: u64, end: u64) {
    t.fs.lock(fd, range_lock(kind, start, end), false).must_fail_with_one_of(&[Errno::EAGAIN, Errno::EACCES]);
}

fn share(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Read, 0, END);
    take(t, b, Read, 0, END);
    refused(t, a, Write, 0, END);
    take(t, b, Unlock, 0, END);
    take(t, a, Write, 0, END);
}

fn exclude(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 0, END);
    refused(t, b, Read, 5, 5);
    refused(t, b, Write, 0, END);
    take(t, a, Unlock, 0, END);
    take(t, b, Write, 0, END);
}

fn ranges(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 0, 99);
    take(t, b, Write, 100, 199);
    refused(t, b, Write, 99, 100);
    refused(t, a, Write, 100, 100);
    take(t, a, Write, 200, END);
}

fn to_the_end(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 1000, END);
    take(t, b, Write, 0, 999);
    t.fs.write_at(a, 1 << 20, b"x").must();
    refused(t, b, Read, 1 << 20, 1 << 20);
    refused(t, b, Read, 1 << 40, 1 << 40);
}

fn split(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 0, 99);
    take(t, a, Unlock, 40, 59);
    take(t, b, Write, 40, 59);
    refused(t, b, Write, 39, 39);
    refused(t, b, Write, 60, 60);
}

fn join(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 0, 9);
    take(t, a, Write, 10, 19);
    take(t, a, Write, 5, 12);
    let found = t.fs.test_lock(b, range_lock(Write, 0, END)).must().expect("a lock is in the way");
    assert_eq!((found.start, found.end, found.kind), (0, 19, Write));
    take(t, a, Unlock, 0, 19);
    take(t, b, Write, 0, END);
}

fn convert(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 0, 99);
    take(t, a, Read, 0, 49);
    take(t, b, Read, 0, 49);
    refused(t, b, Read, 50, 50);
    refused(t, a, Write, 0, 0);
}

fn test(t: &Tester<'_>) {
    let (a, b) = two(t);
    assert_eq!(t.fs.test_lock(a, range_lock(Write, 0, END)).must(), None);
    take(t, a, Read, 10, 19);
    assert_eq!(t.fs.test_lock(a, range_lock(Write, 0, END)).must(), None, "the own lock");
    assert_eq!(t.fs.test_lock(b, range_lock(Read, 0, END)).must(), None, "readers share");
    let found = t.fs.test_lock(b, range_lock(Write, 0, END)).must().expect("a lock is in the way");
    assert_eq!((found.start, found.end, found.kind), (10, 19, Read));
    assert_eq!(t.fs.test_lock(b, range_lock(Write, 20, END)).must(), None);
}

fn close(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 0, END);
    t.close(a);
    take(t, b, Write, 0, END);
}

/// Has a thread wait for a lock, releases it with `release`, and checks the order in which that happened.
fn waits(t: &Tester<'_>, wait: impl FnOnce() + Send, release: impl FnOnce()) {
    let released = AtomicBool::new(false);
    let (started, waiter_started) = mpsc::channel();
    thread::scope(|scope| {
        let released = &released;
        let waiter = scope.spawn(move || {
            let _ = started.send(());
            wait();
            released.load(SeqCst)
        });
        let _ = waiter_started.recv();
        t.tick();
        released.store(true, SeqCst);
        release();
        assert!(waiter.join().expect("the waiter ends"), "the lock was given before it was free");
    });
}

fn wait(t: &Tester<'_>) {
    let (a, b) = two(t);
    take(t, a, Write, 0, END);
    let wait = || t.fs.lock(b, range_lock(Write, 0, END), true).must();
    waits(t, wait, || take(t, a, Unlock, 0, END));
    refused(t, a, Read, 0, 0);
}

fn flock(t: &Tester<'_>) {
    let (a, b) = two(t);
    t.fs.flock(a, Read, false).must();
    t.fs.flock(b, Read, false).must();
    t.fs.flock(b, Unlock, false).must();
    t.fs.flock(a, Write, false).must();
    t.fs.flock(b, Read, false).must_fail(Errno::EAGAIN);
    t.fs.flock(b, Write, false).must_fail(Errno::EAGAIN);
    t.fs.flock(a, Unlock, false).must();
    t.fs.flock(b, Write, false).must();
}

fn flock_convert(t: &Tester<'_>) {
    let (a, b) = two(t);
    t.fs.flock(a, Write, false).must();
    t.fs.flock(a, Read, false).must();
    t.fs.flock(b, Read, false).must();
    t.fs.flock(a, Write, false).must_fail(Errno::EAGAIN);
}

fn flock_close(t: &Tester<'_>) {
    let (a, b) = two(t);
    t.fs.flock(a, Write, false).must();
    t.close(a);
    t.fs.flock(b, Write, false).must();
}

fn flock_wait(t: &Tester<'_>) {
    let (a, b) = two(t);
    t.fs.flock(a, Write, false).must();
    waits(t, || t.fs.flock(b, Write, true).must(), || t.fs.flock(a, Unlock, false).must());
    t.fs.flock(a, Read, false).must_fail(Errno::EAGAIN);
}

fn independent(t: &Tester<'_>) {
    let (a, b) = two(t);
    t.fs.flock(a, Write, false).must();
    take(t, b, Write, 0, END);
    t.fs.flock(b, Write, false).must_fail(Errno::EAGAIN);
    refused(t, a, Write, 0, END);
}

fn request(t: &Tester<'_>, fd: Fd, owner: LockOwner, start: u64, wait: bool) -> SetLock {
    let (node, handle, _) = t.direct().opened(fd).must();
    let lock = Lock { start, end: start, kind: Write, pid: 1 };
    SetLock { node, handle, owner, lock, wait, flock: false }
}

fn cancel(t: &Tester<'_>) {
    let (a, b) = two(t);
    let [first, second] = [t.direct().opened(a), t.direct().opened(b)].map(|opened| opened.must().2);
    t.direct().ask(request(t, a, first, 0, false)).must();
    let cx = t.direct().cx();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let wait = request(t, b, second, 0, true);
            block_on(ask(&**t.direct().service(), &cx, wait)).map_err(|error| error.errno)
        });
        cx.cancel.raise();
        waiter.join().expect("the waiter ends").must_fail(Errno::EINTR);
    });
    t.direct().ask(request(t, a, first, 1, false)).must();
    t.close(a);
    t.direct().ask(request(t, b, second, 0, false)).must();
}

fn deadlock(t: &Tester<'_>) {
    let (a, b) = two(t);
    let [first, second] = [t.direct().opened(a), t.direct().opened(b)].map(|opened| opened.must().2);
    t.direct().ask(request(t, a, first, 0, false)).must();
    t.direct().ask(request(t, b, second, 1, false)).must();
    // The second request closes the cycle: it must fail, and the other one must get its lock after the release.
    thread::scope(|scope| {
        let wait = |fd, owner, start| {
            let result = t.direct().ask(request(t, fd, owner, start, true));
            if result.is_err() {
                t.close(fd);
            }
            result
        };
        let one = scope.spawn(move || wait(a, first, 1));
        let two = scope.spawn(move || wait(b, second, 0));
        let results = [one.join().expect("ends"), two.join().expect("ends")];
        let refused = results.iter().filter(|result| **result == Err(Errno::EDEADLK)).count();
        let granted = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!((refused, granted), (1, 1), "{results:?}");
    });
}
