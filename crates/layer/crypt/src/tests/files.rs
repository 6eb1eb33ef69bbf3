// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names that are made, moved and removed while others use them.

use super::*;
use outrigger_core::ops::RenameFlags;

fn names(both: &Both) -> Vec<Name> {
    let root = both.shown().root().expect("a root");
    let mut names: Vec<Name> =
        root.entries().expect("a listing").map(|entry| entry.expect("an entry").0).collect();
    names.sort();
    names
}

#[test]
fn a_long_name_that_is_moved_onto_the_same_file_stays() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    let [long, other] = ["a", "b"].map(|letter| named(&letter.repeat(200)));
    root.mknod(&long, 0o100_644, 0).expect("a file");
    root.link(&root.lookup(&long).expect("it is there"), &other).expect("a link");
    root.rename(&long, &root, &other, RenameFlags::empty()).expect("it changes nothing");
    assert_eq!(names(&both), vec![long, other]);
}

/// A tree in which something else happens when a name was removed, once.
struct Interrupted {
    below: Arc<dyn Service>,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Service for Interrupted {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let removes = request.op() == OpCode::Unlink;
        self.below.call(cx, request).map(move |reply| {
            if removes && let Some(then) = lock(&self.then).take() {
                // A program of its own.
                std::thread::spawn(then).join().expect("it is done");
            }
            reply
        })
    }
    fn abilities(&self) -> Abilities {
        self.below.abilities()
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

#[test]
fn a_long_name_that_is_made_while_it_is_removed_can_be_read() {
    let both = Both::new();
    let below = Arc::new(Interrupted { below: Arc::clone(&both.below), then: Mutex::default() });
    let stack = Stack::new(below.clone()).push(Crypt::new(Keys::of(&both.master))).expect("a stack");
    let client = Client::new(stack.service(), both.runtime.clone(), Settings::default());
    let root = client.root().expect("a root");
    let long = named(&"x".repeat(200));
    root.mknod(&long, 0o100_644, 0).expect("a file");
    let (again, name) = (client.clone(), long.clone());
    let make =
        move || drop(again.root().and_then(|root| root.mknod(&name, 0o100_644, 0)).expect("it is made"));
    *lock(&below.then) = Some(Box::new(make));
    root.unlink(&long).expect("it is removed");
    assert_eq!(names(&both), vec![long]);
}
