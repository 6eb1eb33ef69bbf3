// SPDX-License-Identifier: MIT OR Apache-2.0
//! Subvolumes of btrfs: each numbers its files anew, and in a mount and for a command all files of an image are distinct.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use support::{PROGRAM, Place, can_mount, can_serve, has};

/// Runs a program that must succeed; gives what it said.
fn host(place: &Place, words: &[&str]) -> Vec<u8> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = place.command(words[0], &words[1..]).env("PATH", path).output().expect(words[0]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    output.stdout
}

/// What the host's tar makes of `mount` is unpacked here, sorted by name: names, contents, and how many names a file has.
fn packed(place: &Place, mount: &str) -> Vec<(String, String, u64)> {
    let unpacked = place.at("unpacked");
    fs::create_dir(&unpacked).unwrap();
    host(place, &["tar", "-C", mount, "-cf", "all.tar", "."]);
    host(place, &["tar", "-C", "unpacked", "-xf", "all.tar"]);
    let listed = listed(&unpacked);
    fs::remove_dir_all(&unpacked).unwrap();
    listed
}

/// The regular files below a directory.
fn listed(dir: &Path) -> Vec<(String, String, u64)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let below = listed(&path).into_iter();
            files.extend(below.map(|(rest, content, links)| (format!("{name}/{rest}"), content, links)));
        } else {
            files.push((name, fs::read_to_string(&path).unwrap(), path.metadata().unwrap().nlink()));
        }
    }
    files.sort();
    files
}

/// An image with two subvolumes whose files have the same numbers and several names, one within one of them, and a snapshot;
/// and what the host says is in it. None where that cannot be made.
fn image(place: &Place) -> Option<Vec<(String, String, u64)>> {
    if !can_serve() || !can_mount() || !has("mkfs.btrfs") || !has("btrfs") {
        return None;
    }
    let path = place.file("image", "");
    fs::File::options().write(true).open(path).unwrap().set_len(128 << 20).unwrap();
    host(place, &["mkfs.btrfs", "-q", "image"]);
    fs::create_dir(place.at("h")).unwrap();
    if !place.command("mount", &["-o", "loop", "image", "h"]).status().unwrap().success() {
        println!("SKIPPED: the host does not mount btrfs");
        return None;
    }
    for volume in ["h/a", "h/b", "h/a/inner"] {
        host(place, &["btrfs", "subvolume", "create", volume]);
        fs::write(place.at(volume).join("f"), volume).unwrap();
        fs::hard_link(place.at(volume).join("f"), place.at(volume).join("same")).unwrap();
    }
    host(place, &["btrfs", "subvolume", "snapshot", "h/a", "h/snap"]);
    fs::write(place.at("h/snap/f"), "changed since").unwrap();
    let expected = packed(place, "h");
    host(place, &["umount", "h"]);
    assert_eq!(expected.len(), 8);
    Some(expected)
}

fn numbers(dir: &Path) -> Vec<u64> {
    ["a/f", "b/f", "snap/f", "a/inner/f"].map(|name| dir.join(name).metadata().unwrap().ino()).to_vec()
}

#[test]
fn files_of_subvolumes_are_told_apart_by_what_looks_for_several_names_of_one() {
    let place = Place::new();
    let Some(expected) = image(&place) else { return };
    let mut before = None;
    for options in ["ro", "guard", "rw", "guard"] {
        host(&place, &[PROGRAM, "mount", "-o", options, "image", "m"]);
        let (packed, numbers) = (packed(&place, "m"), numbers(&place.at("m")));
        host(&place, &[PROGRAM, "umount", "m"]);
        assert_eq!(packed, expected, "{options}");
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), numbers.len(), "{options}: {numbers:?}");
        assert_eq!(before.get_or_insert_with(|| numbers.clone()), &numbers, "{options}");
    }
    host(&place, &[PROGRAM, "cp", "-a", "image::/", "copied"]);
    assert_eq!(listed(&place.at("copied")), expected);
}

/// The numbers do not depend on the order in which the process that serves has met the subvolumes.
#[test]
fn numbers_of_files_in_subvolumes_outlive_the_process_that_serves_them() {
    let place = Place::new();
    if image(&place).is_none() {
        return;
    }
    host(&place, &[PROGRAM, "mount", "-o", "guard", "image", "m"]);
    let before = numbers(&place.at("m"));
    let image = fs::canonicalize(place.at("image")).unwrap();
    let serves = |pid: &String| fs::read_link(format!("/proc/{pid}/fd/0")).is_ok_and(|file| file == image);
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let all = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let workers: Vec<String> = all.filter(serves).collect();
    assert!(!workers.is_empty());
    for pid in &workers {
        host(&place, &["kill", "-KILL", pid]);
    }
    assert_eq!(place.at("m/snap/f").metadata().unwrap().ino(), before[2]);
    fs::write(place.at("m/b/new"), "new").unwrap();
    assert_eq!(numbers(&place.at("m")), before);
    host(&place, &[PROGRAM, "umount", "m"]);
}
