// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree among many: below its root it is as alone, for the conformance suite and for the model.

use outrigger_conformance::{Direct, Target, block_on, run};
use outrigger_core::ops::Lookup;
use outrigger_core::{BoxFuture, Credentials, Cx, Inline, Name, Node, Result, Runtime, Service, Stack, ask};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_demux::{Demux, Ending, Found, Hosted, Names, OpenTree};
use outrigger_layer_subtree::Subtree;
use outrigger_model::{check, explore};
use outrigger_runtime::Threads;
use std::sync::Arc;

/// A tree in memory, which is another one each time it is opened.
struct Memory(Arc<Threads>);

impl OpenTree for Memory {
    fn location(&self) -> &str {
        "mem:"
    }

    fn open(&self) -> BoxFuture<'static, Result<Hosted>> {
        let runtime = Arc::clone(&self.0);
        let service = Arc::new(Inline::new(Mem::new(Options::default(), runtime.clone()), runtime));
        Box::pin(async { Ok(Hosted { service, is_lasting: false, ending: Arc::new(Nothing) }) })
    }
}

struct Nothing;

impl Ending for Nothing {
    fn unwritten(&self) -> Option<String> {
        None
    }
    fn unwritten_files(&self) -> BoxFuture<'static, Vec<String>> {
        Box::pin(async { Vec::new() })
    }
    fn flush(&self) {}
    fn close(&self) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// Every name leads to a tree.
struct Every(Arc<Threads>);

impl Names for Every {
    fn find(&self, _: &[Name], _: &Name) -> Option<Found> {
        Some(Found::Tree(Arc::new(Memory(Arc::clone(&self.0)))))
    }
    fn list(&self, _: &[Name]) -> Vec<Name> {
        Vec::new()
    }
}

/// One of two trees.
fn one_of_many() -> Arc<dyn Service> {
    let runtime = Arc::new(Threads::new());
    let names = Arc::new(Every(Arc::clone(&runtime)));
    let demux =
        Arc::new(Demux::new(names, runtime as Arc<dyn Runtime>, outrigger_layer_demux::Options::default()));
    let root = |text: &str| {
        let name = Name::try_from(text).expect("a good name");
        let cx = Cx::new(1, Credentials::ROOT, "test");
        let found =
            block_on(ask(&*demux, &cx, Lookup { dir: Node::ROOT, name })).expect("it leads to a tree");
        let below = Name::try_from("nothing").expect("a good name");
        // Opens it.
        assert!(block_on(ask(&*demux, &cx, Lookup { dir: found.node, name: below })).is_err());
        found.node
    };
    root("other");
    let tree = root("tree");
    Stack::new(demux).push(Subtree::new(tree)).expect("any order is good").service()
}

#[test]
fn every_case_of_the_conformance_suite_holds_in_a_tree_among_many() {
    let direct = Direct::new(one_of_many());
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
    println!("{report}");
    report.must_hold(150);
}

#[test]
fn a_tree_among_many_agrees_with_the_model() {
    explore(60, 60, |list| check(&Direct::new(one_of_many()), list));
}
