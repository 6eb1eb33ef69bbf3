// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts that go on as another program, with and without a keeper before.

mod support;

use rustix::fs::{FlockOperation, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use support::{Place, can_mount, is_running, kill_server, signal, socket, status, within};

#[test]
fn another_program_goes_on_with_open_files() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["mount", "src", "m"]).ok();
    let mut file = File::open(place.at("m/f")).unwrap();
    let before = place.server();
    place.run(&["upgrade", "m"]).ok();
    assert_ne!(place.server(), before);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    place.run(&["upgrade", "m"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content", "a second time, too");
    assert_eq!(status(&place, "/guard/deaths"), Some(0), "an upgrade is no death");
}

#[test]
fn a_program_that_reads_other_layouts_is_refused_before_anything_ends() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["mount", "src", "m"]).ok();
    let (before, keeper) = (place.server(), status(&place, "/guard/keeper").unwrap());
    let path = socket(keeper as u32).unwrap();
    let ask = |layouts: &[(&str, u32, u32)]| {
        let ask = serde_json::json!({"upgrade": {"program": "/bin/false", "layouts": layouts}});
        let mut peer = UnixStream::connect(&path).unwrap();
        writeln!(peer, "{ask}").unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        answer
    };
    for layouts in [&[][..], &[("keeper", 1, 1)], &[("keeper", 1, 99)]] {
        let answer = ask(layouts);
        assert!(answer.contains("is kept in layout version"), "{answer}");
    }
    assert_eq!((place.server(), status(&place, "/guard/deaths")), (before, Some(0)));
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
}

#[test]
fn upgrade_gives_an_unguarded_mount_a_keeper() {
    if !can_mount() {
        return;
    }
    for source in ["src", "mem:"] {
        let place = Place::new();
        fs::create_dir(place.at("src")).unwrap();
        place.run(&["mount", "--no-guard", source, "m"]).ok();
        let unguarded = place.server();
        let [mut kept, removed, locked] = ["kept", "removed", "locked"].map(|name| {
            let options = OpenOptions::new().read(true).write(true).create_new(true).clone();
            options.open(place.at("m").join(name)).unwrap()
        });
        kept.write_all(b"before ").unwrap();
        removed.write_all_at(b"without a name", 0).unwrap();
        fs::remove_file(place.at("m/removed")).unwrap();
        rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
        let (dir, over) = (place.at("m"), AtomicBool::new(false));
        thread::scope(|scope| {
            let (dir, over) = (&dir, &over);
            let loads = [0, 1].map(|who| scope.spawn(move || come_and_go(dir, who, over)));
            place.run(&["upgrade", "m"]).ok();
            assert_eq!(status(&place, "/guard/keeper"), Some(unguarded.into()), "the process became it");
            place.run(&["upgrade", "m"]).ok();
            kill_server(&place, "KILL");
            over.store(true, Relaxed);
            loads.into_iter().for_each(|load| load.join().unwrap());
        });
        kept.write_all(b"after").unwrap();
        assert_eq!(fs::read_to_string(place.at("m/kept")).unwrap(), "before after", "{source}");
        let mut read = [0; 14];
        removed.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"without a name", "{source}");
        let other = File::open(place.at("m/locked")).unwrap();
        let again = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(again, Err(rustix::io::Errno::WOULDBLOCK), "{source}: the lock holds");
        drop((kept, removed, locked, other));
        assert_eq!(fs::read_dir(place.at("m")).unwrap().count(), 2, "{source}");
        place.run(&["umount", "m"]).ok();
        within("the keeper's end", || !is_running(unguarded));
    }
}

