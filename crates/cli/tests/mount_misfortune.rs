// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts that meet with misfortune while they are written: writers get an error, what fsync(2) has promised is there afterwards,
//! unmounting returns, and no process is left.

mod support;

use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Place, can_mount, can_serve, has, is_running, kernel_code, mounted_ext4, signal, within};

/// What a writer writes in the end, if it can.
const BYTES: usize = 80 << 20;
/// How much it writes at once.
const PIECE: usize = 1 << 20;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misfortune {
    /// The host has less room than is written.
    HostFull,
    /// The tree has.
    TreeFull,
    /// The host grants less (`EDQUOT`).
    Quota,
    /// The file an image is in has lost its end.
    MediumGone,
    /// The mount is a read-only one.
    ReadOnly,
    /// The process that serves the mount is killed.
    Killed,
}

use Misfortune::{HostFull, Killed, MediumGone, Quota, ReadOnly, TreeFull};

/// A tree, the command that makes it, how large it is in MiB, and what can befall it.
struct Case {
    kind: &'static str,
    make: &'static [&'static str],
    size: u64,
    befalls: &'static [Misfortune],
}

const CASES: [Case; 10] = [
    Case { kind: "directory", make: &[], size: 0, befalls: &[HostFull, Quota, ReadOnly, Killed] },
    Case { kind: "mem:", make: &[], size: 0, befalls: &[TreeFull, ReadOnly, Killed] },
    Case {
        kind: "ext4",
        make: &["mkfs.ext4", "-q", "made"],
        size: 400,
        befalls: &[HostFull, Quota, MediumGone, ReadOnly, Killed],
    },
    Case { kind: "ext4 in less", make: &["mkfs.ext4", "-q", "made"], size: 16, befalls: &[TreeFull] },
    Case { kind: "xfs", make: &["mkfs.xfs", "-q", "made"], size: 400, befalls: &[HostFull, Killed] },
    Case { kind: "btrfs", make: &["mkfs.btrfs", "-q", "made"], size: 400, befalls: &[HostFull, Killed] },
    Case { kind: "vfat", make: &["mkfs.vfat", "made"], size: 200, befalls: &[HostFull, MediumGone, Killed] },
    Case { kind: "f2fs", make: &["mkfs.f2fs", "-q", "made"], size: 200, befalls: &[HostFull, Killed] },
    Case {
        kind: "qcow2",
        make: &["mkfs.ext4", "-q", "made"],
        size: 200,
        befalls: &[HostFull, Quota, ReadOnly, Killed],
    },
    Case { kind: "sftp", make: &[], size: 0, befalls: &[HostFull, Quota, ReadOnly, Killed] },
];

const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// Mounts a file system of 40 MiB on `small`; with a quota, one that is large and grants as much.
fn mount_small(place: &Place, misfortune: Misfortune) {
    fs::create_dir(place.at("small")).unwrap();
    if misfortune != Quota {
        place.run_as("mount", &["-t", "tmpfs", "-o", "size=40m", "tmpfs", "small"]).ok();
        return;
    }
    File::create(place.at("disk")).unwrap().set_len(400 << 20).unwrap();
    place.run_as("mkfs.btrfs", &["-q", "disk"]).ok();
    place.run_as("mount", &["-o", "loop", "disk", "small"]).ok();
    place.run_as("btrfs", &["quota", "enable", "small"]).ok();
    place.run_as("btrfs", &["qgroup", "limit", "40m", "small"]).ok();
}

impl Case {
    /// The tree in a host's directory that has little room, and its LOCATION.
    fn prepare(&self, place: &Place, misfortune: Misfortune) -> String {
        mount_small(place, misfortune);
        let small = place.at("small").display().to_string();
        let [program, arguments @ ..] = self.make else {
            return match self.kind {
                "mem:" => "mem:".into(),
                "sftp" => format!("host:{small}"),
                _ => small,
            };
        };
        File::create(place.at("made")).unwrap().set_len(self.size << 20).unwrap();
        place.run_as(program, arguments).ok();
        match self.kind {
            "qcow2" => place.run_as("qemu-img", &["convert", "-O", "qcow2", "made", "small/image"]).ok(),
            // Some programs write zeroes.
            _ => place.run_as("cp", &["--sparse=always", "made", "small/image"]).ok(),
        };
        format!("{small}/image")
    }

