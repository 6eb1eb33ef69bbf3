// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `union`: over an empty tree it is the tree above it, over any other one it looks like a copy of that which is changed,
//! and like the kernel's overlayfs; and whatever dies in between leaves what was before or what is after.

#[path = "union/dying.rs"]
mod dying;
#[path = "union/failing.rs"]
mod failing;
#[path = "union/random.rs"]
mod random;
#[path = "union/telling.rs"]
mod telling;
#[path = "union/tree.rs"]
mod tree;

use outrigger_conformance::{Direct, Flags, Subject, Target, run};
use outrigger_core::ops::{RenameFlags, XattrFlags};
use outrigger_core::{Errno, FileKind, HeapKeep, Inline, Keep, Service, SetTime, Stack, Time};
use outrigger_driver_mem::{Mem, Options as MemOptions};
use outrigger_layer_union::{Options, Union};
use outrigger_model::{check, explore};
use outrigger_runtime::Threads;
use std::path::Path;
use std::sync::Arc;
use tree::{Tree, populate};

fn mem(threads: &Arc<Threads>) -> Arc<dyn Service> {
    Arc::new(Inline::new(Mem::new(MemOptions::default(), threads.clone()), threads.clone()))
}

fn union(upper: Arc<dyn Service>, lower: Arc<dyn Service>, keep: Option<&dyn Keep>) -> Arc<dyn Service> {
    union_on(&Arc::new(Threads::new()), upper, lower, keep)
}

fn union_on(
    threads: &Arc<Threads>,
    upper: Arc<dyn Service>,
    lower: Arc<dyn Service>,
    keep: Option<&dyn Keep>,
) -> Arc<dyn Service> {
    let layer = Union::new(upper, Options::default(), threads.clone(), keep).expect("the layer");
    Stack::new(lower).push(layer).expect("any order is good").service()
}

/// An upper tree, a lower one that has files, and both as one.
struct Trees {
    upper: Direct,
    lower: Direct,
    both: Direct,
}

impl Trees {
    fn new() -> Self {
        let threads = Arc::new(Threads::new());
        let (upper, lower) = (mem(&threads), mem(&threads));
        populate(&Direct::new(Arc::clone(&lower)));
        let both = Direct::new(union(Arc::clone(&upper), Arc::clone(&lower), None));
        Trees { upper: Direct::new(upper), lower: Direct::new(lower), both }
    }

    fn read(&self, path: &str) -> Vec<u8> {
        tree::read(&self.both, path)
    }

    fn write(&self, path: &str, content: &[u8]) {
        tree::write(&self.both, path, content);
    }
}

fn at(path: &str) -> &Path {
    Path::new(path)
}

#[test]
fn over_an_empty_tree_every_case_of_the_suite_holds() {
    let threads = Arc::new(Threads::new());
    let direct = Direct::new(union(mem(&threads), mem(&threads), None));
    let target = Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] };
    let report = run(&direct, &target);
    println!("{report}");
    report.must_hold(150);
}

#[test]
fn over_an_empty_tree_random_operations_agree_with_the_model() {
    let threads = Arc::new(Threads::new());
    explore(150, 80, |list| {
        check(&Direct::new(union_on(&threads, mem(&threads), mem(&threads), None)), list)
    });
}

#[test]
fn a_written_file_is_copied_with_all_that_it_has() {
    let trees = Trees::new();
    let before = Tree::of(&trees.lower);
    let was = trees.both.stat(at("d/file")).expect("the file");
    let fd = trees.both.open(at("d/file"), Flags::BOTH, 0).expect("an open file");
    assert_eq!(trees.both.fstat(fd).expect("attributes").ino, was.ino, "the number stays");
    trees.both.write_at(fd, 1, b"!").expect("a write");
    trees.both.close(fd).expect("a close");
    assert_eq!(trees.read("d/file"), b"c!ntent of a file");
    assert_eq!(trees.upper.get_xattr(at("d/file"), "user.colour"), Ok(b"red".to_vec()));
    let (copy, directory) = (trees.upper.stat(at("d/file")).unwrap(), trees.upper.stat(at("d")).unwrap());
    assert_eq!((copy.permissions(), copy.uid, copy.gid), (0o640, 1000, 100));
    assert_eq!((directory.permissions(), directory.uid), (0o751, 1001));
    let original = trees.lower.stat(at("d")).unwrap();
    assert_eq!(trees.both.stat(at("d")).unwrap().mtime, original.mtime, "nothing was made or removed there");
    assert_eq!(Tree::of(&trees.lower), before, "the lower tree stays as it is");
}

