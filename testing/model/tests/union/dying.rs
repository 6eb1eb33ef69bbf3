// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process dies before each request that the layer makes in the upper tree: the tree shows what was before the change, or
//! what is after it, and the change succeeds in the next process.

use super::tree::{Tree, list, populate, read};
use super::{at, mem, union_on};
use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::{RenameFlags, XattrFlags};
use outrigger_core::{Abilities, Answer, Cx, Errno, FileKind, HeapKeep, Notify, OpCode, Request, Service};
use outrigger_runtime::Threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tree of which the process that asks dies: from some request on nothing happens any more.
struct Mortal {
    tree: Arc<dyn Service>,
    left: AtomicUsize,
    written: AtomicUsize,
}

impl Mortal {
    fn new(tree: &Arc<dyn Service>, life: usize) -> Arc<Self> {
        let (left, written) = (AtomicUsize::new(life), AtomicUsize::new(0));
        Arc::new(Mortal { tree: Arc::clone(tree), left, written })
    }

    fn is_dead(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

impl Service for Mortal {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left <= 1 {
            return Answer::error(Errno::EIO);
        }
        if request.op() == OpCode::Write {
            self.written.fetch_add(1, Ordering::Relaxed);
        }
        self.tree.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.tree.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.tree.attach(notify);
    }
}

type Change = fn(&dyn Subject) -> Result<(), Errno>;

/// The content of a file whose copy takes many pieces.
pub fn large() -> Vec<u8> {
    (0..900_000_u32).map(|at| (at % 251) as u8 + 1).collect()
}

const CHANGES: &[(&str, Change)] = &[
    ("chmod of a file", |fs| fs.chmod(at("d/file"), 0o600)),
    ("chmod of a large file", |fs| fs.chmod(at("large"), 0o600)),
    ("chmod of a directory", |fs| fs.chmod(at("d/sub"), 0o700)),
    ("an attribute", |fs| fs.set_xattr(at("d/sub/deep"), "user.x", b"y", XattrFlags::empty())),
    ("truncate", |fs| fs.truncate(at("large"), 300_000)),
    ("open for writing", |fs| {
        let fd = fs.open(at("d/sub/deep"), Flags::WRITE, 0)?;
        fs.close(fd)
    }),
    ("open that empties", |fs| {
        let fd = fs.open(at("large"), Flags::WRITE | Flags::TRUNC, 0)?;
        fs.close(fd)
    }),
    ("unlink", |fs| fs.unlink(at("d/file"))),
    ("unlink of a copy", |fs| fs.unlink(at("copied"))),
    ("rmdir", |fs| fs.rmdir(at("empty"))),
    ("rmdir of a directory with whiteouts", |fs| fs.rmdir(at("emptied"))),
    ("rename", |fs| fs.rename(at("d/file"), at("d/sub/moved"), RenameFlags::empty())),
    ("rename of a copy", |fs| fs.rename(at("copied"), at("moved"), RenameFlags::empty())),
    ("rename over a file", |fs| fs.rename(at("d/file"), at("d/sub/deep"), RenameFlags::empty())),
    ("exchange", |fs| fs.rename(at("d/file"), at("d/sub/deep"), RenameFlags::EXCHANGE)),
    ("rename over a directory", |fs| fs.rename(at("made"), at("empty"), RenameFlags::empty())),
    ("rename over an emptied directory", |fs| fs.rename(at("made"), at("emptied"), RenameFlags::empty())),
    ("a directory where one was removed", |fs| fs.mkdir(at("gone"), 0o755)),
    ("a file in a directory of the lower tree", |fs| fs.mknod(at("d/sub/new"), FileKind::Regular, 0o644, 0)),
    ("a link", |fs| fs.link(at("one"), at("d/sub/three"))),
];

struct World {
    threads: Arc<Threads>,
    upper: Arc<dyn Service>,
    lower: Arc<dyn Service>,
    keep: HeapKeep,
}

/// A lower tree, which stays as it is for all worlds.
fn lower(threads: &Arc<Threads>) -> Arc<dyn Service> {
    let tree = mem(threads);
    let lower = Direct::new(Arc::clone(&tree));
    populate(&lower);
    super::tree::write(&lower, "copied", b"copied");
    super::tree::write(&lower, "large", &large());
    for dir in ["emptied", "gone"] {
        lower.mkdir(at(dir), 0o755).expect("a directory");
        super::tree::write(&lower, &format!("{dir}/inside"), b"inside");
    }
    tree
}

impl World {
    /// Both trees, after changes by a process that was stopped.
    fn new(threads: &Arc<Threads>, lower: &Arc<dyn Service>) -> Self {
        let (threads, lower) = (Arc::clone(threads), Arc::clone(lower));
        let world = World { upper: mem(&threads), threads, lower, keep: HeapKeep::default() };
        let both = world.process(usize::MAX).1;
        both.chmod(at("copied"), 0o600).expect("a copy");
        both.mkdir(at("made"), 0o755).expect("a directory");
        for dir in ["emptied", "gone"] {
            both.unlink(at(&format!("{dir}/inside"))).expect("a removal");
        }
        both.rmdir(at("gone")).expect("a removal");
        world
    }

