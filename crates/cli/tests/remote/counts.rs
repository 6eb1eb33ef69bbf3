// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many requests programs on a mounted directory of another host cost there. How many round trips these make is counted in
//! simulated time, by the tests of the driver.

use crate::support::{has, within};
use crate::{Far, listed};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The server's program.
const SERVER: &str = "/usr/lib/openssh/sftp-server";
/// SSH_FXP_CLOSE, whose reply is not waited for.
const CLOSE: u8 = 4;
/// Those that tests count separately.
const OPEN: u8 = 3;
const READ: u8 = 5;
const WRITE: u8 = 6;
const LSTAT: u8 = 7;
const FSTAT: u8 = 8;
const SETSTAT: u8 = 9;
const FSETSTAT: u8 = 10;

/// Mounts `far`, lets a program work there, and unmounts. How many requests of which type the server got (the numbers are
/// those of draft-ietf-secsh-filexfer-02).
fn asked(far: &Far, options: &str, work: impl FnOnce()) -> BTreeMap<u8, usize> {
    let (log, done) = (far.place.at("log"), far.place.at("log.done"));
    let (server, text) = (far.place.at("server"), (log.display(), done.display()));
    let text = format!("#!/bin/sh\ntee {} | {SERVER}\nmv {} {}\n", text.0, text.0, text.1);
    // Of a mount before this one.
    let _ = fs::remove_file(&done);
    fs::write(&server, text).unwrap();
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
    let server = format!("sftp_server={}", server.display());
    far.mount(&["--no-guard", "-o", &server, "-o", options]);
    work();
    far.place.run(&["umount", "m"]).ok();
    within("the server has ended", || done.exists());
    let (log, mut counts) = (fs::read(done).unwrap(), BTreeMap::new());
    let mut rest = &log[..];
    while let Some((length, packet)) = rest.split_first_chunk::<4>() {
        *counts.entry(packet[0]).or_default() += 1;
        rest = &packet[u32::from_be_bytes(*length) as usize..];
    }
    println!("{counts:?}");
    counts
}

/// The requests whose reply a program may have waited for.
fn waited_for(counts: &BTreeMap<u8, usize>) -> usize {
    counts.iter().filter(|(kind, _)| **kind != CLOSE).map(|(_, count)| count).sum()
}

/// A host with the server's program.
fn host() -> Option<Far> {
    if has(SERVER) { Far::new() } else { None }
}

#[test]
fn a_tree_is_listed_directory_by_directory_and_only_once() {
    let Some(far) = host() else { return };
    for upper in 0..10 {
        for lower in 0..20 {
            for file in 0..20 {
                far.place.file(&format!("far/d{upper}/e{lower}/file{file}"), "");
            }
        }
    }
    let counts = asked(&far, "cache=always,ahead=600", || {
        let first = listed(&far.place.at("m"));
        assert_eq!(first.matches("file").count(), 4000);
        assert!(listed(&far.place.at("m")) == first);
    });
    // To open it, its names, and that these are all.
    assert!(waited_for(&counts) <= 3 * 211 + 20, "{counts:?} for 4000 files in 211 directories");
}

#[test]
fn a_tree_that_was_listed_by_an_earlier_mount_is_not_listed_again() {
    let Some(far) = host() else { return };
    for dir in 0..20 {
        for file in 0..20 {
            far.place.file(&format!("far/d{dir}/file{file}"), "");
        }
    }
    let options = "cache=always,disk_metadata=64m";
    let mut first = String::new();
    let counts = asked(&far, options, || first = listed(&far.place.at("m")));
    assert!(waited_for(&counts) > 60, "{counts:?}");
    let counts = asked(&far, options, || assert!(listed(&far.place.at("m")) == first));
    assert!(waited_for(&counts) <= 20, "to connect and mount: {counts:?}");
    let inside = fs::metadata(far.place.at("cache/outrigger/metadata")).unwrap();
    assert_eq!(inside.permissions().mode() & 0o777, 0o700);
    let counts = asked(&far, &format!("{options},max_conns=2"), || drop(listed(&far.place.at("m"))));
    assert!(waited_for(&counts) > 60, "other options: {counts:?}");
}