#[test]
fn holes_stay_holes() {
    let trees = Trees::new();
    let original = trees.lower.stat(at("holes")).unwrap();
    trees.both.chmod(at("holes"), 0o600).expect("chmod");
    let copy = trees.upper.stat(at("holes")).unwrap();
    assert_eq!((copy.size, copy.blocks), (original.size, original.blocks));
    assert_eq!(tree::read(&trees.both, "holes"), tree::read(&trees.lower, "holes"));
    assert_eq!(copy.mtime, original.mtime);
}

#[test]
fn what_is_cut_off_is_not_copied() {
    let trees = Trees::new();
    trees.both.truncate(at("holes"), 3).expect("truncate");
    assert_eq!(trees.read("holes").len(), 3);
    let fd = trees.both.open(at("d/file"), Flags::WRITE | Flags::TRUNC, 0).expect("an open file");
    trees.both.append(fd, b"new").expect("a write");
    trees.both.close(fd).expect("a close");
    assert_eq!(trees.read("d/file"), b"new");
}

#[test]
fn who_reads_a_file_sees_what_is_written_to_its_copy() {
    let trees = Trees::new();
    let reader = trees.both.open(at("d/file"), Flags::READ, 0).expect("an open file");
    assert_eq!(trees.both.read_at(reader, 0, 7), Ok(b"content".to_vec()));
    trees.write("d/file", b"changed");
    assert_eq!(trees.both.read_at(reader, 0, 99), Ok(b"changed".to_vec()));
    assert_eq!(trees.both.fstat(reader).map(|attr| attr.size), Ok(7));
    trees.both.close(reader).expect("a close");
}

#[test]
fn a_removed_file_of_the_lower_tree_is_read_on() {
    let trees = Trees::new();
    let reader = trees.both.open(at("d/file"), Flags::READ, 0).expect("an open file");
    trees.both.unlink(at("d/file")).expect("a removal");
    trees.write("d/file", b"another one");
    assert_eq!(trees.both.read_at(reader, 0, 7), Ok(b"content".to_vec()));
    trees.both.close(reader).expect("a close");
    assert_eq!(trees.read("d/file"), b"another one");
}

#[test]
fn whiteouts_are_those_of_layers_of_images() {
    let trees = Trees::new();
    trees.both.unlink(at("d/file")).expect("a removal");
    assert_eq!(trees.upper.stat(at("d/.wh.file")).map(|attr| attr.kind()), Ok(FileKind::Regular));
    assert_eq!(trees.both.stat(at("d/file")), Err(Errno::ENOENT));
    assert_eq!(trees.both.stat(at("d/.wh.file")), Err(Errno::ENOENT));
    assert_eq!(trees.both.mkdir(at("d/.wh.x"), 0o755), Err(Errno::EPERM));
    assert!(!Tree::of(&trees.both).names().any(|name| name.contains(".wh.")));
    trees.both.unlink(at("d/sub/deep")).expect("a removal");
    trees.both.rmdir(at("d/sub")).expect("a removal");
    trees.both.mkdir(at("d/sub"), 0o755).expect("a directory");
    assert_eq!(trees.both.stat(at("d/sub/deep")), Err(Errno::ENOENT), "the new directory is empty");
    assert_eq!(trees.both.rmdir(at("d")), Err(Errno::ENOTEMPTY));
}

#[test]
fn what_overlayfs_writes_is_read() {
    let trees = Trees::new();
    trees.upper.mkdir(at("d"), 0o755).expect("a directory");
    trees.upper.mknod(at("d/file"), FileKind::CharDevice, 0, 0).expect("a whiteout");
    trees.upper.mkdir(at("d/sub"), 0o755).expect("a directory");
    let flags = XattrFlags::empty();
    trees.upper.set_xattr(at("d/sub"), "user.overlay.opaque", b"y", flags).expect("an attribute");
    assert_eq!(trees.both.stat(at("d/file")), Err(Errno::ENOENT));
    assert_eq!(trees.both.stat(at("d/sub/deep")), Err(Errno::ENOENT));
    let names: Vec<String> = Tree::of(&trees.both).names().map(str::to_owned).collect();
    assert!(!names.iter().any(|name| name == "d/file" || name == "d/sub/deep"), "{names:?}");
    trees.write("d/file", b"again");
    assert_eq!(trees.read("d/file"), b"again");
    trees.both.unlink(at("d/file")).expect("a removal");
    assert_eq!(trees.both.stat(at("d/file")), Err(Errno::ENOENT));
}

