// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that change a tree, where that cannot be stored: an exit status of 0 is a promise, and a fresh process must find
//! what was promised. Whatever happens, a command ends, and a file that is moved is in one of both places.

mod support;

use rustix::fs::statvfs;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use support::{PROGRAM, Place, can_mount, can_serve, descendant, has, signal};

/// What an image is made with, how long it is in MiB, and what checks it afterwards.
struct Kind {
    name: &'static str,
    make: &'static [&'static str],
    size: u64,
    check: &'static [&'static str],
}

const KINDS: &[Kind] = &[
    Kind { name: "ext4", make: &["mkfs.ext4", "-q"], size: 64, check: &["e2fsck", "-fn"] },
    Kind { name: "xfs", make: &["mkfs.xfs", "-q"], size: 320, check: &["xfs_repair", "-n", "-f"] },
    Kind { name: "btrfs", make: &["mkfs.btrfs", "-q"], size: 128, check: &["btrfs", "check", "--readonly"] },
    Kind { name: "vfat", make: &["mkfs.vfat", "-F", "32"], size: 64, check: &["fsck.vfat", "-n"] },
    Kind { name: "f2fs", make: &["mkfs.f2fs", "-q"], size: 64, check: &["fsck.f2fs", "--dry-run"] },
    Kind { name: "qcow2", make: &["mkfs.ext4", "-q"], size: 64, check: &[] },
];

/// A command with its operands (`@` stands for the tree), and how to see what it has promised: a command, and what that prints.
struct Change {
    words: &'static [&'static str],
    proof: &'static [&'static str],
    shows: &'static str,
}

const CHANGES: &[Change] = &[
    Change { words: &["cp", "big", "@/copy"], proof: &["stat", "-c", "%s", "@/copy"], shows: "8388608\n" },
    Change {
        words: &["mv", "moved", "@/moved"],
        proof: &["stat", "-c", "%s", "@/moved"],
        shows: "8388608\n",
    },
    Change { words: &["write", "@/written"], proof: &["stat", "-c", "%s", "@/written"], shows: "8388608\n" },
    Change {
        words: &["touch", "-d", "@1000000000", "@/old"],
        proof: &["stat", "-c", "%Y", "@/old"],
        shows: "1000000000\n",
    },
    Change { words: &["mkdir", "@/dir"], proof: &["stat", "-c", "%F", "@/dir"], shows: "directory\n" },
    Change { words: &["truncate", "-s", "5", "@/old"], proof: &["stat", "-c", "%s", "@/old"], shows: "5\n" },
    Change { words: &["rm", "@/old"], proof: &["find", "@/", "-name", "old"], shows: "" },
];
/// What not every file system has.
const UNIX_CHANGES: &[Change] = &[
    Change { words: &["chmod", "600", "@/old"], proof: &["stat", "-c", "%a", "@/old"], shows: "600\n" },
    Change { words: &["ln", "@/old", "@/new"], proof: &["stat", "-c", "%h", "@/old"], shows: "2\n" },
    Change { words: &["ln", "-s", "old", "@/link"], proof: &["readlink", "@/link"], shows: "old\n" },
];

/// Where the image is, and what is wrong there.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Misfortune {
    HostFull,
    ReadOnly,
    ImageFull,
    WorkerKilled,
}

/// A small file system in memory, mounted on `small` as long as this exists.
struct Small<'a>(&'a Place);

impl<'a> Small<'a> {
    fn mount(place: &'a Place) -> Self {
        fs::create_dir(place.at("small")).unwrap();
        place.run_as("mount", &["-t", "tmpfs", "-o", "size=400m", "tmpfs", "small"]).ok();
        Small(place)
    }

    fn remount(&self, how: &str) {
        self.0.run_as("mount", &["-o", &format!("remount,{how}"), "small"]).ok();
    }

    /// Leaves this many bytes of room.
    fn fill(&self, room: u64) {
        let small = statvfs(self.0.at("small")).unwrap();
        let length = (small.f_bavail * small.f_frsize).saturating_sub(room);
        self.0.run_as("fallocate", &["-l", &length.to_string(), "small/filler"]).ok();
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = self.0.command("umount", &["-l", "small"]).output();
    }
}

fn made(place: &Place, kind: &Kind) {
    File::create(place.at("raw")).unwrap().set_len(kind.size << 20).unwrap();
    place.run_as(kind.make[0], &[&kind.make[1..], &["raw"]].concat()).ok();
    match kind.name {
        "qcow2" => {
            place.run_as("qemu-img", &["convert", "-O", "qcow2", "raw", "template"]).ok();
        }
        _ => fs::rename(place.at("raw"), place.at("template")).unwrap(),
    }
    place.run(&["cp", "old", "template::/"]).ok();
}

