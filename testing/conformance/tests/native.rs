// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite on a file system of the kernel: what fails here is wrong about Linux.

use outrigger_conformance::{HostDir, Kind, Target, run, sample};
use outrigger_core::{Abilities, OpSet};

#[test]
fn holds_on_a_native_directory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let subject = HostDir::new(dir.path(), Kind::Native).expect("the directory opens");
    let abilities = Abilities::new("native", "", OpSet::all());
    let report = run(&subject, &Target { abilities: &abilities, has_sample: false, exceptions: &[] });
    println!("{report}");
    report.must_hold(150);
}

#[test]
fn holds_on_the_native_sample_tree() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    sample::build(dir.path()).expect("the sample tree");
    let subject = HostDir::new(dir.path(), Kind::Native).expect("the directory opens");
    let abilities = Abilities { read_only: true, ..Abilities::new("native", "", OpSet::all()) };
    let report = run(&subject, &Target { abilities: &abilities, has_sample: true, exceptions: &[] });
    report.must_hold(13);
}
