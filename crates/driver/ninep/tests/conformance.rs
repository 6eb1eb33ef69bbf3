// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on real servers.

mod support;

use outrigger_conformance::ninep::{DIOD, DRIVER, GROUP, SERVICE, USER};
use outrigger_conformance::{Direct, Target, run};
use outrigger_core::Serve;
use outrigger_remote::NinepServer;
use outrigger_runtime::Threads;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use support::{connect, far};

fn conform(direct: &Direct, exceptions: &[(&'static str, &'static str)], least: usize) {
    let report = run(direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions });
    println!("{report}");
    report.must_hold(least);
}

#[test]
fn on_our_own_server() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this has to run as root");
        return println!("SKIPPED: needs the right to be root");
    }
    let dir = tempfile::tempdir().expect("a directory");
    // Users without privileges must get there.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("its owner");
    let server = NinepServer::start(dir.path(), &[(USER, GROUP)]).expect("a server");
    let runtime = Arc::new(Threads::new());
    let at = (server.port(), server.root().display().to_string());
    let near = connect(&runtime, at, &[], None).expect("connected");
    conform(&Direct::new(Arc::new(Serve(near))), &[DRIVER, SERVICE].concat(), 175);
}

#[test]
fn on_diod() {
    let Some(far) = far() else { return };
    conform(&far.direct(), &[DRIVER, DIOD, SERVICE].concat(), 170);
}
