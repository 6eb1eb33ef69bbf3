// SPDX-License-Identifier: MIT OR Apache-2.0
//! The constants fit together.

use outrigger_core::ops::{GetAttr, Locate, Lookup, Read, ReadDir};
use outrigger_core::{BlockingDriver, Credentials, Cx, Errno, Handle, Name, Node};
use outrigger_driver_null::Null;

#[test]
fn the_file_is_listed_found_and_reads_as_zeroes_to_its_end() {
    let (tree, cx, handle) = (Null::new(100), Cx::new(1, Credentials::ROOT, "test"), Handle(0));
    let listing =
        tree.readdir(&cx, ReadDir { node: Node::ROOT, handle, cookie: 0, size: 4096 }).expect("list");
    let name = listing.entries[0].name.clone();
    let entry = tree.lookup(&cx, Lookup { dir: Node::ROOT, name }).expect("lookup");
    let attrs = tree.getattr(&cx, GetAttr { node: entry.node, handle: None }).expect("getattr");
    assert_eq!((attrs.attr, attrs.ttl.0), (entry.attr, 0));
    for (offset, expected) in [(0, 100), (90, 10), (100, 0), (u64::MAX, 0)] {
        let data = tree.read(&cx, Read { node: entry.node, handle, offset, len: 4096 }).expect("read");
        assert_eq!(data.into_bytes().expect("bytes"), vec![0; expected]);
    }
}

#[test]
fn there_is_nothing_else() {
    let (tree, cx) = (Null::new(0), Cx::new(1, Credentials::ROOT, "test"));
    let name = Name::try_from("other").expect("a name");
    assert_eq!(tree.lookup(&cx, Lookup { dir: Node::ROOT, name }).unwrap_err().errno, Errno::ENOENT);
    for (node, path) in [(Node::ROOT, "/"), (Node(2), "/file")] {
        assert_eq!(&tree.locate(&cx, Locate { node }).expect("locate")[..], path.as_bytes());
    }
    assert_eq!(tree.locate(&cx, Locate { node: Node(3) }).unwrap_err().errno, Errno::ESTALE);
    let missing = GetAttr { node: Node(3), handle: None };
    assert_eq!(tree.getattr(&cx, missing).unwrap_err().errno, Errno::ESTALE);
}
