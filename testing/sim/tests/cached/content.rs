// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content.

use crate::client::{Client, name, old_tree, pass_time, shared_tree};
use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::OpenHow;
use outrigger_core::{
    Credentials, Cx, Handle, LockOwner, Node, OpCode, Payload, Runtime, Service, SetAttrs, ask,
};
use outrigger_sim::{Sim, explore};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that differ from those at any other place nearby.
pub fn pattern(len: usize, seed: u8) -> Bytes {
    (0..len).map(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ ((at >> 16) as u8) ^ seed).collect()
}

pub fn open(client: &Client, node: Node, flags: OpenFlags) -> (Handle, OpenHow) {
    let opened = client.ask(Open { node, flags }).expect("an open file");
    (opened.handle, opened.how)
}

pub fn read(client: &Client, node: Node, handle: Handle, offset: u64, len: u32) -> Bytes {
    let data = client.ask(Read { node, handle, offset, len }).expect("content");
    data.into_bytes().expect("bytes")
}

/// All of a file, as a program reads it from the front to the back, and whether the kernel may keep its pages.
pub fn read_all(client: &Client, node: Node, step: u32) -> (Bytes, bool) {
    let (handle, how) = open(client, node, OpenFlags::empty());
    let mut all = Vec::new();
    loop {
        let piece = read(client, node, handle, all.len() as u64, step);
        all.extend_from_slice(&piece);
        if piece.len() < step as usize {
            break;
        }
    }
    client.close(node, handle, OpenFlags::empty());
    (all.into(), how.contains(OpenHow::KEEP_CACHE))
}

pub fn write(client: &Client, node: Node, handle: Handle, offset: u64, data: Bytes) {
    for (number, piece) in data.chunks(1 << 20).enumerate() {
        let (offset, data) =
            (offset + ((number as u64) << 20), Payload::Bytes(Bytes::copy_from_slice(piece)));
        let write = Write { node, handle, offset, data, cached: false, kill_setid: false };
        assert_eq!(client.ask(write).expect("written").0, piece.len() as u64);
    }
}

/// Writes a whole file anew.
pub fn rewrite(client: &Client, node: Node, data: &Bytes) {
    let flags = OpenFlags::WRITE_ONLY | OpenFlags::TRUNC;
    let (handle, _) = open(client, node, flags);
    write(client, node, handle, 0, data.clone());
    client.close(node, handle, flags);
}

/// A client, and a file of `len` bytes that was made long ago.
pub fn with_file(sim: &Arc<Sim>, len: usize, options: &[(&str, &str)]) -> (Client, Node, Bytes) {
    let tree = shared_tree(sim);
    let (maker, data) = (Client::new(sim, &tree, &[]), pattern(len, 0));
    let node = maker.make(Node::ROOT, "file", b"").node;
    rewrite(&maker, node, &data);
    pass_time(sim, Duration::from_secs(3600));
    let client = Client::new(sim, &tree, options);
    let node = client.lookup(Node::ROOT, "file").expect("the file").node;
    client.passed();
    (client, node, data)
}

#[test]
fn what_was_read_is_opened_and_read_again_without_asking() {
    let sim = Sim::new(1);
    let (client, node, data) = with_file(&sim, 300_000, &[]);
    assert_eq!(read_all(&client, node, 65536), (data.clone(), false));
    assert!(client.passed() > 0);
    assert_eq!(read_all(&client, node, 4096), (data.clone(), true), "the kernel may keep what it has read");
    assert_eq!(client.passed(), 0);
    // After the TTL one request suffices to revalidate, and the content is still cached.
    pass_time(&sim, Duration::from_secs(30));
    assert_eq!(read_all(&client, node, 65536).0, data);
    assert_eq!(client.passed(), 1);
    client.control.flush();
    assert_eq!(read_all(&client, node, 65536), (data, false));
    assert!(client.passed() > 0);
}

#[test]
fn a_file_is_read_ahead_of_its_reader() {
    let sim = Sim::new(2);
    let (client, node, data) = with_file(&sim, 32 << 20, &[]);
    let before = client.elapsed();
    assert_eq!(read_all(&client, node, 128 << 10).0, data);
    let round_trips = (client.elapsed() - before).as_millis() / 5;
    // 256 reads: alone, each would have waited for a round trip.
    assert!(round_trips < 30, "{round_trips} round trips");
    assert!(client.count(OpCode::Read) < 150);
}

