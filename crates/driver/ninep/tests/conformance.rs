// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on a real server, and on our own door.

mod support;

use outrigger_conformance::ninep::{DIOD, OWN, SERVICE};
use outrigger_conformance::{Direct, Target, run};
use outrigger_core::{Runtime, Serve};
use outrigger_driver_ninep::{NineP, Options};
use outrigger_remote::Ninepd;
use outrigger_runtime::Threads;
use std::sync::Arc;
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

#[test]
fn on_our_own_door() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "root must be here");
        return println!("SKIPPED: acting as several users needs root");
    }
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let server = Ninepd::start(dir.path()).expect("a server");
    let runtime = Arc::new(Threads::new());
    let clock = Arc::clone(&runtime) as Arc<dyn Runtime>;
    let connected = NineP::connect(format!("127.0.0.1:{}", server.port()), Options::default(), clock, None);
    let near = runtime.handle().block_on(connected).expect("connected");
    let direct = Direct::new(Arc::new(Serve(near)));
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: OWN });
    println!("{report}");
    report.must_hold(150);
}
