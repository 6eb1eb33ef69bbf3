// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts whose server dies, hangs or is exchanged, as programs that use them meet it.

mod support;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use support::{Place, can_mount, descendant, has, is_running, kill_server, signal, status, within};

#[test]
fn programs_keep_their_files_when_the_server_dies() {
    if !can_mount() {
        return;
    }
    for (source, guard) in
        [("src", "guard=auto"), ("src", "guard=proxy"), ("mem:", "guard=auto"), ("mem:", "guard=proxy")]
    {
        let place = Place::new();
        fs::create_dir(place.at("src")).unwrap();
        place.run(&["mount", "-o", guard, source, "m"]).ok();
        assert_eq!(status(&place, "/guard/proxy").is_some(), guard == "guard=proxy");
        fs::create_dir(place.at("m/dir")).unwrap();
        let mut kept =
            OpenOptions::new().read(true).write(true).create_new(true).open(place.at("m/dir/kept")).unwrap();
        let removed =
            OpenOptions::new().read(true).write(true).create_new(true).open(place.at("m/removed")).unwrap();
        kept.write_all(b"before ").unwrap();
        removed.write_all_at(b"without a name", 0).unwrap();
        fs::remove_file(place.at("m/removed")).unwrap();
        for name in ["KILL", "SEGV", "ABRT"] {
            kill_server(&place, name);
            kept.write_all(name.as_bytes()).unwrap();
            let mut read = [0; 14];
            removed.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(&read, b"without a name", "{source}: a removed file lives while it is open");
        }
        let mut text = String::new();
        kept.rewind().unwrap();
        kept.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before KILLSEGVABRT", "{source} {guard}");
        assert_eq!(
            fs::read_to_string(place.at("m/dir/kept")).unwrap(),
            text,
            "{source} {guard}: opened anew"
        );
        assert_eq!(fs::read_dir(place.at("m")).unwrap().count(), 1, "{source} {guard}");
        assert_eq!(status(&place, "/guard/deaths"), Some(3), "{source} {guard}");
        drop((kept, removed));
        place.run(&["umount", "m"]).ok();
    }
}

/// Changes a directory until `stop` is set. Returns what has to be in it then.
fn busy(dir: &Path, stop: &AtomicBool) -> BTreeMap<String, String> {
    let mut expected = BTreeMap::new();
    fs::create_dir(dir).unwrap();
    for number in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        let (new, name, gone) = (dir.join("new"), format!("file {number}"), dir.join("gone"));
        let content = format!("{number} ").repeat(3000);
        let mut file = File::create_new(&new).unwrap();
        content.as_bytes().chunks(5000).for_each(|part| file.write_all(part).unwrap());
        fs::rename(&new, dir.join(&name)).unwrap();
        fs::create_dir(&gone).unwrap();
        fs::remove_dir(&gone).unwrap();
        if number % 3 == 0 {
            fs::remove_file(dir.join(&name)).unwrap();
        } else {
            expected.insert(name, content);
        }
    }
    expected
}

