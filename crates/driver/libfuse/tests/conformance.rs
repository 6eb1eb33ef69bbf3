// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on a directory behind bindfs, asked directly.

use outrigger_conformance::{Direct, Target, run};
use outrigger_driver_libfuse::launch::{Launch, Mountpoint};
use outrigger_driver_libfuse::{LibFuse, Options};
use outrigger_runtime::Threads;
use std::sync::Arc;

#[test]
fn every_case_holds_over_bindfs() {
    let dir = tempfile::tempdir().expect("a directory");
    let command = ["bindfs", "-f"].map(Into::into).into_iter().chain([dir.path().as_os_str().to_owned()]);
    let launch = Launch { mountpoint: Mountpoint::Private, ..Launch::new(command.collect()) };
    let service = LibFuse::start(launch, Options::default(), Arc::new(Threads::new())).expect("bindfs starts");
    let direct = Direct::new(Arc::new(service));
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
    println!("{report}");
    report.must_hold(180);
}
