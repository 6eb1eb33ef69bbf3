// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hosts that do not answer: what is asked of them waits, and nothing else.

use super::support::{Place, within};
use super::{Auto, names};
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Stdio};

/// A program that waits for something in the mount.
struct Waits(Child);

impl Waits {
    fn start(place: &Place, program: &str, args: &[&str]) -> Self {
        let mut command = place.command(program, args);
        Waits(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn still(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// It can be interrupted.
    fn interrupt(mut self) {
        super::support::signal(self.0.id(), "INT");
        within("it ends", || !self.still());
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What has to work while a host does not answer. Every command here has to end.
fn others_go_on(auto: &Auto, siblings: &[&str]) {
    let place = &auto.place;
    for words in [
        &["ls", "m"][..],
        &["ls", "-la", "m"],
        &["stat", "m"],
        &["df", "m"],
        &["sh", "-c", "cd m && /bin/pwd"],
        &["sh", "-c", "cd m/here && /bin/pwd && df . && ls -l .."],
        &["sh", "-c", "cd m/here/d && /bin/pwd && cat one && mkdir ../../other || test -d ."],
        &["cat", "m/here/two"],
    ] {
        let (program, args) = words.split_first().unwrap();
        place.run_as(program, args).ok();
    }
    assert!(siblings.iter().all(|name| names(auto.at("")).contains(&(*name).to_owned())));
    // A name that was never looked up, while others wait for the directory's names.
    assert_eq!(names(auto.at("archive")), ["member"]);
}

#[test]
fn a_host_that_never_speaks_delays_neither_the_names_nor_the_other_trees() {
    let Some(auto) = Auto::new() else { return };
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    auto.mount(&format!("{}dead sftp://127.0.0.1:{port}/\n", auto.lines()), &[]);
    let mut list = Waits::start(&auto.place, "ls", &["m/dead"]);
    let mut enter = Waits::start(&auto.place, "sh", &["-c", "cd m/dead"]);
    within("the tree is being opened", || auto.state("/dead").as_deref() == Some("opening"));
    others_go_on(&auto, &["dead"]);
    assert!(list.still() && enter.still(), "they wait all the time");
    list.interrupt();
    enter.interrupt();
    auto.place.unmount("m");
    assert!(!auto.place.is_mounted());
    drop(silent);
}

#[test]
fn a_host_that_stops_answering_delays_only_what_is_asked_of_it() {
    let Some(auto) = Auto::far() else { return };
    auto.mount(&auto.lines(), &[]);
    assert_eq!(names(auto.at("far/d")), ["file"]);
    auto.freeze();
    let mut waits = Waits::start(&auto.place, "cat", &["m/far/never/asked/before"]);
    within("it waits", || auto.trees().iter().any(|tree| tree["path"] == "/far" && tree["in_flight"] != 0));
    others_go_on(&auto, &["far"]);
    assert!(waits.still(), "it waits all the time");
    // A program that waits keeps the mount busy; it ends all the same when it is told to.
    auto.place.run(&["umount", "--force", "m"]).ok();
    within("the program gets an error", || !waits.still());
    assert!(!auto.place.is_mounted());
}

#[test]
fn a_mount_ends_at_once_though_a_host_hangs() {
    let Some(auto) = Auto::far() else { return };
    auto.mount(&auto.lines(), &[]);
    assert_eq!(fs::read_to_string(auto.at("far/d/file")).unwrap(), "far\n");
    auto.freeze();
    // umount(8) ends by itself.
    auto.place.unmount("m");
    assert!(!auto.place.is_mounted());
}