/// Otherwise a copy would end at the size from the listing, and report success.
#[test]
fn a_file_that_another_client_made_longer_is_read_to_its_end() {
    let sim = Sim::new(2);
    for step in [4096, 64 << 10] {
        let (client, node, data) = with_file(&sim, 20_000, &[]);
        let other = Client::new(&sim, &client.tree, &[]);
        let theirs = other.lookup(Node::ROOT, "file").expect("the file").node;
        let (handle, _) = open(&other, theirs, OpenFlags::WRITE_ONLY);
        write(&other, theirs, handle, 20_000, pattern(5000, 9));
        client.passed();
        let whole = [data, pattern(5000, 9)].concat();
        assert_eq!(read_all(&client, node, step).0, whole, "in steps of {step}");
    }
}

#[test]
fn nothing_is_read_ahead_of_a_tree_whose_content_is_one_stream() {
    let sim = Sim::new(2);
    let (first, _, data) = with_file(&sim, 4 << 20, &[]);
    let client = Client::new(&sim, &first.tree, &[]);
    client.stream();
    let node = client.lookup(Node::ROOT, "file").expect("the file").node;
    client.passed();
    assert_eq!(read_all(&client, node, 128 << 10).0, data);
    assert_eq!(client.count(OpCode::Read), 32);
}

#[test]
fn a_file_is_closed_below_after_what_is_on_its_way_by_its_handle() {
    let sim = Sim::new(3);
    let (client, node, data) = with_file(&sim, 4 << 20, &[]);
    let flags = OpenFlags::empty();
    let ((handle, _), (other, _)) = (open(&client, node, flags), open(&client, node, flags));
    client.stall(OpCode::Read, 0);
    let (top, owner) = (client.top.clone(), LockOwner(1));
    let reader = top.clone();
    sim.spawn(Box::pin(async move {
        let read = Read { node, handle, offset: 0, len: 1 << 17 };
        ask(&*reader, &Cx::new(3, Credentials::ROOT, "test"), read).await.expect("content");
    }));
    pass_time(&sim, Duration::from_secs(1));
    sim.spawn(Box::pin(async move {
        let release = Release { node, handle, flags, owner, flock_release: false };
        ask(&*top, &Cx::new(2, Credentials::ROOT, "test"), release).await.expect("closed");
    }));
    pass_time(&sim, Duration::from_secs(1));
    assert!(!client.arrived().contains(&OpCode::Release), "it is still needed");
    client.go_on();
    assert!(read(&client, node, other, 1 << 17, 1 << 17) == data.slice(1 << 17..2 << 17));
    pass_time(&sim, Duration::from_secs(1));
    assert!(client.arrived().contains(&OpCode::Release));
    client.close(node, other, flags);
    assert_eq!((client.count(OpCode::Open), client.count(OpCode::Release)), (2, 2));
}

#[test]
fn reading_here_and_there_fetches_what_is_asked_for() {
    let sim = Sim::new(3);
    let (client, node, data) = with_file(&sim, 32 << 20, &[]);
    let (handle, _) = open(&client, node, OpenFlags::empty());
    for at in [20_u64, 3, 11, 29, 7] {
        let start = (at << 20) as usize;
        assert_eq!(read(&client, node, handle, start as u64, 4096), data.slice(start..start + 4096));
    }
    assert_eq!(client.count(OpCode::Read), 5);
    assert_eq!(client.control.usage().content / 4096, 5);
}

#[test]
fn memory_for_content_is_bounded() {
    let sim = Sim::new(4);
    let (client, node, data) = with_file(&sim, 8 << 20, &[("cache_memory", "1m")]);
    for step in [4096, 100_000, 1 << 20] {
        assert_eq!(read_all(&client, node, step).0, data);
        assert!(client.control.usage().content <= 1 << 20);
    }
    let (client, node, data) = with_file(&sim, 1 << 20, &[("cache_memory", "0"), ("read_ahead", "0")]);
    assert_eq!(read_all(&client, node, 100_000).0, data);
    assert_eq!(client.control.usage().content, 0);
}

