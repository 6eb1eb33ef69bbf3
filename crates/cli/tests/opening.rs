// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening trees: servers that never answer, options of a tree and of the file in it, and what cannot be opened.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::process::Stdio;
use support::{PROGRAM, Place, signal};

/// One Ctrl-C ends a command that waits for a server, long before the time limit of the connection.
#[test]
fn ctrl_c_ends_the_wait_for_a_server_that_never_answers() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for location in [format!("ftp://127.0.0.1:{port}/"), format!("sftp://127.0.0.1:{port}/")] {
        let mut command = place.command(PROGRAM, &["--timeout", "100000", "ls", &location]);
        let mut running = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let connected = listener.accept().unwrap();
        signal(running.id(), "INT");
        let mut said = String::new();
        running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(130), "{location}: {said}");
        drop(connected);
    }
}

/// An option may be meant for the server or for the archive there; one for neither is refused.
#[test]
fn options_reach_the_host_of_an_archive() {
    let server = "/usr/lib/openssh/sftp-server";
    if fs::metadata(server).is_err() {
        assert!(std::env::var_os("CI").is_none(), "{server} must be here");
        eprintln!("SKIPPED: there is no {server}");
        return;
    }
    let place = Place::new().trusting();
    place.file("in/f", "content");
    place.tar("a.tar", "in");
    let location = format!("x:{}::/f", place.at("a.tar").display());
    let cat = |options: &str| place.run(&["cat", "--opt", options, &location]);
    assert_eq!(cat(&format!("command={server}")).ok(), "content");
    assert_eq!(cat(&format!("command={server},partial")).ok(), "content");
    let said = cat(&format!("command={server},nonsense=1")).refused(1);
    assert!(said.contains("no option nonsense"), "{said}");
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    let place = Place::new();
    for words in [&["--help"][..], &["ls", "--help"], &["--version"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = place.command(PROGRAM, words);
        let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), &*said),
            (Some(1), "outrigger: write error: No space left on device\n")
        );
    }
}
