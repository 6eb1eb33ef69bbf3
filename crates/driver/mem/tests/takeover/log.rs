// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log while many use the tree, and when it has no room.

use crate::support::{Known, Numbers, Ticks, call, difference, options, picture, serve};
use outrigger_core::ops::{Create, Forget, OpenFlags, SetXattr, StatFs, TmpFile, Unlink, XattrFlags};
use outrigger_core::{Errno, HeapKeep, Keep, Name, Node, Notice, Notify, Reply, Service, XattrName};
use outrigger_driver_mem::Mem;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread;

fn keep(words: usize) -> Arc<HeapKeep> {
    let keep = Arc::new(HeapKeep::default());
    keep.region("mem-log", words).expect("memory");
    keep
}

fn timed(keep: &Arc<HeapKeep>, clock: &Arc<Ticks>) -> Arc<dyn Service> {
    serve(Mem::with_keep(options(), clock.clone(), keep.clone()).expect("a tree"))
}

fn kept(keep: &Arc<HeapKeep>) -> Arc<dyn Service> {
    timed(keep, &Arc::default())
}

/// In which half the log is: after the header, the number of the file and whether there is a tree.
fn side(keep: &HeapKeep) -> u64 {
    keep.region("mem-log", 0).expect("the log").word(6).load(Relaxed) >> 63
}

#[test]
fn many_threads_share_a_log() {
    for seed in 0..20 {
        let (keep, clock) = (keep(100_000), Arc::new(Ticks::default()));
        let tree = timed(&keep, &clock);
        let known: Vec<Known> = thread::scope(|scope| {
            let change = |thread: u64| {
                let (mut numbers, mut known) = (Numbers(seed * 10 + thread), Known::default());
                for _ in 0..1500 {
                    let request = known.request(&mut numbers, false);
                    known.count(&call(&*tree, request));
                }
                known
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || change(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let known = Known::together(known);
        // Looking at the tree changes the times of access; once that is done, nothing changes any more.
        clock.stop();
        picture(&*tree, &known);
        let before = picture(&*tree, &known);
        std::mem::forget(tree);
        let after = picture(&*kept(&keep), &known);
        assert!(before == after, "seed {seed}: {}", difference(&after, &before));
    }
}

fn name(number: usize) -> Name {
    Name::try_from(format!("file {number}").as_str()).expect("a name")
}

/// Makes a file nobody refers to.
fn create(tree: &dyn Service, number: usize) -> Result<(), Errno> {
    let create = Create {
        dir: Node::ROOT,
        name: name(number),
        mode: 0o644,
        umask: 0,
        flags: OpenFlags::READ_WRITE,
        initial: None,
    };
    match call(tree, create.into()) {
        Reply::Created(made) => drop(call(tree, Forget { node: made.entry.node, count: 1 }.into())),
        Reply::Error(error) => return Err(error.errno),
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn unlink(tree: &dyn Service, number: usize) {
    let unlink = Unlink { dir: Node::ROOT, name: name(number) };
    assert_eq!(call(tree, unlink.into()), Reply::Done(()), "removing file {number}");
}

#[test]
fn a_log_without_room_refuses_changes_until_there_is_some() {
    let keep = keep(20_000);
    let tree = kept(&keep);
    let made = (0..).find(|&number| create(&*tree, number) == Err(Errno::ENOSPC)).expect("the log is full");
    assert!((200..1000).contains(&made), "{made} files in 10,000 words");
    let files = || picture(&*kept(&keep), &Known::default()).lines().count();
    let full = files();
    (0..made).for_each(|number| unlink(&*tree, number));
    let value = vec![7; 10_000].into();
    let name = XattrName::new(b"user.big".to_vec()).expect("a name");
    let set = SetXattr { node: Node::ROOT, name, value, flags: XattrFlags::empty() };
    assert_eq!(call(&*tree, set.into()), Reply::Done(()), "there is room again");
    let empty = files();
    (0..100).for_each(|number| assert_eq!(create(&*tree, number), Ok(())));
    let each = (files() - empty) / 100;
    assert_eq!(full + 1 - each * made, empty, "the full log had every file");
}

#[test]
fn a_log_is_bounded_by_what_it_describes() {
    let keep = keep(200_000);
    let tree = kept(&keep);
    let (mut sides, mut last) = (0, 0);
    for number in 0..20_000 {
        assert_eq!(create(&*tree, number), Ok(()), "file {number}");
        unlink(&*tree, number);
        if side(&keep) != last {
            (sides, last) = (sides + 1, side(&keep));
        }
    }
    assert!(sides > 10, "the log was made shorter {sides} times");
}

#[derive(Default)]
struct Doubts(Mutex<Vec<Node>>);

impl Notify for Doubts {
    fn notify(&self, notice: Notice) {
        let Notice::Revalidate { node } = notice else { panic!("{notice:?}") };
        self.0.lock().expect("no test panics in between").push(node);
    }
}

#[test]
fn a_removed_file_whose_reference_may_have_been_returned_is_doubted() {
    let keep = keep(20_000);
    let tree = kept(&keep);
    let make = |number| {
        let create = Create {
            dir: Node::ROOT,
            name: name(number),
            mode: 0o644,
            umask: 0,
            flags: OpenFlags::READ_WRITE,
            initial: None,
        };
        let Reply::Created(made) = call(&*tree, create.into()) else { panic!("no file {number}") };
        made.entry.node
    };
    let (removed, _named) = (make(1), make(2));
    let unnamed = TmpFile { dir: Node::ROOT, mode: 0o600, umask: 0, flags: OpenFlags::READ_WRITE };
    assert!(matches!(call(&*tree, unnamed.into()), Reply::Created(_)));
    unlink(&*tree, 1);

    let (successor, doubts) = (kept(&keep), Arc::new(Doubts::default()));
    successor.attach(doubts.clone());
    assert_eq!(*doubts.0.lock().expect("no test panics in between"), [removed]);
    let files = || match call(&*successor, StatFs { node: Node::ROOT }.into()) {
        Reply::FsStat(stat) => stat.ffree,
        other => panic!("{other:?}"),
    };
    let before = files();
    for _ in 0..2 {
        call(&*successor, Forget { node: removed, count: u64::MAX }.into());
        assert_eq!(files(), before + 1, "and what is returned once more, by the kernel, is nothing");
    }
}
