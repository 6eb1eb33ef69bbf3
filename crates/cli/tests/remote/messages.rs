// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages when a host, or a place on it, cannot be used.

use super::Far;
use rustix::process::Signal;
use std::fs;
use std::net::TcpListener;

#[test]
fn what_is_no_directory_at_a_host_is_refused_with_the_reason() {
    let Some(far) = Far::new() else { return };
    far.place.file("far/a.tar.gz", "");
    for (name, why) in [("nothing", "No such file or directory"), ("a.tar.gz", "Not a directory")] {
        let location = far.location(&format!("/{name}"));
        let said = far.place.run(&["mount", &location, "m", "-o", &far.option()]).refused(1);
        assert!(said.contains(&format!("cannot open '{location}': {why}")), "{said}");
        assert_eq!(said.contains(&format!("'{location}::/'")), why == "Not a directory", "{said}");
    }
}

#[test]
fn a_host_that_cannot_be_reached_is_an_error_that_says_why() {
    let Some(mut far) = Far::new() else { return };
    let (place, option) = (&far.place, far.option());
    far.sshd.stop();
    let location = far.location("");
    let mount = &["mount", &location, "m", "-o", &option];
    for (command, code) in [(&["ls", &location, "--opt", &option][..], 2), (mount, 1)] {
        let refused = place.run(command).refused(code);
        assert!(refused.contains("Connection refused") && !refused.contains("ssh: ssh:"), "{refused}");
    }
    // It accepts connections, and never sends a byte.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("sftp://127.0.0.1:{}/", silent.local_addr().unwrap().port());
    let refused = place.run(&["ls", &url, "--opt", "F=/dev/null,connect_timeout=1"]).refused(2);
    assert!(refused.contains("timed out") || refused.contains("no connection within 1 s"), "{refused}");
}

#[test]
fn what_an_unmount_could_not_write_is_named_by_path() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&["-o", "write=behind,cache=always"]);
    fs::create_dir(place.at("m/d")).unwrap();
    fs::write(place.at("m/d/first"), "").unwrap();
    place.run(&["flush", "--wait", "m"]).ok();
    fs::read_dir(place.at("m/d")).unwrap().for_each(drop);
    // The server is stopped, so that the failure comes after close(2), which would report it.
    far.sshd.signal_sessions(Signal::STOP);
    fs::write(place.at("m/d/new"), "content").unwrap();
    // root may write everywhere, but not where there is no directory.
    fs::remove_dir_all(place.at("far/d")).unwrap();
    far.sshd.signal_sessions(Signal::CONT);
    let said = place.run(&["umount", "m"]).refused(1);
    assert!(said.contains("these files are not complete: /d/new (No such file or directory"), "{said}");
}