    /// A file of the tree, after the mount has ended; none where nothing can be there.
    fn read_back(&self, place: &Place, name: &str) -> Option<Vec<u8>> {
        match (self.kind, self.make) {
            ("mem:", _) => None,
            (_, []) => Some(fs::read(place.at("small").join(name)).unwrap()),
            _ => {
                place.run(&["cp", &format!("small/image::/{name}"), "back"]).ok();
                Some(fs::read(place.at("back")).unwrap())
            }
        }
    }

    fn options(&self, misfortune: Misfortune, guard: &str) -> String {
        let more = match misfortune {
            ReadOnly => ",ro",
            TreeFull if self.kind == "mem:" => ",size=8m",
            _ => "",
        };
        let server = if self.kind == "sftp" { format!(",command={SFTP_SERVER}") } else { String::new() };
        format!("guard={guard}{more}{server}")
    }

    fn can_run(&self) -> bool {
        let special = match self.kind {
            "sftp" => has(SFTP_SERVER),
            "qcow2" => has("qemu-img"),
            _ => true,
        };
        special && self.make.first().is_none_or(|program| can_serve() && has(program))
    }
}

fn piece(number: usize) -> Vec<u8> {
    (0..PIECE).map(|at| ((at * 31 + number * 7) % 251) as u8).collect()
}

/// Writes pieces with `meanwhile` after the first, then calls fsync(2) and close(2); gives the first error. A process that is
/// started before fsync(2) closes its copy of the descriptor, and asks for no answer.
fn write_file(path: &Path, meanwhile: impl FnOnce()) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&piece(0))?;
    meanwhile();
    (1..BYTES / PIECE).try_for_each(|number| file.write_all(&piece(number)))?;
    Command::new("true").status()?;
    file.sync_all()
}

/// One misfortune of one mount.
fn befall(case: &Case, misfortune: Misfortune, guard: &str) {
    let what = format!("{} {misfortune:?} guard={guard}", case.kind);
    eprintln!("{what}");
    let place = Place::new();
    let source = case.prepare(&place, misfortune);
    let options = case.options(misfortune, guard);
    place.run(&["mount", "-o", &options, &source, "m"]).ok();
    let server = place.server();
    let keeps = !matches!(misfortune, ReadOnly | MediumGone);
    if keeps {
        let mut kept = File::create(place.at("m/kept")).unwrap();
        kept.write_all(&piece(99)).and_then(|()| kept.sync_all()).unwrap();
    }
    let written = write_file(&place.at("m/file"), || match misfortune {
        MediumGone => File::options().write(true).open(&source).unwrap().set_len(1 << 20).unwrap(),
        Killed => signal(server, "KILL"),
        HostFull | TreeFull | Quota | ReadOnly => {}
    });
    let survives = misfortune == Killed && guard == "auto" && case.make.is_empty();
    if survives && case.kind == "mem:" {
        assert!(written.is_ok(), "{what}: {written:?}");
    } else {
        assert!(written.is_err() || misfortune == Killed, "{what}: everything was said to be written");
    }
    let server = if survives { place.server() } else { server };
    // What could not be written is an error here, too; that it returns is what counts.
    let said = place.run(&["umount", "m"]);
    assert!(!place.is_mounted(), "{what}: {said:?}");
    within("the processes end", || !is_running(server));
    if keeps {
        let kept = case.read_back(&place, "kept");
        assert!(kept.is_none_or(|kept| kept == piece(99)), "{what}: what was synced is lost");
    }
    if written.is_ok()
        && let Some(read) = case.read_back(&place, "file")
    {
        assert_eq!(read.len(), BYTES, "{what}");
        assert!(read.chunks(PIECE).enumerate().all(|(at, data)| data == piece(at)), "{what}");
    }
    place.unmount("small");
}

fn all(guard: &str) {
    if !can_mount() || !has("mkfs.btrfs") || !has("btrfs") {
        return;
    }
    for case in CASES.iter().filter(|case| case.can_run()) {
        for &misfortune in case.befalls {
            befall(case, misfortune, guard);
        }
    }
}

