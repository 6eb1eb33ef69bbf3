// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn leading(node: u64) -> File {
    File { node: Node(node), generation: Generation(1), ino: node, kind: None }
}

fn file(node: u64) -> What {
    What::File(leading(node))
}

fn slot(text: &str, cookie: u64, node: u64) -> Slot {
    Slot { name: Some(name(text)), cookie, file: leading(node) }
}

fn listed(cookies: [u64; 3]) -> Names {
    listed_in(Placing::Last, cookies)
}

fn listed_in(placing: Placing, cookies: [u64; 3]) -> Names {
    let mut names = Names::filling(Some((Time::new(1, 0), Time::new(1, 0))), (0, 100), placing);
    for (text, cookie) in ["a", "b", "c"].iter().zip(cookies) {
        names.receive(slot(text, cookie, cookie + 10));
    }
    names.finish();
    names
}

fn shown(names: &Names, cookie: u64) -> String {
    let position = names.position(cookie).expect("a known cookie");
    names.from(position).map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn single_names_are_believed_as_long_as_told() {
    let mut names = Names::default();
    names.learn(&name("a"), file(2), (0, 10));
    names.learn(&name("b"), What::Absent, (0, 20));
    assert_eq!(names.find(b"a", 9), (file(2), 10));
    assert_eq!(names.find(b"a", 10).0, What::Unknown);
    assert_eq!(names.find(b"b", 10), (What::Absent, 20));
    assert_eq!(names.find(b"c", 0).0, What::Unknown);
    names.learn(&name("b"), What::Unknown, (0, 0));
    assert_eq!(names.find(b"b", 0).0, What::Unknown);
}

#[test]
fn a_new_name_that_has_no_place_in_the_listing_is_never_taken_for_absent() {
    for (placing, last) in [(Placing::Unknown, 3), (Placing::Last, COOKIE_MAX)] {
        let mut names = listed_in(placing, [1, 2, last]);
        names.learn(&name("x"), file(7), (0, 10));
        assert_eq!(names.find(b"x", 9).0, file(7));
        assert_eq!(names.find(b"x", 10).0, What::Unknown, "the listing is believed longer than the name");
        assert_eq!(names.find(b"y", 10).0, What::Absent);
    }
}

#[test]
fn a_listing_tells_what_is_not_there_and_follows_changes() {
    let mut names = listed([1, 2, 3]);
    assert_eq!((names.find(b"b", 99).0, names.find(b"x", 99).0), (file(12), What::Absent));
    assert_eq!(names.find(b"x", 100).0, What::Unknown);
    names.learn(&name("b"), What::Absent, (0, 0));
    names.learn(&name("x"), file(7), (0, 0));
    names.learn(&name("c"), file(8), (0, 0));
    assert_eq!((names.find(b"b", 0).0, names.find(b"x", 0).0), (What::Absent, file(7)));
    assert_eq!(names.find(b"c", 0).0, file(8));
    assert_eq!((shown(&names, 0), shown(&names, 2)), ("a c x".into(), "c x".into()));
    assert!(names.is_listable(0));
    names.learn(&name("a"), What::Unknown, (0, 0));
    assert_eq!(names.find(b"a", 0).0, What::Unknown);
    assert!(!names.is_listable(0) && names.is_fresh(0));
}

#[test]
fn what_happens_while_a_listing_arrives_wins() {
    let mut names = Names::filling(None, (0, 100), Placing::Last);
    names.receive(slot("a", 1, 11));
    names.receive(slot("b", 2, 12));
    names.learn(&name("a"), What::Absent, (0, 9));
    names.learn(&name("c"), What::Absent, (0, 9));
    names.learn(&name("d"), file(14), (0, 9));
    names.learn(&name("f"), What::Unknown, (0, 9));
    for (text, cookie) in [("c", 3), ("d", 4), ("b", 5), ("e", 6), ("f", 7)] {
        names.receive(slot(text, cookie, 20 + cookie));
    }
    names.finish();
    for (text, what) in
        [("a", What::Absent), ("b", file(12)), ("d", file(14)), ("e", file(26)), ("f", What::Unknown)]
    {
        assert_eq!(names.find(text.as_bytes(), 50).0, what, "{text}");
    }
    assert_eq!(shown(&names, 0), "b d e f");
    assert!(!names.is_listable(50), "f may be there or not");
}

/// A directory that was made while it was listed, and could not be removed then because it was not empty, was once
/// missing from what whoever opened its parent then was shown.
#[test]
fn a_name_in_doubt_is_not_missing_from_the_listing_that_arrives() {
    let mut names = Names::filling(None, (0, 100), Placing::Last);
    names.learn(&name("d"), file(14), (0, 9));
    assert!(names.will_tell(50));
    names.receive(slot("d", 1, 21));
    names.learn(&name("d"), What::Unknown, (0, 9));
    assert!(!names.will_tell(50), "whoever comes now gets another listing");
    names.finish();
    assert_eq!(shown(&names, 0), "d");
    assert!(names.is_in_doubt(b"d") && names.find(b"d", 0).0 == What::Unknown);
}

#[test]
fn a_listing_that_grew_old_and_was_contradicted_does_not_come_back() {
    for what in [file(7), What::Absent, What::Unknown] {
        let mut names = listed([1, 2, 3]);
        names.learn(&name("b"), what, (150, 160));
        names.confirm((Time::new(1, 0), Time::new(1, 0)), 0, (300, 300));
        assert!(!names.is_fresh(200), "{what:?}");
    }
}

#[test]
fn a_listing_holds_while_the_directory_has_its_stamp() {
    let stamp = |secs| (Time::new(secs, 0), Time::new(secs, 0));
    let mut names = listed([1, 2, 3]);
    names.confirm(stamp(1), 0, (200, 200));
    assert!(names.is_fresh(199));
    names.restamp();
    names.confirm(stamp(2), 0, (300, 300));
    assert!(names.is_fresh(199) && !names.is_fresh(200), "a change of ours neither ends nor extends it");
    let mut names = listed([1, 2, 3]);
    names.confirm(stamp(2), 0, (200, 200));
    assert!(!names.is_fresh(0));
}

#[test]
fn cookies_in_any_order_are_found_again() {
    let mut names = listed([30, 10, 20]);
    assert_eq!((shown(&names, 30), shown(&names, 10)), ("b c".into(), "c".into()));
    assert!(names.position(15).is_none());
    names.learn(&name("b"), What::Absent, (0, 0));
    assert_eq!(shown(&names, 10), "c");
    names.learn(&name("d"), file(5), (0, 50));
    assert!(!names.is_listable(0) && names.find(b"d", 0).0 == file(5));
}

#[test]
fn a_new_name_has_the_place_that_every_process_gives_it() {
    let mut texts = ["a", "b", "c"].map(|text| (cookie_of(text.as_bytes()), text));
    texts.sort_unstable();
    let mut names = Names::filling(None, (0, 100), Placing::ByName);
    for (cookie, text) in texts {
        assert!(names.receive(slot(text, cookie, cookie)));
    }
    names.finish();
    let mut all: Vec<(u64, String)> = texts.map(|(cookie, text)| (cookie, text.to_owned())).into();
    for number in 0..200 {
        let text = format!("{number}");
        names.learn(&name(&text), file(number + 10), (0, 100));
        all.push((cookie_of(text.as_bytes()), text));
    }
    all.sort_unstable();
    names.put_in_order();
    for (at, (cookie, _)) in all.iter().enumerate() {
        let rest: Vec<&str> = all[at + 1..].iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(shown(&names, *cookie), rest.join(" "));
    }
    assert!(names.is_listable(0) && names.find(b"77", 0).0 == file(87));
}

#[test]
fn a_new_name_whose_place_is_not_known_has_the_listing_asked_for() {
    let mut names = listed_in(Placing::Unknown, [1, 2, 3]);
    names.learn(&name("d"), file(5), (0, 50));
    assert!(!names.is_listable(0) && names.find(b"d", 0).0 == file(5));
}

#[test]
fn making_and_removing_names_for_ever_needs_no_more_memory() {
    let mut names = listed([1, 2, 3]);
    let before = names.weight();
    for round in 0..10_000 {
        let text = name(&format!("temporary-{round}"));
        names.learn(&text, file(9), (0, 50));
        names.learn(&text, What::Absent, (0, 50));
    }
    assert!(names.weight() < before + 200 * (size_of::<Slot>() + NAME_COST), "{}", names.weight());
    assert_eq!(shown(&names, 1), "b c");
    assert_eq!(names.len(), 3);
}
