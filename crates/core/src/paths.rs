// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which path a node number stands for, learnt from the requests and replies that pass.
//!
//! It works on the parts of messages ([`Traverse`]), not on operations, so it also names the files of operations
//! added later. What it remembers is bounded: the nodes not mentioned for longest are forgotten first.

use crate::effects::Effect;
use crate::name::Name;
use crate::node::Node;
use crate::ops::{RenameFlags, Request};
use crate::reply::Reply;
use crate::traverse::{Traverse, Visit};
use std::collections::HashMap;
use std::fmt::Write;

/// How many names a path shows at most, the last ones; also what ends a loop that a faulty driver might report.
const DEPTH: usize = 64;

/// A file a request is about: a node, and the names to follow from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The node.
    pub node: Node,
    /// The names to follow from it, none for the node itself.
    pub names: Vec<Name>,
}

/// The files a request is about, in the order of its arguments: two for a rename, a link or a copy.
pub fn subjects(request: &mut impl Traverse) -> Vec<Subject> {
    struct Collect(Vec<Subject>);
    impl Visit for Collect {
        fn node(&mut self, node: &mut Node) {
            self.0.push(Subject { node: *node, names: Vec::new() });
        }
        fn name(&mut self, name: &mut Name) {
            if let Some(subject) = self.0.last_mut() {
                subject.names.push(name.clone());
            }
        }
    }
    let mut collect = Collect(Vec::new());
    request.traverse(&mut collect);
    collect.0
}

/// The way to a file from the highest directory that is known.
pub struct Climb {
    /// The highest directory that is known.
    pub start: Node,
    /// From the file up.
    names: Vec<Name>,
}

impl Climb {
    /// The path, given that of the start where it is known; otherwise an unknown start shows as `#NODE`.
    pub fn spell(&self, start: Option<&[u8]>) -> Vec<u8> {
        let mut path = match start {
            Some(path) => path.strip_suffix(b"/").unwrap_or(path).to_vec(),
            None if self.start == Node::ROOT => Vec::new(),
            None if self.names.len() < DEPTH => format!("#{}", self.start.0).into_bytes(),
            None => b"...".to_vec(),
        };
        for name in self.names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }
}

/// A bounded map between nodes and the names that lead to them.
pub struct Paths {
    capacity: usize,
    young: Known,
    /// What was known when `young` was started; what is asked for moves over, the rest is dropped with it.
    old: Known,
}

#[derive(Default)]
struct Known {
    places: HashMap<Node, (Node, Name)>,
    nodes: HashMap<(Node, Name), Node>,
}

impl Paths {
    /// Remembers at least the last `capacity` and at most twice as many nodes.
    pub fn new(capacity: usize) -> Self {
        Paths { capacity: capacity.max(1), young: Known::default(), old: Known::default() }
    }

    /// Learns from a request that was about `subjects` and its reply.
    pub fn learn(&mut self, change: Change, subjects: &[Subject], reply: &Reply) {
        match (change, subjects, reply) {
            (_, _, Reply::Error(_)) => {}
            (Change::Rename { exchange }, [from, to], _) => self.renamed(from, to, exchange),
            (Change::Remove, [subject], _) => {
                if let [name] = &subject.names[..] {
                    self.remove(subject.node, name);
                }
            }
            (_, [.., subject], Reply::Entry(entry)) => self.walked(subject, &[entry.node]),
            (_, [.., subject], Reply::Created(created)) => self.walked(subject, &[created.entry.node]),
            (_, [.., subject], Reply::Entries(entries)) => {
                let nodes: Vec<Node> = entries.iter().map(|entry| entry.node).collect();
                self.walked(subject, &nodes);
            }
            (_, [subject, ..], Reply::DirentsPlus(list)) => {
                for dirent in &list.entries {
                    self.put(dirent.entry.node, subject.node, dirent.name.clone());
                }
            }
            _ => {}
        }
    }

