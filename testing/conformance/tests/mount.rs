// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite through FUSE mounts made by the `outrigger` program.

use outrigger_conformance::mount::{Mounted, WRITEBACK, obstacle};
use outrigger_conformance::{HostDir, Kind, Report, Target, run, sample};
use outrigger_core::{Abilities, OpSet};
use outrigger_remote::{HOST, Sshd};
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
    // What is delayed does not outlive the process that serves.
    let delayed = ("cache=write=behind", ",guard=none", &[][..]);
    for (option, options, exceptions) in [("cache=20", "", &[][..]), ("cache=never", "", &[slow]), delayed] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let location = dir.path().to_str().expect("UTF-8");
        if let Some(report) = layered_suite(location, options, &[option], false, exceptions) {
            report.must_hold(150);
        }
    }
}

/// What cannot hold on a mount of an SSH server, and why.
const REMOTE: &[(&str, &str)] = &[
    ("directories/files_do_not_change_its_links", LINKS),
    ("directories/links_count_subdirectories", LINKS),
    ("rename/link_counts_follow_a_moved_directory", LINKS),
    ("rename/link_counts_after_replacing_a_directory", LINKS),
    ("rename/back_and_forth_many_times", LINKS),
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("rename/exchange_needs_both", EXCHANGE),
    ("listing/shows_kind_and_inode", SPECIAL),
    ("special/", SPECIAL),
    ("holes/take_no_space", "the protocol does not tell what a file takes"),
    ("holes/files_larger_than_any_memory", "the protocol does not tell what a file takes"),
    ("holes/seek_finds_data_and_hole", HOLES),
    ("holes/a_file_that_is_a_hole", HOLES),
    ("fallocate/", "the protocol reserves no space"),
    ("xattrs/", "the protocol has no extended attributes"),
    ("times/creation_sets_all", "times have whole seconds"),
    ("times/utimens_sets_to_the_nanosecond", "times have whole seconds"),
    ("times/before_1970_and_after_2106", "times are unsigned seconds of 32 bits"),
    ("times/noatime_is_respected", "the server reads as it likes"),
    ("times/chmod_marks_ctime_only", CTIME),
    ("times/link_marks_ctime", CTIME),
    ("times/unlink_marks_ctime_of_the_rest", CTIME),
    ("owners/new_files_belong_to_their_maker", MAKER),
    ("owners/setgid_directories_pass_on_their_group", MAKER),
    ("owners/sticky_directories_protect_names", MAKER),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

const LINKS: &str = "the protocol does not tell the links of a directory";
const EXCHANGE: &str = "the protocol cannot exchange names";
const SPECIAL: &str = "the protocol makes no pipes, sockets and devices";
const HOLES: &str = "the protocol does not tell where holes are";
const CTIME: &str = "the protocol does not tell the time of change";
const MAKER: &str = "everything is made by the user who logged in";

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
    let options = format!(",F={}", sshd.configuration().display());
    if let Some(report) = suite(&format!("{HOST}:{}", far.display()), &options, false, REMOTE) {
        report.must_hold(150);
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