#[test]
fn unguarded_mounts_tell_the_truth_and_end() {
    all("none");
}

#[test]
fn guarded_mounts_tell_the_truth_and_end() {
    all("auto");
}

#[test]
fn umount_says_that_what_no_program_has_synced_is_lost() {
    if !can_mount() || !can_serve() || !has("mkfs.ext4") {
        return;
    }
    for guard in ["guard=auto", "guard=none"] {
        let place = Place::new();
        CASES[2].prepare(&place, HostFull);
        place.run(&["mount", "-o", guard, "small/image", "m"]).ok();
        let mut file = File::create(place.at("m/file")).unwrap();
        // Whether the error comes now or later, the content cannot be complete.
        let _ = (0..BYTES / PIECE).try_for_each(|number| file.write_all(&piece(number)));
        drop(file);
        let said = place.run(&["umount", "m"]).refused(1);
        assert!(said.contains("No space left on device"), "{guard}: {said}");
        place.unmount("small");
    }
}

/// Without the helper of umount(8), whatever unmounts.
#[test]
fn an_image_is_whole_for_a_program_that_opens_it_after_umount() {
    for guard in ["guard=auto", "guard=none"] {
        let Some(place) = mounted_ext4(&["-o", guard]) else { return };
        let content = piece(3).repeat(24);
        fs::write(place.at("m/file"), &content).unwrap();
        // A process that another test just starts has a copy of the descriptor for a moment.
        let unmount = || rustix::mount::unmount(place.at("m"), rustix::mount::UnmountFlags::empty());
        within("nothing in the mount is open", || unmount().is_ok());
        fs::copy(place.at("image"), place.at("copy")).unwrap();
        place.run_as("e2fsck", &["-fn", "copy"]).ok();
        place.run(&["cp", "copy::/file", "back"]).ok();
        assert!(fs::read(place.at("back")).unwrap() == content, "{guard}");
        // The next mount waits by itself.
        place.run(&["mount", "-o", guard, "image", "m"]).ok();
        assert!(fs::read(place.at("m/file")).unwrap() == content, "{guard}");
        place.run(&["umount", "m"]).ok();
    }
}

/// As after a power cut: without unmounting, the image is what it is at some moment after fsync(2).
#[test]
fn what_was_synced_is_in_a_copy_of_the_image() {
    if !can_mount() {
        return;
    }
    for case in CASES.iter().filter(|case| case.size >= 200 && case.can_run()) {
        let place = Place::new();
        case.prepare(&place, HostFull);
        place.run(&["mount", "small/image", "m"]).ok();
        for number in 0..3 {
            let mut file = File::create(place.at("m").join(number.to_string())).unwrap();
            file.write_all(&piece(number)).and_then(|()| file.sync_all()).unwrap();
            place.run_as("cp", &["--sparse=always", "small/image", "copy"]).ok();
            for earlier in 0..=number {
                place.run(&["cp", &format!("copy::/{earlier}"), "back"]).ok();
                let same = fs::read(place.at("back")).unwrap() == piece(earlier);
                assert!(same, "{}: {earlier} after {number}", case.kind);
            }
        }
        place.run(&["umount", "m"]).ok();
        place.run(&["touch", "copy::/written"]).ok();
        assert_eq!(
            place.run(&["ls", "-I", "lost+found", "copy::/"]).ok(),
            "0\n1\n2\nwritten\n",
            "{}",
            case.kind
        );
        place.unmount("small");
    }
}

#[test]
fn a_mounted_image_can_be_opened_by_others_at_once() {
    let Some(place) = mounted_ext4(&[]) else { return };
    for _ in 0..3 {
        assert_eq!(fs::read(place.at("image")).unwrap().len(), 64 << 20);
    }
    fs::write(place.at("m/file"), "content").unwrap();
    place.run(&["umount", "m"]).ok();
}

