// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that processes die of.

use super::*;

/// A driver that never answers reading a link nor making a directory.
fn stuck() -> Arc<Driver> {
    Driver::new(|_, request| match request {
        Request::ReadLink(_) | Request::SetAttr(_) => None,
        _ => done(),
    })
}

fn readlink() -> Request {
    ReadLink { node: Node(5) }.into()
}

#[test]
fn the_third_death_of_a_named_culprit_is_its_last() {
    for culprit in [readlink(), setattr()] {
        let (keep, driver) = (HeapKeep::default(), stuck());
        let mut named = None;
        for _ in 0..3 {
            let process = Process::start(&keep, &driver, named);
            assert_eq!(process.ask(10, 0, readlink()), None);
            assert_eq!(process.ask(11, 1, setattr()), None);
            assert_eq!(process.ask(12, 2, getattr()), done());
            assert!(process.journal.poisoned().is_empty());
            named = Some(if culprit == readlink() { 10 } else { 11 });
        }
        // The refusal holds, however many processes come after.
        for named in [named, None, None] {
            let process = Process::start(&keep, &driver, named);
            let (first, second) = (process.ask(10, 1, readlink()), process.ask(11, 0, setattr()));
            let (refused, id) = if culprit == readlink() { (first, 10) } else { (second, 11) };
            assert_eq!(refused.unwrap().error().map(|error| error.errno), Some(Errno::EIO));
            let reports = process.journal.poisoned();
            assert_eq!(reports.len(), 1);
            assert_eq!((reports[0].id, reports[0].op, reports[0].deaths), (id, culprit.op(), 3));
            assert_eq!(reports[0].request, format!("{culprit:?}"));
            assert!(process.journal.poisoned().is_empty(), "it was taken");
        }
    }
}

#[test]
fn without_a_name_all_in_flight_are_suspects_when_nothing_was_answered() {
    let (keep, driver) = (HeapKeep::default(), stuck());
    for _ in 0..3 {
        let process = Process::start(&keep, &driver, None);
        assert_eq!((process.ask(10, 0, readlink()), process.ask(11, 1, setattr())), (None, None));
    }
    let process = Process::start(&keep, &driver, None);
    let refused = |reply: Option<Reply>| reply.is_some_and(|reply| reply.error().is_some());
    assert!(refused(process.ask(10, 0, readlink())) && refused(process.ask(11, 1, setattr())));
    assert_eq!(process.journal.poisoned().len(), 2);
}

#[test]
fn one_that_waits_is_no_suspect_of_kills_from_outside() {
    let (keep, driver) = (HeapKeep::default(), stuck());
    for _ in 0..10 {
        let process = Process::start(&keep, &driver, None);
        assert_eq!(process.ask(10, 0, readlink()), None);
        assert_eq!(process.ask(11, 1, getattr()), done());
    }
    let (keep, driver) = (HeapKeep::default(), Driver::new(|_, _| None));
    let lock = Lock { start: 0, end: 1, kind: LockKind::Write, pid: 1 };
    let lock =
        SetLock { node: Node(2), handle: Handle(1), owner: LockOwner(1), lock, wait: true, flock: false };
    for _ in 0..10 {
        assert_eq!(Process::start(&keep, &driver, None).ask(10, 0, lock.clone()), None);
    }
}

#[test]
fn a_report_is_bounded() {
    let (keep, driver) = (HeapKeep::default(), Driver::new(|_, _| None));
    let walk = Walk { dir: Node(1), names: vec!["\u{e4}".repeat(120).as_str().try_into().unwrap(); 100] };
    for _ in 0..3 {
        assert_eq!(Process::start(&keep, &driver, Some(1)).ask(1, 0, walk.clone()), None);
    }
    let process = Process::start(&keep, &driver, Some(1));
    assert!(process.ask(1, 0, walk).is_some());
    let text = &process.journal.poisoned()[0].request;
    assert!(text.len() > REPORT_BYTES - 4 && text.len() <= REPORT_BYTES, "{}", text.len());
}
