// SPDX-License-Identifier: MIT OR Apache-2.0
//! File systems on several images: made and checked by the system's own tools.

mod support;

use std::fs;
use support::{Place, can_mount, can_serve, has};

/// A place with sparse files of so many MiB.
fn with_files(files: &[(&str, u64)]) -> Place {
    let place = Place::new();
    for (name, mebibytes) in files {
        let path = place.file(name, "");
        fs::File::options().write(true).open(path).unwrap().set_len(mebibytes << 20).unwrap();
    }
    for number in 0..40_usize {
        place.file(&format!("src/dir{}/file{number}", number % 3), vec![number as u8; number * 5000]);
    }
    place
}

/// Runs a program of the system's administrator.
fn tool(place: &Place, words: &[&str]) -> String {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = place.command(words[0], &words[1..]).env("PATH", path).output().expect(words[0]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    said
}

/// Block devices of the host for files of a place.
struct Loops<'a>(&'a Place, Vec<String>);

impl<'a> Loops<'a> {
    fn of(place: &'a Place, files: &[&str]) -> Self {
        let mut loops = Loops(place, Vec::new());
        for file in files {
            let name = tool(place, &["losetup", "--find", "--show", file]);
            loops.1.push(name.trim().to_owned());
        }
        loops
    }
}

impl Drop for Loops<'_> {
    fn drop(&mut self) {
        for name in &self.1 {
            // The test has its own error to report.
            let _ = self.0.command("losetup", &["--detach", name]).output();
        }
    }
}

/// What comes out of an image is what went in.
fn must_hold_the_sources(place: &Place, option: &str, tree: &str) {
    place.run(&["cp", "-r", "--opt", option, tree, "back"]).ok();
    tool(place, &["diff", "-r", "src", "back"]);
    fs::remove_dir_all(place.at("back")).unwrap();
}

#[test]
fn btrfs_on_two_images_is_written_and_read_and_each_has_all() {
    if !can_serve() || !can_mount() || !has("mkfs.btrfs") || !has("losetup") {
        return;
    }
    let place = with_files(&[("one", 200), ("two", 200)]);
    tool(&place, &["mkfs.btrfs", "-q", "-d", "raid1", "-m", "raid1", "one", "two"]);
    place.run(&["cp", "-r", "--opt", "device=two", "src", "one::/"]).ok();
    place.run(&["mount", "-o", "device=two", "one", "m"]).ok();
    fs::rename(place.at("m/src"), place.at("m/moved")).unwrap();
    for image in ["one", "two"] {
        let complaint = place.run(&["rm", &format!("{image}::/file")]).refused(1);
        assert!(complaint.contains("another process uses this image"), "{complaint}");
    }
    place.run(&["umount", "m"]).ok();
    {
        let loops = Loops::of(&place, &["one", "two"]);
        tool(&place, &["btrfs", "check", "--readonly", &loops.1[0]]);
    }
    must_hold_the_sources(&place, "device=one", "two::/moved");
    for image in ["one::/moved", "two::/moved"] {
        must_hold_the_sources(&place, "degraded", image);
    }
    let complaint = place.run(&["ls", "one::/"]).refused(2);
    assert!(complaint.contains("device="), "{complaint}");
}

#[test]
fn the_journal_of_ext4_is_in_another_image() {
    if !can_serve() || !can_mount() || !has("mkfs.ext4") || !has("losetup") {
        return;
    }
    let place = with_files(&[("image", 100), ("journal", 16)]);
    tool(&place, &["mke2fs", "-q", "-O", "journal_dev", "-b", "4096", "journal"]);
    {
        let loops = Loops::of(&place, &["journal"]);
        tool(&place, &["mkfs.ext4", "-q", "-b", "4096", "-J", &format!("device={}", loops.1[0]), "image"]);
    }
    let empty = fs::read(place.at("journal")).unwrap();
    place.run(&["cp", "-r", "--opt", "journal_path=journal", "src", "image::/"]).ok();
    assert!(fs::read(place.at("journal")).unwrap() != empty, "nothing was written into the journal");
    tool(&place, &["e2fsck", "-fn", "-j", "journal", "image"]);
    must_hold_the_sources(&place, "journal_path=journal", "image::/src");
    let complaint = place.run(&["ls", "image::/"]).refused(2);
    assert!(complaint.contains("journal_path="), "{complaint}");
    let complaint = place.run(&["ls", "--opt", "journal_path=none", "image::/"]).refused(2);
    assert!(complaint.contains("journal_path=none: No such file"), "{complaint}");
}

#[test]
fn the_log_of_xfs_is_in_another_image() {
    if !can_serve() || !has("mkfs.xfs") {
        return;
    }
    let place = with_files(&[("image", 320), ("log", 80)]);
    tool(&place, &["mkfs.xfs", "-q", "-l", "logdev=log,size=64m", "image"]);
    place.run(&["cp", "-r", "--opt", "logdev=log", "src", "image::/"]).ok();
    tool(&place, &["xfs_repair", "-n", "-f", "-l", "log", "image"]);
    must_hold_the_sources(&place, "logdev=log", "image::/src");
    let complaint = place.run(&["ls", "image::/"]).refused(2);
    assert!(complaint.contains("logdev"), "{complaint}");
}

#[test]
fn the_content_of_xfs_is_in_another_image() {
    if !can_serve() || !has("mkfs.xfs") {
        return;
    }
    let place = with_files(&[("image", 320), ("content", 80)]);
    tool(&place, &["mkfs.xfs", "-q", "-m", "reflink=0", "-d", "rtinherit=1", "-r", "rtdev=content", "image"]);
    let empty = fs::read(place.at("content")).unwrap();
    place.run(&["cp", "-r", "--opt", "rtdev=content", "src", "image::/"]).ok();
    assert!(fs::read(place.at("content")).unwrap() != empty, "nothing was written into it");
    tool(&place, &["xfs_repair", "-n", "-f", "-r", "content", "image"]);
    must_hold_the_sources(&place, "rtdev=content", "image::/src");
    let complaint = place.run(&["ls", "image::/"]).refused(2);
    assert!(complaint.contains("rtdev"), "{complaint}");
}

#[test]
fn a_further_device_may_be_of_another_form() {
    if !can_serve() || !has("mkfs.btrfs") || !has("qemu-img") {
        return;
    }
    let place = with_files(&[("one", 200), ("two", 200)]);
    tool(&place, &["mkfs.btrfs", "-q", "-d", "raid1", "-m", "raid1", "one", "two"]);
    tool(&place, &["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "two", "above"]);
    place.run(&["cp", "-r", "--opt", "device=above", "src", "one::/"]).ok();
    tool(&place, &["qemu-img", "check", "-q", "above"]);
    for image in ["one::/src", "above::/src"] {
        must_hold_the_sources(&place, "degraded", image);
    }
}
