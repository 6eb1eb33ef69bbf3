// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of nodes and inodes.

use super::*;
use outrigger_sim::explore;
use std::collections::{HashMap, HashSet};

#[test]
fn files_of_two_trees_have_different_numbers() {
    let bench = Bench::new();
    let roots = [bench.find(Node::ROOT, "a"), bench.find(Node::ROOT, "b")];
    let (mut nodes, mut inos) = (HashSet::new(), HashSet::new());
    for root in roots {
        assert!(nodes.insert(root) && inos.insert(bench.ask(attr(root)).expect("shown").attr.ino));
        for text in ["d", "3", "7", "281474976710655"] {
            let found = bench.ask(Lookup { dir: root, name: name(text) }).expect("found");
            assert!(nodes.insert(found.node) && inos.insert(found.attr.ino), "{text}");
            assert_eq!(bench.ask(attr(found.node)).expect("shown").attr.ino, found.attr.ino, "{text}");
            assert_eq!(bench.find(root, text), found.node, "the same file has the same number");
        }
        let listed = bench.ask(read_dir(root)).expect("listed").entries[0].ino;
        assert!(inos.contains(&listed), "a listing shows the number of the file");
    }
    assert!(!inos.contains(&Node::ROOT.0) && !nodes.contains(&Node::ROOT));
}

#[test]
fn inode_numbers_of_one_tree_stay_different_however_large_they_are() {
    let numbers = [1, 2, 1 << 47, 1 << 48, (1 << 48) + 1, u64::MAX - 1, u64::MAX, 0xfffe << 48];
    for slot in [1, 2, 77, u16::MAX - 1].map(crate::numbers::Slot) {
        let above: HashSet<u64> = numbers.iter().map(|&ino| slot.ino(ino)).collect();
        assert_eq!(above.len(), numbers.len());
    }
}

#[test]
fn the_root_of_a_tree_has_one_number_wherever_the_tree_names_it() {
    let bench = Bench::new();
    bench.add_with(
        &["a"],
        |_, request| {
            Step::Now(match request {
                Request::Lookup(op) if op.name.as_bytes() == b"up" => Reply::Entry(entry(Node::ROOT)),
                other => healthy(other),
            })
        },
        |toy| toy,
    );
    let a = bench.find(Node::ROOT, "a");
    let up = bench.ask(Lookup { dir: a, name: name("up") }).expect("found");
    assert_eq!((up.node, up.attr.ino), (a, bench.ask(attr(a)).expect("shown").attr.ino));
    // The tree's own reference to its root is not the door's to give back.
    bench.forget(a, 2);
    assert!(!bench.toy(&["a"]).asked().iter().any(|request| matches!(request, Request::Forget(_))));
}

#[test]
fn references_that_are_given_back_are_those_that_were_handed_out() {
    explore(0..30, |sim| {
        let names = Arc::<Toys>::default();
        let demux =
            Arc::new(Demux::new(names.clone(), sim.clone(), Options { idle: None, ..Options::default() }));
        let bench =
            Bench { sim: sim.clone(), demux, names, door: Arc::new(Door { heard: Mutex::default() }) };
        let (a, b) = (bench.add(&["a"], |toy| toy), bench.add(&["b"], |toy| toy));
        let roots = [bench.find(Node::ROOT, "a"), bench.find(Node::ROOT, "b")];
        let mut held: HashMap<Node, u64> = HashMap::new();
        for _ in 0..200 {
            if sim.below(3) > 0 {
                let root = roots[sim.below(2) as usize];
                let node = bench.find(root, &(3 + sim.below(5)).to_string());
                *held.entry(node).or_default() += 1;
            } else if let Some((&node, &count)) = held.iter().next() {
                let some = 1 + sim.below(count);
                bench.forget(node, some);
                if some == count {
                    held.remove(&node)
                } else {
                    held.insert(node, count - some)
                };
            }
        }
        held.into_iter().for_each(|(node, count)| bench.forget(node, count));
        for toy in [a, b] {
            let mut left: HashMap<Node, i64> = HashMap::new();
            for request in toy.asked() {
                match request {
                    Request::Lookup(op) => {
                        let node = Node(String::from_utf8_lossy(&op.name).parse().expect("a number"));
                        *left.entry(node).or_default() += 1;
                    }
                    Request::Forget(op) => *left.entry(op.node).or_default() -= op.count as i64,
                    _ => {}
                }
            }
            assert!(left.values().all(|&count| count == 0), "{left:?}");
        }
    });
}

