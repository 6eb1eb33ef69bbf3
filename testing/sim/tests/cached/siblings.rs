// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many small files, read one after the other.

use crate::client::{Client, old_tree, pass_time};
use crate::content::{open, read};
use outrigger_core::ops::OpenFlags;
use outrigger_core::reply::DirentPlus;
use outrigger_core::{Node, OpCode};
use outrigger_sim::{Sim, explore};
use std::sync::Arc;
use std::time::Duration;

const FILES: usize = 500;

/// The only directory of a tree, whose files were not used for a long time.
fn with_files(sim: &Arc<Sim>, options: &[(&str, &str)]) -> (Client, Vec<DirentPlus>) {
    let client = Client::new(sim, &old_tree(sim, 1, FILES), options);
    let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    let files = client.list(dir).expect("a listing");
    assert_eq!(files.len(), FILES);
    client.passed();
    (client, files)
}

fn read_file(client: &Client, node: Node) {
    let (handle, _) = open(client, node, OpenFlags::empty());
    assert_eq!(&read(client, node, handle, 0, 4096)[..], b"content");
    client.close(node, handle, OpenFlags::empty());
}

/// How many round trips a program waits for that opens, reads and closes each of them once.
fn round_trips(sim: &Arc<Sim>, client: &Client, files: &[DirentPlus]) -> u128 {
    let before = client.elapsed();
    files.iter().for_each(|file| read_file(client, file.entry.node));
    let waited = (client.elapsed() - before).as_millis() / 5;
    // What is closed in the background.
    pass_time(sim, Duration::from_secs(1));
    for op in [OpCode::Open, OpCode::Read, OpCode::Release] {
        assert_eq!(client.count(op), FILES as u64, "{op:?}");
    }
    waited
}

#[test]
fn those_that_come_next_are_read_ahead() {
    let sim = Sim::new(1);
    let (client, files) = with_files(&sim, &[]);
    let listed = round_trips(&sim, &client, &files);
    let (client, mut files) = with_files(&sim, &[]);
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let named = round_trips(&sim, &client, &files);
    // Without readahead each would have waited for two round trips.
    assert!(listed < 100 && named < 100, "{listed} and {named} round trips for {FILES} files");
}

#[test]
fn those_read_here_and_there_are_fetched_alone() {
    let sim = Sim::new(2);
    let (client, files) = with_files(&sim, &[]);
    (0..20).for_each(|step| read_file(&client, files[1 + step * 37 % FILES].entry.node));
    assert_eq!(client.count(OpCode::Open), 20);
}

#[test]
fn nothing_is_read_ahead_where_that_is_switched_off() {
    let sim = Sim::new(3);
    let (client, files) = with_files(&sim, &[("files_ahead", "0")]);
    files[..20].iter().for_each(|file| read_file(&client, file.entry.node));
    assert_eq!(client.count(OpCode::Open), 20);
}

#[test]
fn little_memory_does_no_harm() {
    explore(0..20, |sim| {
        let (client, files) = with_files(sim, &[("cache_memory", "4k"), ("cache_entries", "100")]);
        files.iter().for_each(|file| {
            // What is not remembered any more must be looked up, as a kernel does.
            let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
            let node = client.lookup(dir, &file.name.to_string()).expect("the file").node;
            read_file(&client, node);
        });
    });
}
