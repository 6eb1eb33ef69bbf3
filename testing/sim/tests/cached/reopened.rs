// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that others change between two opens, while attributes from before are fresh: what one open file reads is of one
//! version.

use crate::client::{Client, pass_time};
use crate::content::{open, pattern, read, read_all, rewrite, with_file};
use bytes::Bytes;
use outrigger_core::ops::{OpenFlags, Read};
use outrigger_core::reply::OpenHow;
use outrigger_core::{Errno, Node};
use outrigger_sim::Sim;
use std::time::Duration;

const LEN: usize = 300_000;
const HEAD: u32 = 4096;

/// Another client writes the file anew, with as many bytes.
fn changed_elsewhere(client: &Client) -> Bytes {
    pass_time(&client.sim, Duration::from_secs(1));
    let other = Client::new(&client.sim, &client.tree, &[]);
    let theirs = other.lookup(Node::ROOT, "file").expect("the file").node;
    let data = pattern(LEN, 9);
    rewrite(&other, theirs, &data);
    data
}

/// Opens the file, reads the head, and closes it.
fn read_head(client: &Client, node: Node) -> Bytes {
    let (handle, _) = open(client, node, OpenFlags::empty());
    let head = read(client, node, handle, 0, HEAD);
    client.close(node, handle, OpenFlags::empty());
    head
}

/// Another client makes a file that takes all memory for content when it is read.
fn has_large(client: &Client) {
    let other = Client::new(&client.sim, &client.tree, &[]);
    let large = other.make(Node::ROOT, "large", b"").node;
    rewrite(&other, large, &pattern(4 << 20, 1));
}

#[test]
fn a_file_of_which_a_part_was_read_and_that_others_changed_is_read_anew() {
    let sim = Sim::new(1);
    let (client, node, data) = with_file(&sim, LEN, &[("read_ahead", "0")]);
    assert_eq!(read_head(&client, node), data.slice(..HEAD as usize));
    let changed = changed_elsewhere(&client);
    assert!(
        read_all(&client, node, 65536) == (changed, false),
        "a mixture, or the kernel keeps pages of before"
    );
}

#[test]
fn a_writer_finds_no_pages_of_before_either() {
    let sim = Sim::new(2);
    let (client, node, _) = with_file(&sim, LEN, &[("read_ahead", "0")]);
    read_head(&client, node);
    let changed = changed_elsewhere(&client);
    let (handle, how) = open(&client, node, OpenFlags::READ_WRITE);
    assert!(!how.contains(OpenHow::KEEP_CACHE));
    assert_eq!(read(&client, node, handle, 0, HEAD), changed.slice(..HEAD as usize));
}

#[test]
fn opening_a_file_of_which_a_part_is_known_takes_one_round_trip() {
    let sim = Sim::new(3);
    let (client, node, _) = with_file(&sim, LEN, &[("read_ahead", "0")]);
    read_head(&client, node);
    let before = client.elapsed();
    let (_, how) = open(&client, node, OpenFlags::empty());
    assert!(how.contains(OpenHow::KEEP_CACHE), "it is the same version");
    assert_eq!((client.elapsed() - before).as_millis(), 5);
}

#[test]
fn what_is_evicted_of_an_open_file_is_not_replaced_by_another_version() {
    let sim = Sim::new(4);
    let (client, node, data) = with_file(&sim, LEN, &[("cache_memory", "1m")]);
    has_large(&client);
    assert_eq!(read_all(&client, node, 65536).0, data);
    client.passed();
    let (handle, _) = open(&client, node, OpenFlags::empty());
    assert_eq!(read(&client, node, handle, 0, HEAD), data.slice(..HEAD as usize));
    assert_eq!(client.passed(), 0, "it was not opened below");
    let changed = changed_elsewhere(&client);
    let other = client.lookup(Node::ROOT, "large").expect("the file").node;
    read_all(&client, other, 65536);
    let rest = Read { node, handle, offset: 65536, len: HEAD };
    for _ in 0..2 {
        let refused = client.ask(rest.clone()).map(|_| ());
        assert_eq!(refused.map_err(|error| error.errno), Err(Errno::ESTALE));
    }
    assert_eq!(read_all(&client, node, 65536), (changed, false));
}

#[test]
fn what_is_evicted_of_an_open_file_that_stays_the_same_is_read_again() {
    let sim = Sim::new(5);
    let (client, node, data) = with_file(&sim, LEN, &[("cache_memory", "1m")]);
    has_large(&client);
    assert_eq!(read_all(&client, node, 65536).0, data);
    let (handle, _) = open(&client, node, OpenFlags::empty());
    let other = client.lookup(Node::ROOT, "large").expect("the file").node;
    read_all(&client, other, 65536);
    assert_eq!(read(&client, node, handle, 65536, HEAD), data.slice(65536..65536 + HEAD as usize));
}
