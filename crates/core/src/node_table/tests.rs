// SPDX-License-Identifier: MIT OR Apache-2.0
//! The node table against a naive model of a host's tree.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn key(number: u64) -> Option<FileKey> {
    FileKey::new(number)
}

fn text(path: &[Name]) -> String {
    path.iter().map(Name::to_string).collect::<Vec<_>>().join("/")
}

fn path(table: &NodeTable, node: Node) -> Result<String> {
    table.path(node).map(|path| text(&path))
}

/// Finds each part of `path` and keeps a reference to the last.
fn find(table: &NodeTable, path: &str) -> Node {
    let mut dir = Node::ROOT;
    for part in path.split('/') {
        let found = table.found(dir, &name(part), None).expect("room");
        if dir != Node::ROOT {
            table.forget(dir, 1);
        }
        dir = found;
    }
    dir
}

#[test]
fn a_node_is_found_by_its_key_and_its_names_are_counted() {
    let table = NodeTable::in_memory(1 << 16).expect("room");
    let name = |text: &str| Name::try_from(text).expect("a name");
    let key = FileKey::new(77);
    let node = table.found(Node::ROOT, &name("a"), key).expect("found");
    assert_eq!((table.keyed(77), table.keyed(78), table.keyed(0)), (Some(node), None, None));
    assert_eq!((table.links(node), table.links(Node::ROOT), table.links(Node(99))), (1, 0, 0));
    table.linked(node, Node::ROOT, &name("b")).expect("linked");
    table.linked(node, Node::ROOT, &name("c")).expect("linked");
    assert_eq!(table.links(node), 3);
    for (gone, left) in [("b", 2), ("a", 1), ("c", 0)] {
        table.removed(Node::ROOT, &name(gone));
        assert_eq!(table.links(node), left);
    }
    table.forget(node, 3);
    assert_eq!(table.keyed(77), None);
}

#[test]
fn a_rename_moves_all_that_is_below() {
    let table = NodeTable::in_memory(1 << 16).expect("room");
    let leaf = find(&table, "a/b/c");
    table.renamed((Node::ROOT, &name("a")), (Node::ROOT, &name("z"))).expect("rename");
    assert_eq!(path(&table, leaf).as_deref(), Ok("z/b/c"));
    let z = table.get(Node::ROOT, &name("z")).expect("known");
    let b = table.get(z, &name("b")).expect("known");
    let inside = table.renamed((Node::ROOT, &name("z")), (b, &name("x")));
    assert_eq!(inside.map_err(|error| error.errno), Err(Errno::EINVAL));
}

#[test]
fn a_forgotten_number_is_never_used_for_another_file() {
    let table = NodeTable::in_memory(1 << 16).expect("room");
    let first = find(&table, "a/b");
    table.forget(first, 1);
    assert!(table.is_empty(), "directories without references go with what was below them");
    let second = find(&table, "a/b");
    assert_ne!(first, second);
    assert_eq!(path(&table, first).map_err(|error| error.errno), Err(Errno::ESTALE));
    assert_eq!(NodeTable::generation(second), Generation(second.0 >> 32));
    assert_eq!(table.at_slot(second.0 as u32), Some(second));
}

#[test]
fn hard_links_by_key_and_by_command() {
    let table = NodeTable::in_memory(1 << 16).expect("room");
    let one = table.found(Node::ROOT, &name("one"), key(7)).expect("room");
    assert_eq!(table.found(Node::ROOT, &name("two"), key(7)), Ok(one));
    table.linked(one, Node::ROOT, &name("three")).expect("link");
    assert_eq!(table.references(one), Some(3));
    let deep = find(&table, "a/b");
    table.linked(one, deep, &name("four")).expect("link");
    assert_eq!(table.shortest_path(one).map(|path| path.len()), Ok(1));
    let gone = find(&table, "gone");
    table.linked(one, gone, &name("five")).expect("link");
    table.removed(Node::ROOT, &name("gone"));
    assert_eq!(table.shortest_path(one).map(|path| path.len()), Ok(1), "a way that is gone does not count");
    table.removed(gone, &name("five"));
    table.removed(deep, &name("four"));
    table.forget(one, 2);
    table.forget(gone, 1);
    table.forget(deep, 1);
    for (gone, left) in [("three", "two"), ("one", "two")] {
        table.removed(Node::ROOT, &name(gone));
        assert_eq!(path(&table, one).as_deref(), Ok(left));
    }
    table.removed(Node::ROOT, &name("two"));
    assert_eq!(path(&table, one).map_err(|error| error.errno), Err(Errno::ESTALE));
    assert_eq!(table.key(one), Ok(key(7)), "it is still known");
    table.forget(one, 3);
    assert!(table.is_empty());
}

