// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that are lost after they were answered, and where that is told.

use crate::behind::{BEHIND, CLOSE, flush};
use crate::client::{Client, name, pass_time, shared_tree};
use crate::content::{open, pattern, with_file, write};
use outrigger_core::ops::{OpenFlags, Release, Unlink};
use outrigger_core::{Abilities, Errno, Layer, LockOwner, Node, OpCode, Place, Service, Stack};
use outrigger_sim::Sim;
use std::sync::Arc;
use std::time::Duration;

/// Where it was when it was lost: by the time that somebody asks, the kernel may have forgotten it.
#[test]
fn a_file_of_which_a_delayed_write_failed_is_lost_with_its_path() {
    let sim = Sim::new(17);
    let (client, node, _) = with_file(&sim, 100, BEHIND);
    let (handle, _) = open(&client, node, OpenFlags::WRITE_ONLY);
    client.fail_writes(1);
    write(&client, node, handle, 0, pattern(1000, 1));
    pass_time(&sim, Duration::from_secs(1));
    client.ask(Unlink { dir: Node::ROOT, name: name("file") }).expect("removed");
    let lost = client.control.lost().into_iter().map(|lost| lost.path.map(|path| path.to_string()));
    assert_eq!(lost.collect::<Vec<_>>(), [Some("/file".to_owned())]);
}

/// A tree that says only when a file is closed that it could not store what was written to it.
struct RefusesAtClose;

impl Layer for RefusesAtClose {
    fn place(&self) -> Place {
        Place::anywhere("refuses-at-close")
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { refuses_at_close: true, ..below }
    }
}

/// close(2) has returned by then, whether writes are delayed or not.
#[test]
fn what_the_tree_refuses_when_a_file_is_closed_is_lost_if_it_may_have_been_written() {
    for options in [CLOSE, BEHIND, &[("write", "through")]] {
        let sim = Sim::new(16);
        let plain = shared_tree(&sim);
        let tree = Stack::new(plain.clone()).push(RefusesAtClose).expect("any order is good").service();
        let lost_of = |tree: &Arc<dyn Service>, flags: OpenFlags| {
            let client = Client::new(&sim, tree, options);
            let node = client.lookup(Node::ROOT, "file").expect("the file").node;
            let (handle, _) = open(&client, node, flags);
            if flags.writes() {
                write(&client, node, handle, 0, pattern(1000, 1));
            }
            flush(&client, node, handle).expect("flushed");
            client.fail(OpCode::Release);
            let owner = LockOwner(1);
            client.ask(Release { node, handle, flags, owner, flock_release: false }).expect_err("refused");
            client.control.lost().iter().map(|lost| (lost.node == node, lost.error.errno)).collect::<Vec<_>>()
        };
        Client::new(&sim, &plain, &[]).make(Node::ROOT, "file", b"old");
        assert_eq!(lost_of(&tree, OpenFlags::WRITE_ONLY), [(true, Errno::ENOSPC)], "{options:?}");
        assert_eq!(lost_of(&tree, OpenFlags::empty()), [], "{options:?}: nothing was written");
        let early = if options == BEHIND { 1 } else { 0 };
        assert_eq!(lost_of(&plain, OpenFlags::WRITE_ONLY).len(), early, "{options:?}: close(2) had waited");
    }
}
