// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on a real server.

mod support;

use outrigger_conformance::ninep::{DIOD, SERVICE};
use outrigger_conformance::{Target, run};
use support::far;

#[test]
fn on_diod() {
    let Some(far) = far() else { return };
    let direct = far.direct();
    let exceptions = &[DIOD, SERVICE].concat();
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions });
    println!("{report}");
    report.must_hold(150);
}
