// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a change asks below beside itself, when its names were looked up before and when not.

use super::*;
use outrigger_core::FileKind;

const LOOKS: [OpCode; 2] = [OpCode::Lookup, OpCode::Forget];

fn lookup(name: &str) -> Request {
    Lookup { dir: Node(1), name: name.try_into().unwrap() }.into()
}

fn rename(from: &str, to: &str, flags: RenameFlags) -> Request {
    let (name, to_name) = (from.try_into().unwrap(), to.try_into().unwrap());
    Rename { dir: Node(1), name, to_dir: Node(1), to_name, flags }.into()
}

fn unlink(name: &str) -> Request {
    Unlink { dir: Node(1), name: name.try_into().unwrap() }.into()
}

/// A directory in which every name leads to one file.
fn full() -> Arc<Driver> {
    Driver::new(|_, request| match request {
        Request::Lookup(_) => Some(Reply::Entry(entry_of(FileKind::Regular, Time::new(5, 0)))),
        _ => done(),
    })
}

/// What the last of `requests` asks below.
fn asked_for_the_last(requests: impl IntoIterator<Item = Request>) -> Vec<OpCode> {
    let (driver, mut before) = (full(), 0);
    let process = Process::start(&HeapKeep::default(), &driver, None);
    for (id, request) in requests.into_iter().enumerate() {
        before = driver.asked().len();
        assert!(process.ask(id as u64 + 1, 0, request).is_some());
    }
    driver.asked()[before..].to_vec()
}

#[test]
fn a_rename_of_a_name_that_was_looked_up_is_one_request() {
    let plain = RenameFlags::empty();
    let asked = asked_for_the_last([rename("a", "b", plain)]);
    assert_eq!(asked, [LOOKS[0], LOOKS[1], OpCode::Rename], "no reply says what it leads to");
    assert_eq!(asked_for_the_last([lookup("a"), rename("a", "b", plain)]), [OpCode::Rename]);
    let moved_on = [rename("a", "b", plain), rename("b", "c", plain)];
    assert_eq!(asked_for_the_last(moved_on), [OpCode::Rename], "the first reply says it");
    let both = [lookup("a"), lookup("b"), rename("a", "b", RenameFlags::EXCHANGE)];
    assert_eq!(asked_for_the_last(both), [OpCode::Rename]);
    assert_eq!(asked_for_the_last([lookup("a"), unlink("a")]), [OpCode::Unlink]);
}

#[test]
fn what_was_changed_since_is_looked_at_again() {
    let plain = RenameFlags::empty();
    for change in [unlink("a"), rename("b", "a", RenameFlags::EXCHANGE), rename("a", "b", plain)] {
        let asked = asked_for_the_last([lookup("a"), lookup("b"), change, rename("a", "c", plain)]);
        assert_eq!(asked, [LOOKS[0], LOOKS[1], OpCode::Rename]);
    }
}

#[test]
fn a_change_in_a_slot_without_an_entry_is_seen() {
    let driver = full();
    let process = Process::start(&HeapKeep::default(), &driver, None);
    process.ask(1, 0, lookup("a"));
    process.ask(2, SLOTS as u32, unlink("a"));
    process.ask(3, 0, rename("a", "b", RenameFlags::empty()));
    assert_eq!(driver.asked()[2..], [LOOKS[0], LOOKS[1], OpCode::Rename]);
}

#[test]
fn a_lookup_that_a_change_overtakes_tells_nothing() {
    let driver = full();
    let process = Process::start(&HeapKeep::default(), &driver, None);
    let names = &process.journal.0.names;
    let asking = names.asking(&lookup("a"), 0).unwrap();
    let changing = names.changing(&unlink("a"));
    let late = names.asking(&lookup("a"), 0).unwrap();
    names.changed(&changing, Before::Unknown, &Reply::Done(()), 0);
    let found = Reply::Entry(entry_of(FileKind::Regular, Time::new(5, 0)));
    for asking in [asking, late] {
        names.answered(&asking, &found);
        assert_eq!(names.before(&unlink("a"), 0), None);
    }
    names.answered(&names.asking(&lookup("a"), 0).unwrap(), &found);
    assert!(matches!(names.before(&unlink("a"), 0), Some(Before::Present(_))));
    assert_eq!(names.before(&unlink("a"), 2_000_000_000), None, "a reply is valid for a second");
}

#[test]
fn a_rename_whose_name_was_looked_up_is_made_once() {
    let (keep, plain) = (HeapKeep::default(), RenameFlags::empty());
    let file = || Some(Reply::Entry(entry_of(FileKind::Regular, Time::new(5, 0))));
    let dies = Driver::new(move |_, request| if request.op() == OpCode::Lookup { file() } else { None });
    let process = Process::start(&keep, &dies, None);
    process.ask(1, 0, lookup("a"));
    assert_eq!(process.ask(2, 0, rename("a", "b", plain)), None);
    assert_eq!(dies.asked(), [OpCode::Lookup]);
    let moved = Driver::new(move |_, request| match request {
        Request::Lookup(lookup) if lookup.name.as_bytes() == b"a" => Some(Reply::Error(Errno::ENOENT.into())),
        Request::Lookup(_) => file(),
        _ => done(),
    });
    assert_eq!(Process::start(&keep, &moved, None).ask(2, 0, rename("a", "b", plain)), done());
    assert!(!moved.asked().contains(&OpCode::Rename), "it was made before the death");
}