/// How many small files programs work on here.
const SMALL: usize = 200;

/// How many requests of these types there were for each of the small files, and a few beside that.
fn at_most(counts: &BTreeMap<u8, usize>, kinds: &[u8], each: usize) {
    let count: usize = kinds.iter().filter_map(|kind| counts.get(kind)).sum();
    assert!(count <= each * SMALL + SMALL / 5, "{count} of {kinds:?} for {SMALL} files: {counts:?}");
}

/// The user waits for two round trips a file: its creation and attributes; then its content, times and permissions, and the
/// attributes after them. No other requests are sent.
#[test]
fn an_archive_is_unpacked_with_two_flights_of_requests_a_file() {
    let Some(far) = host() else { return };
    for file in 0..SMALL {
        let path = far.place.file(&format!("origin/file{file}"), "x".repeat(4096));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640 + (file as u32 % 2) * 4)).unwrap();
    }
    far.place.run_as("tar", &["-cf", "origin.tar", "origin"]).ok();
    let counts = asked(&far, "cache=20", || {
        far.place.run_as("tar", &["-xf", "origin.tar", "-C", "m"]).ok();
    });
    let list = "%P %s %m %Ts\n";
    let listed = |dir: &str| far.place.run_as("find", &[dir, "-type", "f", "-printf", list]).ok();
    let (mut there, mut here): (Vec<_>, Vec<_>) = Default::default();
    let (far_list, near_list) = (listed("far/origin"), listed("origin"));
    there.extend(far_list.lines());
    here.extend(near_list.lines());
    there.sort_unstable();
    here.sort_unstable();
    assert_eq!(there, here, "sizes, permissions and times");
    at_most(&counts, &[OPEN], 1);
    at_most(&counts, &[LSTAT, SETSTAT], 1);
    // Times and permissions are one request, unless the server is quick.
    at_most(&counts, &[FSETSTAT], 2);
    at_most(&counts, &[FSTAT], 2);
}

/// With `write=behind` a thousand new files wait for the host a dozen times: here it is stopped while a hundred of them are
/// written, and only a wait for all of them needs it to continue.
#[test]
fn new_files_are_written_while_the_host_stands_still() {
    for more in [&[][..], &["--no-guard"]] {
        let Some(far) = host() else { return };
        far.mount(&[&["-o", "write=behind,cache=always"], more].concat());
        let (dir, content) = (far.place.at("m/d"), |file: usize| vec![file as u8; 4096]);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("first"), "").unwrap();
        for round in 0..10 {
            far.sshd.signal_sessions(Signal::STOP);
            for file in round * 100..(round + 1) * 100 {
                fs::write(dir.join(file.to_string()), content(file)).unwrap();
            }
            far.sshd.signal_sessions(Signal::CONT);
            let there = |file: usize| fs::read(far.place.at(&format!("far/d/{file}"))).unwrap_or_default();
            within("all are there", || (0..(round + 1) * 100).all(|file| there(file) == content(file)));
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1001);
    }
}

#[test]
fn small_files_are_written_with_three_requests_and_read_with_two() {
    let Some(far) = host() else { return };
    let write = format!("for i in $(seq {SMALL}); do echo $i > m/d/$i; done");
    let counts = asked(&far, "cache=20", || {
        far.place.run_as("sh", &["-c", &format!("mkdir m/d; {write}")]).ok();
    });
    at_most(&counts, &[OPEN], 1);
    at_most(&counts, &[LSTAT], 1);
    at_most(&counts, &[WRITE], 1);
    assert!(waited_for(&counts) <= 3 * SMALL + 60, "{counts:?}");
    let counts = asked(&far, "cache=20", || {
        far.place.run_as("sh", &["-c", "cat m/d/*"]).ok();
    });
    at_most(&counts, &[OPEN], 1);
    at_most(&counts, &[LSTAT], 0);
    at_most(&counts, &[READ], 2);
}