#[test]
fn umount_names_a_process_that_has_the_mount_in_another_namespace() {
    let Some(place) = mounted_ext4(&[]) else { return };
    if !has("unshare") {
        return;
    }
    let server = place.server();
    let mut elsewhere = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", "echo; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0];
    io::Read::read_exact(elsewhere.stdout.as_mut().unwrap(), &mut begun).unwrap();
    let complaint = place.run(&["umount", "m"]).refused(1);
    assert!(complaint.contains(&format!("process {} (sh) has the mount", elsewhere.id())), "{complaint}");
    assert!(!place.is_mounted() && is_running(server));
    drop(elsewhere.stdin.take());
    elsewhere.wait().unwrap();
    within("the mount's process ends", || !is_running(server));
}

/// A process that a signal has stopped, until this is dropped: else each later `status` of this user would name it.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal(pid, "STOP");
        Stopped(pid)
    }

    /// It goes on, and ends.
    fn ends(self) {
        let pid = self.0;
        drop(self);
        within("it ends", || !is_running(pid));
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = Command::new("kill").args(["-s", "CONT", &self.0.to_string()]).output();
    }
}

#[test]
fn umount_names_a_keeper_that_is_stopped() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m"]).ok();
    let status = place.run(&["status", "--json", "m"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let keeper = status["guard"]["keeper"].as_u64().unwrap() as u32;
    let stopped = Stopped::new(keeper);
    let complaint = place.run(&["umount", "m"]).refused(1);
    assert!(complaint.contains(&format!("process {keeper} is stopped")), "{complaint}");
    stopped.ends();
}

#[test]
fn umount_and_status_name_a_server_that_is_stopped() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for options in ["guard=none", "guard=auto"] {
        place.run(&["mount", "-o", options, "mem:", "m"]).ok();
        let server = place.server();
        let stopped = Stopped::new(server);
        let complaint = place.run(&["umount", "m"]).refused(1);
        assert!(complaint.contains(&format!("unmounted, but process {server} is stopped")), "{complaint}");
        assert!(!place.is_mounted());
        // The next mount may get the number of the connection, and has the same name.
        place.run(&["mount", "mem:", "m"]).ok();
        let gone = format!("process {server}, whose mount is gone, is stopped");
        within("the next mount answers in time", || {
            let status = place.run(&["status"]);
            let about: Vec<&str> =
                status.err.lines().filter(|line| line.contains(&format!("process {server}"))).collect();
            assert!(matches!(about[..], [line] if line.contains(&gone)), "{status:?}");
            assert_eq!(status.code, Some(1), "one of the mounts does not answer");
            status.out.contains(&*place.at("m").to_string_lossy())
        });
        place.run(&["umount", "m"]).ok();
        // Not even if the next mount dies, and cannot be asked either.
        fs::create_dir_all(place.at("other")).unwrap();
        place.run(&["mount", "--no-guard", "mem:", "other"]).ok();
        let died = place.run(&["status", "--json", "other"]).ok();
        let died = serde_json::from_str::<serde_json::Value>(&died).unwrap()["pid"].as_u64().unwrap() as u32;
        signal(died, "KILL");
        within("it died", || !is_running(died));
        place.run(&["umount", "other"]).ok();
        stopped.ends();
    }
}

/// A program that has given up holding an image back may go on: nothing is lost when the host has room again.
#[test]
fn a_guarded_image_on_a_full_host_is_written_when_there_is_room_again() {
    if !can_mount() || !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let (case, place) = (&CASES[2], Place::new());
    case.prepare(&place, HostFull);
    place.run(&["mount", "small/image", "m"]).ok();
    let code = kernel_code(&place);
    let stuffing = File::create(place.at("small/stuffing")).unwrap();
    while rustix::fs::fallocate(
        &stuffing,
        FallocateFlags::empty(),
        0,
        stuffing.metadata().unwrap().len() + (1 << 20),
    )
    .is_ok()
    {}
    let mut file = File::create(place.at("m/file")).unwrap();
    file.write_all(&piece(1).repeat(4)).unwrap();
    let refused = file.sync_all().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    assert!(file.write_all(&piece(2)).is_err(), "what is written next would be lost, too");
    fs::remove_file(place.at("small/stuffing")).unwrap();
    drop(stuffing);
    file.sync_all().unwrap();
    file.write_all(&piece(2)).unwrap();
    drop(file);
    assert!(is_running(code));
    place.run(&["umount", "m"]).ok();
    place.run_as("e2fsck", &["-fn", "small/image"]).ok();
    place.unmount("small");
}
