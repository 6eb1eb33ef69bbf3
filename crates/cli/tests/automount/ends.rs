// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of writes when the mount ends.

use super::Auto;
use super::support::{signal, within};
use std::fs::{self, File};
use std::io::Write;

/// The lines with writes that are answered before they are made.
fn behind(auto: &Auto) -> String {
    auto.lines().replace("F=", "write=behind,F=")
}

#[test]
fn sigterm_stores_what_programs_have_written() {
    let Some(auto) = Auto::far() else { return };
    auto.mount(&behind(&auto), &[]);
    let content = vec![b'x'; 3 << 20];
    fs::write(auto.at("far/large"), &content).unwrap();
    let server = auto.place.server();
    signal(server, "TERM");
    within("the server ends", || !super::support::is_running(server));
    assert!(fs::read(auto.place.at("far/large")).unwrap() == content && !auto.place.is_mounted());
}

#[test]
fn the_end_says_what_a_host_that_hangs_did_not_get() {
    let Some(auto) = Auto::far() else { return };
    auto.mount(&behind(&auto), &["--timeout", "1"]);
    let mut file = File::create(auto.at("far/d/lost")).unwrap();
    within("the file is made", || auto.place.at("far/d/lost").exists());
    fs::write(auto.at("here/stored"), "x").unwrap();
    auto.freeze();
    file.write_all(b"three").unwrap();
    drop(file);
    let ended = auto.place.run(&["umount", "m"]);
    assert!(ended.code == Some(1) && ended.err.contains("/far: "), "{ended:?}");
    assert_eq!(fs::read_to_string(auto.place.at("here/stored")).unwrap(), "x");
    assert!(!auto.place.is_mounted());
}