#[test]
fn another_file_under_a_known_name_is_another_node() {
    let table = NodeTable::in_memory(1 << 16).expect("room");
    let old = table.found(Node::ROOT, &name("n"), key(1)).expect("room");
    let new = table.found(Node::ROOT, &name("n"), key(2)).expect("room");
    assert_ne!(old, new);
    assert_eq!(table.names(old), Ok(vec![]));
    assert_eq!(path(&table, new).as_deref(), Ok("n"));
}

#[test]
fn directories_swapped_by_others_make_no_circle() {
    let table = NodeTable::in_memory(1 << 16).expect("room");
    let a = table.found(Node::ROOT, &name("a"), key(1)).expect("room");
    let b = table.found(a, &name("b"), key(2)).expect("room");
    let leaf = table.found(b, &name("leaf"), key(3)).expect("room");
    // Others made a/b into b/a.
    let moved = table.found(Node::ROOT, &name("b"), key(2)).expect("room");
    assert_eq!(moved, b);
    let inside = table.found(b, &name("a"), key(1)).expect("room");
    assert_eq!(path(&table, leaf).as_deref(), Ok("b/leaf"));
    assert_eq!((inside, path(&table, a).as_deref()), (a, Ok("b/a")));
    // Nor does a directory that is found inside itself.
    let odd = table.found(b, &name("self"), key(2)).expect("room");
    assert_ne!(odd, b);
    assert_eq!(path(&table, odd).as_deref(), Ok("b/self"));
}

#[test]
fn a_full_table_says_so_and_recovers_when_something_is_forgotten() {
    let table = NodeTable::in_memory(4096).expect("room");
    let mut held = Vec::new();
    let full = loop {
        match table.found(Node::ROOT, &name(&format!("file {}", held.len())), None) {
            Ok(node) => held.push(node),
            Err(error) => break error,
        }
    };
    assert_eq!(full.errno, Errno::ENFILE);
    table.forget(held[0], 1);
    assert!(table.found(Node::ROOT, &name("file x"), None).is_ok());
}