#[test]
fn what_was_written_is_read_without_asking() {
    let sim = Sim::new(5);
    let (client, node, data) = with_file(&sim, 1 << 20, &[]);
    read_all(&client, node, 1 << 20);
    let (handle, _) = open(&client, node, OpenFlags::READ_WRITE);
    client.passed();
    write(&client, node, handle, 5000, pattern(10_000, 9));
    assert_eq!(client.count(OpCode::Write), 1);
    let mut expected = data.to_vec();
    expected[5000..15_000].copy_from_slice(&pattern(10_000, 9));
    assert_eq!(read(&client, node, handle, 0, 1 << 20), expected);
    assert_eq!(client.count(OpCode::Read), 0);
    let attrs = SetAttrs { size: Some(7000), ..SetAttrs::default() };
    client.ask(SetAttr { node, handle: Some(handle), attrs }).expect("cut");
    let attrs = SetAttrs { size: Some(20_000), ..SetAttrs::default() };
    client.ask(SetAttr { node, handle: Some(handle), attrs }).expect("extended");
    expected.truncate(7000);
    expected.resize(20_000, 0);
    assert_eq!(read(&client, node, handle, 0, 1 << 20), expected);
}

#[test]
fn changing_names_and_attributes_keeps_the_content() {
    let sim = Sim::new(6);
    let (client, node, data) = with_file(&sim, 100_000, &[]);
    read_all(&client, node, 1 << 20);
    let attrs = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    client.ask(SetAttr { node, handle: None, attrs }).expect("changed");
    let (to_dir, to_name, flags) = (Node::ROOT, name("moved"), RenameFlags::empty());
    client.ask(Rename { dir: Node::ROOT, name: name("file"), to_dir, to_name, flags }).expect("moved");
    client.ask(Link { node, dir: Node::ROOT, name: name("link") }).expect("linked");
    client.passed();
    assert_eq!(read_all(&client, node, 1 << 20).0, data);
    assert_eq!(client.count(OpCode::Read), 0);
}

#[test]
fn an_unopened_file_is_opened_for_what_needs_it() {
    let sim = Sim::new(7);
    let (client, node, data) = with_file(&sim, 300_000, &[("cache_memory", "400k")]);
    read_all(&client, node, 1 << 20);
    client.passed();
    let (handle, _) = open(&client, node, OpenFlags::empty());
    assert_eq!(client.passed(), 0);
    // Another file takes the room of this one.
    let other = client.make(Node::ROOT, "other", b"").node;
    rewrite(&client, other, &pattern(300_000, 1));
    client.passed();
    assert_eq!(read(&client, node, handle, 0, 300_000), data);
    assert!(client.count(OpCode::Open) == 1 && client.count(OpCode::Read) == 1);
    client.close(node, handle, OpenFlags::empty());
    sim.run();
    assert_eq!(client.count(OpCode::Release), 1);
}

#[test]
fn never_asks_for_content_every_time_and_keeps_none() {
    let sim = Sim::new(8);
    let (client, node, data) = with_file(&sim, 100_000, &[("cache", "never")]);
    for _ in 0..2 {
        assert_eq!(read_all(&client, node, 1 << 20), (data.clone(), false));
        assert_eq!(client.count(OpCode::Read), 1);
        client.passed();
    }
    assert_eq!(client.control.usage().content, 0);
}

#[test]
fn a_flush_drops_the_content_of_open_files_too() {
    let sim = Sim::new(9);
    let (client, node, data) = with_file(&sim, 100_000, &[("cache", "always")]);
    let (handle, _) = open(&client, node, OpenFlags::empty());
    for _ in 0..2 {
        assert_eq!(read(&client, node, handle, 0, 100_000), data);
    }
    assert_eq!(client.count(OpCode::Read), 1);
    client.control.flush();
    assert_eq!(read(&client, node, handle, 0, 100_000), data);
    assert_eq!(client.count(OpCode::Read), 2);
}

