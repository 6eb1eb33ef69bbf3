// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on real servers.

mod support;

use outrigger_conformance::ftp::{FTP, SERVICE, VSFTPD};
use outrigger_conformance::mount::Exceptions;
use outrigger_conformance::{Direct, Target, run};
use outrigger_core::Serve;
use outrigger_remote::Ftpd;
use std::sync::Arc;
use support::far;

fn conform(kind: Ftpd, more: Exceptions, least: usize) {
    let Some(far) = far(kind) else { return };
    let direct = Direct::new(Arc::new(Serve(far.connect(&[]))));
    let exceptions = &[FTP, SERVICE, more].concat();
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions });
    println!("{report}");
    report.must_hold(least);
}

#[test]
fn on_vsftpd() {
    conform(Ftpd::Vsftpd, VSFTPD, 50);
}

#[test]
fn on_pure_ftpd() {
    conform(Ftpd::PureFtpd, &[], 50);
}
