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

#[test]
fn a_long_name_that_is_made_while_it_is_removed_can_be_read() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    let long = named(&"x".repeat(200));
    for _ in 0..200 {
        let _ = root.mknod(&long, 0o100_644, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| root.unlink(&long).expect("it is removed"));
            scope.spawn(|| root.mknod(&long, 0o100_644, 0));
        });
        let is_there = root.lookup(&long).is_ok();
        assert_eq!(names(&both), if is_there { vec![long.clone()] } else { Vec::new() });
    }
}
