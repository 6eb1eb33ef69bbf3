// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes mean the same file whatever happens to its name, also for the next process.

mod common;

use common::*;
use outrigger_core::ops::{Link, Lookup, Rename, RenameFlags};
use outrigger_core::{BlockingDriver, Errno, HeapKeep, Identity, Node};
use outrigger_driver_local::{Local, LocalOptions};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn by_path() -> LocalOptions {
    LocalOptions { handles: false, ..LocalOptions::default() }
}

/// Renames in the root.
fn rename(local: &Local, from: &str, to: &str, flags: RenameFlags) {
    let op = Rename { dir: Node::ROOT, name: name(from), to_dir: Node::ROOT, to_name: name(to), flags };
    local.rename(&cx(), op).expect("rename");
}

/// Makes a tree, renames parts of it, and checks that what `reopen` serves has the same nodes.
fn nodes_survive(dir: &Path, open: impl Fn() -> Local) {
    fs::create_dir_all(dir.join("a/b/c")).expect("mkdir");
    fs::write(dir.join("a/b/c/file"), b"content").expect("write");
    fs::write(dir.join("other"), b"other").expect("write");
    let first = open();
    let file = find(&first, "a/b/c/file").expect("lookup").node;
    let other = find(&first, "other").expect("lookup").node;
    let second_name = Link { node: file, dir: Node::ROOT, name: name("hard") };
    assert_eq!(first.link(&cx(), second_name).expect("link").node, file);
    rename(&first, "a", "z", RenameFlags::NOREPLACE);
    rename(&first, "z", "other", RenameFlags::EXCHANGE);
    for local in [&first, &open()] {
        assert_eq!(read_all(local, file).as_deref(), Ok(&b"content"[..]));
        assert_eq!(read_all(local, other).as_deref(), Ok(&b"other"[..]));
        assert_eq!(find(local, "other/b/c/file").expect("lookup").node, file);
        assert_eq!(find(local, "hard").expect("lookup").node, file);
        assert_eq!(find(local, "z").expect("lookup").node, other);
    }
    fs::remove_file(dir.join("z")).expect("remove");
    fs::write(dir.join("z"), b"new").expect("write");
    let last = open();
    assert_ne!(find(&last, "z").expect("lookup").node, other, "another file under the same name");
    assert_eq!(stat(&last, other).unwrap_err().errno, Errno::ESTALE);
}

#[test]
fn through_handles_nodes_survive_a_restart() {
    if !is_root() {
        eprintln!("SKIPPED: opening file handles needs root");
        return;
    }
    for place in [std::env::temp_dir().as_path(), Path::new("/dev/shm")] {
        let dir = tempfile::tempdir_in(place).expect("a directory");
        assert_eq!(open(dir.path()).abilities().identity, Identity::Persistent, "{}", place.display());
        nodes_survive(dir.path(), || open(dir.path()));
    }
}

#[test]
fn by_path_nodes_survive_a_restart_with_their_table() {
    let dir = tempfile::tempdir().expect("a directory");
    let keep = Arc::<HeapKeep>::default();
    let open = || Local::open_with_keep(dir.path(), by_path(), Arc::clone(&keep) as _).expect("open");
    assert_eq!(open().abilities().identity, Identity::ByPath);
    nodes_survive(dir.path(), open);
}

#[test]
fn by_path_a_file_moved_by_others_is_stale_until_found_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LocalOptions { descriptors: 1, ..by_path() };
    let local = Local::open(dir.path(), options).expect("open");
    for i in 0..64 {
        fs::write(dir.path().join(format!("f{i}")), i.to_string()).expect("write");
    }
    let nodes: Vec<Node> = (0..64).map(|i| find(&local, &format!("f{i}")).expect("lookup").node).collect();
    fs::rename(dir.path().join("f0"), dir.path().join("moved")).expect("rename");
    fs::write(dir.path().join("f0"), b"imposter").expect("write");
    // Others push its descriptor out of the cache, if it ever was there.
    nodes[1..].iter().for_each(|&node| assert!(stat(&local, node).is_ok()));
    assert_eq!(stat(&local, nodes[0]).unwrap_err().errno, Errno::ESTALE, "never the imposter");
    assert_eq!(find(&local, "moved").expect("lookup").node, nodes[0]);
    assert_eq!(read_all(&local, nodes[0]).as_deref(), Ok(&b"0"[..]));
}

#[test]
fn by_path_a_file_is_opened_while_its_descriptor_leaves_the_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let local = Local::open(dir.path(), LocalOptions { descriptors: 1, ..by_path() }).expect("open");
    let nodes: Vec<(Node, String)> = (0..64)
        .map(|i| {
            let name = format!("f{i}");
            fs::write(dir.path().join(&name), &name).expect("write");
            (find(&local, &name).expect("lookup").node, name)
        })
        .collect();
    let reads = || {
        for (node, name) in nodes.iter().cycle().take(20_000) {
            assert_eq!(read_all(&local, *node).as_deref(), Ok(name.as_bytes()), "never another file");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(reads);
        scope.spawn(reads);
        reads();
    });
}

#[test]
fn a_very_deep_tree_is_served() {
    for options in [LocalOptions::default(), by_path()] {
        let dir = tempfile::tempdir().expect("a directory");
        let local = Local::open(dir.path(), options).expect("open");
        let mut node = Node::ROOT;
        for _ in 0..3000 {
            node = mkdir(&local, node, "a directory with a name").expect("mkdir").node;
        }
        let file = create(&local, node, "file").expect("create").entry.node;
        let again = local.lookup(&cx(), Lookup { dir: node, name: name("file") }).expect("lookup");
        assert_eq!(again.node, file);
        drop(local);
        remove_deep(dir.path());
    }
}

/// Removes a chain of directories that is too deep for recursion, by lifting each out of its parent.
fn remove_deep(dir: &Path) {
    let (top, lifted) = (dir.join("a directory with a name"), dir.join("lifted"));
    while top.exists() {
        let child = top.join("a directory with a name");
        if !child.exists() {
            return fs::remove_dir_all(top).expect("remove");
        }
        fs::rename(child, &lifted).expect("rename");
        fs::remove_dir_all(&top).expect("remove");
        fs::rename(&lifted, &top).expect("rename");
    }
}