    /// Goes from `subject` up to the root, or to the first directory whose place is not known.
    pub fn climb(&mut self, subject: &Subject) -> Climb {
        let mut names: Vec<Name> = subject.names.iter().rev().cloned().collect();
        let mut start = subject.node;
        while start != Node::ROOT && names.len() < DEPTH {
            let Some((dir, name)) = self.place(start) else { break };
            names.push(name);
            start = dir;
        }
        Climb { start, names }
    }

    /// Where `node` was last seen.
    fn place(&mut self, node: Node) -> Option<(Node, Name)> {
        if let Some(place) = self.young.places.get(&node) {
            return Some(place.clone());
        }
        let (dir, name) = self.old.places.get(&node).cloned()?;
        self.put(node, dir, name.clone());
        Some((dir, name))
    }

    fn put(&mut self, node: Node, dir: Node, name: Name) {
        if node == Node::default() || node == Node::ROOT {
            return;
        }
        if self.young.places.len() >= self.capacity || self.young.nodes.len() >= self.capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.nodes.insert((dir, name.clone()), node);
        self.young.places.insert(node, (dir, name));
    }

    fn walked(&mut self, subject: &Subject, nodes: &[Node]) {
        let mut dir = subject.node;
        for (name, &node) in subject.names.iter().zip(nodes) {
            self.put(node, dir, name.clone());
            dir = node;
        }
    }

    /// Forgets what `name` leads to; a node with another name or an open handle keeps its old path until it gets one.
    fn remove(&mut self, dir: Node, name: &Name) -> Option<Node> {
        let key = (dir, name.clone());
        let young = self.young.nodes.remove(&key);
        let old = self.old.nodes.remove(&key);
        young.or(old)
    }

    fn renamed(&mut self, from: &Subject, to: &Subject, exchange: bool) {
        let ([old], [new]) = (&from.names[..], &to.names[..]) else { return };
        let moved = self.remove(from.node, old);
        let replaced = self.remove(to.node, new);
        if let Some(node) = moved {
            self.put(node, to.node, new.clone());
        }
        if let (true, Some(node)) = (exchange, replaced) {
            self.put(node, from.node, old.clone());
        }
    }
}

/// What a request does to names, apart from what its reply tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Its last name goes away.
    Remove,
    /// Its first name becomes its last one.
    Rename {
        /// And the other way round.
        exchange: bool,
    },
}

impl Change {
    /// What `request` does if it succeeds.
    pub fn of(request: &Request) -> Self {
        let change = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Removes { .. } => Some(Change::Remove),
            Effect::Moves { flags, .. } => {
                Some(Change::Rename { exchange: flags.contains(RenameFlags::EXCHANGE) })
            }
            _ => None,
        });
        change.unwrap_or(Change::None)
    }
}