#[test]
fn what_is_appended_to_a_file_that_was_opened_without_a_keeper_is_there_once() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("src")).unwrap();
    place.run(&["mount", "--no-guard", "-o", "no_passthrough", "src", "m"]).ok();
    let mut log = OpenOptions::new().append(true).create_new(true).open(place.at("m/log")).unwrap();
    place.run(&["upgrade", "m"]).ok();
    let (over, count) = (&AtomicBool::new(false), 20);
    let written = thread::scope(|scope| {
        let writer = scope.spawn(move || {
            (0..).take_while(|number| writeln!(log, "{number:09}").is_ok() && !over.load(Relaxed)).count()
        });
        (0..count).for_each(|_| kill_server(&place, "KILL"));
        over.store(true, Relaxed);
        writer.join().unwrap()
    });
    let text = fs::read_to_string(place.at("src/log")).unwrap();
    let expected: String = (0..=written).map(|number| format!("{number:09}\n")).collect();
    assert!(text == expected, "{} lines in place of {}", text.lines().count(), written + 1);
    place.run(&["umount", "m"]).ok();
}

/// The server had appended what the journal took for a write to its place, and repeated after a death.
#[test]
fn what_is_written_after_fcntl_has_cleared_o_append_goes_to_its_place() {
    if !can_mount() {
        return;
    }
    for (source, option) in [("src", "rw"), ("src", "no_passthrough"), ("mem:", "rw")] {
        let place = Place::new();
        fs::create_dir(place.at("src")).unwrap();
        place.run(&["mount", "-o", option, source, "m"]).ok();
        // The one that is opened first decides for both whether there is passthrough.
        place.file("src/log", "");
        let beside = File::open(place.at("m/log"));
        let log = OpenOptions::new().append(true).create(true).open(place.at("m/log")).unwrap();
        (&log).write_all(b"a line that was appended").unwrap();
        rustix::fs::fcntl_setfl(&log, OFlags::empty()).unwrap();
        let over = &AtomicBool::new(false);
        thread::scope(|scope| {
            let log = &log;
            scope.spawn(move || {
                for _ in (0..).take_while(|_| !over.load(Relaxed)) {
                    log.write_all_at(b"A LINE", 0).unwrap();
                }
            });
            (0..5).for_each(|_| kill_server(&place, "KILL"));
            over.store(true, Relaxed);
        });
        rustix::fs::fcntl_setfl(&log, OFlags::APPEND).unwrap();
        (&log).write_all(b" twice").unwrap();
        let text = fs::read_to_string(place.at("m/log")).unwrap();
        assert_eq!(text, "A LINE that was appended twice", "{source} {option}");
        drop((log, beside));
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn a_mount_that_was_started_in_a_directory_that_is_gone_is_not_upgraded_and_survives() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (gone, mountpoint) = (place.at("gone"), place.at("m"));
    fs::create_dir(&gone).unwrap();
    let mount = ["mount", "mem:", mountpoint.to_str().unwrap()];
    let started = place.command(support::PROGRAM, &mount).current_dir(&gone).status().unwrap();
    assert!(started.success());
    place.file("m/f", "content");
    fs::remove_dir(&gone).unwrap();
    assert!(place.run(&["upgrade", "m"]).refused(1).contains("gone"));
    kill_server(&place, "KILL");
    assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn of_several_upgrades_at_once_each_tells_what_became_of_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["mount", "src", "m"]).ok();
    for _ in 0..5 {
        let upgrades: Vec<_> = (0..4).map(|_| place.spawn(&["upgrade", "m"])).collect();
        for upgrade in upgrades {
            let output = upgrade.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() || said.contains("try again"), "{said}");
        }
        assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
    }
    place.run(&["umount", "m"]).ok();
}

