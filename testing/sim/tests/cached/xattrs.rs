// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended attributes, of which hardly any file has one, and for which programs ask all the same.

use crate::client::{Client, old_tree, pass_time, shared_tree};
use outrigger_core::ops::{Create, GetXattr, ListXattr, OpenFlags, RemoveXattr, SetXattr, XattrFlags};
use outrigger_core::{Errno, Node, OpCode, XattrName};
use outrigger_sim::{Sim, explore};
use std::collections::BTreeMap;
use std::time::Duration;

/// What `ls -l` asks for.
const ASKED: [&str; 2] = ["security.selinux", "system.posix_acl_access"];
const FILES: usize = 500;

fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes().to_vec()).expect("a name")
}

fn value(client: &Client, node: Node, text: &str) -> Result<Vec<u8>, Errno> {
    let value = client.ask(GetXattr { node, name: xattr(text) });
    value.map(|value| value.to_vec()).map_err(|error| error.errno)
}

fn set(client: &Client, node: Node, text: &str, value: &'static [u8]) {
    let set = SetXattr { node, name: xattr(text), value: value.into(), flags: XattrFlags::empty() };
    client.ask(set).expect("set");
}

fn names(client: &Client, node: Node) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        client.ask(ListXattr { node }).expect("names").iter().map(|name| name.to_vec()).collect();
    names.sort();
    names
}

#[test]
fn those_of_one_file_after_the_other_take_few_round_trips() {
    let sim = Sim::new(1);
    let client = Client::new(&sim, &old_tree(&sim, 4, FILES), &[]);
    let start = client.elapsed();
    for dir in client.list(Node::ROOT).expect("a listing") {
        for file in client.list(dir.entry.node).expect("a listing") {
            for name in ASKED {
                assert_eq!(value(&client, file.entry.node, name), Err(Errno::ENODATA));
            }
        }
    }
    let waited = (client.elapsed() - start).as_millis() / 5;
    assert!(waited < 40, "{waited} round trips for {} files", 4 * FILES);
    assert!(client.count(OpCode::GetXattr) <= 4);
    assert!(client.count(OpCode::ListXattr) <= 4 * FILES as u64);
}

#[test]
fn those_of_one_file_are_asked_for_alone() {
    let sim = Sim::new(2);
    let client = Client::new(&sim, &old_tree(&sim, 1, FILES), &[]);
    let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    let files = client.list(dir).expect("a listing");
    for _ in 0..3 {
        for name in ASKED {
            assert_eq!(value(&client, files[7].entry.node, name), Err(Errno::ENODATA));
        }
    }
    assert_eq!(client.count(OpCode::ListXattr), 0);
}

#[test]
fn names_that_are_not_listed_where_they_exist_are_asked_for() {
    let sim = Sim::new(3);
    let client = Client::new(&sim, &old_tree(&sim, 1, FILES), &[]);
    let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    for file in client.list(dir).expect("a listing") {
        let _ = value(&client, file.entry.node, "trusted.of-a-file-system");
    }
    assert_eq!(client.count(OpCode::GetXattr), FILES as u64);
}

#[test]
fn what_others_set_is_seen_when_attributes_are() {
    let sim = Sim::new(4);
    let tree = old_tree(&sim, 1, 20);
    let (client, other) = (Client::new(&sim, &tree, &[]), Client::new(&sim, &tree, &[]));
    let dir = client.lookup(Node::ROOT, "dir-0").expect("the directory").node;
    let files = client.list(dir).expect("a listing");
    let all = |name| files.iter().map(|file| value(&client, file.entry.node, name)).collect::<Vec<_>>();
    assert!(all("user.colour").iter().all(|value| *value == Err(Errno::ENODATA)));
    set(&other, files[9].entry.node, "user.colour", b"red");
    assert_eq!(value(&other, files[9].entry.node, "user.colour").as_deref(), Ok(&b"red"[..]));
    pass_time(&sim, Duration::from_secs(60));
    client.list(dir).expect("a listing");
    let found = all("user.colour");
    assert_eq!(found.iter().filter(|value| **value == Ok(b"red".to_vec())).count(), 1, "{found:?}");
}

#[test]
fn a_client_sees_what_it_has_set_whatever_it_asked_before() {
    explore(0..60, |sim| {
        let client = Client::new(sim, &shared_tree(sim), &[]);
        if sim.below(2) == 0 {
            client.wander();
        }
        let texts = ["user.a", "user.b", "security.c"];
        let files: Vec<Node> =
            (0..4).map(|file| client.make(Node::ROOT, &format!("f{file}"), b"content").node).collect();
        let mut set_by_us: BTreeMap<(Node, &str), u64> = BTreeMap::new();
        for step in 0..120 {
            let (node, text) = (files[sim.below(4) as usize], texts[sim.below(3) as usize]);
            match sim.below(8) {
                0 => {
                    set(&client, node, text, if step % 2 == 0 { b"0" } else { b"1" });
                    set_by_us.insert((node, text), step % 2);
                }
                1 => {
                    let removed = client.ask(RemoveXattr { node, name: xattr(text) });
                    assert_eq!(removed.is_ok(), set_by_us.remove(&(node, text)).is_some());
                }
                2 => pass_time(sim, Duration::from_secs(sim.below(10))),
                3 => drop(client.list(Node::ROOT).expect("a listing")),
                4 => {
                    let own = set_by_us
                        .keys()
                        .filter(|(own, _)| *own == node)
                        .map(|(_, text)| text.as_bytes().to_vec());
                    let mut own: Vec<_> = own.collect();
                    own.sort();
                    assert_eq!(names(&client, node), own);
                }
                _ => {
                    let own = set_by_us.get(&(node, text)).map(|digit| digit.to_string().into_bytes());
                    assert_eq!(value(&client, node, text).ok(), own);
                }
            }
        }
    });
}

/// The kernel asks for it before it passes on a write.
#[test]
fn a_file_that_was_made_here_has_no_capabilities_until_it_gets_some() {
    const CAPABILITY: &str = "security.capability";
    let sim = Sim::new(4);
    let client = Client::new(&sim, &old_tree(&sim, 1, 1), &[]);
    let create = |name: &str, flags| {
        let name = name.try_into().expect("a name");
        let flags = OpenFlags::WRITE_ONLY | flags;
        let made = client.ask(Create { dir: Node::ROOT, name, mode: 0o644, umask: 0, flags, initial: None });
        made.expect("made").entry.node
    };
    let new = create("new", OpenFlags::EXCL);
    let asked = client.count(OpCode::GetXattr) + client.count(OpCode::ListXattr);
    assert_eq!(value(&client, new, CAPABILITY), Err(Errno::ENODATA));
    assert_eq!(client.count(OpCode::GetXattr) + client.count(OpCode::ListXattr), asked, "it is known");
    set(&client, new, CAPABILITY, b"all");
    assert_eq!(value(&client, new, CAPABILITY), Ok(b"all".to_vec()));
    let again = create("new", OpenFlags::empty());
    assert_eq!((again, value(&client, new, CAPABILITY)), (new, Ok(b"all".to_vec())), "it was there before");
}
