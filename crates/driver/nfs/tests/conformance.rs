// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on real servers.

mod support;

use outrigger_conformance::mount::Exceptions;
use outrigger_conformance::nfs::{DRIVER, GANESHA, SERVICE};
use outrigger_conformance::{Direct, Target, run};
use outrigger_core::Serve;
use outrigger_remote::Nfsd;
use std::sync::Arc;
use support::far;

fn conform(kind: Nfsd, more: Exceptions, least: usize) {
    let Some(far) = far(kind) else { return };
    let direct = Direct::new(Arc::new(Serve(far.connect(&[]))));
    let exceptions = &[DRIVER, SERVICE, more].concat();
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions });
    println!("{report}");
    report.must_hold(least);
}

#[test]
fn on_our_own_server() {
    conform(Nfsd::Own, &[], 155);
}

#[test]
fn on_nfs_ganesha() {
    conform(Nfsd::Ganesha, GANESHA, 155);
}
