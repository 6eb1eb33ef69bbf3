// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on real servers.

mod support;

use outrigger_conformance::ninep::{DIOD, DRIVER, GROUP, OTHER_DIALECTS, PLAIN, SERVICE, UNIX, USER};
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

fn on_our_own_server_of(dialect: &str, exceptions: &[(&'static str, &'static str)], least: usize) {
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
    let options = [("dialect", dialect), ("uname", "root")];
    let near = connect(&runtime, at, &options, None).expect("connected");
    conform(&Direct::new(Arc::new(Serve(near))), exceptions, least);
}

#[test]
fn on_our_own_server() {
    on_our_own_server_of("9p2000.L", &[DRIVER, SERVICE].concat(), 175);
}

#[test]
fn on_our_own_server_in_the_dialect_for_unix() {
    on_our_own_server_of("9p2000.u", &[DRIVER, SERVICE, OTHER_DIALECTS, UNIX].concat(), 135);
}

#[test]
fn on_our_own_server_in_that_of_plan_9() {
    on_our_own_server_of("9p2000", &[DRIVER, SERVICE, OTHER_DIALECTS, PLAIN].concat(), 95);
}

#[test]
fn on_diod() {
    let Some(far) = far() else { return };
    conform(&far.direct(), &[DRIVER, DIOD, SERVICE].concat(), 170);
}