#[test]
fn clients_see_what_others_have_written_when_the_time_has_passed() {
    explore(0..60, |sim| {
        let tree = old_tree(sim, 1, 3);
        let clients = [Client::new(sim, &tree, &[]), Client::new(sim, &tree, &[("cache", "20")])];
        let truth = Client::new(sim, &tree, &[("cache", "never")]);
        let node_of = |client: &Client, number: u64| {
            let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
            client.lookup(dir, &format!("file-{number}")).expect("the file").node
        };
        for _ in 0..8 {
            for _ in 0..sim.below(8) {
                let client = &clients[sim.below(2) as usize];
                let node = node_of(client, sim.below(3));
                match sim.below(4) {
                    0 => {
                        rewrite(client, node, &pattern(sim.below(3) as usize * 50_000, sim.below(256) as u8))
                    }
                    1 => drop(read_all(client, node, 30_000)),
                    _ => {
                        let (handle, _) = open(client, node, OpenFlags::READ_WRITE);
                        read(client, node, handle, sim.below(60_000), 40_000);
                        // Often the same size as before: only times show the change.
                        let data = pattern(sim.below(2) as usize * 20_000 + 1, sim.below(256) as u8);
                        write(client, node, handle, sim.below(30_000), data);
                        read(client, node, handle, sim.below(60_000), 40_000);
                        client.close(node, handle, OpenFlags::READ_WRITE);
                    }
                }
                pass_time(sim, Duration::from_millis(sim.below(3000)));
            }
            pass_time(sim, Duration::from_secs(20));
            for number in 0..3 {
                let expected = read_all(&truth, node_of(&truth, number), 1 << 20).0;
                for client in &clients {
                    assert!(
                        read_all(client, node_of(client, number), 1 << 17).0 == expected,
                        "file {number}"
                    );
                }
            }
        }
    });
}

/// Writes and reads one part of a file, while other tasks do the same with other parts.
async fn use_own_part(sim: Arc<Sim>, top: Arc<dyn Service>, node: Node, part: u64) {
    const PART: u64 = 10_000;
    let cx = Cx::new(part, Credentials::ROOT, "test");
    let flags = OpenFlags::READ_WRITE;
    let handle = ask(&*top, &cx, Open { node, flags }).await.expect("an open file").handle;
    let mut own = vec![0; PART as usize];
    for round in 0..20_u8 {
        let (at, len) = (sim.below(PART) as usize, sim.below(PART) as usize);
        let data = pattern(len.min(own.len() - at), round);
        own[at..at + data.len()].copy_from_slice(&data);
        let (offset, data) = (part * PART + at as u64, Payload::Bytes(data));
        let write = Write { node, handle, offset, data, cached: false, kill_setid: false };
        ask(&*top, &cx, write).await.expect("written");
        if sim.below(4) == 0 {
            ask(&*top, &cx, FSync { node, handle, data_only: true }).await.expect("on stable storage");
        }
        // What is read reaches into the parts of others.
        let (offset, len) = ((part * PART).saturating_sub(sim.below(PART)), (PART + sim.below(PART)) as u32);
        let read = ask(&*top, &cx, Read { node, handle, offset, len }).await.expect("content");
        let read = read.into_bytes().expect("bytes");
        let start = (part * PART - offset) as usize;
        let end = read.len().min(start + own.len());
        assert!(read[start..end] == own[..end - start], "part {part}, round {round}");
    }
    let owner = LockOwner(part);
    ask(&*top, &cx, Flush { node, handle, owner }).await.expect("flushed");
    ask(&*top, &cx, Release { node, handle, flags, owner, flock_release: false }).await.expect("released");
}

#[test]
fn a_read_sees_every_write_that_was_answered_before() {
    explore(0..100, |sim| {
        let mode = ["through", "close", "behind"][sim.below(3) as usize];
        let options = [("write", mode), ("write_memory", "30k"), ("cache_memory", "40k")];
        let (client, node, _) = with_file(sim, 50_000, &options);
        let rewritten = SetAttrs { size: Some(0), ..SetAttrs::default() };
        client.ask(SetAttr { node, handle: None, attrs: rewritten }).expect("emptied");
        let extended = SetAttrs { size: Some(50_000), ..SetAttrs::default() };
        client.ask(SetAttr { node, handle: None, attrs: extended }).expect("extended");
        client.wander();
        for part in 0..5 {
            sim.spawn(Box::pin(use_own_part(sim.clone(), client.top.clone(), node, part)));
        }
        assert_eq!(sim.run(), 0);
    });
}
