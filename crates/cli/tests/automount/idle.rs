// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that no program uses are closed.

use super::Auto;
use super::support::within;
use std::fs::{self, File};
use std::process::Stdio;

#[test]
fn a_tree_is_closed_when_no_program_uses_it_and_opened_again() {
    let Some(auto) = Auto::far() else { return };
    auto.mount(&auto.lines(), &["--idle", "0.3"]);
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(auto.at("far/d/file")).unwrap(), "far\n");
        // A name that leads to nothing is remembered, too.
        assert!(fs::metadata(auto.at("far/d/none")).is_err());
        within("the connection ends", || auto.sshd().sessions().is_empty());
        within("nothing is open", || auto.trees().is_empty());
    }
}

#[test]
fn a_tree_stays_while_a_file_is_open_or_a_program_is_within() {
    let Some(auto) = Auto::far() else { return };
    let place = &auto.place;
    fs::create_dir_all(place.at("far/sub/below")).unwrap();
    let more = ["root", "sub", "file"].map(|name| format!("{name} {}\n", place.at("far").display())).concat();
    auto.mount(&(auto.lines() + &more), &["--idle", "0.3"]);
    let within_of = |dir: &str| {
        let mut command = place.command("cat", &[]);
        command.current_dir(auto.at(dir)).stdin(Stdio::piped()).spawn().unwrap()
    };
    let mut inside = [within_of("root"), within_of("sub/sub/below")];
    let open = File::open(auto.at("file/d/file")).unwrap();
    // Opened after those, and idle for as long.
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(auto.at("here/two")).unwrap(), "22\n");
        within("a tree that is not used is closed", || auto.state("/here").is_none());
    }
    for path in ["/root", "/sub", "/file"] {
        assert_eq!(auto.state(path).as_deref(), Some("open"), "{path}");
    }
    for (child, dir) in inside.iter().zip(["root", "sub/sub/below"]) {
        let cwd = fs::read_link(format!("/proc/{}/cwd", child.id())).unwrap();
        assert_eq!(cwd, auto.at(dir), "its name is the same");
    }
    assert_eq!(std::io::read_to_string(&open).unwrap(), "far\n");
    drop(open);
    for child in &mut inside {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    within("all are closed", || auto.trees().is_empty());
}

#[test]
fn what_is_only_in_memory_stays() {
    let Some(auto) = Auto::new() else { return };
    auto.mount(&format!("{}memory mem:\n", auto.lines()), &["--idle", "0.3"]);
    fs::write(auto.at("memory/x"), "x").unwrap();
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(auto.at("here/two")).unwrap(), "22\n");
        within("a tree that is not used is closed", || auto.state("/here").is_none());
    }
    assert_eq!(fs::read_to_string(auto.at("memory/x")).unwrap(), "x");
}