#[test]
fn a_damaged_region_is_refused() {
    let region: Arc<dyn Region> = Arc::new(HeapRegion::new(4096));
    let table = NodeTable::attach(Arc::clone(&region)).expect("room");
    find(&table, "a/b/c");
    drop(table);
    let intact = NodeTable::attach(Arc::clone(&region)).expect("intact");
    assert_eq!(intact.len(), 4);
    let words: Vec<u64> = (0..4096).map(|i| region.word(i).load(Ordering::Relaxed)).collect();
    // No single word, however wrong, may lead to a panic or a hang.
    for index in 0..4096 {
        for wrong in [0, 1, 0x8000_0001, u64::MAX, 3 << 32 | 2] {
            region.word(index).store(wrong, Ordering::Relaxed);
            if let Ok(table) = NodeTable::attach(Arc::clone(&region))
                && let Ok(node) = table.found(Node::ROOT, &name("a"), None)
            {
                table.forget(node, 1);
            }
            for (at, word) in words.iter().enumerate() {
                region.word(at).store(*word, Ordering::Relaxed);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Find { dir: usize, name: usize },
    Make { dir: usize, name: usize, directory: bool },
    Link { file: usize, dir: usize, name: usize },
    Remove { dir: usize, name: usize },
    Rename { from: (usize, usize), to: (usize, usize), exchange: bool },
    Forget { held: usize, count: u64 },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0..8_usize, 0..4_usize);
    let step = prop_oneof![
        4 => place().prop_map(|(dir, name)| Step::Find { dir, name }),
        4 => (place(), any::<bool>()).prop_map(|((dir, name), directory)| Step::Make { dir, name, directory }),
        2 => (place(), 0..8_usize).prop_map(|((dir, name), file)| Step::Link { file, dir, name }),
        2 => place().prop_map(|(dir, name)| Step::Remove { dir, name }),
        3 => (place(), place(), any::<bool>()).prop_map(|(from, to, exchange)| Step::Rename { from, to, exchange }),
        3 => (0..8_usize, 1..3_u64).prop_map(|(held, count)| Step::Forget { held, count }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..80)
}

/// What the host has, what the driver holds, and which names it has put in the table.
struct Model {
    keyed: bool,
    /// Directories by inode; files are inodes that are not here.
    directories: HashMap<u64, BTreeMap<usize, u64>>,
    inodes: u64,
    held: BTreeMap<Node, (u64, u64)>,
    known: BTreeMap<(Node, usize), Node>,
    seen: Vec<Node>,
    table: NodeTable,
    region: Arc<dyn Region>,
}

const NAMES: [&str; 4] = ["a", "a name of some length", "c", "d"];

impl Model {
    fn new(keyed: bool) -> Self {
        let region: Arc<dyn Region> = Arc::new(HeapRegion::new(1 << 14));
        let table = NodeTable::attach(Arc::clone(&region)).expect("room");
        let directories = HashMap::from([(1, BTreeMap::new())]);
        let held = BTreeMap::from([(Node::ROOT, (1, 1))]);
        let (known, seen) = (BTreeMap::new(), Vec::new());
        Model { keyed, directories, inodes: 1, held, known, seen, table, region }
    }

    fn key(&self, inode: u64) -> Option<FileKey> {
        if self.keyed { key(inode) } else { None }
    }

    fn pick(&self, at: usize) -> (Node, u64) {
        let (node, (inode, _)) = self.held.iter().nth(at % self.held.len()).expect("the root at least");
        (*node, *inode)
    }

    /// A held directory that still exists.
    fn pick_dir(&self, at: usize) -> (Node, u64) {
        let live: Vec<_> = self.held.iter().filter(|(_, (inode, _))| self.is_linked_dir(*inode)).collect();
        let (node, (inode, _)) = live[at % live.len()];
        (*node, *inode)
    }

    fn is_linked_dir(&self, inode: u64) -> bool {
        let has = |names: &BTreeMap<usize, u64>| names.values().any(|&child| child == inode);
        self.directories.contains_key(&inode) && (inode == 1 || self.directories.values().any(has))
    }

    fn is_inside(&self, inode: u64, top: u64) -> bool {
        let below = |names: &BTreeMap<usize, u64>| names.values().any(|&child| self.is_inside(inode, child));
        inode == top || self.directories.get(&top).is_some_and(below)
    }

    fn find(&mut self, (dir, dir_inode): (Node, u64), at: usize) {
        let Some(&inode) = self.directories[&dir_inode].get(&at) else { return };
        let node = self.table.found(dir, &name(NAMES[at]), self.key(inode)).expect("room");
        let by_key = self.held.iter().find(|(_, held)| self.keyed && held.0 == inode).map(|(node, _)| *node);
        let by_name = self.known.get(&(dir, at)).copied().filter(|node| self.held.contains_key(node));
        match by_key.or(by_name) {
            Some(expected) => assert_eq!(node, expected),
            None => {
                let known = self.known.get(&(dir, at)) == Some(&node);
                assert!(known || !self.seen.contains(&node), "an old number came back");
            }
        }
        self.known.insert((dir, at), node);
        self.seen.push(node);
        self.held.entry(node).or_insert((inode, 0)).1 += 1;
    }

    fn make(&mut self, dir: (Node, u64), at: usize, directory: bool) {
        let names = self.directories.get_mut(&dir.1).expect("a directory");
        if names.contains_key(&at) {
            return;
        }
        self.inodes += 1;
        names.insert(at, self.inodes);
        if directory {
            self.directories.insert(self.inodes, BTreeMap::new());
        }
        self.find(dir, at);
    }

    fn link(&mut self, (node, inode): (Node, u64), (dir, dir_inode): (Node, u64), at: usize) {
        let exists = self.directories[&dir_inode].contains_key(&at);
        if exists || self.directories.contains_key(&inode) {
            return;
        }
        self.directories.get_mut(&dir_inode).expect("a directory").insert(at, inode);
        self.table.linked(node, dir, &name(NAMES[at])).expect("room");
        self.known.insert((dir, at), node);
        self.held.get_mut(&node).expect("held").1 += 1;
    }

    fn is_removable(&self, dir: u64, at: usize) -> bool {
        let inode = self.directories[&dir].get(&at);
        inode.is_some_and(|inode| self.directories.get(inode).is_none_or(BTreeMap::is_empty))
    }

    fn remove(&mut self, (dir, dir_inode): (Node, u64), at: usize) {
        if self.is_removable(dir_inode, at) {
            self.directories.get_mut(&dir_inode).expect("a directory").remove(&at);
            self.table.removed(dir, &name(NAMES[at]));
            self.known.remove(&(dir, at));
        }
    }

    fn rename(&mut self, from: ((Node, u64), usize), to: ((Node, u64), usize), exchange: bool) {
        let source = self.directories[&from.0.1].get(&from.1).copied();
        let target = self.directories[&to.0.1].get(&to.1).copied();
        let Some(moved) = source else { return };
        let circle =
            self.is_inside(to.0.1, moved) || target.is_some_and(|inode| self.is_inside(from.0.1, inode));
        if circle || source == target || (exchange && target.is_none()) {
            return;
        }
        if !exchange && target.is_some() && !self.is_removable(to.0.1, to.1) {
            return;
        }
        self.directories.get_mut(&from.0.1).expect("a directory").remove(&from.1);
        self.directories.get_mut(&to.0.1).expect("a directory").insert(to.1, moved);
        let (old, new) = ((from.0.0, from.1), (to.0.0, to.1));
        let known = (self.known.remove(&old), self.known.remove(&new));
        self.known.extend(known.0.map(|node| (new, node)));
        let names = (name(NAMES[from.1]), name(NAMES[to.1]));
        if let (true, Some(other)) = (exchange, target) {
            self.directories.get_mut(&from.0.1).expect("a directory").insert(from.1, other);
            self.known.extend(known.1.map(|node| (old, node)));
            self.table.exchanged((old.0, &names.0), (new.0, &names.1)).expect("exchange");
        } else {
            self.table.renamed((old.0, &names.0), (new.0, &names.1)).expect("rename");
        }
    }

    fn forget(&mut self, node: Node, count: u64) {
        let held = self.held.get_mut(&node).expect("held");
        let count = count.min(held.1);
        if node != Node::ROOT {
            self.table.forget(node, count);
            held.1 -= count;
            if held.1 == 0 {
                self.held.remove(&node);
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Find { dir, name } => self.find(self.pick_dir(dir), name),
            Step::Make { dir, name, directory } => self.make(self.pick_dir(dir), name, directory),
            Step::Link { file, dir, name } => self.link(self.pick(file), self.pick_dir(dir), name),
            Step::Remove { dir, name } => self.remove(self.pick_dir(dir), name),
            Step::Rename { from, to, exchange } => {
                self.rename((self.pick_dir(from.0), from.1), (self.pick_dir(to.0), to.1), exchange);
            }
            Step::Forget { held, count } => self.forget(self.pick(held).0, count),
            Step::Reopen => self.table = NodeTable::attach(Arc::clone(&self.region)).expect("intact"),
        }
    }

    fn resolve(&self, path: &[Name]) -> Option<u64> {
        path.iter().try_fold(1, |dir, part| {
            let at = NAMES.iter().position(|text| text.as_bytes() == part.as_bytes())?;
            self.directories.get(&dir)?.get(&at).copied()
        })
    }

    fn check(&self) {
        for (&node, &(inode, refs)) in &self.held {
            let mut names: Vec<_> = self.table.names(node).expect("held").into_iter().collect();
            let known = self.known.iter().filter(|(_, known)| **known == node);
            let mut expected: Vec<_> = known.map(|((dir, at), _)| (*dir, name(NAMES[*at]))).collect();
            names.sort();
            expected.sort();
            assert_eq!(names, expected, "names of {node:?}");
            match self.table.path(node) {
                Ok(path) => assert_eq!(self.resolve(&path), Some(inode), "{}", text(&path)),
                Err(error) => assert!(error.errno == Errno::ESTALE && node != Node::ROOT),
            }
            if node != Node::ROOT {
                assert_eq!(self.table.references(node), Some(refs as u32));
            }
        }
    }
}

proptest! {
    #[test]
    fn nodes_follow_their_files(keyed: bool, steps in steps()) {
        let mut model = Model::new(keyed);
        for step in &steps {
            model.step(step);
            model.check();
        }
        let held: Vec<Node> = model.held.keys().copied().collect();
        held.into_iter().for_each(|node| model.forget(node, u64::MAX));
        prop_assert!(model.table.is_empty(), "nothing is left when nothing is held");
    }
}

/// One call with arguments a confused driver might give: nodes by their place in the list of those seen.
type Call = (u8, usize, usize, usize, usize);

fn do_call(table: &NodeTable, seen: &mut Vec<Node>, (what, dir, at, to_dir, to): Call) {
    let pick = |i: usize| seen[i % seen.len()];
    let (dir, to_dir) = (pick(dir), pick(to_dir));
    let (one, other) = (name(NAMES[at % 4]), name(NAMES[to % 4]));
    // Refusing is fine; what counts is the state afterwards.
    match what {
        0..4 => seen.extend(table.found(dir, &one, key(to as u64 % 5)).ok()),
        4 => drop(table.renamed((dir, &one), (to_dir, &other))),
        5 => drop(table.exchanged((dir, &one), (to_dir, &other))),
        6 => table.removed(dir, &one),
        7 => drop(table.linked(to_dir, dir, &one)),
        8 => table.forget(to_dir, 1 + at as u64 % 3),
        _ => seen.extend(table.found_nameless(key(to as u64 % 5)).ok()),
    }
}

proptest! {
    #[test]
    fn no_sequence_of_calls_harms_the_table(
        calls in prop::collection::vec((0..10_u8, 0..99_usize, 0..9_usize, 0..99_usize, 0..9_usize), 1..60),
    ) {
        let region: Arc<dyn Region> = Arc::new(HeapRegion::new(1 << 14));
        let table = NodeTable::attach(Arc::clone(&region)).expect("room");
        let mut seen = vec![Node::ROOT];
        for call in calls {
            do_call(&table, &mut seen, call);
            let again = NodeTable::attach(Arc::clone(&region));
            prop_assert!(again.is_ok(), "{call:?}: {:?}", again.err());
        }
    }
}

proptest! {
    #[test]
    fn a_restored_table_goes_on_as_the_saved_one(
        before in prop::collection::vec((0..9_u8, 0..99_usize, 0..9_usize, 0..99_usize, 0..9_usize), 1..40),
        after in prop::collection::vec((0..9_u8, 0..99_usize, 0..9_usize, 0..99_usize, 0..9_usize), 1..20),
    ) {
        let table = NodeTable::in_memory(1 << 17).expect("room");
        let mut seen = vec![Node::ROOT];
        before.into_iter().for_each(|call| do_call(&table, &mut seen, call));
        let mut saved = Vec::new();
        table.put(&mut saved);
        for length in (0..saved.len()).step_by(97) {
            prop_assert!(<NodeTable as Wire>::get(&mut saved[..length].to_vec().into()).is_err());
        }
        let impossible = [&u64::MAX.to_le_bytes()[..], &saved[8..]].concat();
        prop_assert!(<NodeTable as Wire>::get(&mut impossible.into()).is_err(), "a size that cannot be");
        let restored = <NodeTable as Wire>::get(&mut saved.into()).expect("the same");
        let mut seen_too = seen.clone();
        for call in after {
            do_call(&table, &mut seen, call);
            do_call(&restored, &mut seen_too, call);
        }
        prop_assert_eq!(&seen, &seen_too);
        for node in seen {
            prop_assert_eq!(table.names(node).ok(), restored.names(node).ok());
            prop_assert_eq!(table.references(node), restored.references(node));
        }
    }
}
