// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings that continue in a successor process.

use crate::client::{Client, name, shared_tree};
use outrigger_core::listing::cookie_of;
use outrigger_core::ops::*;
use outrigger_core::reply::{DirentPlus, DirentsPlus};
use outrigger_core::{
    Abilities, Answer, Cx, Errno, Handle, HeapKeep, Layer, Name, Node, Place, Reply, Request, Service, Stack,
    ask,
};
use outrigger_layer_cache::{Cache, OnDisk, Options};
use outrigger_sim::{Sim, explore};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Lists names in the order of their cookies, which follow from them.
struct ByName;

impl Layer for ByName {
    fn place(&self) -> Place {
        Place::anywhere("by-name")
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { cookies_by_name: true, ..below }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let Request::ReadDirPlus(ReadDirPlus { node, handle, cookie: after, size }) = request else {
            return next.call(cx, request);
        };
        Answer::later(async move {
            let all = ReadDirPlus { node, handle, cookie: 0, size: 1 << 20 };
            let mut list = match ask(&**next, cx, all).await {
                Ok(list) => list,
                Err(error) => return Reply::Error(error),
            };
            assert!(list.eof, "all of it in one piece");
            list.entries.iter_mut().for_each(|entry| entry.cookie = cookie_of(&entry.name));
            list.entries.sort_by_key(|entry| entry.cookie);
            list.entries.retain(|entry| entry.cookie > after);
            let fits = (size as usize / 160).clamp(1, list.entries.len().max(1));
            list.eof = list.entries.len() <= fits;
            list.entries.truncate(fits);
            Reply::DirentsPlus(list)
        })
    }
}

/// A process that serves `tree` and may be followed by another one.
fn process(sim: &Arc<Sim>, tree: &Arc<dyn Service>) -> Client {
    let cache = Cache::with_keep(&Options::default(), sim.clone(), OnDisk::default(), &HeapKeep::default());
    Client::over(sim, tree, cache.expect("a cache"))
}

/// The next names after `cookie`, at most `count`, and where they end; `None` when there are no more.
fn piece(client: &Client, node: Node, opened: Handle, at: (u64, usize)) -> Option<(Vec<Name>, u64)> {
    let (cookie, count) = at;
    let (handle, size) = (opened, 4096);
    let list: DirentsPlus = client.ask(ReadDirPlus { node, handle, cookie, size }).expect("a piece");
    let some: Vec<DirentPlus> = list.entries.into_iter().take(count).collect();
    let end = some.last()?.cookie;
    Some((some.into_iter().map(|entry| entry.name).collect(), end))
}

#[test]
fn a_listing_that_goes_on_in_another_process_tells_each_name_once() {
    for by_name in [true, false] {
        explore(0..60, |sim| {
            let mut tree = shared_tree(sim);
            if by_name {
                tree = Stack::new(tree).push(ByName).expect("any order is good").service();
            }
            let first = process(sim, &tree);
            let dir = first.mkdir(Node::ROOT, "dir");
            let mut there = BTreeSet::new();
            for number in 0..40 {
                let text = format!("{number}");
                // That many names are asked for one after the other has the directory listed; later names are added to that.
                first.lookup(dir, &text).expect_err("no such name");
                first.make(dir, &text, b"");
                there.insert(name(&text));
                if sim.below(4) == 0 {
                    first.ask(Unlink { dir, name: name(&text) }).expect("removed");
                    there.remove(&name(&text));
                }
            }
            let handle = first.ask(OpenDir { node: dir }).expect("open").handle;
            let (mut told, mut cookie, mut client) = (Vec::new(), 0, first);
            while let Some((names, end)) = piece(&client, dir, handle, (cookie, 1 + sim.below(9) as usize)) {
                told.extend(names);
                cookie = end;
                if sim.below(3) == 0 {
                    client = process(sim, &tree);
                }
            }
            assert_eq!(told.iter().cloned().collect::<BTreeSet<_>>(), there);
            assert_eq!(told.len(), there.len(), "none is told twice");
        });
    }
}

/// Each cookie comes again after some others.
struct InACircle;

impl Layer for InACircle {
    fn place(&self) -> Place {
        Place::anywhere("circle")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let Request::ReadDirPlus(mut op) = request else { return next.call(cx, request) };
        Answer::later(async move {
            // After the last name comes the second one again.
            op.cookie = if op.cookie >= 4 { 1 } else { op.cookie };
            op.size = 200;
            match ask(&**next, cx, op).await {
                Ok(list) => Reply::DirentsPlus(DirentsPlus { eof: false, ..list }),
                Err(error) => Reply::Error(error),
            }
        })
    }
}

#[test]
fn a_listing_in_a_circle_ends_with_an_error() {
    let sim = Sim::new(1);
    let below = shared_tree(&sim);
    let maker = Client::new(&sim, &below, &[]);
    for number in 0..5 {
        maker.make(Node::ROOT, &format!("{number}"), b"");
    }
    let tree = Stack::new(below).push(InACircle).expect("any order is good").service();
    let client = Client::new(&sim, &tree, &[]);
    assert_eq!(client.list(Node::ROOT).map_err(|error| error.errno), Err(Errno::EIO));
}
