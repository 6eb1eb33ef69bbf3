// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many requests programs on a mounted directory of another host cost there. How many round trips these make is counted in
//! simulated time, by the tests of the driver.

use crate::support::{has, within};
use crate::{Far, listed};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The server's program.
const SERVER: &str = "/usr/lib/openssh/sftp-server";
/// SSH_FXP_CLOSE, for which nobody waits.
const CLOSE: u8 = 4;

/// Mounts `far`, lets a program work there, and unmounts. How many requests of which type the server got (the numbers are
/// those of draft-ietf-secsh-filexfer-02).
fn asked(far: &Far, options: &str, work: impl FnOnce()) -> BTreeMap<u8, usize> {
    let (log, done) = (far.place.at("log"), far.place.at("log.done"));
    let (server, text) = (far.place.at("server"), (log.display(), done.display()));
    let text = format!("#!/bin/sh\ntee {} | {SERVER}\nmv {} {}\n", text.0, text.0, text.1);
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

/// Those that somebody may have waited for.
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