#[test]
fn through_a_proxy_each_request_happens_once() {
    if !can_mount() {
        return;
    }
    for source in ["src", "mem:"] {
        let place = Place::new();
        fs::create_dir(place.at("src")).unwrap();
        place.run(&["mount", "-o", "guard=proxy", source, "m"]).ok();
        let stop = AtomicBool::new(false);
        let dirs = ["one", "two", "three"].map(|name| place.at("m").join(name));
        let expected = thread::scope(|scope| {
            let working = dirs.each_ref().map(|dir| scope.spawn(|| busy(dir, &stop)));
            (0..25).for_each(|_| kill_server(&place, "KILL"));
            stop.store(true, Relaxed);
            working.map(|thread| thread.join().unwrap())
        });
        for (dir, expected) in dirs.iter().zip(expected) {
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
            let found = entries.map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap())
            });
            assert!(found.collect::<BTreeMap<_, _>>() == expected, "{source}: {}", dir.display());
        }
        assert_eq!(status(&place, "/guard/deaths"), Some(25), "{source}");
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn the_death_of_a_proxy_ends_its_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "-o", "guard=proxy", "mem:", "m"]).ok();
    let [keeper, proxy] = ["/guard/keeper", "/guard/proxy"].map(|of| status(&place, of).unwrap() as u32);
    signal(proxy, "KILL");
    within("the keeper's end", || !is_running(keeper));
    let error = fs::read_dir(place.at("m")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN: {error}");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_proxy_ends_with_its_mount_and_not_before() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["mount", "-o", "guard=proxy", "src", "m"]).ok();
    let proxy = status(&place, "/guard/proxy").unwrap() as u32;
    ["TERM", "INT", "HUP"].iter().for_each(|name| signal(proxy, name));
    place.run(&["upgrade", "m"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    assert_eq!(status(&place, "/guard/proxy"), Some(proxy.into()), "another program, the same proxy");
    place.run(&["umount", "m"]).ok();
    within("the proxy's end", || !is_running(proxy));
}

/// The kernel of a program under `guard` is our own driver, which does not resend requests.
#[test]
fn a_mount_gets_a_proxy_where_the_kernel_does_not_send_again() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["guard", "--", support::PROGRAM, "mount", "-f", "src", "m"]).ok();
    let server = place.server();
    let keeper = descendant(server, "outrigger-keep").unwrap();
    for _ in 0..3 {
        let worker = descendant(keeper, "outrigger").unwrap();
        signal(worker, "KILL");
        assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
        within("another worker", || descendant(keeper, "outrigger").is_some_and(|now| now != worker));
    }
    assert_eq!(status(&place, "/program/deaths"), Some(0), "the keeper repairs them");
    place.run(&["umount", "m"]).ok();
    within("the keeper's end", || !is_running(keeper));
}

#[test]
fn options_say_how_a_mount_is_guarded() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let refused = place.run(&["mount", "-o", "guard=well", "mem:", "m"]).refused(1);
    assert!(refused.contains("guard=well: auto, proxy or none expected"), "{refused}");
    place.run(&["mount", "-o", "guard=none", "mem:", "m"]).ok();
    assert_eq!(status(&place, "/guard/incarnations"), None);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_request_that_kills_is_refused_and_the_mount_lives_on() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "--layer", "fault=op=mkdir,path=deadly,die", "mem:", "m"]).ok();
    let error = fs::create_dir(place.at("m/deadly")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    fs::create_dir(place.at("m/harmless")).unwrap();
    assert!(fs::create_dir(place.at("m/deadly")).is_err(), "again");
    assert_eq!(fs::read_dir(place.at("m")).unwrap().count(), 1);
    let reports = place.at("state/outrigger");
    let found = || {
        let all = fs::read_dir(&reports).into_iter().flatten().flatten();
        all.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect::<Vec<_>>()
    };
    within("a report", || found().iter().any(|text| text.contains("(mkdir) is answered EIO")));
    within("a backtrace", || found().iter().any(|text| text.contains("died of signal 6")));
}

#[test]
fn the_report_of_an_earlier_mount_is_not_shown() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let report = || {
        let said = place.run(&["status", "--json", "m"]);
        let status: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
        status.pointer("/report").is_some_and(|report| !report.is_null())
    };
    place.run(&["mount", "--layer", "fault=op=mkdir,path=deadly,die", "mem:", "m"]).ok();
    assert!(fs::create_dir(place.at("m/deadly")).is_err());
    within("a report", report);
    place.run(&["umount", "m"]).ok();
    place.run(&["mount", "mem:", "m"]).ok();
    kill_server(&place, "KILL");
    assert!(!report(), "this mount has none, though its server died");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_server_that_hangs_is_replaced() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let hang = "fault=op=mkdir,delay=1000s,once";
    place.run(&["mount", "--restart-on-hang", "0.5", "--layer", hang, "mem:", "m"]).ok();
    fs::create_dir(place.at("m/dir")).unwrap();
    assert!(place.at("m/dir").is_dir());
    let text = place.run(&["status", "m"]).ok();
    assert!(text.contains("it hung and was replaced"), "{text}");
}

#[test]
fn a_server_that_was_stopped_is_replaced() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "--restart-on-hang", "0.5", "mem:", "m"]).ok();
    fs::create_dir(place.at("m/dir")).unwrap();
    let stopped = place.server();
    signal(stopped, "STOP");
    assert!(place.at("m/dir").is_dir());
    assert!(!is_running(stopped));
    let text = place.run(&["status", "m"]).ok();
    assert!(text.contains("it hung and was replaced"), "{text}");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn without_its_keeper_a_mount_goes_on_and_says_so() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["mount", "src", "m"]).ok();
    let keeper = status(&place, "/guard/keeper").unwrap() as u32;
    signal(keeper, "KILL");
    within("the keeper's end", || !is_running(keeper));
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    let text = place.run(&["status", "m"]).ok();
    assert!(text.contains("unguarded"), "{text}");
    place.run(&["upgrade", "m"]).ok();
    let another = status(&place, "/guard/keeper").expect("a keeper");
    assert_ne!(another, u64::from(keeper));
    kill_server(&place, "KILL");
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    assert_eq!(status(&place, "/guard/keeper"), Some(another));
    place.run(&["umount", "m"]).ok();
}

