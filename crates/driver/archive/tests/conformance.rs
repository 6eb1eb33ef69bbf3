// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on archives of the sample tree, packed by the real tools.

use outrigger_conformance::{Direct, Target, run, sample};
use outrigger_core::{Inline, Service};
use outrigger_driver_archive::{Archive, ArchiveDriver, Options, Unwatched};
use outrigger_host::HostFile;
use outrigger_runtime::Threads;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

fn service(archive: &Path) -> Arc<dyn Service> {
    let source = Arc::new(HostFile::open(archive).expect("the archive"));
    let archive = Archive::open(source, Options::default(), &Unwatched).expect("its index");
    Arc::new(Inline::new(ArchiveDriver::new(archive), Arc::new(Threads::new())))
}

fn must_hold(archive: &Path) {
    let direct = Direct::new(service(archive));
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: true, exceptions: &[] });
    println!("{}: {report}", archive.display());
    report.must_hold(20);
}

#[test]
fn every_tar_holds() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).expect("the tree");
    sample::build(&tree).expect("the sample");
    for suffix in ["tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst"] {
        let archive = scratch.path().join(format!("sample.{suffix}"));
        let packed = Command::new("tar").arg("-C").arg(&tree).arg("-caf").arg(&archive).arg(".").status();
        assert!(packed.is_ok_and(|status| status.success()), "tar packs {suffix}");
        must_hold(&archive);
    }
}

#[test]
fn cpio_holds() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).expect("the tree");
    sample::build(&tree).expect("the sample");
    let archive = scratch.path().join("sample.cpio");
    let packed = Command::new("sh")
        .args(["-c", "find . -depth -print0 | cpio --null --quiet -o -H newc"])
        .current_dir(&tree)
        .stdout(Stdio::from(File::create(&archive).expect("the archive")))
        .status();
    if !packed.is_ok_and(|status| status.success()) {
        return println!("SKIPPED: cpio cannot pack the sample (apt-get install cpio)");
    }
    must_hold(&archive);
}