    /// A process that serves the trees, and dies after so many requests.
    fn process(&self, life: usize) -> (Arc<Mortal>, Direct) {
        let mortal = Mortal::new(&self.upper, life);
        let service = union_on(&self.threads, mortal.clone(), Arc::clone(&self.lower), Some(&self.keep));
        (mortal, Direct::new(service))
    }
}

#[test]
fn a_change_has_happened_or_not_whenever_the_process_dies() {
    let threads = Arc::new(Threads::new());
    let lower = lower(&threads);
    let whole = World::new(&threads, &lower);
    let before = Tree::of(&whole.process(usize::MAX).1);
    for (what, change) in CHANGES {
        let world = World::new(&threads, &lower);
        let (_, both) = world.process(usize::MAX);
        change(&both).unwrap_or_else(|errno| panic!("{what}: {errno:?}"));
        let after = Tree::of(&both);
        let mut deaths = 0;
        for life in 1.. {
            let world = World::new(&threads, &lower);
            let (mortal, both) = world.process(life);
            let answered = change(&both);
            if !mortal.is_dead() {
                break;
            }
            deaths += 1;
            let (_, both) = world.process(usize::MAX);
            let left = Tree::of(&both);
            let happened = left == after;
            assert!(
                happened || left == before,
                "{what}: half of it happened in a life of {life}: {answered:?}"
            );
            if !happened || answered.is_err() {
                let again = change(&both);
                let is_done =
                    happened && matches!(again, Err(Errno::ENOENT | Errno::EEXIST | Errno::ENOTEMPTY));
                assert!(again.is_ok() || is_done, "{what}: again after a life of {life}: {again:?}");
            }
            if *what != "exchange" {
                Tree::of(&both).must_equal(&after, &format!("{what}: again after a life of {life}"));
            }
        }
        assert!(deaths > 0, "{what}");
    }
}

#[test]
fn a_copy_goes_on_where_a_process_died() {
    let threads = Arc::new(Threads::new());
    let lower = lower(&threads);
    let world = World::new(&threads, &lower);
    let (mortal, both) = world.process(usize::MAX);
    both.chmod(at("large"), 0o600).expect("a copy");
    let pieces = mortal.written.load(Ordering::Relaxed);
    assert!(pieces > 3, "the file has {pieces} pieces");
    let world = World::new(&threads, &lower);
    let (mut written, mut processes) = (0, 0);
    loop {
        // Each lives a little longer than the one before.
        let (mortal, both) = world.process(10 + processes);
        let done = both.chmod(at("large"), 0o600);
        written += mortal.written.load(Ordering::Relaxed);
        processes += 1;
        assert!(processes < 40, "the copy gets nowhere");
        if done.is_ok() {
            break;
        }
    }
    assert!(processes > 3, "{processes} processes were enough");
    assert!(
        written <= pieces + 1,
        "{written} pieces were written by {processes} processes, instead of {pieces}"
    );
    let (_, both) = world.process(usize::MAX);
    assert_eq!(read(&both, "large"), large());
    assert!(list(&Direct::new(Arc::clone(&world.upper)), ".wh..wh.work").is_empty(), "nothing is left over");
}
