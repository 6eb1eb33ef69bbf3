// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that change a tree, where that cannot be stored: an exit status of 0 is a promise, and a fresh process must find
//! what was promised. Whatever happens, a command ends, and a file that is moved is in one of both places.

mod support;

use rustix::fs::statvfs;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use support::{PROGRAM, Place, can_mount, can_serve, descendant, has};

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

/// What commands change: an image, or what is said of the others.
struct Tree {
    name: &'static str,
    /// `{}` stands for the place.
    location: &'static str,
    /// What each command is given.
    options: &'static [&'static str],
    /// Whether it has owners, modes and links.
    unix: bool,
    /// The process at work for a command, which may be killed.
    worker: &'static str,
    check: &'static [&'static str],
}

impl Tree {
    const LOCAL: Tree =
        Tree { name: "local", location: "small/tree", options: &[], unix: true, worker: "", check: &[] };
    const SFTP: Tree = Tree {
        name: "sftp",
        location: "host:{}/small/tree",
        options: &["--allow-programs", "--opt", "command=/usr/lib/openssh/sftp-server"],
        unix: true,
        worker: "sftp-server",
        check: &[],
    };

    fn image(kind: &Kind) -> Self {
        Tree {
            name: kind.name,
            location: "small/image::",
            options: &[],
            unix: kind.name != "vfat",
            worker: "outrigger-kerne",
            check: kind.check,
        }
    }

    fn is_image(&self) -> bool {
        self.location.ends_with("::")
    }

    /// Puts it in the state that each command finds, and makes sure that this is stored.
    fn reset(&self, place: &Place) {
        if self.is_image() {
            // Room that a quota counts comes back with the next commit.
            let _ = fs::remove_file(place.at("small/image"));
            place.run_as("sync", &["-f", "small"]).ok();
            place.run_as("cp", &["--sparse=always", "template", "small/image"]).ok();
        } else {
            place.run_as("rm", &["-rf", "small/tree"]).ok();
            fs::create_dir(place.at("small/tree")).unwrap();
            fs::copy(place.at("old"), place.at("small/tree/old")).unwrap();
        }
        fs::copy(place.at("big"), place.at("moved")).unwrap();
        place.run_as("sync", &["-f", "small"]).ok();
    }

    /// The words of a command line that has this tree in place of `@`.
    fn words(&self, place: &Place, words: &[&str]) -> Vec<String> {
        let location = self.location.replace("{}", &place.at("").display().to_string());
        let words = words.iter().map(|word| word.replace("@/", &format!("{location}/")));
        self.options.iter().map(|&option| option.to_owned()).chain(words).collect()
    }

    fn run(&self, place: &Place, words: &[&str]) -> support::Said {
        let words = self.words(place, words);
        place.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

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
    Change { words: &["write", "-a", "@/old"], proof: &["stat", "-c", "%s", "@/old"], shows: "8388615\n" },
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
    Change { words: &["ln", "@/old", "@/new"], proof: &["stat", "-c", "%s", "@/new"], shows: "7\n" },
    Change { words: &["ln", "-s", "old", "@/link"], proof: &["readlink", "@/link"], shows: "old\n" },
];

/// What is wrong where the tree is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Misfortune {
    HostFull,
    ReadOnly,
    /// The host grants less than is written (`EDQUOT`).
    Quota,
    ImageFull,
    WorkerKilled,
    /// Right after the command, whatever the host has not stored is lost.
    PowerCut,
}

/// A small file system, mounted on `small` as long as this exists.
struct Small<'a>(&'a Place, Misfortune);