#[test]
fn an_archive_that_was_changed_in_place_is_not_upgraded() {
    if !can_mount() {
        return;
    }
    for guard in ["guard=auto", "guard=none"] {
        let place = Place::new();
        place.file("src/f", "content");
        place.tar("a.tar", "src");
        place.run(&["mount", "-o", guard, "a.tar", "m"]).ok();
        let server = place.server();
        OpenOptions::new().append(true).open(place.at("a.tar")).unwrap().write_all(b"more").unwrap();
        assert!(place.run(&["upgrade", "m"]).refused(1).contains("'a.tar' has changed"), "{guard}");
        assert_eq!(place.server(), server, "{guard}");
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn what_only_upgrade_sets_is_refused_by_its_name() {
    let place = Place::new();
    for value in ["x", "-1", "", "999"] {
        let mut mount = place.command(support::PROGRAM, &["mount", "mem:", "m"]);
        let output = mount.env("OUTRIGGER_KEEPER_STATE", value).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("OUTRIGGER_KEEPER_STATE"), "{said}");
    }
}

/// A shell that sends SIGHUP to a process as fast as it can, several 100,000 times a second, until this is dropped.
struct Flood(Child);

impl Flood {
    fn of(process: u32) -> Self {
        let script = "while kill -HUP \"$0\" 2>/dev/null; do :; done";
        Flood(Command::new("sh").args(["-c", script, &process.to_string()]).spawn().unwrap())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // It has ended by itself where the process has.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_hangup_during_an_upgrade_ends_no_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    for guard in ["guard=none", "guard=auto"] {
        for _ in 0..3 {
            place.run(&["mount", "-o", guard, "src", "m"]).ok();
            let keeper =
                status(&place, "/guard/keeper").map_or_else(|| place.server(), |keeper| keeper as u32);
            let flood = Flood::of(keeper);
            place.run(&["upgrade", "m"]).ok();
            assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content");
            assert_eq!(status(&place, "/guard/deaths"), Some(0), "{guard}");
            drop(flood);
            place.run(&["umount", "m"]).ok();
            within("the keeper's end", || !is_running(keeper));
        }
    }
}

/// Such a signal was sent to the worker that had died, or killed the next one before that could handle it.
#[test]
fn a_sigterm_while_a_worker_takes_over_ends_the_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    for _ in 0..5 {
        place.run(&["mount", "src", "m"]).ok();
        let keeper = status(&place, "/guard/keeper").unwrap() as u32;
        let worker = place.server();
        signal(worker, "KILL");
        signal(keeper, "TERM");
        within("the keeper's end", || !is_running(keeper));
        assert_eq!(fs::read_dir(place.at("m")).unwrap().count(), 0, "it is unmounted");
    }
}

#[test]
fn an_upgrade_keeps_no_descriptor_and_no_directory_busy() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["mount", "src", "m"]).ok();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", place.server())).unwrap().count();
    place.run(&["upgrade", "m"]).ok();
    let after_one = descriptors();
    (0..5).for_each(|_| drop(place.run(&["upgrade", "m"]).ok()));
    assert_eq!(descriptors(), after_one);
    let keeper = status(&place, "/guard/keeper").unwrap();
    assert_eq!(fs::read_link(format!("/proc/{keeper}/cwd")).unwrap(), Path::new("/"));
    place.run(&["umount", "m"]).ok();
}

#[test]
fn what_takes_too_long_keeps_an_unguarded_mount_as_it_is() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/slow", "content");
    place.run(&["mount", "--no-guard", "--layer", "fault=op=write,path=slow,delay=1000s", "src", "m"]).ok();
    let server = place.server();
    let mut slow = place
        .spawn_as("dd", &["if=/dev/zero", "of=m/slow", "bs=1", "count=1", "conv=notrunc", "status=none"]);
    within("the write", || status(&place, "/in_flight/0/id").is_some());
    let why = place.run(&["upgrade", "m"]).refused(1);
    assert!(why.contains("write") && why.contains("slow"), "{why}");
    place.file("m/other", "requests are served again");
    place.run(&["fault", "m", "--clear"]).ok();
    place.run(&["umount", "--force", "m"]).ok();
    slow.wait().unwrap();
    within("the server's end", || !is_running(server));
}

/// Makes, writes, moves, reads and removes a file of its own until it is over: each happens once.
fn come_and_go(dir: &Path, who: usize, over: &AtomicBool) {
    let (one, other) = (dir.join(format!("one-{who}")), dir.join(format!("other-{who}")));
    for round in 0.. {
        let text = format!("round {round} of {who}");
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&one)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        fs::rename(&one, &other).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), text);
        fs::remove_file(&other).unwrap();
        if over.load(Relaxed) {
            return;
        }
    }
}
