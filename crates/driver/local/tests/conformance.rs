// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on a directory of the host.

use outrigger_conformance::{Direct, Target, run};
use outrigger_core::Inline;
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_runtime::Threads;
use std::path::Path;
use std::sync::Arc;

fn every_case_holds(place: &Path, options: LocalOptions) {
    let dir = tempfile::tempdir_in(place).expect("a directory");
    let local = Local::open(dir.path(), options).expect("the directory opens");
    let direct = Direct::new(Arc::new(Inline::new(local, Arc::new(Threads::new()))));
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
    println!("{report}");
    report.must_hold(180);
}

#[test]
fn on_disk() {
    every_case_holds(&std::env::temp_dir(), LocalOptions::default());
}

#[test]
fn on_disk_by_path() {
    every_case_holds(&std::env::temp_dir(), LocalOptions { handles: false, ..LocalOptions::default() });
}

#[test]
fn in_memory() {
    every_case_holds(Path::new("/dev/shm"), LocalOptions::default());
}