#[test]
fn the_death_of_an_unguarded_server_ends_its_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "--no-guard", "mem:", "m"]).ok();
    let server = place.server();
    assert_eq!(status(&place, "/guard/deaths"), None, "no keeper counts them");
    signal(server, "KILL");
    within("the server's end", || !is_running(server));
    assert!(fs::read_dir(place.at("m")).is_err());
    place.run(&["umount", "m"]).ok();
}

#[test]
fn an_archive_goes_on_unless_it_was_replaced() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.tar("a.tar.gz", "src");
    place.run(&["mount", "a.tar.gz", "m"]).ok();
    kill_server(&place, "KILL");
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    place.file("src/g", "more");
    place.tar("a.tar.gz", "src");
    let keeper = status(&place, "/guard/keeper").unwrap() as u32;
    signal(place.server(), "KILL");
    within("the keeper's end", || !is_running(keeper));
    assert!(fs::read_dir(place.at("m")).is_err(), "another archive is not shown in its place");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_fuse_program_is_started_again_and_nobody_notices() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["guard", "--", "bindfs", "src", "m"]).ok();
    let mut kept =
        OpenOptions::new().read(true).write(true).create_new(true).open(place.at("m/kept")).unwrap();
    kept.write_all(b"before ").unwrap();
    for _ in 0..3 {
        let program = descendant(place.server(), "bindfs").unwrap();
        signal(program, "KILL");
        kept.write_all(b"x").unwrap();
        assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
        within("another program", || descendant(place.server(), "bindfs").is_some_and(|now| now != program));
    }
    drop(kept);
    assert_eq!(fs::read_to_string(place.at("src/kept")).unwrap(), "before xxx");
    let program = descendant(place.server(), "bindfs").unwrap();
    place.run(&["umount", "m"]).ok();
    within("the program's end", || !is_running(program));
}

#[test]
fn a_program_that_mounts_nothing_and_one_that_is_guarded_already_are_refused() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.file("other/g", "content");
    fs::create_dir(place.at("empty")).unwrap();
    let said = place.run(&["guard", "--", "sleep", "0"]).refused(1);
    assert!(said.contains("guard: sleep has mounted nothing; it ended with exit status 0"), "{said}");
    // bindfs mounts on an empty directory, and refuses another one by itself.
    for tree in ["empty", "src"] {
        // The program ends the options of guard, as `--` does: `-f` is one of bindfs.
        place.run(&["guard", "bindfs", "-f", tree, "m"]).ok();
        let said = place.run(&["guard", "--", "bindfs", "other", "m"]);
        assert_eq!((said.code, &*said.out), (Some(1), ""), "{said:?}");
        let expected = ["cannot mount on '", "is mounted there already", "guard --replace"];
        assert!(expected.iter().all(|part| said.err.contains(part)), "{said:?}");
        let program = descendant(place.server(), "bindfs").unwrap();
        assert!(is_running(program) && !place.at("m/g").exists(), "the first one goes on");
        place.run(&["umount", "m"]).ok();
        assert!(!place.is_mounted());
    }
}

#[test]
fn an_unmount_tells_of_a_program_that_does_not_end() {
    if !can_mount() || !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["guard", "-o", "timeout=2", "--", "bindfs", "src", "m"]).ok();
    let program = descendant(place.server(), "bindfs").unwrap();
    signal(program, "STOP");
    let said = place.run(&["umount", "m"]).refused(1);
    assert!(said.contains("unmounted, but") && said.contains("did not end and was killed"), "{said}");
    assert!(!said.contains("timed out"), "{said}");
    within("the program's end", || !is_running(program));
}

