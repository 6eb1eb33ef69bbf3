// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the suite in a directory of this machine, which must be empty, and exits with 1 when a case failed.
//!
//! `suite native|fuse|nfs DIR`: what the directory is on.

use outrigger_conformance::mount::Exceptions;
use outrigger_conformance::{HostDir, Kind, Target, nfs, run};
use outrigger_core::{Abilities, OpSet};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, kind, dir] = &arguments[..] else { return usage() };
    let (kind, ops, exceptions): (Kind, OpSet, Exceptions) = match kind.as_str() {
        "native" => (Kind::Native, OpSet::all(), &[]),
        "fuse" => (Kind::Fuse, OpSet::all(), &[]),
        "nfs" => (Kind::Nfs, nfs::ops(), nfs::CLIENT),
        _ => return usage(),
    };
    let subject = match HostDir::new(Path::new(dir), kind) {
        Ok(subject) => subject,
        Err(errno) => {
            eprintln!("suite: {dir}: {errno}");
            return ExitCode::from(2);
        }
    };
    let abilities = Abilities::new("host", "", ops);
    let report = run(&subject, &Target { abilities: &abilities, has_sample: false, exceptions });
    println!("{report}");
    let (_, _, failed) = report.counts();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("usage: suite native|fuse|nfs DIR");
    ExitCode::from(2)
}
