// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite through the door and the driver.

use crate::support::Far;
use outrigger_conformance::wire::LOCAL;
use outrigger_conformance::{Target, run};

#[test]
fn a_directory_of_the_host_is_as_it_is_there() {
    let far = Far::local();
    let direct = far.direct();
    let report =
        run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: LOCAL });
    println!("{report}");
    report.must_hold(200);
}
