// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts that the process of the kernel code serves by itself.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc;
use std::thread;
use support::{Place, kernel_code, mounted_ext4};

/// Whether a process takes requests from the host's kernel.
fn serves(process: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| link.ends_with("fuse")))
}

/// Ends the process of the kernel code, and gives the next one.
fn end_kernel_code(place: &Place, signal: &str) -> u32 {
    let ended = kernel_code(place);
    support::signal(ended, signal);
    // The successor answers only after the death was noticed.
    support::within("the death is known", || {
        fs::metadata(place.at("m")).is_ok() && kernel_code(place) != ended
    });
    kernel_code(place)
}

#[test]
fn one_kernel_code_after_the_other_serves_a_guarded_mount() {
    let Some(place) = mounted_ext4(&[]) else { return };
    assert!(serves(kernel_code(&place)));
    let mut open = File::create(place.at("m/open")).unwrap();
    fs::create_dir(place.at("m/dir")).unwrap();
    fs::rename(place.at("m/open"), place.at("m/dir/moved")).unwrap();
    let known = fs::metadata(place.at("m/dir/moved")).unwrap();
    for life in 1..=5 {
        let next = end_kernel_code(&place, "KILL");
        support::within("the mount is handed over again", || serves(next));
        write!(open, "{life}").unwrap();
        fs::write(place.at(&format!("m/dir/new{life}")), "new").unwrap();
    }
    assert_eq!(fs::read_to_string(place.at("m/dir/moved")).unwrap(), "12345");
    let found = fs::metadata(place.at("m/dir/moved")).unwrap();
    assert_eq!((found.ino(), found.mtime() >= known.mtime()), (known.ino(), true));
    drop(open);
    place.run(&["umount", "m"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    assert_eq!(place.run(&["cat", "image::/dir/moved"]).ok(), "12345");
    assert_eq!(place.run(&["ls", "image::/dir"]).ok(), "moved\nnew1\nnew2\nnew3\nnew4\nnew5\n");
}

#[test]
fn kernel_code_that_ends_by_itself_again_and_again_is_not_given_the_mount_any_more() {
    let Some(place) = mounted_ext4(&[]) else { return };
    fs::write(place.at("m/before"), "before").unwrap();
    let next = end_kernel_code(&place, "ABRT");
    support::within("the mount is handed over again", || serves(next));
    let last = end_kernel_code(&place, "ABRT");
    assert_eq!(fs::read_to_string(place.at("m/before")).unwrap(), "before");
    fs::write(place.at("m/after"), "after").unwrap();
    assert!(!serves(last));
    place.run(&["umount", "m"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    assert_eq!(place.run(&["cat", "image::/before", "image::/after"]).ok(), "beforeafter");
}

#[test]
fn a_guarded_mount_records_more_than_its_record_holds() {
    let Some(place) = mounted_ext4(&[]) else { return };
    // The record has 16 MiB.
    let content = vec![7; 1 << 20];
    for round in 0..3 {
        for number in 0..10 {
            fs::write(place.at(&format!("m/file{number}")), &content[round..]).unwrap();
        }
    }
    support::signal(kernel_code(&place), "KILL");
    for number in 0..10 {
        assert_eq!(fs::read(place.at(&format!("m/file{number}"))).unwrap(), &content[2..], "{number}");
    }
    place.run(&["umount", "m"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
}

#[test]
fn status_tells_of_the_deaths_of_the_kernel_code() {
    let Some(place) = mounted_ext4(&[]) else { return };
    assert!(!place.run(&["status", "m"]).ok().contains("survived"));
    support::signal(kernel_code(&place), "KILL");
    fs::create_dir(place.at("m/dir")).unwrap();
    let told = || place.run(&["status", "m"]).ok().contains("survived 1 death of its server");
    support::within("the death is told of", told);
    let json: serde_json::Value =
        serde_json::from_str(&place.run(&["status", "--json", "m"]).ok()).expect("JSON");
    assert_eq!(json.pointer("/guard/incarnations").and_then(serde_json::Value::as_u64), Some(2), "{json}");
    let metrics = place.run(&["status", "--metrics", "m"]).ok();
    assert!(
        metrics
            .lines()
            .any(|line| line.starts_with("outrigger_server_deaths_total{") && line.ends_with("} 1")),
        "{metrics}"
    );
    place.run(&["umount", "m"]).ok();
}

/// How many system calls a process has made that read or wrote.
fn reads_and_writes(process: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let of = |field: &str| io.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<u64>().ok());
    of("syscr:").unwrap() + of("syscw:").unwrap()
}

#[test]
fn the_kernel_code_serves_an_unguarded_mount_without_a_detour() {
    let Some(place) = mounted_ext4(&["--no-guard"]) else { return };
    let before = reads_and_writes(place.server());
    for number in 0..300 {
        fs::write(place.at(&format!("m/{number}")), [number as u8; 5000]).unwrap();
    }
    fs::write(place.at("m/large"), vec![7; 3 << 20]).unwrap();
    assert_eq!(fs::read(place.at("m/299")).unwrap(), [43; 5000]);
    assert_eq!(fs::read_dir(place.at("m")).unwrap().count(), 302);
    assert!(reads_and_writes(place.server()) - before < 100, "the mount's process was asked");
    let status: serde_json::Value =
        serde_json::from_str(&place.run(&["status", "--json", "m"]).ok()).expect("JSON");
    let operations = status.pointer("/operations").and_then(serde_json::Value::as_array).expect("a list");
    let created = operations.iter().find(|operation| operation["operation"] == "create").expect("create");
    assert_eq!(created["count"], 301, "{status}");
    place.run(&["flush", "m"]).ok();
    place.run(&["umount", "m"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    assert_eq!(place.run(&["ls", "image::/"]).ok().lines().count(), 302);
}

/// What it has to remember grows, and is given back, in the sandbox.
#[test]
fn the_kernel_code_of_an_unguarded_mount_serves_thousands_of_files() {
    let Some(place) = mounted_ext4(&["--no-guard"]) else { return };
    for number in 0..6000 {
        fs::write(place.at(&format!("m/file{number}")), "").unwrap();
    }
    assert!(fs::read_dir(place.at("m")).unwrap().all(|entry| entry.unwrap().metadata().is_ok()));
    (0..6000).for_each(|number| fs::remove_file(place.at(&format!("m/file{number}"))).unwrap());
    place.run(&["umount", "m"]).ok();
}

#[test]
fn an_unguarded_mount_knows_more_files_than_its_kernel_code_has_memory_for() {
    let Some(place) = mounted_ext4(&["--no-guard", "-o", "memory=24M"]) else { return };
    let name = |number: u32| place.at(&format!("m/file{number}"));
    (0..12_000).for_each(|number| fs::write(name(number), number.to_string()).unwrap());
    for number in (0..12_000).step_by(100) {
        assert_eq!(fs::read_to_string(name(number)).unwrap(), number.to_string());
    }
    place.run(&["umount", "m"]).ok();
}

#[test]
fn the_end_of_the_kernel_code_of_an_unguarded_mount_is_told_and_the_mount_can_be_removed() {
    let Some(place) = mounted_ext4(&["--no-guard"]) else { return };
    fs::write(place.at("m/file"), "content").unwrap();
    support::signal(kernel_code(&place), "KILL");
    let refused = |name: &str| fs::metadata(place.at(name)).err().and_then(|error| error.raw_os_error());
    assert_eq!(refused("m/other"), Some(5));
    let told = || place.run(&["status", "m"]).ok().contains("EIO: the kernel code has ended (signal: 9");
    support::within("the end is told of", told);
    let lost = place.run(&["umount", "m"]).refused(1);
    assert!(lost.contains("unmounted, but the image was not unmounted cleanly"), "{lost}");
    place.run(&["ls", "image::/"]).ok();
}

#[test]
fn without_checks_by_the_host_only_programs_may_be_executed() {
    let Some(place) = mounted_ext4(&["-o", "no_default_permissions"]) else { return };
    support::only_programs_may_be_executed(&place.at("m"));
    place.run(&["umount", "m"]).ok();
}

#[test]
fn messages_of_a_mount_that_the_kernel_code_serves_are_traced() {
    let Some(place) = mounted_ext4(&["--no-guard"]) else { return };
    let mut tracer = place.spawn(&["trace", "m"]);
    let mut lines = BufReader::new(tracer.stdout.take().unwrap()).lines();
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || sender.send(lines.next()));
    let mut asked = 0;
    let mut line = None;
    support::within("a line", || {
        // Tracing begins some time after the tracer.
        let _ = fs::metadata(place.at(&format!("m/none-{asked}")));
        asked += 1;
        line = receiver.try_recv().ok();
        line.is_some()
    });
    let line = line.flatten().unwrap().unwrap();
    assert!(line.contains("lookup /none-"), "{line}");
    reader.join().unwrap().unwrap();
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    place.run(&["umount", "m"]).ok();
}