/// Runs the change, with `big` as its input, killing the kernel code meanwhile if that is the misfortune. Gives whether it claims
/// success.
fn claims(place: &Place, change: &Change, misfortune: Misfortune, tree: &str) -> bool {
    let words: Vec<String> =
        change.words.iter().map(|word| word.replace("@/", &format!("{tree}/"))).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = place.command("timeout", &[&["--kill-after=5", "60", PROGRAM], &words[..]].concat());
    command.stdin(File::open(place.at("big")).unwrap()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    if misfortune == Misfortune::WorkerKilled {
        // It may have ended already.
        while Path::new(&format!("/proc/{pid}/exe")).exists() {
            if let Some(worker) = descendant(pid, "outrigger-kerne") {
                signal(worker, "KILL");
                break;
            }
        }
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !matches!(output.status.code(), None | Some(101 | 124 | 137)),
        "{words:?}: {} {said}",
        output.status
    );
    assert_eq!(output.status.success(), said.is_empty(), "{words:?}: {} {said}", output.status);
    output.status.success()
}

fn must_be_honest(place: &Place, kind: &Kind, misfortune: Misfortune) {
    let small = Small::mount(place);
    let (image, tree) = ("small/image", "small/image::");
    let more = if kind.name == "vfat" { &[] } else { UNIX_CHANGES };
    for change in CHANGES.iter().chain(more) {
        let at = format!("{:?} on {} with {misfortune:?}", change.words, kind.name);
        small.remount("rw");
        let _ = fs::remove_file(place.at("small/filler"));
        place.run_as("cp", &["--sparse=always", "template", image]).ok();
        fs::copy(place.at("big"), place.at("moved")).unwrap();
        match misfortune {
            Misfortune::HostFull => small.fill(256 << 10),
            Misfortune::ReadOnly => small.remount("ro"),
            Misfortune::ImageFull | Misfortune::WorkerKilled => {}
        }
        let claimed = claims(place, change, misfortune, tree);
        small.remount("rw");
        let _ = fs::remove_file(place.at("small/filler"));
        let proof: Vec<String> =
            change.proof.iter().map(|word| word.replace("@/", &format!("{tree}/"))).collect();
        if claimed {
            let proof: Vec<&str> = proof.iter().map(String::as_str).collect();
            assert_eq!(place.run(&proof).ok(), change.shows, "{at}");
        }
        if change.words[0] == "mv" {
            assert_eq!(claimed, !place.at("moved").exists(), "{at}: success and removal belong together");
        }
        if change.words[0] == "cp" && claimed {
            assert_eq!(place.run(&["diff", "-q", "big", "small/image::/copy"]).code, Some(0), "{at}");
        }
        if misfortune == Misfortune::ImageFull && !kind.check.is_empty() {
            place.run_as(kind.check[0], &[&kind.check[1..], &[image]].concat()).ok();
        }
    }
}

fn all_kinds(misfortune: Misfortune) {
    some_kinds(misfortune, &KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>());
}

fn some_kinds(misfortune: Misfortune, names: &[&str]) {
    if !can_serve() || !can_mount() || !has("fallocate") || !has("qemu-img") {
        return;
    }
    for kind in KINDS.iter().filter(|kind| names.contains(&kind.name) && has(kind.make[0])) {
        let place = Place::patient(std::time::Duration::from_secs(300));
        let random = fs::read(PROGRAM).unwrap();
        place.file("big", &random[..8 << 20]);
        place.file("old", "content");
        made(&place, kind);
        if misfortune == Misfortune::ImageFull {
            File::create(place.at("huge")).unwrap().set_len(400 << 20).unwrap();
            let mut filling = place.command(PROGRAM, &["write", "--in-place", "template::/filler"]);
            let filled = filling.stdin(File::open(place.at("huge")).unwrap()).output().unwrap();
            assert!(!filled.status.success(), "400 MiB fit into {}", kind.name);
        }
        must_be_honest(&place, kind, misfortune);
    }
}

#[test]
fn where_the_host_is_full() {
    all_kinds(Misfortune::HostFull);
}

#[test]
fn where_the_image_is_full() {
    all_kinds(Misfortune::ImageFull);
}

#[test]
fn where_the_medium_is_read_only() {
    some_kinds(Misfortune::ReadOnly, &["ext4", "vfat", "qcow2"]);
}

#[test]
fn where_the_kernel_code_is_killed() {
    some_kinds(Misfortune::WorkerKilled, &["ext4", "vfat", "qcow2"]);
}

#[test]
fn where_files_of_the_host_do_not_fit() {
    if !can_mount() || !has("fallocate") || !has("prlimit") {
        return;
    }
    let place = Place::new();
    place.file("big", vec![1; 8 << 20]);
    let small = Small::mount(&place);
    small.fill(1 << 20);
    for command in ["cp", "mv"] {
        let said = place.run(&[command, "big", "small/copy"]);
        assert!(said.code == Some(1) && said.err.contains("No space left"), "{said:?}");
    }
    assert_eq!(fs::metadata(place.at("big")).unwrap().len(), 8 << 20);
    let limited = ["--fsize=1048576", PROGRAM, "cp", "big", "copy"];
    assert_ne!(place.run_as("prlimit", &limited).code, Some(0));
}
