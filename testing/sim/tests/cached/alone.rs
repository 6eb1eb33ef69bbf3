// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree whose listings have no attributes: these are asked for where a program wants them.

use crate::client::{Client, old_tree};
use outrigger_core::ops::*;
use outrigger_core::{Abilities, FileKind, Layer, Node, OpCode, Place, Service, Stack};
use outrigger_sim::Sim;
use std::sync::Arc;

/// A server that is asked about each name of a listing with attributes.
struct AsksEach;

impl Layer for AsksEach {
    fn place(&self) -> Place {
        Place::anywhere("asks-each")
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { plus_asks_each: true, ..below }
    }
}

const DIRS: usize = 20;
const FILES: usize = 30;

fn client(sim: &Arc<Sim>) -> Client {
    let tree: Arc<dyn Service> =
        Stack::new(old_tree(sim, DIRS, FILES)).push(AsksEach).expect("any order is good").service();
    Client::new(sim, &tree, &[])
}

/// The names in a directory, and which of them are directories.
fn names(client: &Client, node: Node) -> Vec<(String, bool)> {
    let handle = client.ask(OpenDir { node }).expect("a directory").handle;
    let listed = client.ask(ReadDir { node, handle, cookie: 0, size: 1 << 20 }).expect("names");
    assert!(listed.eof);
    client.ask(ReleaseDir { node, handle }).expect("closed");
    let listed = listed.entries.into_iter();
    listed.map(|entry| (entry.name.to_string(), entry.kind == Some(FileKind::Directory))).collect()
}

fn dir(client: &Client, name: &str) -> Node {
    client.lookup(Node::ROOT, name).expect("the directory").node
}

#[test]
fn who_lists_names_asks_about_no_file() {
    let sim = Sim::new(1);
    let client = client(&sim);
    let node = dir(&client, "dir-0");
    client.passed();
    assert_eq!(names(&client, node).len(), FILES);
    assert_eq!((client.count(OpCode::ReadDirPlus), client.count(OpCode::Lookup)), (0, 0));
    assert_eq!(client.passed(), 3, "opening, one piece, closing");
}

#[test]
fn who_lists_attributes_gets_them_with_the_listing() {
    let sim = Sim::new(2);
    let client = client(&sim);
    let node = dir(&client, "dir-0");
    client.passed();
    let listed = client.list(node).expect("a listing");
    assert!(listed.len() == FILES && listed.iter().all(|entry| entry.entry.node != Node::default()));
    assert_eq!((client.count(OpCode::ReadDirPlus), client.count(OpCode::Lookup)), (1, 0));
    client.list(node).expect("a listing");
    assert_eq!(client.count(OpCode::ReadDirPlus), 1, "once");
}

#[test]
fn who_lists_names_and_then_asks_about_the_files_gets_them_all_at_once() {
    let sim = Sim::new(3);
    let client = client(&sim);
    let node = dir(&client, "dir-0");
    let listed = names(&client, node);
    client.passed();
    for (name, _) in &listed {
        client.lookup(node, name).expect("a file");
    }
    assert_eq!(client.count(OpCode::ReadDirPlus), 1);
    assert!(client.count(OpCode::Lookup) <= 6, "{} lookups", client.count(OpCode::Lookup));
}

#[test]
fn who_walks_into_directories_asks_about_no_file_beside_them() {
    let sim = Sim::new(4);
    let client = client(&sim);
    let before = client.elapsed();
    for (name, is_dir) in names(&client, Node::ROOT) {
        assert!(is_dir, "{name}");
        assert_eq!(names(&client, dir(&client, &name)).len(), FILES);
    }
    assert_eq!(client.count(OpCode::ReadDirPlus), 0);
    assert_eq!(client.count(OpCode::Lookup), DIRS as u64, "each directory once");
    // Of 5 ms each: the directories are looked up and listed ahead.
    let trips = (client.elapsed() - before).as_millis() / 5;
    assert!(trips < DIRS as u128, "{trips} round trips");
}

#[test]
fn who_walks_with_attributes_gets_them_with_the_listings() {
    let sim = Sim::new(5);
    let client = client(&sim);
    let before = client.elapsed();
    assert_eq!(client.everything().len(), DIRS + DIRS * FILES);
    assert_eq!((client.count(OpCode::ReadDirPlus), client.count(OpCode::Lookup)), (1 + DIRS as u64, 0));
    let trips = (client.elapsed() - before).as_millis() / 5;
    assert!(trips < 2 * DIRS as u128, "{trips} round trips");
}
