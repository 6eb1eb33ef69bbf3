// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer as a whole is tested in `testing/model/tests/union.rs`, against copies, the kernel's overlayfs and deaths.

use super::*;
use crate::files::encode;
use crate::nodes::ino;
use outrigger_core::reply::Ttl;
use outrigger_core::survive::testing::each_death;
use outrigger_core::{Attr, Generation, HeapKeep};

fn entry(node: u64) -> Entry {
    let attr = Attr { ino: node, ..Attr::default() };
    let (generation, entry_ttl, attr_ttl) = (Generation(0), Ttl::NEVER, Ttl::NEVER);
    Entry { node: Node(node), generation, attr, entry_ttl, attr_ttl }
}

fn name(name: &str) -> Name {
    Name::try_from(name).unwrap()
}

#[test]
fn the_upper_tree_is_all_that_follows_its_key() {
    let own_copies = true;
    for (list, expected) in [
        ("upper=/a,b", Some((Options::default(), "/a,b"))),
        ("owner=mine,upper=h:x", Some((Options { own_copies }, "h:x"))),
        ("", None),
        ("upper=", None),
        ("owner=both,upper=/a", None),
        ("colour=red,upper=/a", None),
    ] {
        assert_eq!(Options::parse(list).ok(), expected, "{list}");
    }
}

#[test]
fn handles_tell_their_trees() {
    for (side, handle) in [(Side::Upper, 0), (Side::Lower, 0), (Side::Upper, 1), (Side::Lower, (1 << 62) - 1)]
    {
        let encoded = encode(side, Handle(handle)).unwrap();
        assert_eq!(decode(encoded), Some((side, Handle(handle))));
    }
    assert_eq!(decode(Handle::NONE), None);
    assert_eq!(encode(Side::Upper, Handle(1 << 62)).unwrap_err().errno, Errno::EOVERFLOW);
}

#[test]
fn inode_numbers_of_two_trees_never_meet() {
    for number in [1, 7, 1 << 61, 1 << 62, u64::MAX] {
        for dev in [0, 9] {
            assert_ne!(ino(Side::Upper, number, dev), ino(Side::Lower, number, dev));
        }
    }
    assert_ne!(ino(Side::Lower, 5, 1), ino(Side::Lower, 5, 2), "two file systems of one tree");
}

#[test]
fn references_are_given_back_with_the_last_one() {
    let nodes = Nodes::open(None).unwrap();
    let (dir, spare) = nodes.found(Node::ROOT, &name("d"), Some(&entry(10)), Some(&entry(20))).unwrap();
    assert_eq!(spare, vec![]);
    let (file, _) = nodes.found(dir, &name("f"), None, Some(&entry(21))).unwrap();
    let (again, spare) = nodes.found(dir, &name("f"), None, Some(&entry(21))).unwrap();
    assert_eq!((again, spare), (file, vec![(Side::Lower, Node(21))]), "one reference is enough");
    assert_eq!(nodes.forget(dir, 1), vec![], "it is needed for the file");
    assert_eq!(nodes.forget(file, 1), vec![]);
    nodes.copied(file, Node(11), None).unwrap();
    let given_back = nodes.forget(file, 1);
    let all =
        [(Side::Upper, Node(11)), (Side::Lower, Node(21)), (Side::Upper, Node(10)), (Side::Lower, Node(20))];
    assert_eq!(given_back, all);
    assert_eq!(nodes.bound(file).unwrap_err().errno, Errno::ESTALE);
}

#[test]
fn a_name_that_leads_to_another_file_gets_another_node() {
    let nodes = Nodes::open(None).unwrap();
    let found = |upper: Option<u64>, lower: Option<u64>| {
        let (upper, lower) = (upper.map(entry), lower.map(entry));
        nodes.found(Node::ROOT, &name("f"), upper.as_ref(), lower.as_ref()).unwrap().0
    };
    let lower = found(None, Some(20));
    assert_eq!(found(Some(10), None), lower, "it was copied");
    assert_eq!(found(None, Some(20)), lower, "a lookup from before that");
    let other = found(Some(11), None);
    assert_ne!(other, lower);
    let (linked, _) = nodes.found(Node::ROOT, &name("g"), Some(&entry(11)), None).unwrap();
    assert_eq!(linked, other, "names of one file in the upper tree");
    let (apart, _) = nodes.found(Node::ROOT, &name("h"), None, Some(&entry(20))).unwrap();
    assert_ne!(apart, lower, "names in the lower tree are files of their own");
}

#[test]
fn a_death_leaves_rows_whole() {
    let deaths = each_death(|life| {
        let keep = Arc::new(HeapKeep::default());
        Nodes::open(Some(&*keep)).unwrap();
        let mortal = life.of(&keep);
        let nodes = Nodes::open(Some(&mortal)).unwrap();
        let (file, _) = nodes.found(Node::ROOT, &name("f"), None, Some(&entry(20))).unwrap();
        let shown = nodes.bound(file).unwrap().ino;
        nodes.copied(file, Node(10), None).unwrap();
        let next = Nodes::open(Some(&*keep)).unwrap();
        if let Ok(bound) = next.bound(file) {
            assert_eq!((bound.lower, bound.ino), (Some(Node(20)), shown));
            assert!(matches!(bound.upper, None | Some(Node(10))), "{bound:?}");
        }
        let (again, _) = next.found(Node::ROOT, &name("f"), Some(&entry(10)), None).unwrap();
        assert_eq!(next.bound(again).unwrap().upper, Some(Node(10)));
    });
    assert!(deaths > 10, "{deaths} deaths");
}
