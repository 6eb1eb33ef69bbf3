// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite through FUSE mounts made by the `outrigger` program.

use outrigger_conformance::mount::{Mounted, NO_SEEK, WRITEBACK, obstacle};
use outrigger_conformance::ninep::{DIOD, DRIVER as DRIVER_9P, MOUNTED as MOUNTED_9P};
use outrigger_conformance::sftp::{MOUNTED, SFTP};
use outrigger_conformance::{HostDir, Kind, Report, Target, run, sample};
use outrigger_core::{Abilities, OpSet};
use outrigger_remote::{Diod, HOST, Sshd};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// Runs the suite on a mount of `location`, which holds the sample tree when it only `reads`; `None`, saying why, where that is not possible.
fn suite(location: &str, options: &str, reads: bool, exceptions: &[(&str, &str)]) -> Option<Report> {
    layered_suite(location, options, &[], reads, exceptions)
}

/// The same with layers.
fn layered_suite(
    location: &str,
    options: &str,
    layers: &[&str],
    reads: bool,
    exceptions: &[(&str, &str)],
) -> Option<Report> {
    if let Some(reason) = obstacle() {
        println!("SKIPPED: {reason}");
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mounted = Mounted::layered(location, dir.path(), options, layers, LIMIT).expect("the mount");
    let subject = HostDir::new(mounted.dir(), Kind::Fuse).expect("the mount opens");
    let abilities = Abilities { read_only: reads, ..Abilities::new("fuse", location, OpSet::all()) };
    let report = run(&subject, &Target { abilities: &abilities, has_sample: reads, exceptions });
    println!("{report}");
    Some(report)
}

#[test]
fn memory_holds() {
    if let Some(report) = suite("mem:", "", false, &[]) {
        report.must_hold(150);
    }
}

#[test]
fn memory_holds_with_writeback() {
    if let Some(report) = suite("mem:", ",writeback_cache", false, WRITEBACK) {
        report.must_hold(150);
    }
}

#[test]
fn a_directory_holds() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    if let Some(report) = suite(dir.path().to_str().expect("UTF-8"), "", false, &[]) {
        report.must_hold(150);
    }
}

#[test]
fn a_cached_directory_holds() {
    let slow =
        ("limits/a_path_of_1000_directories", "each step of each path is a request: a million of them");
    let delayed = ("cache=write=behind", ",guard=none", &[][..]);
    for (option, options, exceptions) in [("cache=20", "", &[][..]), ("cache=never", "", &[slow]), delayed] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let location = dir.path().to_str().expect("UTF-8");
        if let Some(report) = layered_suite(location, options, &[option], false, exceptions) {
            report.must_hold(150);
        }
    }
}

#[test]
fn a_directory_of_a_host_holds() {
    if let Some(missing) = Sshd::missing() {
        println!("SKIPPED: {missing}");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (host, far) = (dir.path().join("sshd"), dir.path().join("far"));
    std::fs::create_dir(&host).and_then(|()| std::fs::create_dir(&far)).expect("directories");
    let sshd = Sshd::start(host).expect("a host");
    // Links lead where the suite wants them to.
    let options = format!(",no_contain_symlinks,F={}", sshd.configuration().display());
    if let Some(report) =
        suite(&format!("{HOST}:{}", far.display()), &options, false, &[SFTP, MOUNTED].concat())
    {
        report.must_hold(150);
    }
}

#[test]
fn a_tree_of_a_9p_server_holds() {
    if let Some(missing) = Diod::missing() {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        println!("SKIPPED: there is no {missing}");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    // Users without privileges must get there.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("its owner");
    let server = Diod::start(dir.path()).expect("a server");
    let location = format!("9p://127.0.0.1:{}{}", server.port(), server.root().display());
    let exceptions = [DRIVER_9P, DIOD, MOUNTED_9P, NO_SEEK].concat();
    if let Some(report) = suite(&location, ",no_contain_symlinks", false, &exceptions) {
        report.must_hold(180);
    }
}

#[test]
fn an_archive_holds() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let (tree, archive) = (scratch.path().join("tree"), scratch.path().join("sample.tar.zst"));
    std::fs::create_dir(&tree).expect("the tree");
    sample::build(&tree).expect("the sample");
    let packed = Command::new("tar").arg("-C").arg(&tree).arg("-caf").arg(&archive).arg(".").status();
    assert!(packed.is_ok_and(|status| status.success()), "tar packs the sample");
    if let Some(report) = suite(archive.to_str().expect("UTF-8"), "", true, &[]) {
        report.must_hold(10);
    }
}
