// SPDX-License-Identifier: MIT OR Apache-2.0
//! `status` and `flush` of running mounts, and what a control socket does with anything that may come.

mod support;

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use support::{Place, can_mount, socket, within};

#[test]
fn a_stuck_request_is_shown_with_who_waits_for_what() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/d/f", "x");
    place.tar("a.tar.gz", "src");
    for source in ["src", "a.tar.gz"] {
        place.run(&["mount", source, "m", "--layer", "fault=op=read,delay=1000s"]).ok();
        let mut reader = place.spawn_as("cat", &["m/d/f"]);
        let status = || place.run(&["status", "m", "--json"]).ok();
        let mut stuck = Value::Null;
        within("the read is seen", || {
            let status: Value = serde_json::from_str(&status()).unwrap();
            stuck = status["in_flight"].get(0).cloned().unwrap_or_default();
            stuck["operation"] == "read"
        });
        assert_eq!(stuck["operation"], "read", "{stuck}");
        assert_eq!(stuck["path"], "/d/f", "{source}: {stuck}");
        assert_eq!(stuck["command"], "cat");
        assert_eq!(stuck["pid"], reader.id());
        let text = place.run(&["status", "m"]).ok();
        assert!(text.contains(": read /d/f for cat (process "), "{text}");
        assert!(text.contains("layers fault"), "{text}");
        place.run(&["umount", "--force", "m"]).ok();
        assert!(!reader.wait().unwrap().success());
    }
}

#[test]
fn the_last_error_is_told_with_its_reason() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "x");
    place.run(&["mount", "src", "m", "--layer", "fault=op=read,error=EIO"]).ok();
    assert!(fs::read(place.at("m/f")).is_err(), "also where the kernel could read the file by itself");
    let text = place.run(&["status", "m"]).ok();
    assert!(text.contains("read EIO"), "{text}");
}

#[test]
fn flush_shows_what_has_changed_below() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/a", "one");
    place.file("src/old", "");
    place.run(&["mount", "src", "m", "-o", "cache=1000000,no_passthrough"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/a")).unwrap(), "one");
    assert!(place.at("m/old").exists());
    place.file("src/a", "two, and longer");
    fs::rename(place.at("src/old"), place.at("src/new")).unwrap();
    assert!(place.at("m/old").exists(), "believed as long as the mount was told to");
    place.run(&["flush", "m"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/a")).unwrap(), "two, and longer");
    assert!(!place.at("m/old").exists());
    assert!(place.at("m/new").exists());
}

#[test]
fn a_mount_that_has_ended_leaves_no_control_socket() {
    if !can_mount() {
        return;
    }
    for more in [&["--no-guard"][..], &[]] {
        let place = Place::new();
        place.run(&[&["mount", "mem:", "m"], more].concat()).ok();
        let status: Value = serde_json::from_str(&place.run(&["status", "--json", "m"]).ok()).unwrap();
        let owner = status.pointer("/guard/keeper").unwrap_or(&status["pid"]).as_u64().unwrap() as u32;
        assert!(socket(owner).is_some());
        place.run(&["umount", "m"]).ok();
        assert_eq!(socket(owner), None, "{more:?}");
    }
}

#[test]
fn a_socket_that_a_dead_mount_with_the_same_number_left_is_removed_without_a_word() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "--no-guard", "mem:", "m"]).ok();
    let living = socket(place.server()).unwrap().to_string_lossy().into_owned();
    let connection = living.split('-').nth(1).unwrap();
    let stale = format!("/run/outrigger/0123456789abcdef-{connection}-999999999.sock");
    drop(UnixListener::bind(&stale).unwrap());
    for args in [&["status", "m"][..], &["status"]] {
        let said = place.run(args);
        assert!(!said.err.contains(place.at("m").to_str().unwrap()), "{said:?}");
        assert!(!fs::exists(&stale).unwrap(), "{args:?}");
    }
}

#[test]
fn a_control_socket_survives_whatever_comes() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "--no-guard", "mem:", "m"]).ok();
    let socket = socket(place.server()).unwrap();
    let large = vec![b'x'; 1 << 20];
    for bytes in [&b"\n"[..], b"\"nonsense\"\n", b"{\"trace\":{}}\n", b"\xff\xfe\0\n", b"[[[[[[[[", &large] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // The mount may hang up before all of it is sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 1024);
        place.run(&["status", "m"]).ok();
    }
    // Clients that say nothing do not keep others out for ever.
    let _silent: Vec<_> = (0..8).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    place.run(&["status", "m"]).ok();
}

#[test]
fn who_polls_a_regular_file_again_and_again_asks_the_mount_once() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m"]).ok();
    let file = fs::File::create(place.at("m/f")).unwrap();
    for _ in 0..10 {
        // As io_uring does for each write that would wait.
        let mut files = [PollFd::new(&file, PollFlags::OUT)];
        assert_eq!(poll(&mut files, None).unwrap(), 1);
    }
    let status: Value = serde_json::from_str(&place.run(&["status", "--json", "m"]).ok()).unwrap();
    let operations = status["operations"].as_array().unwrap();
    let polled = operations.iter().find(|operation| operation["operation"] == "poll");
    assert!(polled.is_none_or(|polled| polled["count"] == 1), "{status}");
    drop(file);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn ordinary_answers_are_no_errors_and_failures_are_shown() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/d/f", "x");
    place.run(&["mount", "src", "m", "--layer", "fault=op=rename,error=EIO"]).ok();
    assert!(fs::metadata(place.at("m/missing")).is_err());
    assert!(fs::create_dir(place.at("m/d")).is_err());
    assert!(fs::remove_dir(place.at("m/d")).is_err());
    let text = place.run(&["status", "m"]).ok();
    assert!(text.contains(", 0 errors,") && !text.contains("last error"), "{text}");
    assert!(fs::rename(place.at("m/d"), place.at("m/e")).is_err());
    let text = place.run(&["status", "m"]).ok();
    assert!(text.contains(", 1 error,") && text.contains("last error 0 s ago: rename"), "{text}");
}

#[test]
fn df_of_a_mount_shows_what_is_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "x");
    place.run(&["mount", "src", "m"]).ok();
    let text = place.run(&["df", "m/f"]).ok();
    let source = place.at("src").canonicalize().unwrap();
    assert_eq!(
        text.lines().nth(1).and_then(|line| line.split_whitespace().next()),
        source.to_str(),
        "{text}"
    );
}