impl<'a> Small<'a> {
    fn mount(place: &'a Place, misfortune: Misfortune) -> Self {
        fs::create_dir(place.at("small")).unwrap();
        let small = Small(place, misfortune);
        let on_disk = |make: &str| {
            File::create(place.at("disk")).unwrap().set_len(400 << 20).unwrap();
            place.run_as(make, &["-q", "disk"]).ok();
            small.mount_disk();
        };
        match misfortune {
            Misfortune::PowerCut => on_disk("mkfs.xfs"),
            Misfortune::Quota => {
                on_disk("mkfs.btrfs");
                place.run_as("btrfs", &["quota", "enable", "small"]).ok();
                place.run_as("btrfs", &["qgroup", "limit", "6m", "small"]).ok();
            }
            _ => {
                place.run_as("mount", &["-t", "tmpfs", "-o", "size=400m", "tmpfs", "small"]).ok();
            }
        }
        small
    }

    fn mount_disk(&self) {
        self.0.run_as("mount", &["-o", "loop", "disk", "small"]).ok();
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

    /// What happens before a command.
    fn begin(&self) {
        match self.1 {
            Misfortune::HostFull => self.fill(256 << 10),
            Misfortune::ReadOnly => self.remount("ro"),
            _ => {}
        }
    }

    /// What happens after it, and the end of the misfortune.
    fn end(&self) {
        match self.1 {
            Misfortune::HostFull => fs::remove_file(self.0.at("small/filler")).unwrap(),
            Misfortune::ReadOnly => self.remount("rw"),
            Misfortune::PowerCut => {
                self.0.run_as("xfs_io", &["-x", "-c", "shutdown", "small"]).ok();
                self.0.unmount("small");
                self.mount_disk();
            }
            _ => {}
        }
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

/// Runs the change, with `big` as its input, killing the process at work meanwhile if that is the misfortune. Gives whether it
/// claims success, and whether a process was killed.
fn claims(place: &Place, change: &Change, misfortune: Misfortune, tree: &Tree) -> (bool, bool) {
    let words = tree.words(place, change.words);
    let mut command = place.command("timeout", &["--kill-after=5", "60", PROGRAM]);
    command.args(&words).stdin(File::open(place.at("big")).unwrap());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let mut killed = false;
    if misfortune == Misfortune::WorkerKilled {
        // It may have ended already.
        while !killed && Path::new(&format!("/proc/{pid}/exe")).exists() {
            if let Some(worker) = descendant(pid, tree.worker) {
                let kill = Command::new("kill").args(["-s", "KILL", &worker.to_string()]).output();
                killed = kill.is_ok_and(|done| done.status.success());
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
    (output.status.success(), killed)
}

/// Whether success means that what was changed survives this: a server stores files only when it is asked to.
fn is_promised(change: &Change, misfortune: Misfortune, tree: &Tree) -> bool {
    misfortune != Misfortune::PowerCut
        || tree.name != "sftp"
        || matches!(change.words[0], "cp" | "mv" | "write")
}

fn must_be_honest(place: &Place, tree: &Tree, misfortune: Misfortune) {
    let small = Small::mount(place, misfortune);
    let more = if tree.unix { UNIX_CHANGES } else { &[] };
    let mut kills = 0;
    for change in CHANGES.iter().chain(more) {
        let at = format!("{:?} on {} with {misfortune:?}", change.words, tree.name);
        tree.reset(place);
        small.begin();
        let (claimed, killed) = claims(place, change, misfortune, tree);
        kills += usize::from(killed);
        small.end();
        assert!(claimed || misfortune != Misfortune::PowerCut, "{at}: nothing was wrong yet");
        if claimed && is_promised(change, misfortune, tree) {
            assert_eq!(tree.run(place, change.proof).ok(), change.shows, "{at}");
            if change.words[0] == "cp" {
                assert_eq!(tree.run(place, &["diff", "-q", "big", "@/copy"]).code, Some(0), "{at}");
            }
        }
        if change.words[0] == "mv" {
            assert_eq!(claimed, !place.at("moved").exists(), "{at}: success and removal belong together");
        }
        if misfortune == Misfortune::Quota && matches!(change.words[0], "cp" | "mv" | "write") {
            assert!(!claimed, "{at}");
        }
        if matches!(misfortune, Misfortune::ImageFull | Misfortune::PowerCut) && !tree.check.is_empty() {
            place.run_as(tree.check[0], &[&tree.check[1..], &["small/image"]].concat()).ok();
        }
    }
    assert!(kills > 0 || misfortune != Misfortune::WorkerKilled, "nothing was killed on {}", tree.name);
}

fn prepared() -> Place {
    let place = Place::patient(std::time::Duration::from_secs(300));
    let random = fs::read(PROGRAM).unwrap();
    place.file("big", &random[..8 << 20]);
    place.file("old", "content");
    place
}

fn images(misfortune: Misfortune, names: &[&str]) {
    if !can_serve() || !can_mount() || !has("fallocate") || !has("qemu-img") || !has("xfs_io") {
        return;
    }
    for kind in KINDS.iter().filter(|kind| names.contains(&kind.name) && has(kind.make[0])) {
        let place = prepared();
        made(&place, kind);
        if misfortune == Misfortune::ImageFull {
            File::create(place.at("huge")).unwrap().set_len(400 << 20).unwrap();
            let mut filling = place.command(PROGRAM, &["write", "--in-place", "template::/filler"]);
            let filled = filling.stdin(File::open(place.at("huge")).unwrap()).output().unwrap();
            assert!(!filled.status.success(), "400 MiB fit into {}", kind.name);
        }
        must_be_honest(&place, &Tree::image(kind), misfortune);
    }
}

fn all_images(misfortune: Misfortune) {
    images(misfortune, &KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>());
}

/// Directories of this host, and of one that is reached by SFTP.
fn directories(misfortune: Misfortune, trees: &[Tree]) {
    let tools = ["fallocate", "mkfs.xfs", "xfs_io", "mkfs.btrfs", "btrfs", "/usr/lib/openssh/sftp-server"];
    if !can_mount() || !tools.iter().all(|tool| has(tool)) {
        return;
    }
    for tree in trees {
        must_be_honest(&prepared(), tree, misfortune);
    }
}

#[test]
fn where_the_host_is_full() {
    all_images(Misfortune::HostFull);
    directories(Misfortune::HostFull, &[Tree::LOCAL, Tree::SFTP]);
}

#[test]
fn where_the_image_is_full() {
    all_images(Misfortune::ImageFull);
}

#[test]
fn where_the_medium_is_read_only() {
    images(Misfortune::ReadOnly, &["ext4", "vfat", "qcow2"]);
    directories(Misfortune::ReadOnly, &[Tree::LOCAL, Tree::SFTP]);
}

#[test]
fn where_a_quota_is_used_up() {
    images(Misfortune::Quota, &["ext4", "qcow2"]);
    directories(Misfortune::Quota, &[Tree::LOCAL, Tree::SFTP]);
}

#[test]
fn where_the_process_at_work_is_killed() {
    images(Misfortune::WorkerKilled, &["ext4", "vfat", "qcow2"]);
    directories(Misfortune::WorkerKilled, &[Tree::SFTP]);
}

#[test]
fn where_the_power_is_cut_afterwards() {
    all_images(Misfortune::PowerCut);
    directories(Misfortune::PowerCut, &[Tree::SFTP]);
}

#[test]
fn what_was_written_on_the_host_survives_a_power_cut() {
    if !can_mount() || !has("mkfs.xfs") || !has("xfs_io") {
        return;
    }
    let place = prepared();
    let small = Small::mount(&place, Misfortune::PowerCut);
    Tree::LOCAL.reset(&place);
    for name in ["old", "new"] {
        let mut writing = place.command(PROGRAM, &["write", &format!("small/tree/{name}")]);
        assert!(writing.stdin(File::open(place.at("big")).unwrap()).status().unwrap().success());
    }
    small.end();
    for name in ["old", "new"] {
        let written = place.at("small/tree").join(name);
        assert!(fs::read(written).unwrap() == fs::read(place.at("big")).unwrap(), "{name}");
    }
}

#[test]
fn what_was_moved_out_of_an_image_survives_a_power_cut_of_the_host() {
    if !can_serve() || !can_mount() || !has("mkfs.xfs") || !has("xfs_io") {
        return;
    }
    let place = prepared();
    made(&place, &KINDS[0]);
    place.run(&["cp", "big", "template::/"]).ok();
    let small = Small::mount(&place, Misfortune::PowerCut);
    place.run(&["mv", "template::/old", "template::/big", "small"]).ok();
    small.end();
    for name in ["old", "big"] {
        let moved = place.at("small").join(name);
        assert!(fs::read(moved).unwrap() == fs::read(place.at(name)).unwrap(), "{name}");
    }
    assert_eq!(place.run(&["find", "template::/", "-type", "f"]).ok(), "");
}

#[test]
fn where_files_of_the_host_do_not_fit() {
    if !can_mount() || !has("fallocate") || !has("prlimit") {
        return;
    }
    let place = Place::new();
    place.file("big", vec![1; 8 << 20]);
    let small = Small::mount(&place, Misfortune::HostFull);
    small.fill(1 << 20);
    for command in ["cp", "mv"] {
        let said = place.run(&[command, "big", "small/copy"]);
        assert!(said.code == Some(1) && said.err.contains("No space left"), "{said:?}");
    }
    assert_eq!(fs::metadata(place.at("big")).unwrap().len(), 8 << 20);
    let limited = ["--fsize=1048576", PROGRAM, "cp", "big", "copy"];
    assert_ne!(place.run_as("prlimit", &limited).code, Some(0));
}

/// A host may be this machine: then both names are one file.
#[test]
fn a_file_that_is_its_own_copy_by_way_of_a_server_stays() {
    if !has("/usr/lib/openssh/sftp-server") {
        return;
    }
    let place = prepared();
    let server = ["--allow-programs", "--opt", "command=/usr/lib/openssh/sftp-server"];
    let there = format!("host:{}", place.at("").display());
    let (big, old) = (fs::read(place.at("big")).unwrap(), fs::read(place.at("old")).unwrap());
    for words in [
        &["cp", "big", "@"][..],
        &["cp", "@/big", "big"],
        &["cp", "-a", "@/big", "@/old", "."],
        &["cp", "--remove-destination", "big", "@"],
        &["cp", "--sparse=always", "big", "@"],
        &["mv", "big", "@"],
        &["mv", "@/big", "."],
    ] {
        let words: Vec<String> = words.iter().map(|word| word.replace('@', &there)).collect();
        let words: Vec<&str> = server.into_iter().chain(words.iter().map(String::as_str)).collect();
        let said = place.run(&words);
        assert!(fs::read(place.at("big")).unwrap() == big, "{words:?}: {said:?}");
        assert!(fs::read(place.at("old")).unwrap() == old, "{words:?}: {said:?}");
    }
}

#[test]
fn a_directory_is_not_moved_into_itself_by_way_of_a_server() {
    if !has("/usr/lib/openssh/sftp-server") {
        return;
    }
    let place = Place::new();
    place.file("d/sub/file", "content");
    let server = ["--allow-programs", "--opt", "command=/usr/lib/openssh/sftp-server"];
    let there = |host: &str| format!("{host}:{}", place.at("").display());
    for (from, to) in [
        ("d".to_owned(), format!("{}d/new", there("host"))),
        (format!("{}d", there("host")), "d/new".to_owned()),
        (format!("{}d", there("host")), format!("{}d/sub/new", there("other"))),
        (format!("{}d", there("host")), format!("{}d/sub", there("other"))),
    ] {
        let words = [&server[..], &["mv", &from, &to]].concat();
        assert!(place.run(&words).refused(1).contains("subdirectory of itself"), "{words:?}");
        assert_eq!(place.run_as("find", &["d", "-type", "f"]).ok(), "d/sub/file\n", "{words:?}");
    }
    let elsewhere = format!("{}moved", there("host"));
    place.run(&[&server[..], &["mv", "d", &elsewhere]].concat()).ok();
    assert_eq!(place.run_as("find", &["moved", "d", "-type", "f"]).out, "moved/sub/file\n");
}
