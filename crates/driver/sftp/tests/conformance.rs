// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on OpenSSH's server.

mod support;

use outrigger_conformance::sftp::{SERVICE, SFTP};
use outrigger_conformance::{Direct, Target, run};
use outrigger_core::Serve;
use std::sync::Arc;
use support::serve;

#[test]
fn on_openssh() {
    let Some(served) = serve() else { return };
    let direct = Direct::new(Arc::new(Serve(served.sftp.clone())));
    let exceptions = &[SFTP, SERVICE].concat();
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions });
    println!("{report}");
    report.must_hold(153);
}