#[test]
fn a_number_that_was_given_back_means_nothing() {
    let bench = Bench::new();
    let a = bench.find(Node::ROOT, "a");
    let seven = bench.find(a, "7");
    bench.forget(seven, 1);
    assert_eq!(bench.errno(attr(seven)), Some(Errno::ESTALE));
    assert_ne!(bench.find(a, "7"), seven, "no number is given twice");
}

#[test]
fn notices_have_the_numbers_above() {
    let bench = Bench::new();
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    let told = lock(&bench.toy(&["a"]).told).clone().expect("it was attached");
    let changed = |node: u64| Notice::InvalidateNode { node: Node(node), offset: 0, len: 0 };
    for node in [1, 2, 99] {
        told.notify(changed(node));
    }
    told.notify(Notice::Deleted { dir: Node(2), node: Node(99), name: name("x") });
    told.notify(Notice::Prune { nodes: vec![Node(1), Node(2), Node(99)] });
    assert_eq!(
        *lock(&bench.door.heard),
        [
            changed(a.0),
            changed(d.0),
            Notice::InvalidateEntry { dir: d, name: name("x") },
            Notice::Prune { nodes: vec![d] }
        ]
    );
}

#[test]
fn a_path_begins_at_the_root_of_all_trees() {
    let bench = Bench::new();
    bench.add_with(
        &["g", "h"],
        |_, request| {
            Step::Now(match request {
                Request::Locate(_) => Reply::Target(outrigger_core::Target::new("/d").expect("a path")),
                other => healthy(other),
            })
        },
        |toy| toy,
    );
    let g = bench.find(Node::ROOT, "g");
    let h = bench.find(g, "h");
    let d = bench.find(h, "d");
    for (node, path) in [(Node::ROOT, "/"), (g, "/g"), (h, "/g/h"), (d, "/g/h/d")] {
        assert_eq!(bench.ask(Locate { node }).expect("known").to_string(), path);
    }
    let listed = bench.ask(read_dir(g)).expect("listed").entries;
    assert!(matches!(&listed[..], [dirent] if dirent.name == name("h")), "a tree that is used is listed");
}

/// Trees that are listed in the root.
struct Many {
    toy: Arc<Toy>,
    count: usize,
    listed: AtomicUsize,
}

impl Names for Many {
    fn find(&self, _: &[Name], _: &Name) -> Option<Found> {
        Some(Found::Tree(Arc::new(Opens(Arc::clone(&self.toy)))))
    }

    fn list(&self, _: &[Name]) -> Vec<Name> {
        self.listed.fetch_add(1, Ordering::Relaxed);
        (0..self.count).map(|number| name(&number.to_string())).collect()
    }
}

#[test]
fn a_directory_of_many_names_is_asked_for_once_for_all_pieces_of_its_listing() {
    let bench = Bench::new();
    let toy = bench.add(&["a"], |toy| toy);
    let many = Arc::new(Many { toy, count: 5000, listed: AtomicUsize::new(0) });
    let demux =
        Arc::new(Demux::new(many.clone(), bench.sim.clone(), Options { idle: None, ..Options::default() }));
    let bench = Bench { demux, ..bench };
    for listings in 1..=2 {
        let (mut seen, mut pieces, mut cookie) = (HashSet::new(), 0, 0);
        loop {
            let read = ReadDir { node: Node::ROOT, handle: Handle::NONE, cookie, size: 4096 };
            let piece = bench.ask(read).expect("listed");
            pieces += 1;
            cookie = piece.entries.last().expect("an entry").cookie;
            assert!(piece.entries.into_iter().all(|entry| seen.insert(entry.name)), "a name comes once");
            if piece.eof {
                break;
            }
        }
        assert_eq!((seen.len(), many.listed.load(Ordering::Relaxed)), (5000, listings));
        assert!(pieces > 20, "{pieces}");
    }
}

#[test]
fn slots_are_used_again_and_shared_when_there_are_no_more() {
    let mut slots = crate::numbers::Slots::default();
    let all: Vec<_> = (1..u16::MAX).map(|_| slots.take()).collect();
    assert_eq!(all.iter().map(|slot| slot.0).collect::<HashSet<_>>().len(), all.len());
    let (first, last) = (all[0], all[all.len() - 1]);
    assert_eq!([slots.take(), slots.take()], [first, first]);
    slots.give_back(last);
    assert_eq!([slots.take(), slots.take()], [last, first]);
    (0..4).for_each(|_| slots.give_back(first));
    assert_eq!([slots.take(), slots.take()], [first, first], "free once, then shared");
}
