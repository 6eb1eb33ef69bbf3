// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a node is, for people.

use outrigger_core::ops::{Link, Locate, MkDir, MkNod, Rename, RenameFlags, Unlink};
use outrigger_core::{BlockingDriver, Credentials, Cx, Errno, Name, Node};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::sync::Arc;

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

#[test]
fn a_node_is_located_where_it_is_now() {
    let (tree, cx) =
        (Mem::new(Options::default(), Arc::new(Threads::new())), Cx::new(1, Credentials::ROOT, "test"));
    let mkdir = MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o755, umask: 0, initial: None };
    let dir = tree.mkdir(&cx, mkdir).expect("mkdir").node;
    let mknod = MkNod { dir, name: name("file"), mode: 0o100_644, umask: 0, rdev: 0, initial: None };
    let node = tree.mknod(&cx, mknod).expect("mknod").node;
    let path = |node| tree.locate(&cx, Locate { node }).map(|path| path.to_string());
    assert_eq!(path(Node::ROOT).as_deref(), Ok("/"));
    assert_eq!(path(dir).as_deref(), Ok("/dir"));
    assert_eq!(path(node).as_deref(), Ok("/dir/file"));
    let (to_dir, to_name, flags) = (Node::ROOT, name("moved"), RenameFlags::empty());
    tree.rename(&cx, Rename { dir, name: name("file"), to_dir, to_name, flags }).expect("rename");
    assert_eq!(path(node).as_deref(), Ok("/moved"));
    tree.link(&cx, Link { node, dir, name: name("link") }).expect("link");
    tree.unlink(&cx, Unlink { dir: Node::ROOT, name: name("moved") }).expect("unlink");
    assert_eq!(path(node).unwrap_err().errno, Errno::ENOENT, "nobody looks for its other names");
}
