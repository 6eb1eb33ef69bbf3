// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images that something else uses, and what an image cannot be opened without.

mod support;

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{PROGRAM, Place, can_mount, can_serve, has, mounted_ext4};

fn blank(place: &Place, mebibytes: u64) {
    let path = place.file("image", "");
    File::options().write(true).open(path).unwrap().set_len(mebibytes << 20).unwrap();
}

/// A loop device of the host, detached when this is dropped.
struct Loop<'a>(&'a Place, String);

impl<'a> Loop<'a> {
    fn of(place: &'a Place, file: &str) -> Self {
        Loop::with(place, &[file])
    }

    fn with(place: &'a Place, options: &[&str]) -> Self {
        let name = place.run_as("losetup", &[&["--find", "--show"], options].concat()).ok();
        Loop(place, name.trim().to_owned())
    }

    /// A path in the file system on it.
    fn path(&self, path: &str) -> String {
        format!("{}::{path}", self.1)
    }
}

impl Drop for Loop<'_> {
    /// Ends when the device has no file any more: while another process has it open, as `losetup --find` does for a moment,
    /// the kernel detaches it later.
    fn drop(&mut self) {
        let _ = self.0.command("umount", &["m"]).output();
        let _ = self.0.command("losetup", &["--detach", &self.1]).output();
        let attached = Path::new("/sys/block").join(&self.1["/dev/".len()..]).join("loop/backing_file");
        let deadline = Instant::now() + Duration::from_secs(30);
        while fs::read(&attached).is_ok_and(|file| file.starts_with(self.0.at("").as_os_str().as_bytes()))
            && Instant::now() < deadline
        {
            std::thread::yield_now();
        }
    }
}

/// An ext4 of this many MiB in `image`, and a file `file`.
fn with_ext4(mebibytes: u64) -> Option<Place> {
    if !can_serve() || !can_mount() || !has("mkfs.ext4") || !has("losetup") {
        return None;
    }
    let place = Place::new();
    place.file("file", "content");
    blank(&place, mebibytes);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    Some(place)
}

#[test]
fn what_the_host_has_mounted_is_not_written() {
    let Some(place) = with_ext4(64) else { return };
    fs::create_dir(place.at("other")).unwrap();
    {
        let device = Loop::of(&place, "image");
        let attached = place.run(&["cp", "file", "image::/"]).refused(1);
        assert!(attached.contains(&device.1), "{attached}");
        place.run_as("mount", &[&device.1, "m"]).ok();
        let inside = format!("{}::/", device.1);
        for tree in ["image::/", &inside] {
            let before = fs::read(place.at("image")).unwrap();
            let refused = place.run(&["cp", "file", tree]).refused(1);
            assert!(refused.contains("mounted at") && refused.contains("/m"), "{tree}: {refused}");
            assert_ne!(place.run(&["mount", tree.trim_end_matches("::/"), "other"]).code, Some(0));
            assert!(before == fs::read(place.at("image")).unwrap(), "{tree} was written");
            let looked = place.run(&["ls", tree]);
            assert_eq!(looked.code, Some(0), "{looked:?}");
            assert!(looked.err.contains("may change while it is read"), "{looked:?}");
        }
    }
    place.run(&["cp", "file", "image::/"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
}

#[test]
fn one_file_is_not_written_by_two_loop_devices() {
    let Some(place) = with_ext4(64) else { return };
    let (one, two) = (Loop::of(&place, "image"), Loop::of(&place, "image"));
    place.run(&["mount", &one.1, "m"]).ok();
    let refused = place.run(&["cp", "file", &two.path("/")]).refused(1);
    assert!(refused.contains(&format!("{} is a loop device of the same file", one.1)), "{refused}");
    fs::write(place.at("m/kept"), "kept").unwrap();
    place.run(&["umount", "m"]).ok();
    place.run(&["cp", "file", &two.path("/")]).ok();
    assert_eq!(place.run(&["cat", &two.path("/kept"), &two.path("/file")]).ok(), "keptcontent");
    place.run_as("mount", &[&one.1, "m"]).ok();
    let refused = place.run(&["cp", "file", &two.path("/more")]).refused(1);
    assert!(refused.contains(&one.1) && refused.contains("the host has it mounted at"), "{refused}");
    place.run_as("umount", &["m"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
}

#[test]
fn loop_devices_of_different_parts_of_a_file_are_written_at_once() {
    let Some(place) = with_ext4(32) else { return };
    blank(&place, 64);
    place.run_as("mkfs.ext4", &["-q", "-F", "image", "32m"]).ok();
    place.run_as("mkfs.ext4", &["-q", "-F", "-E", "offset=33554432", "image", "32m"]).ok();
    let first = Loop::with(&place, &["--sizelimit=33554432", "image"]);
    let second = Loop::with(&place, &["--offset=33554432", "image"]);
    let all = Loop::of(&place, "image");
    place.run(&["mount", &first.1, "m"]).ok();
    place.run(&["cp", "file", &second.path("/")]).ok();
    let refused = place.run(&["cp", "file", &all.path("/")]).refused(1);
    assert!(refused.contains(&first.1), "{refused}");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_loop_device_of_an_image_in_use_is_not_written() {
    let Some(place) = with_ext4(64) else { return };
    place.run(&["mount", "image", "m"]).ok();
    let late = Loop::of(&place, "image");
    let refused = place.run(&["cp", "file", &late.path("/")]).refused(1);
    assert!(refused.contains("it is a loop device of") && refused.contains("another process"), "{refused}");
    place.run(&["umount", "m"]).ok();
    place.run(&["cp", "file", &late.path("/")]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
}

#[test]
fn who_has_an_image_is_said() {
    let Some(place) = mounted_ext4(&[]) else { return };
    let complaint = place.run(&["mkdir", "image::/dir"]).refused(1);
    assert!(complaint.contains("another process uses this image (process "), "{complaint}");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn without_the_program_that_serves_images_nothing_succeeds() {
    if !can_serve() || !has("mkfs.ext4") || !has("sfdisk") {
        return;
    }
    let place = one_partition();
    for words in [
        &["cp", "-a", "image::/", "out"][..],
        &["ls", "-l", "image::/"],
        &["find", "image::/"],
        &["du", "image::/"],
    ] {
        let output = place.command(PROGRAM, words).env("OUTRIGGER_KERNEL", "/none").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("outrigger-kernel"), "{words:?}: {said}");
    }
    let doctor = place.command(PROGRAM, &["doctor"]).env("OUTRIGGER_KERNEL", "/none").output().unwrap();
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(found.contains("FAILED   disk images"), "{found}");
    assert!(place.run(&["doctor"]).out.contains("ok       disk images"));
}

#[test]
fn an_option_that_no_partition_takes_is_refused_at_once() {
    if !can_serve() || !can_mount() || !has("mkfs.ext4") || !has("sfdisk") {
        return;
    }
    let place = one_partition();
    let refused = place.run(&["mount", "image", "m", "-o", "bogus"]);
    assert!(refused.code != Some(0) && refused.err.contains("bogus"), "{refused:?}");
    assert!(!place.is_mounted());
}

/// A place with an image that has one partition, with ext4.
fn one_partition() -> Place {
    let place = Place::new();
    blank(&place, 64);
    let table = place.file("table", "label: gpt\nstart=2048, size=100000\n");
    let mut sfdisk = place.command("sfdisk", &["-q", "image"]);
    assert!(sfdisk.stdin(File::open(table).unwrap()).status().unwrap().success());
    place.run_as("mkfs.ext4", &["-q", "-E", "offset=1048576", "image", "50000k"]).ok();
    place
}