#[test]
fn a_fuse_program_is_a_tree_without_a_mount() {
    if !has("bindfs") {
        return;
    }
    let place = Place::new();
    place.file("src/d/f", "content");
    assert_eq!(place.run(&["--allow-programs", "cat", "fuse:bindfs src::/d/f"]).ok(), "content");
    assert_eq!(
        place.run(&["--allow-programs", "find", "fuse:bindfs src::/", "-name", "f"]).ok(),
        "fuse:bindfs src::/d/f\n"
    );
    assert!(!place.is_mounted());
    let said = place.run(&["--allow-programs", "ls", "fuse:bindfs nowhere::/"]).refused(2);
    assert!(said.contains("nowhere"), "what the program said is told: {said}");
    let said = place.run(&["--allow-programs", "ls", "fuse:fuse2fs image::/"]).refused(2);
    assert!(said.contains("unsafe-cache"), "{said}");
}

#[test]
fn a_server_that_only_dies_is_given_up() {
    if !can_mount() {
        return;
    }
    // With a time limit for requests not before that is over: the pauses between starts are a second at most.
    for (options, workers) in [("rw", 1..=12), ("timeout=6", 13..=30)] {
        let place = Place::new();
        place.run(&["mount", "-o", options, "mem:", "m"]).ok();
        let keeper = status(&place, "/guard/keeper").unwrap() as u32;
        let children = format!("/proc/{keeper}/task/{keeper}/children");
        let mut killed = HashSet::new();
        within("the keeper's end", || {
            for child in fs::read_to_string(&children).unwrap_or_default().split_whitespace() {
                killed.insert(child.to_owned());
                // It may have died by itself meanwhile.
                let _ = Command::new("kill").args(["-s", "KILL", child]).output();
            }
            !is_running(keeper)
        });
        assert!(workers.contains(&killed.len()), "{options}: {} workers", killed.len());
        let error = fs::read_dir(place.at("m")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN: {error}");
        place.run(&["umount", "m"]).ok();
    }
}

/// What systemd does for a service with a descriptor store: keeps what it is sent, and passes it to the next start.
#[test]
fn a_service_manager_restarts_even_the_keeper() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    let manager = UnixDatagram::bind(place.at("manager")).unwrap();
    let mut first = place
        .command(support::PROGRAM, &["mount", "-f", "src", "m"])
        .env("NOTIFY_SOCKET", place.at("manager"))
        .env("WATCHDOG_USEC", "1000000")
        .spawn()
        .unwrap();
    let stored = until_ready(&manager);
    let worker = place.server();
    first.kill().unwrap();
    first.wait().unwrap();
    signal(worker, "KILL");
    within("the worker's end", || !is_running(worker));

    let names: Vec<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
    let redirections: String = stored
        .iter()
        .enumerate()
        .map(|(place, (_, fd))| format!("{}<&{} ", place + 3, fd.as_raw_fd()))
        .collect();
    let script = format!("exec {redirections}; export LISTEN_PID=$$; exec \"$0\" mount -f src m");
    let mut second = place
        .command("bash", &["-c", &script, support::PROGRAM])
        .env("LISTEN_FDS", stored.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .spawn()
        .unwrap();
    let waited = File::open(place.at("m/f")).map(|mut file| {
        let mut text = String::new();
        file.read_to_string(&mut text).map(|_| text)
    });
    assert_eq!(waited.unwrap().unwrap(), "content");
    assert_eq!(status(&place, "/guard/incarnations"), Some(2));
    drop(stored);
    place.run(&["umount", "m"]).ok();
    assert!(second.wait().unwrap().success());
}

/// The descriptors a service stores until it says it is ready, under numbers out of the way.
fn until_ready(manager: &UnixDatagram) -> Vec<(String, OwnedFd)> {
    let mut stored = Vec::new();
    loop {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(manager, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::empty()).unwrap();
        let text = String::from_utf8_lossy(&text[..received.bytes]).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(fds) = message else { continue };
            // Without close-on-exec, so that the shell of the next start has them.
            let moved = fds.map(|fd| out_of_the_way(&fd));
            stored.extend(moved.map(|fd| (name.unwrap().to_owned(), fd)));
        }
        if text.contains("READY=1") {
            return stored;
        }
    }
}

fn out_of_the_way(fd: &OwnedFd) -> OwnedFd {
    let moved = rustix::io::fcntl_dupfd_cloexec(fd, 100).unwrap();
    rustix::io::fcntl_setfd(&moved, rustix::io::FdFlags::empty()).unwrap();
    moved
}
