// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE programs under `outrigger guard`: replaced by others, dying of a request, dying for good, and without their guard.

mod support;

use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use support::{PROGRAM, Place, can_mount, descendant, has, is_running, signal, within};

/// Part of the mount's status.
fn status(place: &Place, pointer: &str) -> Value {
    let said = place.run(&["status", "--json", "m"]).ok();
    let status: Value = serde_json::from_str(&said).unwrap();
    status.pointer(pointer).cloned().unwrap_or_default()
}

/// The report that status names, once it is there.
fn report(place: &Place) -> String {
    within("a report", || !status(place, "/report/0").is_null());
    fs::read_to_string(status(place, "/report/0").as_str().unwrap()).unwrap()
}

#[test]
fn another_program_goes_on_with_open_files() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["guard", "--", "bindfs", "src", "m"]).ok();
    let program = descendant(place.server(), "bindfs").unwrap();
    let open = |name| OpenOptions::new().read(true).append(true).create(true).open(place.at(name)).unwrap();
    let (mut kept, mut removed) = (open("m/kept"), open("m/removed"));
    kept.write_all(b"before ").unwrap();
    removed.write_all(b"no name").unwrap();
    fs::remove_file(place.at("m/removed")).unwrap();
    let mut half_read = File::open(place.at("m/f")).unwrap();
    half_read.read_exact(&mut [0; 3]).unwrap();

    let server = place.server();
    place.run(&["guard", "--replace", "m", "--", "bindfs", "-p", "u=rwD", "src", "m"]).ok();
    assert!(!is_running(program), "the old program has ended");
    assert_eq!(place.server(), server, "nothing was unmounted");
    kept.write_all(b"after").unwrap();
    removed.write_all(b", still").unwrap();
    let mut text = String::new();
    half_read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "tent");
    let mut all = [0; 14];
    removed.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(&all, b"no name, still");
    let mode = fs::metadata(place.at("m/f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o700, 0o600, "what the new program shows");
    drop((kept, removed, half_read));
    assert_eq!(fs::read_to_string(place.at("src/kept")).unwrap(), "before after");

    let said = place.run(&["status", "m"]).ok();
    assert!(said.contains("program number 2: bindfs -p u=rwD src m"), "{said}");
    assert!(said.contains("it took the place of 'bindfs src m'"), "{said}");
    assert_eq!(status(&place, "/program/deaths"), 0, "a replacement is no death");

    let again = descendant(server, "bindfs").unwrap();
    signal(again, "KILL");
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    assert_ne!(descendant(server, "bindfs"), Some(again));
    let mode = fs::metadata(place.at("m/f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o700, 0o600, "after a death it is still the new program");
    place.run(&["guard", "--replace", "m", "--", "bindfs", "src"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content", "the mount need not be named");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_program_that_cannot_take_over_leaves_the_old_one() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["guard", "--", "bindfs", "src", "m"]).ok();
    let mut kept = File::create(place.at("m/kept")).unwrap();
    let cases: [(&[&str], &str); 4] = [
        (&["bindfs", "nowhere", "m"], "nowhere"),
        (&["no-such-program", "m"], "is it installed?"),
        (&["bindfs", "-o", "ro", "src", "m"], "with the option ro, and the mount was made without"),
        (&["fuse2fs", "image", "m"], "unsafe-cache"),
    ];
    for (command, why) in cases {
        let refused = place.run(&[&["guard", "--replace", "m", "--"], command].concat()).refused(1);
        assert!(refused.contains(why) && refused.contains("'bindfs src m' goes on"), "{refused}");
        kept.write_all(b"x").unwrap();
        assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    }
    drop(kept);
    assert_eq!(fs::read_to_string(place.at("src/kept")).unwrap(), "xxxx");
    let said = place.run(&["status", "m"]).ok();
    assert!(said.contains("'bindfs -o ro src m' could not take its place"), "{said}");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn only_programs_of_own_mounts_are_replaced() {
    if !can_mount() || !has("bindfs") || !has("setpriv") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    let replace = ["guard", "--replace", "m", "--", "bindfs", "src", "m"];
    assert!(place.run(&replace).refused(1).contains("is not a mount of yours"));
    place.run(&["mount", "src", "m"]).ok();
    let refused = place.run(&replace).refused(1);
    assert!(refused.contains("it is no FUSE program's") && refused.contains("local"), "{refused}");
    place.run(&["umount", "m"]).ok();

    place.run(&["guard", "-o", "allow_other", "--", "bindfs", "src", "m"]).ok();
    for dir in ["", "m"] {
        fs::set_permissions(place.at(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let copy = place.at("outrigger");
    fs::copy(PROGRAM, &copy).unwrap();
    let copy = copy.display().to_string();
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", &copy];
    let refused = place.run_as("setpriv", &[&user[..], &replace].concat()).refused(1);
    assert!(refused.contains("another user's"), "{refused}");
    assert_eq!(status(&place, "/program/incarnation"), 1);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_request_that_programs_die_of_is_reported() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    let layer = "fault=op=mkdir,path=deadly,die";
    let program = [PROGRAM, "mount", "--no-guard", "-f", "--layer", layer, "src", "m"];
    place.run(&[&["guard", "--"], &program[..]].concat()).ok();
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    let error = fs::create_dir(place.at("m/deadly")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content", "the mount lives on");
    let text = report(&place);
    for part in [
        &format!("mount: {}\n", place.at("m").display()),
        "the program died 3 times working on this request",
        "mkdir /: MkDir",
        "\"deadly\"",
        "number 1, ",
        "number 3, ",
        "it was ended by signal 6",
        "read /f (process ",
        "core dumps",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let said = place.run(&["status", "m"]).ok();
    assert!(said.contains("survived 3 deaths of the program") && said.contains("last report"), "{said}");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_program_that_cannot_be_started_again_is_reported() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    let script = "#!/bin/sh\n[ ! -e broken ] || { echo it is broken; exit 3; }\nexec bindfs -f \"$@\"\n";
    let script = place.file("program", script);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    place.run(&["guard", "-o", "retry=1", "--", "./program", "src", "m"]).ok();
    place.file("broken", "");
    signal(descendant(place.server(), "bindfs").unwrap(), "SEGV");
    let error = fs::read(place.at("m/f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    let text = report(&place);
    for part in [
        "cannot be started again",
        "number 1, ",
        "it was ended by signal 11",
        "was not started",
        "exit status 3; it said: it is broken",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    fs::remove_file(place.at("broken")).unwrap();
    within("a program again", || fs::read(place.at("m/f")).is_ok_and(|content| content == b"content"));
    place.run(&["umount", "m"]).ok();
}

#[test]
fn requests_wait_for_a_program_that_starts_late() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    let script = "#!/bin/sh\n[ ! -e broken ] || { echo x >>failed; exit 3; }\nexec bindfs -f \"$@\"\n";
    let script = place.file("program", script);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    place.run(&["guard", "--", "./program", "src", "m"]).ok();
    place.file("broken", "");
    signal(descendant(place.server(), "bindfs").unwrap(), "SEGV");
    let path = place.at("m/f");
    let waiting = std::thread::spawn(move || fs::read(path));
    let failed = || fs::read(place.at("failed")).unwrap_or_default().len() / 2;
    within("six starts that fail", || failed() >= 6);
    fs::remove_file(place.at("broken")).unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), b"content");
    assert!(status(&place, "/report/0").is_null(), "nothing was given up");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn without_its_guard_a_program_ends_and_nobody_waits() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["guard", "--", "bindfs", "src", "m"]).ok();
    let (server, mut open) = (place.server(), File::open(place.at("m/f")).unwrap());
    let program = descendant(server, "bindfs").unwrap();
    // A request in flight: the program is stopped.
    signal(program, "STOP");
    let path = place.at("m/missing");
    let waiting = std::thread::spawn(move || fs::metadata(path));
    within("a request in flight", || !status(&place, "/in_flight/0").is_null());
    signal(server, "KILL");
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(103 | 107)), "ECONNABORTED or ENOTCONN: {error}");
    within("the program's end", || !is_running(program));
    let error = open.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN: {error}");
    let said = place.run(&["status", "m"]).refused(1);
    assert!(said.contains("has died") && said.contains("outrigger umount"), "{said}");
    drop(open);
    place.run(&["umount", "m"]).ok();
    assert!(!place.is_mounted());
    place.run(&["guard", "--", "bindfs", "src", "m"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    place.run(&["umount", "m"]).ok();
}