/// A path for people: bytes that are not printable ASCII or UTF-8 are escaped.
pub fn printable(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() || letter == '\\' {
                text.extend(letter.escape_default());
            } else {
                text.push(letter);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{GetAttr, Link, Lookup, MkDir, Rename, Unlink, Walk};
    use crate::reply::{Entry, Ttl};
    use crate::{Attr, Generation};

    fn name(text: &str) -> Name {
        Name::try_from(text).expect("a good name")
    }

    fn entry(node: u64) -> Entry {
        let (entry_ttl, attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
        Entry { node: Node(node), generation: Generation(0), attr: Attr::default(), entry_ttl, attr_ttl }
    }

    fn pass(paths: &mut Paths, request: impl Into<Request>, reply: Reply) {
        let mut request = request.into();
        paths.learn(Change::of(&request), &subjects(&mut request), &reply);
    }

    fn lookup(paths: &mut Paths, dir: u64, text: &str, node: u64) {
        pass(paths, Lookup { dir: Node(dir), name: name(text) }, Reply::Entry(entry(node)));
    }

    fn path_of(paths: &mut Paths, node: u64) -> String {
        let subject = Subject { node: Node(node), names: Vec::new() };
        printable(&paths.climb(&subject).spell(None))
    }

    #[test]
    fn paths_are_learnt_from_lookups_walks_and_new_files() {
        let mut paths = Paths::new(100);
        lookup(&mut paths, 1, "a", 2);
        let names = vec![name("b"), name("c"), name("missing")];
        pass(&mut paths, Walk { dir: Node(2), names }, Reply::Entries(vec![entry(3), entry(4)]));
        pass(
            &mut paths,
            MkDir { dir: Node(4), name: name("d"), mode: 0, umask: 0, initial: None },
            Reply::Entry(entry(5)),
        );
        assert_eq!(path_of(&mut paths, 1), "/");
        assert_eq!(path_of(&mut paths, 5), "/a/b/c/d");
        assert_eq!(path_of(&mut paths, 77), "#77");
        lookup(&mut paths, 77, "x", 78);
        assert_eq!(path_of(&mut paths, 78), "#77/x");
    }

    #[test]
    fn a_renamed_directory_takes_what_is_below_with_it() {
        let mut paths = Paths::new(100);
        lookup(&mut paths, 1, "a", 2);
        lookup(&mut paths, 2, "file", 3);
        lookup(&mut paths, 1, "z", 4);
        let rename =
            |flags| Rename { dir: Node(1), name: name("a"), to_dir: Node(1), to_name: name("z"), flags };
        pass(&mut paths, rename(RenameFlags::EXCHANGE), Reply::Done(()));
        assert_eq!((path_of(&mut paths, 3), path_of(&mut paths, 4)), ("/z/file".into(), "/a".into()));
        pass(&mut paths, rename(RenameFlags::empty()), Reply::Error(crate::Errno::EIO.into()));
        assert_eq!(path_of(&mut paths, 4), "/a", "a rename that failed moved nothing");
    }

    #[test]
    fn a_removed_name_is_not_moved_by_a_later_rename() {
        let mut paths = Paths::new(100);
        lookup(&mut paths, 1, "a", 2);
        pass(&mut paths, Unlink { dir: Node(1), name: name("a") }, Reply::Done(()));
        let flags = RenameFlags::empty();
        let rename = Rename { dir: Node(1), name: name("a"), to_dir: Node(1), to_name: name("b"), flags };
        pass(&mut paths, rename, Reply::Done(()));
        assert_eq!(path_of(&mut paths, 2), "/a");
    }

    #[test]
    fn memory_is_bounded_and_what_is_in_use_is_kept() {
        let mut paths = Paths::new(10);
        lookup(&mut paths, 1, "hot", 2);
        for node in 100..200 {
            lookup(&mut paths, 1, &format!("cold{node}"), node);
            assert_eq!(path_of(&mut paths, 2), "/hot");
        }
        assert!(paths.young.places.len() + paths.old.places.len() <= 20);
        assert!(paths.young.nodes.len() + paths.old.nodes.len() <= 20);
        assert_eq!(path_of(&mut paths, 100), "#100");
    }

    #[test]
    fn a_loop_among_parents_ends() {
        let mut paths = Paths::new(10);
        lookup(&mut paths, 2, "a", 3);
        lookup(&mut paths, 3, "b", 2);
        assert!(path_of(&mut paths, 2).starts_with("..."));
    }

    #[test]
    fn requests_about_two_files_have_two_subjects() {
        let mut request = Request::from(Link { node: Node(5), dir: Node(1), name: name("new") });
        let expected =
            [Subject { node: Node(5), names: vec![] }, Subject { node: Node(1), names: vec![name("new")] }];
        assert_eq!(subjects(&mut request), expected);
        let mut request = Request::from(GetAttr { node: Node(5), handle: None });
        assert_eq!(subjects(&mut request).len(), 1);
    }

    #[test]
    fn odd_bytes_are_escaped() {
        assert_eq!(printable(b"/a\n\xff\\\xc3\xa4"), "/a\\n\\xff\\\\\u{e4}");
    }
}
