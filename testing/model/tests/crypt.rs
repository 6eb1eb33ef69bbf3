// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `crypt` over a tree in memory: it must not be observable.

use outrigger_conformance::{Direct, Target, run};
use outrigger_core::{Abilities, Answer, Cx, Inline, Notify, Request, Service, Stack};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_crypt::{Crypt, Keys, Master};
use outrigger_model::{check, explore};
use outrigger_runtime::Threads;
use std::sync::Arc;

/// A tree whose files have to be opened, if so.
struct Memory {
    tree: Arc<dyn Service>,
    opens: bool,
}

impl Service for Memory {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.tree.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        let below = self.tree.abilities();
        let (stateless_files, anonymous_io) = (!self.opens, !self.opens);
        Abilities { stateless_files, anonymous_io, ..below }
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.tree.attach(notify);
    }
}

/// What does not hold, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("links/target_of_4095_bytes", "an encrypted target is longer"),
    ("holes/a_file_that_is_a_hole", "the header of a file is data, and its block may be"),
    ("xattrs/names_of_255_bytes", "an encrypted name is longer"),
    ("unlinked/space_is_given_back", "a directory gets its number with the first name in it"),
];

fn encrypted(opens: bool) -> Arc<dyn Service> {
    let threads = Arc::new(Threads::new());
    let tree = Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads));
    let keys = Keys::of(&Master::random().expect("random numbers"));
    Stack::new(Arc::new(Memory { tree, opens })).push(Crypt::new(keys)).expect("a stack").service()
}

#[test]
fn an_encrypted_tree_agrees() {
    for opens in [true, false] {
        explore(20, 80, |list| check(&Direct::new(encrypted(opens)), list));
    }
}

#[test]
fn an_encrypted_tree_holds() {
    let service = encrypted(true);
    let abilities = service.abilities();
    let target = Target { abilities: &abilities, has_sample: false, exceptions: EXCEPTIONS };
    let report = run(&Direct::new(service), &target);
    println!("{report}");
    report.must_hold(220);
}
