// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite through FUSE mounts made by the `outrigger` program.

use outrigger_conformance::mount::{Mounted, WRITEBACK, obstacle};
use outrigger_conformance::{HostDir, Kind, Report, Target, run};
use outrigger_core::{Abilities, OpSet};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// Runs the suite on a mount of `location`; `None`, saying why, where that is not possible.
fn suite(location: &str, options: &str, exceptions: &[(&str, &str)]) -> Option<Report> {
    if let Some(reason) = obstacle() {
        println!("SKIPPED: {reason}");
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mounted = Mounted::new(location, dir.path(), options, LIMIT).expect("the mount");
    let subject = HostDir::new(mounted.dir(), Kind::Fuse).expect("the mount opens");
    let abilities = Abilities::new("fuse", location, OpSet::all());
    let report = run(&subject, &Target { abilities: &abilities, has_sample: false, exceptions });
    println!("{report}");
    Some(report)
}

#[test]
fn memory_holds() {
    if let Some(report) = suite("mem:", "", &[]) {
        report.must_hold(150);
    }
}

#[test]
fn memory_holds_with_writeback() {
    if let Some(report) = suite("mem:", ",writeback_cache", WRITEBACK) {
        report.must_hold(150);
    }
}

#[test]
fn a_directory_holds() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    if let Some(report) = suite(dir.path().to_str().expect("UTF-8"), "", &[]) {
        report.must_hold(150);
    }
}