#[test]
fn directories_of_the_lower_tree_stay_where_they_are() {
    let trees = Trees::new();
    let flags = RenameFlags::empty();
    assert_eq!(trees.both.rename(at("d"), at("e"), flags), Err(Errno::EXDEV));
    trees.both.mkdir(at("new"), 0o755).expect("a directory");
    trees.write("new/file", b"new");
    trees.both.rename(at("new"), at("e"), flags).expect("a rename");
    assert_eq!(trees.read("e/file"), b"new");
    assert_eq!(trees.both.rename(at("e"), at("d"), flags), Err(Errno::ENOTEMPTY));
    trees.both.rename(at("e"), at("empty"), flags).expect("a rename");
    assert_eq!(trees.read("empty/file"), b"new");
}

#[test]
fn a_file_with_two_names_in_the_lower_tree_loses_the_other_one() {
    let trees = Trees::new();
    let numbers = || ["one", "two"].map(|name| trees.both.stat(at(name)).unwrap().ino);
    assert_eq!(numbers()[0], numbers()[1]);
    trees.write("one", b"changed");
    assert_eq!((trees.read("one"), trees.read("two")), (b"changed".to_vec(), b"linked".to_vec()));
    assert_ne!(numbers()[0], numbers()[1], "they are two files now");
    trees.both.link(at("two"), at("three")).expect("a link");
    let fd = trees.both.open(at("three"), Flags::WRITE, 0).expect("an open file");
    trees.both.write_at(fd, 0, b"L").expect("a write");
    trees.both.close(fd).expect("a close");
    assert_eq!(trees.read("two"), b"Linked");
}

#[test]
fn large_directories_are_listed_in_pieces() {
    let trees = Trees::new();
    trees.lower.mkdir(at("large"), 0o755).expect("a directory");
    let name = |number: u32| format!("large/file number {number}");
    for number in 0..3000 {
        trees.lower.mknod(at(&name(number)), FileKind::Regular, 0o644, 0).expect("a file");
    }
    (0..3000).step_by(3).for_each(|number| trees.both.unlink(at(&name(number))).expect("a removal"));
    let fd = trees.both.open(at("large"), Flags::READ | Flags::DIRECTORY, 0).expect("an open directory");
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let listed = trees.both.read_dir(fd, cookie, 2000).expect("a listing");
        names.extend(listed.entries.iter().map(|entry| entry.name.clone()));
        match listed.entries.last() {
            Some(last) => cookie = last.cookie,
            None => break,
        }
        if listed.eof {
            break;
        }
    }
    trees.both.close(fd).expect("a close");
    assert_eq!(names.len(), 2000);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 2000, "no name comes twice");
}

#[test]
fn numbers_and_copies_go_on_in_the_next_process() {
    let threads = Arc::new(Threads::new());
    let (upper, lower) = (mem(&threads), mem(&threads));
    populate(&Direct::new(Arc::clone(&lower)));
    let keep = HeapKeep::default();
    let service = union(Arc::clone(&upper), Arc::clone(&lower), Some(&keep));
    let first = Direct::new(service);
    let time = Some(SetTime::To(Time::new(7, 0)));
    first.utimens(at("d/file"), time, time).expect("times");
    let name = |name: &str| outrigger_core::Name::try_from(name).expect("a name");
    let lookup = |direct: &Direct, dir, of: &str| {
        direct.ask(outrigger_core::ops::Lookup { dir, name: name(of) }).expect("the entry")
    };
    let dir = lookup(&first, outrigger_core::Node::ROOT, "d");
    let file = lookup(&first, dir.node, "file");
    let second = Direct::new(union(upper, lower, Some(&keep)));
    let found =
        second.ask(outrigger_core::ops::GetAttr { node: file.node, handle: None }).expect("attributes");
    assert_eq!((found.attr.ino, found.attr.mtime), (file.attr.ino, Time::new(7, 0)));
    assert_eq!(lookup(&second, dir.node, "file").node, file.node);
}
